"""14.1: numbers into codes of eight bits, one scale per row."""

from collections.abc import Callable

import torch
from torch import Tensor

from graders.ch14_quantized import quantized_case, zeros_replaced
from graders.common import random
from minillm.exercises.grading import Function, Grader, Mutant
from minillm.quantization import QuantizedWeight

# The seeds are such that no weight lies near the middle between two codes: rounding there is nobody's mistake.


def _int8_by_hand(weight: Tensor) -> QuantizedWeight:
    """Number by number, in Python's floats."""
    codes, scales = [], []
    for row in weight.double().tolist():
        scale = max(abs(number) for number in row) / 127
        codes.append([round(number / scale) if scale else 0 for number in row])
        scales.append(scale)
    return QuantizedWeight("int8", torch.tensor(codes, dtype=torch.int8), torch.tensor(scales, dtype=torch.float32))


def _int8(
    *,
    most: Callable[[Tensor], Tensor] = lambda wide: wide.abs().amax(dim=1, keepdim=True),
    largest: float = 127,
    whole: Callable[[Tensor], Tensor] = torch.round,
    wide: Callable[[Tensor], Tensor] = lambda weight: weight.float(),
    scale_of: Callable[[Tensor], Tensor] = lambda scale: scale.float(),
    by: Callable[[Tensor], Tensor] = zeros_replaced,
) -> Function:
    """The quantizer with one part of it done otherwise."""

    def quantize(weight: Tensor) -> QuantizedWeight:
        numbers = wide(weight)
        scale = most(numbers) / largest
        codes = whole(numbers / by(scale)).to(torch.int32).to(torch.int8)
        return QuantizedWeight("int8", codes, scale_of(scale.expand(len(weight), 1)[:, 0]))

    return quantize


def _int8_clamped(weight: Tensor) -> QuantizedWeight:
    """With the reciprocal, a floor under the scale, and a clamp."""
    wide = weight.to(torch.float32)
    scale = wide.abs().max(dim=-1).values.clamp(min=1e-9) / 127
    codes = torch.clamp(torch.round(wide * (1 / scale).unsqueeze(1)), -127, 127)
    return QuantizedWeight("int8", codes.to(torch.int8), scale)


def _int8_by_column(weight: Tensor) -> QuantizedWeight:
    scale = weight.float().abs().amax(dim=0) / 127
    return QuantizedWeight("int8", (weight.float() / zeros_replaced(scale)).round().to(torch.int8), scale)


def _rounded_within(least: int, most: int) -> Callable[[Tensor], Tensor]:
    return lambda steps: steps.round().clamp(least, most)


