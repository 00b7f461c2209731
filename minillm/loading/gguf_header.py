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
from pathlib import Path

from minillm.errors import InputError

MAGIC, VERSIONS = b"GGUF", (2, 3)
# Value types: how many bytes a number has; and the two that have a length of their own.
NUMBER_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
# The library makes several objects per array element. In real files the arrays are the vocabulary, its scores
# and types, and the merges: 1.3 million elements together for the largest vocabularies there are.
MAX_ARRAY_ELEMENTS, MAX_STRING_BYTES, MAX_DIMENSIONS = 4_000_000, 64 << 20, 4


class _Walker:
    """Steps through the bytes of a header; any step beyond the end, or of impossible length, raises
    InputError.
    """

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.position = path, data, 0
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

    def value(self, kind: int) -> None:
        if kind in NUMBER_BYTES:
            self.skip(NUMBER_BYTES[kind])
        elif kind == STRING:
            self.text()
        elif kind == ARRAY:
            self.array(self.u32(), self.u64())
        else:
            raise self.fail(f"value type {kind} is unknown")

    def array(self, kind: int, length: int) -> None:
        if length > self.elements_left:
            raise self.fail(f"an array of {length} elements")
        self.elements_left -= length
        if kind in NUMBER_BYTES:
            self.skip(NUMBER_BYTES[kind] * length)
        elif kind == STRING:
            for _ in range(length):
                self.text()
        else:
            raise self.fail(f"an array of value type {kind}")

    def tensor(self) -> None:
        name, dimensions = self.text(), self.u32()
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.fail(f"tensor {name!r} has {dimensions} dimensions")
        shape = [self.u64() for _ in range(dimensions)]
        if any(not 0 < size < 2**31 for size in shape):
            raise self.fail(f"tensor {name!r} has the shape {shape}")
        self.skip(4 + 8)  # type and offset: the library knows the types, and the caller checks where data ends


def check_header(path: Path) -> None:
    """Raise InputError, in one sentence, unless the header of this file is whole and of plausible lengths."""
    try:
        with path.open("rb") as file:
            if file.read(4) != MAGIC:
                raise InputError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _walk(_Walker(path, data))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _walk(walker: _Walker) -> None:
    walker.skip(len(MAGIC))
    version = walker.u32()
    if version not in VERSIONS:
        raise walker.fail(f"version {version}, where 2 and 3 are known")
    tensor_count, key_count = walker.u64(), walker.u64()
    for _ in range(key_count):  # a count that is too large runs into the end of the file
        walker.text()
        walker.value(walker.u32())
    for _ in range(tensor_count):
        walker.tensor()
