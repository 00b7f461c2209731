"""Modules whose weight stays in codes and scales: nothing in float is kept of it.

The decode pass in C++ multiplies the codes as they are. For many rows (prefill), and where there is no C++ compiler, a
matrix is widened for one product, a slab of rows at a time: little memory, and for many rows little time.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.device import cpu_multiplies
from minillm.linear import Linear
from minillm.quantization import SLAB_NUMBERS, QuantizedWeight, empty_quantized
from minillm.row_kernels import RowKernels

WIDENED_NUMBERS = 1 << 20
"""Of a matrix, widened at a time by kernels, which write them once: 2 MiB in bfloat16."""


class QuantizedLinear(nn.Module):
    """`Linear` on a `QuantizedWeight`, to be filled.

    The weight is a plain attribute, not a buffer: a buffer's scales would follow the model's dtype.
    """

    kernels: RowKernels | None = None

    def __init__(self, weight: QuantizedWeight, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape

    def forward(self, input: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        """The product with the numbers that the codes stand for, in a precision that is fast here.

        A slab of rows at a time is widened: it is then still in the processor's cache when it is multiplied.
        """
        slow = input.device.type == "cpu" and not cpu_multiplies(input.dtype)
        wide = torch.float32 if slow else input.dtype
        x, bias = input.to(wide), None if self.bias is None else self.bias.to(wide)
        output = input.new_empty(*input.shape[:-1], self.out_features)  # [..., out]
        step = max(1, (WIDENED_NUMBERS if self.kernels else SLAB_NUMBERS) // self.in_features)
        for start in range(0, self.out_features, step):
            some = slice(start, start + step)
            slab = self._dequantized(self.weight.rows(some), wide)  # [step, in]
            output[..., some] = F.linear(x, slab, None if bias is None else bias[some])
        return output

    def _dequantized(self, rows: QuantizedWeight, dtype: torch.dtype) -> Float[Tensor, "some in_features"]:
        return self.kernels.dequantized(rows, dtype) if self.kernels else rows.dequantized(dtype)


class QuantizedEmbedding(nn.Module):
    """A quantized table whose rows are widened as they are looked up. With a tied head it is the head's own."""

    def __init__(self, weight: QuantizedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight, self.dtype = weight, dtype

    def forward(self, ids: Int[Tensor, "batch q_len"]) -> Float[Tensor, "batch q_len hidden"]:
        """[B, T, E]"""
        rows = self.weight.rows(ids.reshape(-1))  # [B T, E]
        return rows.dequantized(self.dtype).view(*ids.shape, -1)  # [B, T, E]


WeightFormats = Callable[[str], str | None]
"""From a matrix's name in the model ("layers.0.mlp.down_proj", "lm_head") to its format; None: numbers as they are."""


def quantize_modules(model: nn.Module, formats: WeightFormats, device: torch.device | str) -> None:
    """Put a `QuantizedLinear`, with room for its weight on `device`, in the place of each `Linear` that has a format.

    The model is still without storage: the matrices that are replaced never exist.
    """
    for name, module in list(model.named_modules()):
        format = formats(name) if isinstance(module, Linear) else None
        if isinstance(module, Linear) and format:
            parent, _, child = name.rpartition(".")
            weight = empty_quantized(format, module.out_features, module.in_features, device)
            setattr(model.get_submodule(parent), child, QuantizedLinear(weight, module.bias))
