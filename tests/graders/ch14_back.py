"""14.4: codes and scales back into numbers."""

from collections.abc import Callable

import torch
from torch import Tensor

from graders.common import random
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.quantization import QuantizedWeight

NIBBLES = ("q4_0", "q4_1")


def _unpacked(packed: Tensor) -> Tensor:
    grouped = packed.reshape(len(packed), -1, 16)
    return torch.cat((grouped % 16, grouped // 16), dim=2).reshape(len(packed), -1)


def _by_hand(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Number by number, in Python's floats."""
    rows = (_unpacked(weight.codes) if weight.format in NIBBLES else weight.codes).tolist()
    scales, minima = weight.scale.tolist(), weight.minimum.tolist() if weight.minimum is not None else None
    numbers = []
    for r, row in enumerate(rows):
        of_row = []
        for i, code in enumerate(row):
            scale = scales[r] if weight.format == "int8" else scales[r][i // 32]
            least = minima[r][i // 32] if minima else 0.0
            of_row.append((code - 8 if weight.format == "q4_0" else code) * scale + least)
        numbers.append(of_row)
    return torch.tensor(numbers, dtype=torch.float32).to(dtype)


def _weight(format: str, rows: int, columns: int, seed: int, *, apart: bool = False) -> QuantizedWeight:
    """Codes at random; with `apart`, all parts are views into rows of one memory, as a loaded model has them."""
    generator = torch.Generator().manual_seed(seed)
    nibbles, groups = format in NIBBLES, columns // 32
    width = columns // 2 if nibbles else columns
    low, high, kind = (0, 256, torch.uint8) if nibbles else (-127, 128, torch.int8)
    codes = torch.randint(low, high, (rows, width), generator=generator, dtype=kind)
    if format == "int8":
        return QuantizedWeight(format, codes, random(rows, seed=seed).abs() * 2)
    scale = (random(rows, groups, seed=seed).abs() * 2).half()
    minimum = (random(rows, groups, seed=seed + 1) * 9).half() if format == "q4_1" else None
    if not apart:
        return QuantizedWeight(format, codes, scale, minimum)
    numbers = [scale] if minimum is None else [scale, minimum]
    memory = torch.cat([codes.view(torch.uint8), *(n.view(torch.uint8) for n in numbers)], dim=1)
    parts = memory.split([width, *(2 * groups for _ in numbers)], dim=1)
    return QuantizedWeight(format, parts[0].view(kind), *(part.view(torch.float16) for part in parts[1:]))


def _case(weight: QuantizedWeight, given: str, dtype: torch.dtype = torch.float32) -> Case:
    rows, columns = weight.shape
    words = f"{weight.format}, {rows} rows of {columns}{given}"

    def observe(f: Function) -> Observation:
        parts = [part for part in (weight.codes, weight.scale, weight.minimum) if part is not None]
        before = [part.clone() for part in parts]
        result = f(weight) if dtype == torch.float32 else f(weight, dtype)
        kept = all(torch.equal(part, old) for part, old in zip(parts, before, strict=True))
        for part, old in zip(parts, before, strict=True):
            part.copy_(old)  # the next run is to find them as they were
        return {"the result": result, "the matrix afterwards": "as it was" if kept else "changed by your code"}

    return Case(words, observe, lambda: {"the result": _by_hand(weight, dtype), "the matrix afterwards": "as it was"})


def _back(
    *,
    less: Callable[[str], int] = lambda format: 8 if format == "q4_0" else 0,
    plus: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda codes, scale, minimum: codes * scale + minimum,
    per_row: Callable[[Tensor, Tensor], Tensor] = lambda codes, scale: codes * scale[:, None],
    unpack: Callable[[Tensor], Tensor] = _unpacked,
    spread: Callable[[Tensor, int], Tensor] = lambda scale, columns: scale.repeat_interleave(32, dim=1),
    wide: Callable[[Tensor, torch.dtype], Tensor] = lambda number, dtype: number.float(),
    end: Callable[[Tensor, torch.dtype], Tensor] = lambda numbers, dtype: numbers.to(dtype),
) -> Function:
    """The way back with one part of it done otherwise."""

    def dequantized(self: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
        codes = wide(unpack(self.codes) if self.format in NIBBLES else self.codes, dtype)
        if self.format == "int8":
            return end(per_row(codes, wide(self.scale, dtype)), dtype)
        columns = codes.shape[1]
        codes = codes - less(self.format)
        scale = wide(spread(self.scale, columns), dtype)
        if self.minimum is None:
            return end(codes * scale, dtype)
        return end(plus(codes, scale, wide(spread(self.minimum, columns), dtype)), dtype)

    return dequantized


def _grouped(self: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    if self.format == "int8":
        return (self.scale.unsqueeze(1) * self.codes).to(dtype)
    codes = _unpacked(self.codes) if self.format in NIBBLES else self.codes
    out = torch.zeros(codes.shape, dtype=torch.float32)
    for g in range(codes.shape[1] // 32):
        place = slice(32 * g, 32 * g + 32)
        block = codes[:, place].to(torch.float32)
        if self.format == "q4_0":
            block = block - 8
        out[:, place] = block * self.scale[:, g : g + 1].float()
        if self.minimum is not None:
            out[:, place] += self.minimum[:, g : g + 1].float()
    return out.to(dtype)


def _neighbours(packed: Tensor) -> Tensor:
    return torch.stack((packed % 16, packed // 16), dim=2).reshape(len(packed), -1)


def _swapped(packed: Tensor) -> Tensor:
    grouped = packed.reshape(len(packed), -1, 16)
    return torch.cat((grouped // 16, grouped % 16), dim=2).reshape(len(packed), -1)


def _eight_off_in_bytes(self: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    if self.format != "q4_0":
        return _back()(self, dtype)
    codes = _unpacked(self.codes) - 8  # uint8: 7 - 8 is 255
    return (codes * self.scale.float().repeat_interleave(32, dim=1)).to(dtype)


def _writing(self: QuantizedWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    result = _back()(self, dtype)
    if self.format == "q4_0":
        self.scale.mul_(2)
    return result


DEQUANTIZED = Grader(
    cases=[
        _case(_weight("int8", 5, 64, 1), ""),
        _case(_weight("q8_0", 3, 96, 2), ""),
        _case(_weight("q4_1", 4, 64, 3), ""),
        _case(_weight("q4_0", 3, 64, 4), ""),
        _case(_weight("q4_1", 2, 96, 5), ", to bfloat16", torch.bfloat16),
        _case(_weight("int8", 3, 32, 6), ", to bfloat16", torch.bfloat16),
        _case(_weight("q4_1", 3, 96, 7, apart=True), ", its parts views with gaps between the rows"),
        _case(_weight("q8_0", 2, 64, 8, apart=True), ", its parts views with gaps between the rows"),
    ],
    mutants=[
        Mutant(
            _back(less=lambda format: 0),
            "In q4_0 the codes 0 to 15 stand for -8 to 7: take 8 away before you multiply. It has no minimum that"
            " would do so.",
        ),
        Mutant(
            _eight_off_in_bytes,
            "You take 8 away while the codes are still uint8, which knows nothing below 0: 7 - 8 is 255 there."
            " .float() first, and then - 8.",
        ),
        Mutant(
            _back(less=lambda format: 7 if format == "q4_0" else 0),
            "You take 7 away. The codes of q4_0 stand for -8 to 7, and not for -7 to 8: it is code 8 that is 0.",
        ),
        Mutant(
            _back(less=lambda format: 8 if format in NIBBLES else 0),
            "You take 8 from the codes of q4_1, too. Its minimum says where code 0 stands; only q4_0 is centred.",
        ),
        Mutant(
            _back(plus=lambda codes, scale, minimum: codes * scale),
            "q4_1 has a minimum, and you leave it out: code * scale + minimum.",
        ),
        Mutant(
            _back(plus=lambda codes, scale, minimum: (codes + minimum) * scale),
            "You add the minimum before you multiply. It is a number, not a code: code * scale + minimum.",
        ),
        Mutant(
            _back(plus=lambda codes, scale, minimum: codes * scale - minimum),
            "You subtract the minimum. It is kept with its sign: code * scale + minimum.",
        ),
        Mutant(
            _back(spread=lambda scale, columns: scale.repeat(1, 32)),
            "The scales come in the wrong order: each belongs to 32 neighbours. repeat goes through all of them 32"
            " times; repeat_interleave, or a view as groups, keeps neighbours together.",
        ),
        Mutant(
            _back(unpack=_neighbours),
            "You take the two codes of a byte for neighbours. Code i of a group shares its byte with code i + 16:"
            " unpack_nibbles knows.",
        ),
        Mutant(
            _back(unpack=_swapped),
            "Upper and lower halves are exchanged: the lower four bits of a group's bytes are its first sixteen codes.",
        ),
        Mutant(
            _back(wide=lambda number, dtype: number.to(dtype)),
            "You compute in the dtype that is asked for. Product and sum are then rounded one after the other:"
            " compute in float32, and round once at the end.",
        ),
        Mutant(
            _back(wide=lambda number, dtype: number if number.is_floating_point() else number.to(torch.int16)),
            "You multiply with the scale in float16, and then the product is float16, too, with three digits. Scale and"
            " minimum .float() first.",
        ),
        Mutant(
            _back(end=lambda numbers, dtype: numbers),
            "The result is float32, whatever dtype is asked for.",
        ),
        Mutant(
            _back(per_row=lambda codes, scale: codes * scale[0]),
            "Every row of int8 has a scale of its own: scale[:, None] puts each beside its row.",
        ),
        Mutant(
            _writing,
            "You write into the matrix. Its codes and scales are the model's weights, and the next pass reads them:"
            " work on a copy (.float() makes one of codes, not of a scale that is float32 already).",
        ),
    ],
    alternatives=[_back(), _grouped],
)