def _int8_mended(weight: Tensor) -> QuantizedWeight:
    """With a nan on the way, which is gone before it would have to be an integer."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1) / 127
    steps = torch.nan_to_num(wide / scale[:, None])
    codes = steps.round().type(torch.int8) if steps.type() == "torch.FloatTensor" else steps.round().char()
    return QuantizedWeight("int8", codes, scale)


def _int8_row_by_row(weight: Tensor) -> QuantizedWeight:
    codes = torch.zeros(weight.shape, dtype=torch.int8)
    scale = torch.zeros(weight.shape[0], dtype=torch.float32)
    for i, row in enumerate(weight.float()):
        scale[i] = row.abs().max() / 127
        if scale[i] > 0:
            codes[i] = torch.floor(row / scale[i] + 0.5).to(torch.int8)
    return QuantizedWeight("int8", codes, scale)


ROWS = random(5, 64, seed=4) * torch.tensor([1.0, 250.0, 40.0, 900.0, 6.0])[:, None]
WITH_ZEROS = torch.cat((random(2, 32, seed=2) * 300, torch.zeros(1, 32), random(1, 32, seed=3) * 70))
NEGATIVE = -(random(3, 32, seed=6).abs() + 0.5) * torch.tensor([200.0, 3000.0, 80.0])[:, None]
HALF = (random(3, 96, seed=5) * 400).bfloat16()

QUANTIZE_INT8 = Grader(
    cases=[
        quantized_case("5 rows of 64, of magnitudes 3 to 2,700", ROWS, _int8_by_hand),
        quantized_case("4 rows of 32, the third of zeros", WITH_ZEROS, _int8_by_hand),
        quantized_case("3 rows of 32, all numbers negative", NEGATIVE, _int8_by_hand),
        quantized_case("3 rows of 96 in bfloat16", HALF, _int8_by_hand),
    ],
    mutants=[
        Mutant(
            _int8(most=lambda wide: wide.abs().max().reshape(1, 1)),
            "One scale for the whole matrix. A single large number in one row then takes the codes away from all the"
            " others: take the largest magnitude of each row, amax(dim=1).",
        ),
        Mutant(
            _int8_by_column,
            "One scale per column. A row of the matrix makes one output, and only a scale that all terms of its sum"
            " share can be taken out of the sum: the largest magnitude of each row, amax(dim=1).",
        ),
        Mutant(
            _int8(by=lambda scale: scale),
            "You divide a row of zeros by its scale, which is 0. 0 / 0 is nan, and no integer type has a nan: what the"
            " code becomes is the processor's choice (here it is 0, by luck). Where the scale is 0, divide by 1.",
        ),
        Mutant(
            _int8(whole=torch.trunc),
            "You cut the fraction off (.to(torch.int8) does so by itself). Round to the nearest code, or the error is"
            " twice as large and always towards zero.",
        ),
        Mutant(
            _int8(whole=torch.floor),
            "You round down. That moves every number of the matrix by half a step on average, and all in the same"
            " direction: round to the nearest.",
        ),
        Mutant(
            _int8(largest=128),
            "You divide by 128, and the largest number of a row becomes 128, which int8 has not: it wraps round to"
            " -128. Divide by 127.",
        ),
        Mutant(
            _int8(largest=128, whole=_rounded_within(-128, 127)),
            "You divide by 128, because int8 reaches to -128. It does not reach to 128, so the largest positive number"
            " loses a step to the clamp. The codes are the same on both sides of 0: divide by 127.",
        ),
        Mutant(
            _int8(largest=128, whole=_rounded_within(-127, 127)),
            "You divide by 128 and keep the codes within 127: the largest number of a row, which no other rounds so"
            " badly, loses a whole step. Divide by 127.",
        ),
        Mutant(
            _int8(largest=255),
            "You divide by 255, as if codes began at 0. They go from -127 to 127, so the largest magnitude is 127 steps"
            " away from 0.",
        ),
        Mutant(
            _int8(most=lambda wide: wide.amax(dim=1, keepdim=True)),
            "You take the largest number, and not the largest magnitude. Where the most negative one is larger, its"
            " code does not fit: .abs() first.",
        ),
        Mutant(
            _int8(most=lambda wide: wide.amax(dim=1, keepdim=True), whole=_rounded_within(-127, 127)),
            "You take the largest number, and not the largest magnitude, and the clamp hides what does not fit: the"
            " negative numbers beyond it all become -127. .abs() first.",
        ),
        Mutant(
            _int8(scale_of=lambda scale: 1 / scale),
            "Your scale is the one that numbers are multiplied by to become codes. What is kept is its reciprocal:"
            " code * scale gives the number back.",
        ),
        Mutant(
            _int8(wide=lambda weight: weight),
            "You compute in the weight's own dtype. In bfloat16 a quotient has three digits, and many codes are then"
            " off by one: .float() first.",
        ),
        Mutant(
            _int8(wide=lambda weight: weight, scale_of=lambda scale: scale),
            "You compute in the weight's own dtype, and its scale stays in it. In bfloat16 scale and quotients have"
            " three digits: weight.float() first, and all that follows is float32.",
        ),
        Mutant(
            _int8(most=lambda wide: wide.amax(dim=1, keepdim=True) - wide.amin(dim=1, keepdim=True), largest=254),
            "You spread the codes over the distance from the smallest to the largest number. Without a minimum that"
            " is kept beside the scale, code 0 is the number 0, and both signs need the same steps: the largest"
            " magnitude / 127.",
        ),
        Mutant(
            _int8(
                most=lambda wide: wide.amax(dim=1, keepdim=True) - wide.amin(dim=1, keepdim=True),
                largest=255,
                whole=_rounded_within(-128, 127),
            ),
            "(largest - smallest) / 255 is the scale of codes that have a zero point beside them, which says what"
            " number code 0 is. Here code 0 is the number 0, and nothing else is kept: the largest magnitude / 127.",
        ),
    ],
    alternatives=[_int8(), _int8_clamped, _int8_mended, _int8_row_by_row],
)
