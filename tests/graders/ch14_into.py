"""14.1, 14.2 and 14.3: numbers into codes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graders.common import random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.quantization import QuantizedWeight

# The seeds are such that no weight lies near the middle between two codes: rounding there is nobody's mistake.


BECOMES, FINITE, NOT_FINITE = "what is turned into codes", "finite numbers", "nan or infinity among them"


class _IntoIntegers(TorchFunctionMode):
    """Looks at what is turned into an integer type. What becomes of a nan there is the processor's choice: often 0."""

    def __init__(self) -> None:
        super().__init__()
        self.given = FINITE

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        writes = func.__name__ in ("copy_", "__setitem__")
        if writes or func.__name__ in ("to", "type", "type_as", "char", "byte", "short", "int", "long"):
            into = args[0] if writes else result
            floats = [one for one in args if isinstance(one, Tensor) and one.is_floating_point()]
            if not into.is_floating_point() and not all(one.isfinite().all() for one in floats):
                self.given = NOT_FINITE
        return result


def _seen(result: Any) -> Observation:
    """What a `QuantizedWeight` holds. A scale under which all codes are 0 stands for 0, whatever it is."""
    if not isinstance(result, QuantizedWeight):
        return {"the result": f"{type(result).__name__}, and not a QuantizedWeight"}
    codes, scale = result.codes, result.scale
    of_rows = isinstance(scale, Tensor) and isinstance(codes, Tensor) and scale.shape == codes.shape[:1]
    if result.format == "int8" and of_rows and codes.dim() == 2:
        empty = (codes == 0).all(dim=1) & scale.isfinite()
        scale = torch.where(empty, torch.zeros_like(scale), scale)
    return {
        "the result": "a QuantizedWeight",
        "its format": result.format,
        "its codes": codes,
        "its scale": scale,
        "its minimum": result.minimum,
    }


def _case(given: str, weight: Tensor, want: Callable[[Tensor], QuantizedWeight]) -> Case:
    def observe(f: Function) -> Observation:
        mine = weight.clone()
        with _IntoIntegers() as into:
            seen = _seen(f(mine))
        return {**dict.fromkeys(_seen(want(weight)), "nothing, for it is none"), **seen, BECOMES: into.given,
                "afterwards": touched(weight=(mine, weight))}  # fmt: skip

    return Case(given, observe, lambda: {**_seen(want(weight)), BECOMES: FINITE, "afterwards": "as they were"})


def _zeros_replaced(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.ones_like(scale), scale)


# --- 14.1 ------------------------------------------------------------------------------------------------------------


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
    by: Callable[[Tensor], Tensor] = _zeros_replaced,
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
    return QuantizedWeight("int8", (weight.float() / _zeros_replaced(scale)).round().to(torch.int8), scale)


def _rounded_within(least: int, most: int) -> Callable[[Tensor], Tensor]:
    return lambda steps: steps.round().clamp(least, most)


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
        _case("5 rows of 64, of magnitudes 3 to 2,700", ROWS, _int8_by_hand),
        _case("4 rows of 32, the third of zeros", WITH_ZEROS, _int8_by_hand),
        _case("3 rows of 32, all numbers negative", NEGATIVE, _int8_by_hand),
        _case("3 rows of 96 in bfloat16", HALF, _int8_by_hand),
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
    alternatives=[_int8(), _int8_clamped, _int8_row_by_row],
)

# --- 14.2 ------------------------------------------------------------------------------------------------------------


def _codes(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 16, (rows, columns), generator=generator, dtype=torch.uint8)


def _packed_by_hand(codes: Tensor) -> Tensor:
    packed = []
    for row in codes.tolist():
        groups = [row[start : start + 32] for start in range(0, len(row), 32)]
        packed.append([group[i] + 16 * group[i + 16] for group in groups for i in range(16)])
    return torch.tensor(packed, dtype=torch.uint8)


def _packing(rows: int, columns: int, seed: int) -> Case:
    codes = _codes(rows, columns, seed)

    def observe(f: Function) -> Observation:
        mine = codes.clone()
        return {"the result": f(mine), "afterwards": touched(codes=(mine, codes))}

    return Case(
        f"codes of {rows} rows of {columns}",
        observe,
        lambda: {"the result": _packed_by_hand(codes), "afterwards": "as they were"},
    )


def _halves(codes: Tensor) -> tuple[Tensor, Tensor]:
    grouped = codes.reshape(codes.shape[0], -1, 2, 16)
    return grouped[:, :, 0].reshape(len(codes), -1), grouped[:, :, 1].reshape(len(codes), -1)


def _by_slices(codes: Tensor) -> Tensor:
    low = torch.cat([codes[:, start : start + 16] for start in range(0, codes.shape[1], 32)], dim=1)
    high = torch.cat([codes[:, start + 16 : start + 32] for start in range(0, codes.shape[1], 32)], dim=1)
    return low + high * 16


