"""Tensors of a safetensors directory: `model.safetensors`, or, where there is none, the shards that the index names.

The files are memory-mapped by the `safetensors` library. Pages of a mapped file count as this process's
memory for as long as the mapping lives, so each piece of a tensor gets its own short-lived mapping: opening
costs 0.1 ms.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from minillm.errors import InputError, MissingError
from minillm.loading.checkpoint import rows_per_piece
from minillm.loading.files import read_json_object
from minillm.loading.shards import INDEX, SINGLE, gguf_files, weight_map_of, without_weights
from minillm.quantization import QuantizedWeight

BYTES_PER_VALUE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class _Entry:
    """Where one tensor lies, and what it is, as the header of its file says."""

    file: Path
    shape: tuple[int, ...]
    bytes_per_value: int


class SafetensorsSource:
    """The tensors of a directory; see `TensorSource`.

    Raises MissingError where the weights or a shard are not there, InputError where a file is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self._entries = _locate(path)

    def names(self) -> list[str]:
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def pieces(self, name: str) -> Iterator[Tensor]:
        entry = self._entries[name]
        rows, *row_shape = entry.shape
        step = rows_per_piece(math.prod(row_shape) * entry.bytes_per_value)
        for start in range(0, rows, step):
            with safe_open(entry.file, framework="pt") as file:
                yield file.get_slice(name)[start : start + step]

    def format(self, name: str) -> None:
        """Numbers only: this engine reads no quantized safetensors."""

    def quantized_pieces(self, name: str) -> Iterator[QuantizedWeight]:
        raise NotImplementedError(f"{name} is not quantized")


def _locate(path: Path) -> dict[str, _Entry]:
    """Find every tensor of a directory. Files that the index does not name are not looked at."""
    if (path / SINGLE).is_file():
        return _read_header(path / SINGLE)
    if (path / INDEX).is_file():
        return _locate_shards(path)
    names = [file.name for file in path.iterdir() if file.is_file()]
    if gguf := gguf_files(names):
        raise InputError(f"the directory {path} has its weights as GGUF: name the file itself, {path / gguf[0]}")
    raise without_weights(f"the directory {path}", names)


def _locate_shards(path: Path) -> dict[str, _Entry]:
    """Follow the index, and check that index and shards name the same tensors, each in the same file."""
    index = path / INDEX
    weight_map = weight_map_of(index, read_json_object(index))
    entries: dict[str, _Entry] = {}
    for shard in sorted(set(weight_map.values())):
        if not (path / shard).is_file():
            raise MissingError(
                f"{index} names the file {shard}, which is not there: fetch it, or the whole model again"
            )
        for name, entry in _read_header(path / shard).items():
            if weight_map.get(name) != shard:
                raise InputError(f"{shard} holds the tensor {name}, which {index} puts in {weight_map.get(name)!r}")
            entries[name] = entry
    absent = sorted(weight_map.keys() - entries.keys())
    if absent:
        raise InputError(f"{index} puts the tensor {absent[0]} in {weight_map[absent[0]]}, which does not hold it")
    return entries


def _read_header(file: Path) -> dict[str, _Entry]:
    try:
        with safe_open(file, framework="pt") as opened:
            return {name: _entry(file, name, opened.get_slice(name)) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is truncated or not a safetensors file ({error}): fetch it again") from None


def _entry(file: Path, name: str, header: Any) -> _Entry:
    """`header` is the library's slice object, which knows dtype and shape before anything is read."""
    dtype, shape = header.get_dtype(), tuple(header.get_shape())
    if dtype not in BYTES_PER_VALUE:
        raise InputError(
            f"{file}: the tensor {name} is stored as {dtype}, and only {', '.join(BYTES_PER_VALUE)} are read: take the "
            "checkpoint from which it was quantized, or a .gguf of it"
        )
    if not shape or 0 in shape:
        raise InputError(f"{file}: the tensor {name} of shape {list(shape)} holds no rows")
    return _Entry(file, shape, BYTES_PER_VALUE[dtype])
