"""Weights in 8 or 4 bits: the formats, how numbers get into them and out again.

A decode step's time is the time to read the weights, so half the bytes are twice the speed, if the product reads the
codes as they are stored. A weight is a whole number (its code) times a scale that it shares with others:

    int8    code * scale            code -127..127, one float32 scale per row (output channel)   1 byte per weight
    q8_0    code * scale            code -127..127, one float16 scale per 32 weights             34/32 bytes
    q4_1    code * scale + minimum  code 0..15, two float16 numbers per 32 weights               20/32 bytes
    q4_0    (code - 8) * scale      code 0..15, one float16 scale per 32 weights                 18/32 bytes

The last three are llama.cpp's: its files hold the same codes and scales, block after block. Here a row's codes come
first and its scales behind them, so that a product can take eight scales at a time; nothing is rounded on the way.

Source: LLM.int8 (Dettmers et al. 2022) for rows with a scale each; ggml's quantized blocks for the others.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from minillm.errors import InputError

GROUP = 32
"""Neighbours in a row that share a scale."""

SLAB_NUMBERS = 1 << 18
"""Of a matrix, quantized or widened at a time: 1 MiB in float32, which stays in a processor's cache."""

NIBBLES = ("q4_0", "q4_1")
"""The formats of 4 bits per code."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix [out, in] in codes and scales. `format` is one of those above.

    codes: int8 [out, in]; of 4 bits, two to a byte, uint8 [out, in / 2] (see `pack_nibbles`). scale: float32 [out] for
    int8, else float16 [out, in / 32]. minimum: float16 [out, in / 32] for q4_1, else None.
    """

    format: str
    codes: Tensor
    scale: Tensor
    minimum: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        rows, width = self.codes.shape
        return rows, 2 * width if self.format in NIBBLES else width

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return sum(part.nbytes for part in (self.codes, self.scale, self.minimum) if part is not None)

    def rows(self, which: slice | Int[Tensor, " picked"]) -> "QuantizedWeight":
        """Some of the rows: a slice as views, picked ones as copies."""
        minimum = None if self.minimum is None else self.minimum[which]
        return QuantizedWeight(self.format, self.codes[which], self.scale[which], minimum)

    def split(self, sizes: Sequence[int]) -> "list[QuantizedWeight]":
        """Consecutive rows, as views: `sizes` of them at a time."""
        ends = list(itertools.accumulate(sizes))
        return [self.rows(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Float[Tensor, "out in"]:
        """The numbers that the codes stand for."""
        if self.format == "int8":
            return (self.codes.float() * self.scale[:, None]).to(dtype)  # [out, in]
        rows, columns = self.shape
        codes = unpack_nibbles(self.codes) if self.format in NIBBLES else self.codes  # [out, in]
        grouped = codes.view(rows, columns // GROUP, GROUP).float()  # [out, in / 32, 32]
        if self.format == "q4_0":
            grouped -= 8
        grouped *= self.scale.float()[..., None]
        if self.minimum is not None:
            grouped += self.minimum.float()[..., None]
        return grouped.view(rows, columns).to(dtype)  # [out, in]

    def write(self, start: int, rows: "Float[Tensor, 'rows in'] | QuantizedWeight") -> None:
        """Fill the rows from `start` on: numbers are quantized, codes of the same format are taken as they are.

        Numbers are quantized a few rows at a time: what that needs besides them stays small.
        """
        if isinstance(rows, Tensor):
            for slab in rows.split(max(1, SLAB_NUMBERS // rows.shape[1])):
                self.write(start, quantize(slab, self.format))
                start += len(slab)
            return
        new = rows
        if new.format != self.format:
            raise InputError(f"rows of {new.format} do not fit into a matrix of {self.format}")
        place = self.rows(slice(start, start + new.shape[0]))
        for name in ("codes", "scale", "minimum"):
            part, given = getattr(place, name), getattr(new, name)
            if part is not None:
                part.copy_(given)


def pack_nibbles(codes: UInt8[Tensor, "out in"]) -> UInt8[Tensor, "out half_in"]:
    """Codes 0..15, two to a byte: of each 32, code i in the lower and code i + 16 in the upper half of byte i."""
    rows, columns = codes.shape
    low, high = codes.view(rows, columns // GROUP, 2, GROUP // 2).unbind(dim=2)  # 2 x [out, in / 32, 16]
    return (low | high << 4).view(rows, columns // 2)  # [out, in / 2]


def unpack_nibbles(packed: UInt8[Tensor, "out half_in"]) -> UInt8[Tensor, "out in"]:
    """What `pack_nibbles` packed."""
    rows, width = packed.shape
    grouped = packed.view(rows, 2 * width // GROUP, 1, GROUP // 2)  # [out, in / 32, 1, 16]
    return torch.cat((grouped & 15, grouped >> 4), dim=2).view(rows, 2 * width)  # [out, in]


def quantize_int8(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    """One scale per row (output channel): its largest magnitude becomes 127. Rounded to the nearest code."""
    check_groups(weight.shape[1], "int8")
    wide = weight.float()
    scale = wide.abs().amax(dim=1) / 127  # [out]
    codes = (wide / _nonzero(scale)[:, None]).round().clamp(-127, 127).to(torch.int8)  # [out, in]
    return QuantizedWeight("int8", codes, scale)


def quantize_q4_1(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    """Groups of 32 with a scale and a minimum: their smallest number becomes code 0, their largest code 15.

    The two numbers are rounded to float16 first, and the codes chosen for the rounded ones.
    """
    check_groups(weight.shape[1], "q4_1")
    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // GROUP, GROUP)  # [out, in / 32, 32]
    least, most = grouped.aminmax(dim=2)  # 2 x [out, in / 32]
    minimum = _float16(least, "q4_1")
    scale = _float16((most - least) / 15, "q4_1")
    steps = (grouped - minimum.float()[..., None]) / _nonzero(scale.float())[..., None]
    codes = steps.round().clamp(0, 15).to(torch.uint8).view(rows, columns)
    return QuantizedWeight("q4_1", pack_nibbles(codes), scale, minimum)


def quantize_q8_0(weight: Float[Tensor, "out in"]) -> QuantizedWeight:
    """One float16 scale per 32 weights: the largest magnitude of a group becomes 127."""
    check_groups(weight.shape[1], "q8_0")
    rows, columns = weight.shape
    grouped = weight.float().view(rows, columns // GROUP, GROUP)  # [out, in / 32, 32]
    scale = _float16(grouped.abs().amax(dim=2) / 127, "q8_0")  # [out, in / 32]
    codes = (grouped / _nonzero(scale.float())[..., None]).round().clamp(-127, 127).to(torch.int8)
    return QuantizedWeight("q8_0", codes.view(rows, columns), scale)


def quantize(weight: Float[Tensor, "out in"], format: str) -> QuantizedWeight:
    """A matrix in one of the formats. Raises InputError for another one, and for rows that groups do not fill."""
    match format:
        case "int8":
            return quantize_int8(weight)
        case "q8_0":
            return quantize_q8_0(weight)
        case "q4_1":
            return quantize_q4_1(weight)
    raise InputError(f"numbers cannot be quantized to {format!r}: use one of int8, q8_0, q4_1")


def empty_quantized(format: str, rows: int, columns: int, device: torch.device | str = "cpu") -> QuantizedWeight:
    """Room for a matrix [rows, columns], to be filled with `write`.

    A row's codes, scales and minima lie one behind the other, so that a product reads memory from one end to the other,
    which is the order in which memory is fast. codes, scale and minimum are views into that.
    """
    check_groups(columns, format)
    code_bytes, groups = columns // 2 if format in NIBBLES else columns, columns // GROUP
    code_type = torch.uint8 if format in NIBBLES else torch.int8
    if format == "int8":
        codes = torch.empty(rows, columns, dtype=code_type, device=device)
        return QuantizedWeight(format, codes, torch.empty(rows, dtype=torch.float32, device=device))
    parts = [code_bytes, 2 * groups, 2 * groups] if format == "q4_1" else [code_bytes, 2 * groups]
    packed = torch.empty(rows, sum(parts), dtype=torch.uint8, device=device)
    codes, *numbers = packed.split(parts, dim=1)
    return QuantizedWeight(format, codes.view(code_type), *(number.view(torch.float16) for number in numbers))


GGUF_BLOCKS = {"q8_0": 34, "q4_1": 20, "q4_0": 18}
"""Bytes of a block of 32 weights in a GGUF file: its scale, for q4_1 its minimum, then its codes."""


def from_gguf_blocks(raw: UInt8[Tensor, "out bytes"], format: str) -> QuantizedWeight:
    """Rows of blocks, as a GGUF file has them, taken apart. Only bytes are moved."""
    rows = raw.shape[0]
    blocks = raw.view(rows, -1, GGUF_BLOCKS[format])  # [out, in / 32, bytes of a block]
    halves = 4 if format == "q4_1" else 2  # bytes of float16 numbers before the codes
    numbers = blocks[:, :, :halves].contiguous().view(torch.float16)  # [out, in / 32, 1 or 2]
    codes = blocks[:, :, halves:].reshape(rows, -1)  # [out, in or in / 2]
    minimum = numbers[:, :, 1].contiguous() if format == "q4_1" else None
    signed = codes if format in NIBBLES else codes.view(torch.int8)
    return QuantizedWeight(format, signed, numbers[:, :, 0].contiguous(), minimum)


def check_groups(columns: int, format: str) -> None:
    """Raise InputError for rows that groups of 32 do not fill."""
    if columns % GROUP:
        raise InputError(f"{format} needs matrices whose rows are multiples of {GROUP} long, not of {columns} numbers")


def _float16(numbers: Float[Tensor, "out groups"], format: str) -> Float[Tensor, "out groups"]:
    """Scales or minima as the format keeps them. Raises InputError where that makes a number infinite."""
    halves = numbers.half()
    lost = numbers[halves.isinf() & numbers.isfinite()]
    if lost.numel():
        raise InputError(
            f"weights this large cannot be quantized to {format}: a scale or minimum of {float(lost[0]):.3g} is beyond"
            " float16, which ends at 65,504; use int8"
        )
    return halves


def _nonzero(scale: Tensor) -> Tensor:
    """A row of zeros has scale 0: divided by 1 instead, its codes are 0."""
    return torch.where(scale == 0, 1.0, scale)
