"""The tensors of a checkpoint as they are stored, from the headers of its files."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from minillm.errors import InputError
from minillm.loading.files import read_json_object
from minillm.loading.gguf_header import Header
from minillm.loading.shards import INDEX, SINGLE, shards_of, without_weights

# Bits per number of safetensors' dtypes.
BITS = {"BOOL": 8, "I8": 8, "U8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64}
BITS |= {"F4": 4, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64}
FLOATING = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class StoredTensor:
    """`shape` has the outermost dimension first; `bytes` is None for a format whose size is not known here."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int | None

    @property
    def numbers(self) -> int:
        """How many numbers it holds: parameters, unless it is packed."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stored:
    """`tensors` is None where nothing is known of them; `problem` says in a sentence what is missing."""

    tensors: tuple[StoredTensor, ...] | None
    problem: str | None = None

    @property
    def total_bytes(self) -> int | None:
        """All of them; None where a size is not known."""
        sizes = [None] if self.tensors is None else [tensor.bytes for tensor in self.tensors]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def read_directory(directory: Path) -> Stored:
    """The tensors of a safetensors directory.

    Raises InputError where a file is damaged. What is missing is no error: it is the `problem`.
    """
    if (directory / SINGLE).is_file():
        return Stored(tuple(_read_file(directory / SINGLE)))
    if not (directory / INDEX).is_file():
        names = [file.name for file in directory.iterdir() if file.is_file()]
        return Stored(None, str(without_weights(f"the directory {directory}", names)))
    shards = shards_of(directory / INDEX, read_json_object(directory / INDEX))
    missing = [shard for shard in shards if not (directory / shard).is_file()]
    if missing:
        return Stored(None, f"{INDEX} names the file {missing[0]}, which is not there: fetch it")
    return Stored(tuple(tensor for shard in shards for tensor in _read_file(directory / shard)))


def _read_file(file: Path) -> Iterable[StoredTensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                header = opened.get_slice(name)
                yield stored_tensor(name, header.get_shape(), header.get_dtype())
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file ({error}): fetch it again") from None


def stored_tensor(name: str, shape: Sequence[int], dtype: str) -> StoredTensor:
    """A tensor of safetensors."""
    bits = BITS.get(dtype)
    return StoredTensor(name, tuple(shape), dtype, None if bits is None else math.prod(shape) * bits // 8)


def read_gguf(path: Path, header: Header) -> Stored:
    """The tensors of a GGUF file. Raises InputError where one of them lies beyond its end."""
    tensors = tuple(_gguf_tensor(name, *tensor) for name, tensor in header.tensors.items())
    for tensor in tensors:
        if header.offsets[tensor.name] + (tensor.bytes or 0) > path.stat().st_size:
            raise InputError(f"{path} is truncated: tensor {tensor.name} lies beyond its end; fetch it again")
    parts = header.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        return Stored(tensors, f"{path.name} is one of {parts} parts: join them with `llama-gguf-split --merge`")
    return Stored(tensors)


def _gguf_tensor(name: str, innermost_first: tuple[int, ...], kind: int) -> StoredTensor:
    import gguf  # knows every format of llama.cpp, and needs no torch

    shape = tuple(reversed(innermost_first))
    try:
        known = gguf.GGMLQuantizationType(kind)
    except ValueError:
        return StoredTensor(name, shape, f"type {kind}", None)
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[known]
    return StoredTensor(name, shape, known.name, math.prod(shape) // block_values * block_bytes)


def by_dtype(tensors: Iterable[StoredTensor]) -> dict[str, tuple[int, int | None]]:
    """For each dtype, the largest first: how many tensors, and their bytes."""
    counts: dict[str, tuple[int, int | None]] = {}
    for tensor in tensors:
        count, size = counts.get(tensor.dtype, (0, 0))
        counts[tensor.dtype] = count + 1, None if size is None or tensor.bytes is None else size + tensor.bytes
    return dict(sorted(counts.items(), key=lambda entry: -(entry[1][1] or 0)))
