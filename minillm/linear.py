"""Linear: y = x W^T (+ b), with a route of its own for the single row that a decode step brings.

At decode the product of one row with a weight matrix does almost no arithmetic: its time is the time to read the
weights. In float32 on a CPU, the matrix-vector product that `F.linear` ends in runs on one thread, and one thread
cannot draw the bandwidth of the whole machine. Cut into one slab of rows per thread and handed over as a batch,
the same product runs on all of them: no copy, another shape for the same bytes.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


def matvec_by_slabs(
    x: Float[Tensor, " in_features"], weight: Float[Tensor, "out_features in_features"], slabs: int
) -> Float[Tensor, " out_features"]:
    """Weight @ x, as `slabs` independent products over equal blocks of rows. `slabs` must divide out_features."""
    blocks = weight.view(slabs, -1, weight.shape[1])  # [slabs, out/slabs, in]
    # `.mT` of a row, not `[..., None]` of a vector: the strides that it leaves are those that the batched product
    # takes as they are; with the others it first copies every block of the weights.
    columns = x[None].mT.expand(slabs, -1, 1)  # [slabs, in, 1], the same x for every slab
    return torch.bmm(blocks, columns).view(-1)  # [out]


class Linear(nn.Linear):
    """`nn.Linear` that reads its weights with every thread when there is a single row to multiply."""

    def forward(self, input: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        weight = self.weight
        one_row = input.numel() == self.in_features
        # Only float32 on a CPU: the half-precision product there is threaded already, and CUDA has its own kernels.
        if one_row and weight.dtype == torch.float32 and weight.device.type == "cpu":
            slabs = math.gcd(self.out_features, torch.get_num_threads())
            product = matvec_by_slabs(input.view(-1), weight, slabs)  # [out]
            output = product.view(*input.shape[:-1], self.out_features)  # [..., out]
            return output if self.bias is None else output + self.bias
        return F.linear(input, weight, self.bias)  # [..., out]
