"""The C++ functions of rows.cpp as the model sees them."""

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.model import rms_norm, swiglu
from minillm.native.build import native_library
from minillm.native.matrix import WEIGHT_FORMATS, address, in_one_piece, matrix_of
from minillm.quantization import QuantizedWeight
from minillm.rope import apply_rope

UNIT = 16
"""Of the numbers that are taken at a time, the fewest: rows that are no multiple of it are left to PyTorch."""


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64)
                for name in ("planes", "heads", "rows", "width", "plane_step", "head_step", "row_step")]  # fmt: skip


class NativeRows:
    """`RowKernels` on the CPU, for float32 and bfloat16. Raises MissingError where the kernels cannot be compiled."""

    def __init__(self) -> None:
        self._library = native_library()

    def rms_norm(
        self, x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], eps: float
    ) -> Float[Tensor, "*rows hidden"]:
        if x.shape[-1] % UNIT or x.dim() > 4 or not _rows_in_memory(x):
            return rms_norm(x, weight, eps)
        weight = weight.contiguous()
        out = x.new_empty(x.shape)  # [..., E]
        shape, kind = ctypes.byref(_shape(x)), WEIGHT_FORMATS[x.dtype]
        self._library.norm_rows(shape, address(x), address(weight), ctypes.c_float(eps), kind, address(out))
        return out

    def apply_rope(
        self,
        x: Float[Tensor, "batch heads q_len head_dim"],
        cos: Float[Tensor, "batch 1 q_len half_dim"],
        sin: Float[Tensor, "batch 1 q_len half_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        if x.shape[-1] // 2 % UNIT or not _rows_in_memory(x):
            return apply_rope(x, cos, sin)
        angles = (x.shape[0], 1, x.shape[2], x.shape[3] // 2)
        cos, sin = cos.expand(angles).contiguous(), sin.expand(angles).contiguous()
        out = x.new_empty(x.shape)  # [B, H, T, D]
        shape, kind = ctypes.byref(_shape(x)), WEIGHT_FORMATS[x.dtype]
        self._library.rotate_rows(shape, address(x), address(cos), address(sin), kind, address(out))
        return out

    def swiglu(self, gate_up: Float[Tensor, "*rows both"]) -> Float[Tensor, "*rows intermediate"]:
        width = gate_up.shape[-1] // 2
        if width % UNIT or not gate_up.is_contiguous():
            return swiglu(gate_up)
        out = gate_up.new_empty(*gate_up.shape[:-1], width)  # [..., intermediate]
        rows = ctypes.c_int64(out.numel() // width)
        self._library.gate_rows(
            address(gate_up), rows, ctypes.c_int64(width), WEIGHT_FORMATS[gate_up.dtype], address(out)
        )
        return out

    def dequantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        if not in_one_piece(weight):
            return weight.dequantized(dtype)
        out = torch.empty(weight.shape, dtype=dtype)  # [out, in]
        self._library.widen_rows(ctypes.byref(matrix_of(weight)), WEIGHT_FORMATS[dtype], address(out))
        return out


def _rows_in_memory(x: Tensor) -> bool:
    """Whether the numbers of a row are neighbours."""
    return x.stride(-1) == 1 and x.numel() > 0


def _shape(x: Tensor) -> _Shape:
    """Sizes and steps of a tensor of at most four axes; axes that it lacks have one entry."""
    missing = 4 - x.dim()
    sizes, steps = [1] * missing + list(x.shape), [0] * missing + list(x.stride())
    return _Shape(*sizes, *steps[:-1])
