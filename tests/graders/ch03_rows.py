"""3.1: RMSNorm, against its formula in Python's float64."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from graders.common import UNTOUCHED, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation


def norm_of(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The oracle, row by row: x / sqrt(mean of squares + eps) * weight, in float64."""
    rows = []
    for row in x.double().reshape(-1, x.shape[-1]).tolist():
        size = math.sqrt(sum(number * number for number in row) / len(row) + eps)
        rows.append([number / size * w for number, w in zip(row, weight.tolist(), strict=True)])
    return torch.tensor(rows, dtype=torch.float64).view(x.shape)


def _case(given: str, x: Tensor, eps: float, weight: Tensor | None = None) -> Case:
    weight = (random(x.shape[-1], seed=7) + 0.5 if weight is None else weight).to(x.dtype)

    def observe(f: Function) -> Observation:
        own, own_weight = x.clone(), weight.clone()
        result = f(own, own_weight, eps)
        return {
            "the result": result,
            "x and weight afterwards": touched(x=(own, x), weight=(own_weight, weight)),
        }

    def want() -> Observation:
        return {"the result": norm_of(x, weight, eps).to(x.dtype), "x and weight afterwards": UNTOUCHED}

    return Case(f"x {list(x.shape)}, weight [{x.shape[-1]}], eps = {eps:g}: {given}", observe, want)


def _with_a_row_of_zeros() -> Tensor:
    x = random(3, 6, seed=3)
    x[1] = 0
    return x


def _large_halves() -> Tensor:
    """Numbers of one size per row, so that the answer is exact in float16 wherever the right code rounds."""
    return (random(3, 8, seed=4).sign() * torch.tensor([[256.0], [2048.0], [0.5]])).half()


# Powers of two: multiplied by them in bfloat16 or before the rounding to it, the answer is the same.
_EXACT_WEIGHT = torch.tensor([0.5, 2.0, -1.0, 4.0, -0.5, 1.0, -2.0, 0.25, 8.0])


def _root_of_mean_square(x: Tensor, eps: float, dim: int = -1) -> Tensor:
    return (x.float().square().mean(dim, keepdim=True) + eps).sqrt()


def _in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x /= _root_of_mean_square(x, eps).to(x.dtype)
    return x * weight


