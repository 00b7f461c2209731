"""Is a GGUF file sound? Its header is walked once, before the `gguf` library reads it.

That library trusts the file: a length field turned by one bit makes it loop over 2^60 elements, or fail with
an error that says nothing. So every length is first held against the size of the file. Layout, little-endian:

    magic "GGUF" | version u32 | tensor count u64 | key count u64
    per key:     name (length u64, bytes) | type u32 | value
    per tensor:  name | number of dimensions u32 | each u64, innermost first | type u32 | offset u64
    padding to the alignment | data; each tensor at its offset from here

Source: docs/gguf.md of the ggml project.
"""

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minillm.errors import InputError

MAGIC, VERSIONS = b"GGUF", (2, 3)
# Value types: how `struct` writes each kind of number (7 is a truth value), how many bytes it has; and the two types
# that have a length of their own.
NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
NUMBER_BYTES = {kind: struct.calcsize(f"<{letter}") for kind, letter in NUMBER_FORMATS.items()}
STRING, ARRAY = 8, 9
DEFAULT_ALIGNMENT = 32
# The library makes several objects per array element. In real files the arrays are the vocabulary, its scores
# and types, and the merges: 1.3 million elements together for the largest vocabularies there are.
MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES, MAX_DIMENSIONS = 4_000_000, 64 << 20, 4


class _Walker:
    """Steps through the bytes of a header; any step beyond the end, or of impossible length, raises
    InputError.
    """

    def __init__(self, path: Path, data: mmap.mmap, keeps_arrays: bool):
        self.path, self.data, self.position, self.keeps_arrays = path, data, 0, keeps_arrays
        self.elements_left = MAX_ARRAY_ELEMENTS

    def fail(self, problem: str) -> InputError:
        return InputError(f"{self.path} is not a usable GGUF file ({problem}): fetch it again")

    def skip(self, size: int) -> int:
        """Move on by `size` bytes; returns where they began."""
        start = self.position
        if size > len(self.data) - start:
            raise self.fail("truncated, or a length in it is wrong")
        self.position = start + size
        return start

    def u32(self) -> int:
        return struct.unpack_from("<I", self.data, self.skip(4))[0]

    def u64(self) -> int:
        return struct.unpack_from("<Q", self.data, self.skip(8))[0]

    def string(self) -> bytes:
        size = self.u64()
        if size > MAX_STRING_BYTES:
            raise self.fail(f"a string of {size} bytes")
        start = self.skip(size)
        return self.data[start : start + size]

    def text(self) -> str:
        try:
            return self.string().decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("a name that is not UTF-8") from None

    def value(self, kind: int) -> "Value":
        """A number, a text, an array, or how long an array is."""
        if kind in NUMBER_BYTES:
            return struct.unpack_from(f"<{NUMBER_FORMATS[kind]}", self.data, self.skip(NUMBER_BYTES[kind]))[0]
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            values, length = self.array(self.u32(), self.u64())
            return values if self.keeps_arrays else Array(length)
        raise self.fail(f"value type {kind} is unknown")

    def array(self, kind: int, length: int) -> tuple[list[Any], int]:
        """Its elements, if they are kept, and how many it has."""
        if length > self.elements_left:
            raise self.fail(f"an array of {length} elements")
        self.elements_left -= length
        if kind in NUMBER_BYTES:
            start = self.skip(NUMBER_BYTES[kind] * length)
            numbers = struct.unpack_from(f"<{length}{NUMBER_FORMATS[kind]}", self.data, start)
            return list(numbers) if self.keeps_arrays else [], length
        if kind != STRING:
            raise self.fail(f"an array of value type {kind}")
        texts = [self.text() for _ in range(length)]
        return texts if self.keeps_arrays else [], length

    def tensor(self) -> tuple[str, tuple[tuple[int, ...], int], int]:
        """Its name, its shape as the file has it (innermost first) and its type, and its offset in the data."""
        name, dimensions = self.text(), self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {dimensions} dimensions")
        shape = [self.u64() for _ in range(dimensions)]
        if any(not 0 < size < 2**31 for size in shape):
            raise self.fail(f"tensor {name!r} has the shape {shape}")
        kind = self.u32()
        return name, (tuple(shape), kind), self.u64()  # the caller checks where data ends


@dataclass(frozen=True)
class Array:
    """What is kept of an array unless it is asked for: how many elements it has."""

    length: int


Value = int | float | str | Array | list[Any]


@dataclass(frozen=True)
class Header:
    """What a header says: its keys, and each tensor's shape (innermost first) and type.

    Enough to say how large a model is, without the `gguf` library, which makes an object of every token.
    """

    metadata: dict[str, Value]
    tensors: dict[str, tuple[tuple[int, ...], int]]
    offsets: dict[str, int] = field(default_factory=dict)  # of each tensor in the file, in bytes


def check_header(path: Path) -> None:
    """Raise InputError, in one sentence, unless the header of this file is whole and of plausible lengths."""
    read_header(path)


def read_header(path: Path, keeps_arrays: bool = False) -> Header:
    """The header of a GGUF file; keeps_arrays: with the vocabulary, which is most of it.

    Raises InputError as `check_header` does.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise InputError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _walk(_Walker(path, data, keeps_arrays))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _walk(walker: _Walker) -> Header:
    walker.skip(len(MAGIC))
    version = walker.u32()
    if version not in VERSIONS:
        raise walker.fail(f"version {version}, where 2 and 3 are known")
    tensor_count, key_count = walker.u64(), walker.u64()
    metadata: dict[str, Value] = {}
    tensors: dict[str, tuple[tuple[int, ...], int]] = {}
    offsets: dict[str, int] = {}
    for _ in range(key_count):  # a count that is too large runs into the end of the file
        key = walker.text()
        metadata[key] = walker.value(walker.u32())
    for _ in range(tensor_count):
        name, tensor, offset = walker.tensor()
        tensors[name], offsets[name] = tensor, offset
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):  # a power of two has one bit
        raise walker.fail(f"an alignment of {alignment}")
    start = -(-walker.position // alignment) * alignment
    return Header(metadata, tensors, {name: start + offset for name, offset in offsets.items()})
