"""Linear: y = x W^T (+ b), with routes of its own on a CPU, where the library's general product leaves speed behind.

One row (a decode step). The product with a single row does almost no arithmetic: its time is the time to read the
weights. In float32, the matrix-vector product that `F.linear` ends in is MKL's, and on a processor that is not
Intel's MKL runs it on one thread, and one thread cannot draw the bandwidth of the whole machine. Cut into one slab of
rows per thread and handed over as a batch, the same product runs on all of them: no copy, another shape for the same
bytes. On two cores of an AMD EPYC, 113 MB of float32 weights took 8.8 ms (13 GB/s), and as slabs 4.9 ms (23 GB/s); on
two cores of an Intel Xeon 2.2 ms (51 GB/s), and as slabs 5.5 ms (21 GB/s):

    S="import torch, torch.nn.functional as F; from minillm.linear import matvec_by_slabs
    w = torch.randn(49152, 576); x = torch.randn(1, 576)"
    python -m timeit -s "$S" "F.linear(x, w)"
    python -m timeit -s "$S" "matvec_by_slabs(x[0], w, torch.get_num_threads())"

In a half precision that the processor has no instructions for, the library has a matrix-vector product on all
threads, but goes to it through the general product; called by its own name, it costs less around it.

In bfloat16 on a processor with AMX, which multiplies tiles of two matrices, `F.linear` reads the weights at half the
speed of the memory, and the product by its name at all of it: on the Xeon 25 and 45 GB/s. It is AMX that decides: told
to do without (`ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16`), the same machine is faster by `F.linear`.

    S="import torch, torch.nn.functional as F
    w = torch.randn(49152, 576).bfloat16(); x = torch.randn(1, 576).bfloat16()"
    python -m timeit -s "$S" "F.linear(x, w)"
    python -m timeit -s "$S" "torch.mv(w, x[0])"

A few rows (a decode step of a few sequences), where the same two conditions hold. The general product of a small
matrix with a large one, x W^T, is slower for two rows than two products with one. Written the other way round, as
(W x^T)^T, it reads the weights once for all of them, and fast. In float32 on the EPYC, in GB/s of weights, `F.linear`
and the other way round: 5.3 and 15 for 2 rows, 5.2 and 15 for 4, 4.5 and 7.6 for 8, 4.5 and 5.0 for 12 (and less than
`F.linear` for smaller matrices). In bfloat16 on the Xeon: 28 and 37 for 2 rows, 28 and 35 for 4, 27 and 31 for 8:

    S="import torch, torch.nn.functional as F; w = torch.randn(49152, 576); x = torch.randn(4, 576)"
    python -m timeit -s "$S" "F.linear(x, w)"
    python -m timeit -s "$S" "(w @ x.mT).mT.contiguous()"

Many rows (prefill) in a half precision that the processor has no instructions for. The library then converts
number by number, inside the innermost loop. Converting the whole matrix to float32 first, once for all rows, costs
a copy and saves the rest. For 512 rows on the EPYC, 102 ms became 15 ms; at 8 rows
it did not pay yet, at 16 it did:

    S="import torch, torch.nn.functional as F
    w = torch.randn(3072, 576).bfloat16(); x = torch.randn(512, 576).bfloat16()"
    python -m timeit -s "$S" "F.linear(x, w)"
    python -m timeit -s "$S" "F.linear(x.float(), w.float()).bfloat16()"
"""

import functools
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minillm.device import cpu_is_intel, cpu_multiplies, cpu_multiplies_tiles

WIDEN_FROM_ROWS = 16
FEW_ROWS = 8


def matvec_by_slabs(
    x: Float[Tensor, " in_features"], weight: Float[Tensor, "out_features in_features"], slabs: int
) -> Float[Tensor, " out_features"]:
    """The product weight @ x as `slabs` products over equal blocks of rows; `slabs` must divide out_features."""
    blocks = weight.view(slabs, -1, weight.shape[1])  # [slabs, out/slabs, in]
    # `.mT` of a row, not `[..., None]` of a vector: the strides that it leaves are those that the batched product
    # takes as they are; with the others it first copies every block of the weights.
    columns = x[None].mT.expand(slabs, -1, 1)  # [slabs, in, 1], the same x for every slab
    return torch.bmm(blocks, columns).view(-1)  # [out]


@functools.cache
def slabs_for(out_features: int, threads: int) -> int:
    """Into how many equal slabs to cut: the fewest that give each thread one, if four times as many can do it."""
    enough = (slabs for slabs in range(threads, 4 * threads + 1) if out_features % slabs == 0)
    return next(enough, math.gcd(out_features, threads))


def is_faster_weight_first(dtype: torch.dtype) -> bool:
    """Whether this processor is faster at W x^T than at the x W^T that `F.linear` computes, for one row or a few."""
    return cpu_multiplies_tiles(dtype) or (dtype == torch.float32 and not cpu_is_intel())


class Linear(nn.Linear):
    """`nn.Linear` that picks the fastest of several ways to the same numbers. Its weights are left to be filled."""

    def reset_parameters(self) -> None:
        """Draw no random weights: a checkpoint fills them, and drawing millions of numbers takes seconds."""

    def forward(self, input: Float[Tensor, "*rows in_features"]) -> Float[Tensor, "*rows out_features"]:
        weight, bias = self.weight, self.bias
        if weight.device.type != "cpu":
            return F.linear(input, weight, bias)  # [..., out]
        num_rows = input.numel() // self.in_features
        native, weight_first = cpu_multiplies(weight.dtype), is_faster_weight_first(weight.dtype)
        if num_rows == 1 and (weight_first or not native):
            return _shaped(_matvec(input.reshape(-1), weight), input, bias)  # [..., out]
        if 1 < num_rows <= FEW_ROWS and weight_first:
            columns = input.reshape(num_rows, -1).mT  # [in, rows]
            return _shaped((weight @ columns).mT.contiguous(), input, bias)  # [..., out]
        if num_rows >= WIDEN_FROM_ROWS and not native:
            wide_bias = None if bias is None else bias.float()
            return F.linear(input.float(), weight.float(), wide_bias).to(weight.dtype)  # [..., out]
        return F.linear(input, weight, bias)  # [..., out]


def _shaped(product: Tensor, input: Tensor, bias: Tensor | None) -> Tensor:
    """A product of rows in the shape that `input` asks for, [..., out], with the bias."""
    product = product.view(*input.shape[:-1], -1)  # [..., out]
    return product if bias is None else product + bias


def _matvec(
    x: Float[Tensor, " in_features"], weight: Float[Tensor, "out_features in_features"]
) -> Float[Tensor, " out_features"]:
    if weight.dtype == torch.float32:
        return matvec_by_slabs(x, weight, slabs_for(len(weight), torch.get_num_threads()))
    return torch.mv(weight, x)
