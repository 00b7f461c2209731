"""What may stand in for PyTorch between the products of a pass: the same steps, row after row."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.quantization import QuantizedWeight


@runtime_checkable
class RowKernels(Protocol):
    """Steps that read and write rows, and hardly compute. PyTorch takes them one by one, over all rows of a prompt:
    what the one has written, the next one reads from a cache that is farther away.
    """

    def rms_norm(
        self, x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], eps: float
    ) -> Float[Tensor, "*rows hidden"]:
        """See `model.rms_norm`."""
        ...

    def apply_rope(
        self,
        x: Float[Tensor, "batch heads q_len head_dim"],
        cos: Float[Tensor, "batch 1 q_len half_dim"],
        sin: Float[Tensor, "batch 1 q_len half_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        """See `rope.apply_rope`."""
        ...

    def swiglu(self, gate_up: Float[Tensor, "*rows both"]) -> Float[Tensor, "*rows intermediate"]:
        """See `model.swiglu`."""
        ...

    def dequantized(self, weight: QuantizedWeight, dtype: torch.dtype) -> Float[Tensor, "out in"]:
        """See `QuantizedWeight.dequantized`."""
        ...
