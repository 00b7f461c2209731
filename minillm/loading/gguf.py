"""Tensors of a GGUF file, under Hugging Face's names and in Hugging Face's order of rows.

The `gguf` library parses the file and dequantizes (llama.cpp's formats: blocks of 32 or 256 values with their
scales). Two things remain to do. Names: `blk.0.attn_q.weight` is `model.layers.0.self_attn.q_proj.weight`.
And rows: in the files of some architectures llama.cpp rotates neighbouring pairs (0,1)(2,3)..., Hugging Face always
pairs of the halves (0,D/2)(1,D/2+1)..., so its converter reorders the rows of Q and K within each head:

    Hugging Face   a0 a1 a2 a3 | b0 b1 b2 b3          one head, D = 8: pair i is (a_i, b_i)
    GGUF           a0 b0 a1 b1 | a2 b2 a3 b3

Undoing it is a transpose within each head.
"""

import copy
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.checkpoint import rows_per_piece
from minillm.loading.gguf_architectures import ARCHITECTURES, IN_LAYER, TOP_LEVEL, parts_of
from minillm.loading.gguf_header import check_header
from minillm.loading.gguf_rope import FACTOR_TENSORS
from minillm.quantization import GGUF_BLOCKS, QuantizedWeight, from_gguf_blocks

# All that llama.cpp's programs quantize text models to, and that the library dequantizes.
SUPPORTED_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0"),
)

PERMUTED = (".self_attn.q_proj.", ".self_attn.k_proj.")
"""What is reordered, where an architecture's rows are interleaved: weights and biases."""


def gguf_name(hf_name: str) -> str:
    """The other way round: GGUF's name of a tensor that a plain Llama has."""
    stem, _, suffix = hf_name.rpartition(".")
    for ours, theirs in TOP_LEVEL.items():
        if stem == theirs:
            return f"{ours}.{suffix}"
    layer, _, inner = stem.removeprefix("model.layers.").partition(".")
    ours = next(ours for ours, theirs in IN_LAYER.items() if theirs == inner)
    return f"blk.{layer}.{ours}.{suffix}"


