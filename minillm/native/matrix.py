"""A matrix as the functions in C++ get it: `Matrix` in weights.h."""

import ctypes

import torch
from torch import Tensor

from minillm.quantization import QuantizedWeight

WEIGHT_FORMATS = {torch.float32: 0, torch.bfloat16: 1}
QUANTIZED_FORMATS = {"int8": 2, "q8_0": 3, "q4_0": 4, "q4_1": 5}


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor's numbers lie."""
    return ctypes.c_void_p(tensor.data_ptr())


class Matrix(ctypes.Structure):
    """Addresses of tensors, which must live as long as this is used."""

    _fields_ = [*((name, ctypes.c_void_p) for name in ("codes", "scale", "minimum", "bias")),
                ("row_bytes", ctypes.c_int64),
                *((name, ctypes.c_int32) for name in ("format", "rows", "columns"))]  # fmt: skip


def in_one_piece(weight: QuantizedWeight) -> bool:
    """Whether a row's scales and minima are as far from the next row's as its codes are: see `empty_quantized`."""
    if weight.codes.stride(1) != 1:
        return False
    if weight.format == "int8":
        return weight.scale.is_contiguous()
    parts = [part for part in (weight.codes, weight.scale, weight.minimum) if part is not None]
    return len({part.stride(0) * part.itemsize for part in parts}) == 1


def matrix_of(weight: Tensor | QuantizedWeight, float32_bias: Tensor | None = None) -> Matrix:
    """Where a weight lies, and how it is stored."""
    rows, columns = weight.shape
    bias = None if float32_bias is None else address(float32_bias)
    if isinstance(weight, QuantizedWeight):
        minimum = None if weight.minimum is None else address(weight.minimum)
        kind, stride = QUANTIZED_FORMATS[weight.format], weight.codes.stride(0)
        return Matrix(address(weight.codes), address(weight.scale), minimum, bias, stride, kind, rows, columns)
    stride = weight.stride(0) * weight.itemsize
    return Matrix(address(weight), None, None, bias, stride, WEIGHT_FORMATS[weight.dtype], rows, columns)
