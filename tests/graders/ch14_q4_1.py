"""14.3: numbers into codes of four bits, a scale and a minimum per group."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from graders.ch14_nibbles import by_slices, halves, packed_by_hand
from graders.ch14_quantized import quantized_case, zeros_replaced
from graders.common import random
from minillm.exercises.grading import Function, Grader, Mutant
from minillm.quantization import QuantizedWeight

# The seeds are such that no weight lies near the middle between two codes: rounding there is nobody's mistake.


def _as_half(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).half().item()


def _q4_1_by_hand(weight: Tensor) -> QuantizedWeight:
    """Group by group, number by number."""
    codes, scales, minima = [], [], []
    for row in weight.tolist():
        codes.append([])
        groups = [row[start : start + 32] for start in range(0, len(row), 32)]
        minima.append([_as_half(min(group)) for group in groups])
        scales.append([_as_half((max(group) - min(group)) / 15) for group in groups])
        for group, scale, minimum in zip(groups, scales[-1], minima[-1], strict=True):
            codes[-1] += [min(15, max(0, round((number - minimum) / scale))) if scale else 0 for number in group]
    packed = packed_by_hand(torch.tensor(codes, dtype=torch.uint8))
    return QuantizedWeight("q4_1", packed, torch.tensor(scales).half(), torch.tensor(minima).half())


def _q4_1(
    *,
    ends: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda g: (g.amin(dim=2), g.amax(dim=2)),
    steps: float = 15,
    kept: Callable[[Tensor], Tensor] = lambda number: number.half(),
    seen: Callable[[Tensor], Tensor] = lambda number: number.half().float(),
    whole: Callable[[Tensor], Tensor] = torch.round,
    within: Callable[[Tensor], Tensor] = lambda codes: codes.clamp(0, 15),
    pack: Callable[[Tensor], Tensor] = by_slices,
    sign: int = 1,
    wide: Callable[[Tensor], Tensor] = lambda weight: weight.float(),
    by: Callable[[Tensor], Tensor] = zeros_replaced,
    of_scale: Callable[[Tensor], Tensor] | None = None,
) -> Function:
    """The quantizer with one part of it done otherwise."""

    def quantize(weight: Tensor) -> QuantizedWeight:
        grouped = wide(weight).reshape(len(weight), -1, 32)
        least, most = ends(grouped)
        scale = (most - least) / steps
        quotient = (grouped - seen(least)[..., None]) / by((of_scale or seen)(scale))[..., None]
        codes = within(whole(quotient)).to(torch.int32).to(torch.uint8).reshape(weight.shape)
        return QuantizedWeight("q4_1", pack(codes), kept(scale), kept(sign * least))

    return quantize


def _whole_rows(grouped: Tensor) -> tuple[Tensor, Tensor]:
    least, most = grouped.amin(dim=(1, 2)), grouped.amax(dim=(1, 2))
    return least[:, None].expand(grouped.shape[:2]), most[:, None].expand(grouped.shape[:2])


def _magnitudes(grouped: Tensor) -> tuple[Tensor, Tensor]:
    most = grouped.abs().amax(dim=2)
    return -most, most


def _every_so_many(weight: Tensor) -> QuantizedWeight:
    """With groups of numbers that are not neighbours: [out, 32, in / 32] in place of [out, in / 32, 32]."""
    grouped = weight.float().reshape(len(weight), 32, -1)
    minimum, scale = grouped.amin(dim=1).half(), ((grouped.amax(dim=1) - grouped.amin(dim=1)) / 15).half()
    steps = (grouped - minimum.float()[:, None]) / zeros_replaced(scale.float())[:, None]
    codes = steps.round().clamp(0, 15).to(torch.uint8).reshape(weight.shape)
    return QuantizedWeight("q4_1", by_slices(codes), scale, minimum)


def _with(**parts: Callable[[QuantizedWeight], Tensor]) -> Function:
    """The right answer, with some of its parts exchanged."""

    def quantize(weight: Tensor) -> QuantizedWeight:
        right = _q4_1()(weight)
        return replace(right, **{name: part(right) for name, part in parts.items()})

    return quantize


GROUPS = random(3, 64, seed=20) * torch.tensor([3.0, 90.0, 500.0])[:, None]
CONSTANT = torch.cat((random(1, 32, seed=1) * 20, torch.full((1, 32), 3.5), torch.full((1, 32), 0.1)))
FAR_FROM_ZERO = 400 + random(2, 96, seed=679) * 0.5  # float16 rounds 400 to a quarter: without a clamp, codes -1 and 16
SMALL = random(2, 64, seed=1) * 1e-4
HALF_GROUPS = (random(2, 64, seed=13) * 3).bfloat16()

QUANTIZE_Q4_1 = Grader(
    cases=[
        quantized_case("3 rows of 64: two groups in each", GROUPS, _q4_1_by_hand),
        quantized_case("3 rows of 32, the second 3.5 throughout, the third 0.1", CONSTANT, _q4_1_by_hand),
        quantized_case(
            "2 rows of 96, all numbers near 400, where float16 knows quarters", FAR_FROM_ZERO, _q4_1_by_hand
        ),
        quantized_case("2 rows of 64, all numbers within 0.0004", SMALL, _q4_1_by_hand),
        quantized_case("2 rows of 64 in bfloat16", HALF_GROUPS, _q4_1_by_hand),
    ],
    mutants=[
        Mutant(
            _q4_1(ends=_whole_rows),
            "One scale and one minimum for a whole row. Each 32 neighbours have their own: view the row as groups"
            " first.",
        ),
        Mutant(
            _q4_1(steps=16),
            "You divide by 16. Sixteen codes have fifteen steps between them, so the largest number is code 15 only"
            " if the distance is divided by 15.",
        ),
        Mutant(
            _q4_1(whole=torch.trunc),
            "You cut the fraction off, as .to(torch.uint8) does by itself. Round to the nearest code first.",
        ),
        Mutant(
            _q4_1(seen=lambda number: number),
            "You choose the codes for the exact scale and minimum, but it is the float16 ones that they will be"
            " multiplied with. Far from zero the two differ by more than a step: round them first, then choose.",
        ),
        Mutant(
            _q4_1(ends=lambda g: (g.amin(dim=2).half().float(), g.amax(dim=2))),
            "You measure the distance from the minimum as it was rounded. Both are computed from the exact numbers, and"
            " each is rounded by itself: so the blocks are made in llama.cpp, too.",
        ),
        Mutant(
            _q4_1(within=lambda codes: codes, pack=lambda codes: halves(codes)[0] | halves(codes)[1] << 4),
            "No clamp. After the minimum has been rounded, a number may lie a step below it, or the largest a step"
            " above code 15: -1, which uint8 turns into 255, or 16, which spoils its neighbour in the byte. Keep the"
            " codes within 0 and 15.",
        ),
        Mutant(
            _q4_1(within=lambda codes: codes.clamp(0, 16), pack=lambda codes: halves(codes)[0] | halves(codes)[1] << 4),
            "You clamp to 16. Sixteen codes end at 15, and a 16 spoils its neighbour in the byte.",
        ),
        Mutant(
            _q4_1(within=lambda codes: codes.to(torch.int32).to(torch.uint8).clamp(0, 15)),
            "You clamp too late. In uint8 the code -1 is 255 already, and the clamp makes 15 of it: from one end of the"
            " group to the other. Clamp first, and convert then.",
        ),
        Mutant(
            _q4_1(by=lambda scale: scale),
            "You divide by the scale of a group whose numbers are all the same, which is 0. What comes out is nan or"
            " infinite, and what an integer makes of that is the processor's choice: where the scale is 0, divide by"
            " 1.",
        ),
        Mutant(
            _q4_1(by=lambda scale: scale.clamp(min=1e-9)),
            "You put a floor under the scale and divide by that. The rounded minimum of a group of equal numbers is a"
            " little beside them, and a little over next to nothing is much: code 15. Where the scale is 0, divide by"
            " 1.",
        ),
        Mutant(
            _q4_1(by=lambda scale: scale + 1e-6),
            "You add a little to every scale, so that none is 0. Beside the scales of small weights it is not little,"
            " and their codes come out too low: divide by 1 where the scale is 0, and leave the others alone.",
        ),
        Mutant(
            _with(scale=lambda right: zeros_replaced(right.scale)),
            "The 1 that you divide by where the scale is 0 is in your result, too. What is kept is the scale, 0.",
        ),
        Mutant(
            _q4_1(seen=lambda number: number, of_scale=lambda scale: scale.half().float()),
            "You round the scale before you choose the codes, but measure from the exact minimum. It is the float16 one"
            " that will be added to them: round both first.",
        ),
        Mutant(
            _q4_1(of_scale=lambda scale: scale),
            "You round the minimum before you choose the codes, but divide by the exact scale. It is the float16 one"
            " that they will be multiplied with: round both first.",
        ),
        Mutant(
            _q4_1(ends=lambda g: (g.amin(dim=2).half(), g.amax(dim=2).half())),
            "You round smallest and largest to float16, and measure the distance between those. It is computed from the"
            " exact numbers in float32, and only the scale that comes of it is rounded.",
        ),
        Mutant(
            _q4_1(wide=lambda weight: weight.half(), seen=lambda number: number),
            "You compute in float16 throughout. Only the two numbers that are kept are rounded to it: distance,"
            " difference and quotient are taken in float32.",
        ),
        Mutant(
            _q4_1(wide=lambda weight: weight),
            "You compute in the weight's own dtype. In bfloat16 the distance from smallest to largest has three digits:"
            " .float() first.",
        ),
        Mutant(
            _every_so_many,
            "Your groups are not neighbours: view(out, 32, in / 32) puts numbers together that lie in / 32 apart. The"
            " last axis is the one that runs along the row: view(out, in / 32, 32).",
        ),
        Mutant(
            _with(scale=lambda right: right.minimum, minimum=lambda right: right.scale),
            'Scale and minimum have changed places: QuantizedWeight("q4_1", packed, scale, minimum).',
        ),
        Mutant(
            _q4_1(pack=lambda codes: halves(codes)[1] | halves(codes)[0] << 4),
            "The codes are right, and the halves of the bytes are exchanged: a group's first sixteen codes go into the"
            " lower four bits (14.2).",
        ),
        Mutant(
            _q4_1(ends=_magnitudes),
            "You span the codes over plus and minus the largest magnitude. With a minimum of its own a group need not"
            " be the same on both sides of 0: from its smallest number to its largest.",
        ),
        Mutant(
            _q4_1(kept=lambda number: number),
            "Scale and minimum are kept in float32. At 8 bytes per 32 weights they would cost two bits per weight,"
            " half as much as the codes: .half().",
        ),
        Mutant(
            _q4_1(sign=-1),
            "The minimum has the wrong sign. A number is code * scale + minimum.",
        ),
        Mutant(
            _q4_1(pack=lambda codes: codes),
            "The codes are right, one to a byte. Pack them, two to a byte (14.2).",
        ),
        Mutant(
            _q4_1(pack=lambda codes: codes[:, 0::2] | codes[:, 1::2] << 4),
            "The codes are right, and they are packed as neighbours. Code i shares its byte with code i + 16 of its"
            " group (14.2).",
        ),
    ],
    alternatives=[
        _q4_1(),
        _q4_1(whole=lambda steps: (steps + 0.5).floor(), pack=lambda c: halves(c)[0] + halves(c)[1] * 16),
    ],
)