def unpermute(rows: Shaped[Tensor, "rows ..."], head_dim: int) -> Shaped[Tensor, "rows ..."]:
    """Rows of Q or K (whole heads; weight, its blocks, or bias) from GGUF's order to Hugging Face's."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])  # [heads, D/2, 2, *columns]
    return pairs.transpose(1, 2).reshape(rows.shape)  # [rows, *columns]


def permute(rows: Shaped[Tensor, "rows ..."], head_dim: int) -> Shaped[Tensor, "rows ..."]:
    """Rows of Q or K (whole heads; weight or bias) from Hugging Face's order to GGUF's: undone by `unpermute`."""
    halves = rows.view(-1, 2, head_dim // 2, *rows.shape[1:])  # [heads, 2, D/2, *columns]
    return halves.transpose(1, 2).reshape(rows.shape)  # [rows, *columns]


class GGUFSource:
    """The tensors of a GGUF file as `TensorSource` wants them, with `config` and `metadata` (plain Python
    values).
    """

    def __init__(self, path: Path, reader: gguf.GGUFReader):
        self.path = path
        self.metadata = {
            name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")
        }
        infos = {tensor.name: _TensorInfo(path, tensor) for tensor in reader.tensors}
        factors = {name: infos[name].vector() for name in FACTOR_TENSORS if name in infos}
        self.config = ModelConfig.from_gguf(self.metadata, list(infos), factors)
        self.architecture = ARCHITECTURES[self.metadata["general.architecture"]]
        self._infos: dict[str, _TensorInfo] = {}
        for name, info in infos.items():
            if name not in FACTOR_TENSORS:
                self._infos |= self._under_hf_names(name, info)

    def _under_hf_names(self, name: str, info: "_TensorInfo") -> "dict[str, _TensorInfo]":
        """A tensor under its name, or in the parts of which it is fused (see `parts_of`)."""
        parts = parts_of(name, len(info), self.config, self.architecture)
        if len(parts) == 1:
            return {parts[0].name: info}
        return {part.name: info.part(part.start, part.rows) for part in parts}

    def names(self) -> list[str]:
        return list(self._infos)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._infos[name].shape

    def pieces(self, name: str) -> Iterator[Tensor]:
        """Float32 pieces; those whose rows are interleaved are of whole heads."""
        info = self._infos[name]
        for start, stop, unit in self._pieces(name, info.float32_bytes_per_row):
            rows = torch.from_numpy(info.rows(start, stop))
            yield unpermute(rows, unit) if unit > 1 else rows

    def format(self, name: str) -> str | None:
        """Q8_0, Q4_0 and Q4_1 are used as they are."""
        kind = self._infos[name].type.name.lower()
        return kind if kind in GGUF_BLOCKS else None

    def quantized_pieces(self, name: str) -> Iterator[QuantizedWeight]:
        """The blocks of the file, taken apart into codes and scales; interleaved rows are put into order as blocks."""
        info, format = self._infos[name], self.format(name)
        assert format is not None, f"{name} is not in one of our formats"
        for start, stop, unit in self._pieces(name, info.bytes_per_row):
            raw = torch.from_numpy(info.raw_rows(start, stop))
            yield from_gguf_blocks(unpermute(raw, unit) if unit > 1 else raw, format)

    def _pieces(self, name: str, bytes_per_row: int) -> Iterator[tuple[int, int, int]]:
        """(first row, row behind the last, rows that belong together) per piece: heads, where they are interleaved."""
        info = self._infos[name]
        interleaved = self.architecture.interleaved and any(mark in name for mark in PERMUTED)
        unit = self.config.head_dim if interleaved else 1
        if len(info) % unit:
            raise InputError(f"{self.path}: tensor {info.name} of {len(info)} rows is not made of heads of {unit}")
        step = max(unit, rows_per_piece(bytes_per_row) // unit * unit)
        for start in range(0, len(info), step):
            yield start, min(start + step, len(info)), unit


class _TensorInfo:
    """Where a tensor's rows lie in the file, and how to read some of them.

    The bytes are read, not mapped: pages of a mapping would count as memory until the whole file is closed.
    """

    def __init__(self, path: Path, tensor: gguf.ReaderTensor):
        self.path, self.name, self.type = path, tensor.name, tensor.tensor_type
        if self.type.name not in SUPPORTED_TYPES:
            raise InputError(
                f"{path}: tensor {self.name} is of type {self.type.name}, which is not supported; "
                f"supported: {', '.join(SUPPORTED_TYPES)}"
            )
        self.shape = tuple(int(size) for size in reversed(tensor.shape))  # outermost first
        block_values = gguf.GGML_QUANT_SIZES[self.type][0]
        if block_values > 1 and len(self.shape) == 1:
            raise InputError(f"{path}: tensor {self.name} is a vector of type {self.type.name}: only matrices may be")
        self._offset = tensor.data_offset
        self.bytes_per_row = tensor.n_bytes // len(self)
        if self._offset + tensor.n_bytes > path.stat().st_size:
            raise InputError(f"{path} is truncated: tensor {self.name} lies beyond its end; fetch it again")

    def __len__(self) -> int:
        return self.shape[0]

    def part(self, start: int, rows: int) -> "_TensorInfo":
        """So many of its rows as a tensor."""
        part = copy.copy(self)
        part.shape = (rows, *self.shape[1:])
        part._offset += start * self.bytes_per_row
        return part

    def vector(self) -> list[float]:
        """Its numbers. Raises InputError unless it is a vector."""
        if len(self.shape) != 1:
            raise InputError(f"{self.path}: tensor {self.name} of shape {list(self.shape)} must be a vector")
        return self.rows(0, len(self)).reshape(-1).tolist()

    @property
    def float32_bytes_per_row(self) -> int:
        return 4 * int(np.prod(self.shape[1:], dtype=np.int64))

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop, dequantized to float32; [stop - start, *columns]."""
        raw = self.raw_rows(start, stop)
        # A vector of values that are not blocks has rows of one value; blocks need the columns as the last
        # axis.
        return gguf.dequantize(raw, self.type).reshape(stop - start, *self.shape[1:])

    def raw_rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start to stop as the file has them: bytes, [stop - start, bytes_per_row]."""
        count, offset = (stop - start) * self.bytes_per_row, self._offset + start * self.bytes_per_row
        return np.fromfile(self.path, dtype=np.uint8, count=count, offset=offset).reshape(stop - start, -1)


def open_gguf(path: Path) -> GGUFSource:
    """Read everything but the tensors of a GGUF file.

    Raises InputError, in one sentence, for a file that is damaged or describes a model that is not supported.
    """
    check_header(path)
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # the library promises no particular exceptions for files that make no sense
        raise InputError(
            f"{path} is not a usable GGUF file ({type(error).__name__}: {error}): fetch it again"
        ) from None
    return GGUFSource(path, reader)
