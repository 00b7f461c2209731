"""3.2 and 3.3: rotary positions, against powers in Python's float64 and products of complex numbers."""

import math

import torch
from torch import Tensor

from graders.common import UNTOUCHED, formula, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

# --- 3.2 -------------------------------------------------------------------------------------------------------------


def frequencies_of(head_dim: int, theta: float) -> list[float]:
    """The oracle: radians per position, pair by pair."""
    return [theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]


def _frequencies_case(head_dim: int, theta: float, given: str = "") -> Case:
    want = torch.tensor(frequencies_of(head_dim, theta), dtype=torch.float32)
    return formula(f"head_dim = {head_dim}, rope_theta = {theta}{given}", [head_dim, theta], want)


def _evens(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2).float()


FREQUENCIES = Grader(
    cases=[
        _frequencies_case(4, 10000.0),
        _frequencies_case(10, 500000.0),
        _frequencies_case(64, 100000.0, " (SmolLM2)"),
        _frequencies_case(2, 10000.0, ": a single pair"),
    ],
    mutants=[
        Mutant(
            lambda d, theta: theta ** -(torch.arange(d // 2).float() / d),
            "The exponent is half of what it should be: -2 i / D. The pairs then turn too fast, and the last of them"
            " hardly slower than the middle one should.",
        ),
        Mutant(
            lambda d, theta: theta ** -(torch.arange(d).float() / d),
            "You give one frequency for each number of a head. Two numbers are a pair and turn together: D/2 of them,"
            " with exponents 0, -2/D, -4/D, ...",
        ),
        Mutant(
            lambda d, theta: theta ** -(2 * torch.arange(d).float() / d),
            "You count i up to D. The pairs are numbered 0 ... D/2 - 1: two numbers of a head turn together.",
        ),
        Mutant(
            lambda d, theta: theta ** -(torch.arange(0, d, 2) // d).float(),
            "// drops what is behind the point, and all exponents become 0: every pair then turns alike. Divide by /.",
        ),
        Mutant(
            lambda d, theta: theta ** (-2 * torch.arange(d // 2) // d).float(),
            "// rounds down, and all exponents but the first become -1. Divide by /.",
        ),
        Mutant(
            lambda d, theta: (theta ** -(_evens(d) / d)).repeat(2),
            "The right frequencies, twice. Some engines keep them so, to multiply all D numbers at once; here they are"
            " D/2, one for each pair.",
        ),
        Mutant(
            lambda d, theta: (theta ** -(_evens(d) / d)).repeat_interleave(2),
            "Each frequency comes twice in a row. They are D/2, one for each pair.",
        ),
        Mutant(
            lambda d, theta: theta ** -(_evens(d) / (d // 2)),
            "The exponent is twice what it should be: torch.arange(0, D, 2) is 2 i already, and is divided by D.",
        ),
        Mutant(
            lambda d, theta: theta ** (_evens(d) / d),
            "The sign of the exponent is missing: your pairs turn faster and faster. The first is the fastest, with one"
            " radian per token.",
        ),
        Mutant(
            lambda d, theta: 10000.0 ** -(_evens(d) / d),
            "You take 10,000 for rope_theta. That is Llama 2's; others were trained with 100,000 or 500,000, and with"
            " the wrong one the text stays fluent and loses its way: take the argument.",
        ),
        Mutant(
            lambda d, theta: theta ** -torch.linspace(0, 1, d // 2).float(),
            "Your last exponent is -1. The exponents are -2 i / D for i = 0 ... D/2 - 1, so that the last is a step"
            " short of it.",
        ),
        Mutant(
            lambda d, theta: theta ** -((_evens(d) + 2) / d),
            "You count the pairs from 1. Pair 0 has the exponent 0: it turns by one radian per token.",
        ),
        Mutant(
            lambda d, theta: (theta ** -(_evens(d) / d)).flip(0),
            "The order is reversed: pair 0 is the fastest.",
        ),
        Mutant(
            lambda d, theta: 2 * math.pi * theta ** -(_evens(d) / d),
            "You give turns times 2 pi. rope_theta ** (-2 i / D) is in radians already: nothing is to be converted.",
        ),
        Mutant(
            lambda d, theta: theta ** -(_evens(d).double() / d),
            "The dtype is float64. Angles are kept in float32 here: `.float()` at the end.",
        ),
    ],
    alternatives=[
        lambda d, theta: torch.tensor(frequencies_of(d, theta), dtype=torch.float32),
        lambda d, theta: torch.exp(-math.log(theta) * 2 / d * torch.arange(d // 2).float()),
        lambda d, theta: 1 / torch.pow(theta, torch.arange(0, d, 2) / d),
        lambda d, theta: (theta ** (-2 * torch.arange(d // 2, dtype=torch.float64) / d)).float(),
        lambda d, theta: torch.logspace(0, -(d - 2) / d, d // 2, base=theta),
    ],
)

# --- 3.3 -------------------------------------------------------------------------------------------------------------


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """The oracle: numbers i and i + D/2 as one complex number, times e to the i angle, in float64."""
    half = x.shape[-1] // 2
    pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    after = pairs * torch.polar(torch.ones_like(angles, dtype=torch.float64), angles.double())
    return torch.cat((after.real, after.imag), dim=-1)


def _turn_case(given: str, sizes: tuple[int, int, int, int], angles: Tensor | None = None, wide: bool = False) -> Case:
    batch, heads, tokens, dim = sizes
    dtype = torch.float64 if wide else torch.float32
    if angles is None:
        angles = random(batch, 1, tokens, dim // 2, seed=6) * 2
    angles = angles.to(dtype)

    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        x = random(batch, tokens, heads + 2, dim, seed=5).transpose(1, 2)[:, :heads]  # as the projection leaves it
        return x.to(dtype), angles.cos(), angles.sin()

    def observe(f: Function) -> Observation:
        x, cos, sin = inputs()
        before = [each.clone() for each in (x, cos, sin)]
        result = f(x, cos, sin)
        return {
            "the result": result,
            "x, cos and sin afterwards": touched(x=(x, before[0]), cos=(cos, before[1]), sin=(sin, before[2])),
        }

    def want() -> Observation:
        return {"the result": turned(inputs()[0], angles).to(dtype), "x, cos and sin afterwards": UNTOUCHED}

    shapes = f"x [{batch}, {heads}, {tokens}, {dim}], cos and sin [{batch}, 1, {tokens}, {dim // 2}]"
    return Case(f"{shapes}: {given}", observe, want)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _joined(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=-1)


def _rotate_half(x: Tensor) -> Tensor:
    first, second = _halves(x)
    return _joined(-second, first)


def _neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def _neighbours_in_halves_out(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return _joined(a * cos - b * sin, b * cos + a * sin)


def _new_first(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = _halves(x)
    a = a * cos - b * sin
    return _joined(a, b * cos + a * sin)


def _turned_parts(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return a * cos - b * sin, b * cos + a * sin


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return _joined(*_turned_parts(*_halves(x), cos, sin))


def _in_place(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x.copy_(_turn(x, cos, sin))
    return x


def _overwritten(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = _halves(x)  # views: what is written into x changes them
    x[..., : a.shape[-1]] = a * cos - b * sin
    x[..., a.shape[-1] :] = b * cos + a * sin
    return x


def _ends_meet(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = _halves(x)
    b = b.flip(-1)
    return _joined(a * cos - b * sin, (b * cos + a * sin).flip(-1))


def _with_complex_numbers(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    after = torch.complex(*(half.contiguous() for half in _halves(x))) * torch.complex(cos, sin)
    return _joined(after.real, after.imag)


def _into_an_empty_one(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    result = torch.empty_like(x)
    half = x.shape[-1] // 2
    result[..., :half] = x[..., :half] * cos - x[..., half:] * sin
    result[..., half:] = x[..., half:] * cos + x[..., :half] * sin
    return result


def _pair_by_pair(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    result, half = x.clone(), x.shape[-1] // 2
    for i in range(half):
        a, b = x[..., i], x[..., i + half]
        result[..., i] = a * cos[..., i] - b * sin[..., i]
        result[..., i + half] = b * cos[..., i] + a * sin[..., i]
    return result


TURN = Grader(
    cases=[
        _turn_case("distinct numbers and angles", (2, 3, 4, 10)),
        _turn_case("one token", (1, 5, 1, 6)),
        _turn_case("a quarter turn for everybody", (2, 3, 4, 6), torch.full((2, 1, 4, 3), math.pi / 2)),
        _turn_case("angle 0: position 0, where nothing turns", (2, 4, 1, 6), torch.zeros(2, 1, 1, 3)),
        _turn_case("everything in float64", (2, 4, 3, 8), wide=True),
        _turn_case("a single pair", (3, 4, 5, 2)),
    ],
    mutants=[
        Mutant(
            _neighbours,
            "You pair neighbours, numbers 2 i and 2 i + 1. The paper draws it so, and GGUF files store it so; the"
            " weights in Hugging Face's layout are made for pairs i and i + D/2. (With the wrong pairs a model goes on"
            " talking, and worse.)",
        ),
        Mutant(
            _neighbours_in_halves_out,
            "You take neighbours for a pair, and give them back in halves. A pair is i and i + D/2, and both numbers"
            " stay where they were.",
        ),
        Mutant(
            lambda x, cos, sin: _turn(x, cos, -sin),
            "You turn clockwise: the signs of the two sines are swapped. (a, b) becomes (a cos - b sin, b cos + a"
            " sin).",
        ),
        Mutant(
            lambda x, cos, sin: _turn(x, sin, cos),
            "Cosine and sine are swapped. At angle 0 nothing may move: the cosine, which is 1 there, stays with the"
            " number itself.",
        ),
        Mutant(
            lambda x, cos, sin: _joined(_halves(x)[0] * cos - _halves(x)[1] * sin, _halves(x)[1]),
            "The second half is left as it was. A turn changes both numbers of a pair.",
        ),
        Mutant(
            lambda x, cos, sin: _joined(_halves(x)[0] * cos, _halves(x)[1] * cos),
            "The sines are missing: you shrink the numbers where you should turn them. A turn keeps a pair's length.",
        ),
        Mutant(
            lambda x, cos, sin: _joined(
                _halves(x)[0] * cos + _halves(x)[1] * sin, _halves(x)[1] * cos + _halves(x)[0] * sin
            ),
            "A minus is missing, and the result is no turn: lengths change. The first of a pair becomes a cos - b sin.",
        ),
        Mutant(
            lambda x, cos, sin: _joined(
                _halves(x)[0] * cos - _halves(x)[1] * sin, _halves(x)[1] * cos - _halves(x)[0] * sin
            ),
            "One minus too many: the second of a pair becomes b cos *plus* a sin.",
        ),
        Mutant(
            _new_first,
            "The second half is made from the first half that you have turned already. Both are made from the old"
            " numbers: keep them until both are done.",
        ),
        Mutant(
            _overwritten,
            "You write the first half into x and then read it for the second: by then it has been turned. (A slice is a"
            " view.) And x is not yours to write into: make a new tensor.",
        ),
        Mutant(
            _in_place,
            "You write into x. The result is right, and the caller's tensor is gone: make a new one.",
        ),
        Mutant(
            lambda x, cos, sin: _joined(*_halves(_turn(x, cos, sin))[::-1]),
            "The halves come back in the wrong order. Each number stays in the place of the one it was made from.",
        ),
        Mutant(
            lambda x, cos, sin: x * cos.repeat_interleave(2, -1) + _rotate_half(x) * sin.repeat_interleave(2, -1),
            "You turn halves by angles laid out for neighbours. For pairs i and i + D/2 the D angles are"
            " cat((cos, cos), dim=-1), not repeat_interleave.",
        ),
        Mutant(
            lambda x, cos, sin: torch.stack(_halves(_turn(x, cos, sin)), dim=-1).flatten(-2),
            "The right pairs, turned rightly, and then dealt out to neighbouring places. Each number stays where the"
            " one it was made from was: first halves, then second, torch.cat(..., dim=-1).",
        ),
        Mutant(
            lambda x, cos, sin: x,
            "Nothing is turned: x comes back as it was.",
        ),
        Mutant(
            lambda x, cos, sin: _turn(x.float(), cos.float(), sin.float()),
            "The result is float32 whatever x is in. A model in half precision refuses it, in its cache: stay in x's"
            " dtype, or come back to it.",
        ),
        Mutant(
            _ends_meet,
            "You pair i with D - 1 - i, the ends with each other. It is i and i + D/2.",
        ),
        Mutant(
            lambda x, cos, sin: torch.stack(_halves(_turn(x, cos, sin)), dim=-1),
            "Your pairs have an axis of their own. Join the halves in the last axis: torch.cat(..., dim=-1).",
        ),
        Mutant(
            lambda x, cos, sin: x * cos + _rotate_half(x) * sin,
            "cos and sin have D/2 entries, one for each pair, and x has D: work on the two halves of x, or double them"
            " first, cat((cos, cos), dim=-1).",
            begins="RuntimeError: The size of tensor a",
        ),
        Mutant(
            lambda x, cos, sin: torch.cat(_turned_parts(*x.chunk(2, 1), cos, sin), dim=1),
            "You cut the axis of the heads: chunk(2, 1). A pair lies in the last axis, within one head: chunk(2,"
            " dim=-1), and cat(..., dim=-1).",
            begins="RuntimeError: The size of tensor a",
        ),
        Mutant(
            lambda x, cos, sin: _joined(*_turned_parts(*x.chunk(2, 1), cos, sin)),
            "You halve the axis of the heads: chunk(2, 1). A pair lies in the last axis, within one head: chunk(2,"
            " dim=-1).",
            begins="RuntimeError: The size of tensor a",
        ),
        Mutant(
            lambda x, cos, sin: _joined(*_turned_parts(*x.chunk(2), cos, sin)),
            "chunk(2) cuts the first axis, the sequences. A pair lies in the last one: chunk(2, dim=-1).",
        ),
    ],
    alternatives=[
        lambda x, cos, sin: x * _joined(cos, cos) + _rotate_half(x) * _joined(sin, sin),
        _with_complex_numbers,
        _into_an_empty_one,
        _pair_by_pair,
        lambda x, cos, sin: (_turn(x.double(), cos.double(), sin.double())).to(x.dtype),
    ],
)