PACK_NIBBLES = Grader(
    cases=[_packing(3, 96, 1), _packing(1, 32, 2), _packing(2, 64, 3)],
    mutants=[
        Mutant(
            lambda codes: codes[:, 0::2] | codes[:, 1::2] << 4,
            "You put neighbours into one byte. In these blocks code i shares its byte with code i + 16 of the same"
            " group: then one AND takes sixteen consecutive codes out of sixteen bytes.",
        ),
        Mutant(
            lambda codes: codes[:, 1::2] | codes[:, 0::2] << 4,
            "You put neighbours into one byte, the first of them into the upper half. Code i goes into the lower half"
            " of byte i, and it is code i + 16 that joins it.",
        ),
        Mutant(
            lambda codes: _halves(codes)[1] | _halves(codes)[0] << 4,
            "Upper and lower half are exchanged: the first sixteen codes of a group are in the lower four bits.",
        ),
        Mutant(
            lambda codes: codes[:, : codes.shape[1] // 2] | codes[:, codes.shape[1] // 2 :] << 4,
            "You pair the first half of a row with its second half. That is right for a row of 32 only: pair within"
            " each group of 32.",
        ),
        Mutant(
            lambda codes: _halves(codes)[0] | _halves(codes)[1],
            "The two codes of a byte lie on top of each other. Shift the second by four bits (<< 4, or * 16) first.",
        ),
        Mutant(
            lambda codes: _halves(codes)[0] + _halves(codes)[1] << 4,
            "You shift the sum of both: in Python, a + b << 4 is (a + b) << 4. Write a | b << 4, or a + (b << 4).",
        ),
        Mutant(
            lambda codes: _halves(codes)[0] | _halves(codes)[1] << 3,
            "You shift by too little: a code has four bits, so the other begins at the fifth (<< 4).",
        ),
        Mutant(
            lambda codes: _halves(codes)[0].int() | _halves(codes)[1].int() << 4,
            "The bytes are right, and the dtype is not: in int32 or int64 the packed matrix is larger than the one you"
            " began with. Stay in uint8, or go back to it.",
        ),
        Mutant(
            lambda codes: torch.cat(
                (_halves(codes)[0].view(len(codes), -1, 16), _halves(codes)[1].view(len(codes), -1, 16)), 2
            ).view(codes.shape),
            "Nothing is packed: the result has as many bytes as there are codes. Two codes go into each byte.",
        ),
    ],
    alternatives=[
        _by_slices,
        lambda codes: _halves(codes)[0] | _halves(codes)[1] << 4,
        lambda codes: (_halves(codes)[0].int() + 16 * _halves(codes)[1].int()).to(torch.uint8),
    ],
)

# --- 14.3 ------------------------------------------------------------------------------------------------------------


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
    packed = _packed_by_hand(torch.tensor(codes, dtype=torch.uint8))
    return QuantizedWeight("q4_1", packed, torch.tensor(scales).half(), torch.tensor(minima).half())


def _q4_1(
    *,
    ends: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda g: (g.amin(dim=2), g.amax(dim=2)),
    steps: float = 15,
    kept: Callable[[Tensor], Tensor] = lambda number: number.half(),
    seen: Callable[[Tensor], Tensor] = lambda number: number.half().float(),
    whole: Callable[[Tensor], Tensor] = torch.round,
    within: Callable[[Tensor], Tensor] = lambda codes: codes.clamp(0, 15),
    pack: Callable[[Tensor], Tensor] = _by_slices,
    sign: int = 1,
    wide: Callable[[Tensor], Tensor] = lambda weight: weight.float(),
    by: Callable[[Tensor], Tensor] = _zeros_replaced,
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
    steps = (grouped - minimum.float()[:, None]) / _zeros_replaced(scale.float())[:, None]
    codes = steps.round().clamp(0, 15).to(torch.uint8).reshape(weight.shape)
    return QuantizedWeight("q4_1", _by_slices(codes), scale, minimum)


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
        _case("3 rows of 64: two groups in each", GROUPS, _q4_1_by_hand),
        _case("3 rows of 32, the second 3.5 throughout, the third 0.1", CONSTANT, _q4_1_by_hand),
        _case("2 rows of 96, all numbers near 400, where float16 knows quarters", FAR_FROM_ZERO, _q4_1_by_hand),
        _case("2 rows of 64, all numbers within 0.0004", SMALL, _q4_1_by_hand),
        _case("2 rows of 64 in bfloat16", HALF_GROUPS, _q4_1_by_hand),
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
            _q4_1(within=lambda codes: codes, pack=lambda codes: _halves(codes)[0] | _halves(codes)[1] << 4),
            "No clamp. After the minimum has been rounded, a number may lie a step below it, or the largest a step"
            " above code 15: -1, which uint8 turns into 255, or 16, which spoils its neighbour in the byte. Keep the"
            " codes within 0 and 15.",
        ),
        Mutant(
            _q4_1(
                within=lambda codes: codes.clamp(0, 16), pack=lambda codes: _halves(codes)[0] | _halves(codes)[1] << 4
            ),
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
            _with(scale=lambda right: _zeros_replaced(right.scale)),
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
            _q4_1(pack=lambda codes: _halves(codes)[1] | _halves(codes)[0] << 4),
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
        _q4_1(whole=lambda steps: (steps + 0.5).floor(), pack=lambda c: _halves(c)[0] + _halves(c)[1] * 16),
    ],
)