def _only_float16_widened(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = x.float() if x.dtype == torch.float16 else x
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight


def _axis_lost(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.float().square().mean(-1) + eps).sqrt() * weight


def _python_root(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / math.sqrt(x.float().square().mean(-1, keepdim=True) + eps) * weight  # type: ignore[arg-type]


def _weight_in_float32(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (x.float() / _root_of_mean_square(x, eps) * weight.float()).to(x.dtype)


RMS_NORM = Grader(
    cases=[
        _case("distinct numbers", random(2, 3, 7, seed=1) * 3, 1e-5),
        _case("a single row, and no axis before it", random(8, seed=2), 1e-5),
        _case("an eps that counts", random(4, 5, seed=5), 2.0),
        _case("the middle row is all zeros", _with_a_row_of_zeros(), 1e-6),
        _case("float16, with numbers up to 2048 in size", _large_halves(), 1e-5),
        _case("bfloat16", (random(5, 9, seed=6) * 3).bfloat16(), 1e-5, _EXACT_WEIGHT),
    ],
    mutants=[
        Mutant(
            lambda x, w, eps: (
                (x.float() * torch.rsqrt(x.square().mean(-1, keepdim=True).float() + eps)).to(x.dtype) * w
            ),
            "The squares are taken in x's own dtype. In float16 the square of 256 is infinite, and the row becomes 0;"
            " in bfloat16 the mean keeps two or three digits. x.float() comes first.",
        ),
        Mutant(
            _only_float16_widened,
            "You widen float16 and leave bfloat16 as it is. Nothing overflows there, but the mean keeps two or three"
            " digits: x.float() first, whatever x is in.",
        ),
        Mutant(
            lambda x, w, eps: F.layer_norm(x.float(), x.shape[-1:], eps=eps).to(x.dtype) * w,
            "That is LayerNorm: it subtracts the mean first. RMSNorm leaves the mean in, and only divides.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + eps)).to(x.dtype) * w,
            "You take the sum of the squares. It is their mean: a row's numbers are then about 1 in size, however long"
            " the row is.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, eps, 0)).to(x.dtype) * w,
            "The mean runs over the first axis. Each row along the *last* axis is a token, and is normalised by"
            " itself.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, eps, 1)).to(x.dtype) * w,
            "The mean runs over axis 1. That is the last one of a matrix, and another one of [B, T, E]: -1 is the last"
            " one always.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, eps, -2)).to(x.dtype) * w,
            "The mean runs over the last axis but one, which mixes tokens. Each row along the *last* axis is a token.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (x.float().square().mean() + eps).sqrt()).to(x.dtype) * w,
            "You take one mean over everything. Each row is normalised by itself, so that a token's answer does not"
            " depend on who its neighbours are: mean(dim=-1, keepdim=True).",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (_root_of_mean_square(x, 0.0) + eps)).to(x.dtype) * w,
            "eps is added to the root. It belongs under the root, to the mean of the squares.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, 0.0)).to(x.dtype) * w,
            "eps is missing. A row of zeros is then divided by zero, and its nan spreads to every later token.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, 1e-6)).to(x.dtype) * w,
            "You use an eps of your own. Models differ in theirs: take the argument.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, eps)).to(x.dtype),
            "The weight is missing: each column is multiplied by its own learned number at the end.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / _root_of_mean_square(x, eps)).to(x.dtype) * (1 + w),
            "You scale by 1 + weight. Gemma stores its weights that way; Llama stores the factor itself.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() * _root_of_mean_square(x, eps)).to(x.dtype) * w,
            "You multiply by the root where you should divide by it. torch.rsqrt gives one over the root.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (x.float().square().mean(-1, keepdim=True) + eps)).to(x.dtype) * w,
            "You divide by the mean of the squares itself. The root is missing.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (x.float().abs().mean(-1, keepdim=True) + eps)).to(x.dtype) * w,
            "You take the mean of the absolute values. It is the *root* of the mean of the *squares*.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (x.float().mean(-1, keepdim=True).square() + eps).sqrt()).to(x.dtype) * w,
            "You square the mean. It is the mean of the squares: square first, so that signs do not cancel.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() / (x.float().std(-1, keepdim=True) + eps)).to(x.dtype) * w,
            "You divide by the standard deviation, which measures from the mean (and divides by E - 1). RMSNorm"
            " measures from 0: the root of the mean of the squares.",
        ),
        Mutant(
            lambda x, w, eps: (
                (x.float() * torch.rsqrt(x.float().var(-1, keepdim=True, correction=0) + eps)).to(x.dtype) * w
            ),
            "You take the variance, which subtracts the mean before it squares. RMSNorm takes the mean of the squares"
            " as they are.",
        ),
        Mutant(
            lambda x, w, eps: (x.float() * torch.rsqrt(x.float().var(-1, keepdim=True) + eps)).to(x.dtype) * w,
            "You take the variance, which subtracts the mean (and divides by E - 1). RMSNorm takes the mean of the"
            " squares as they are.",
        ),
        Mutant(
            lambda x, w, eps: x.float() / _root_of_mean_square(x, eps) * w.float(),
            "The result is float32 whatever x is in. The next matrix product of a model in half precision refuses that:"
            " `.to(x.dtype)`.",
        ),
        Mutant(
            _in_place,
            "You write into x. It is the residual stream, which the rest of the model still needs as it was: make a new"
            " tensor.",
        ),
        Mutant(
            _axis_lost,
            "The mean has lost its axis, and then does not line up with x: mean(dim=-1, keepdim=True) leaves [..., 1].",
            begins="RuntimeError: The size of tensor a",
        ),
        Mutant(
            _python_root,
            "math.sqrt is for one number. Here there is one for each row, in a tensor: .sqrt(), or torch.rsqrt.",
            begins="ValueError: only one element tensors",
        ),
    ],
    alternatives=[
        _weight_in_float32,
        lambda x, w, eps: (x.double() / (x.double().pow(2).mean(-1, keepdim=True) + eps) ** 0.5).to(x.dtype) * w,
        lambda x, w, eps: F.rms_norm(x.float(), x.shape[-1:], w.float(), eps).to(x.dtype),
        lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps),
        lambda x, w, eps: (
            (
                x.float()
                / torch.linalg.vector_norm(x.float(), dim=-1, keepdim=True).square().div(x.shape[-1]).add(eps).sqrt()
            ).type_as(x)
            * w
        ),
    ],
)
