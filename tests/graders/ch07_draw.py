"""7.6 and 7.7: the draw, where every sum is exact, and perplexity."""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from statistics import fmean, geometric_mean, median
from typing import Any

import torch
from torch import Tensor

from graders.common import REFUSED, UNTOUCHED, formula, refusal, touched
from minillm.errors import InputError
from minillm.exercises.grading import EXCEPTION, Case, Function, Grader, Mutant, Observation

# --- 7.6: probabilities are multiples of powers of two, so that the wanted token can be told by hand ------------------

_LAST = 1.0 - 2.0**-53  # the largest u that a generator gives


def _draw_case(given: str, probs: Sequence[Sequence[float]], uniforms: Sequence[float], token_ids: list[int]) -> Case:
    def observe(f: Function) -> Observation:
        table = torch.tensor(probs, dtype=torch.float32)
        u = torch.tensor(uniforms, dtype=torch.float64)
        before = table.clone(), u.clone()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)  # so that an answer which draws numbers of its own is the same each time
            result = f(table, u)
        return {
            "the result": result,
            "probs and uniforms afterwards": touched(probs=(table, before[0]), uniforms=(u, before[1])),
        }

    def want() -> Observation:
        return {"the result": torch.tensor(token_ids), "probs and uniforms afterwards": UNTOUCHED}

    return Case(given, observe, want)


_HOLED = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0]
_SHORT = [0.5, 0.25, 0.25 - 2.0**-26, 0.0, 0.0]  # sums to a hair less than 1, and ends in tokens without probability
_RARE = [0.5, 0.5 - 2.0**-26, 2.0**-26]


def _search(
    probs: Tensor,
    uniforms: Tensor,
    *,
    cdf: Callable[[Tensor], Tensor] = lambda p: p.cumsum(-1, dtype=torch.float64),
    whole: bool = True,
    right: bool = True,
    clamp: bool = False,
    squeeze: bool = True,
) -> Tensor:
    """The draw, with its decisions as arguments."""
    sums = cdf(probs)
    target = uniforms[:, None] * (sums[:, -1:] if whole else 1.0)
    index = torch.searchsorted(sums, target, right=right)
    index = index.clamp(max=probs.shape[-1] - 1) if clamp else index
    return index.squeeze(1) if squeeze else index


def _likeliest_first(probs: Tensor, uniforms: Tensor) -> Tensor:
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    return order.gather(1, _search(ranked, uniforms)[:, None]).squeeze(1)


def _by_loop(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Another right answer, in Python's own loop."""
    token_ids = []
    for line, u in zip(probs.double().tolist(), uniforms.tolist(), strict=True):
        running, target = 0.0, u * sum(line)
        for token_id, prob in enumerate(line):
            running += prob
            if running > target:
                token_ids.append(token_id)
                break
    return torch.tensor(token_ids)


def _normalised_in_place(probs: Tensor, uniforms: Tensor) -> Tensor:
    uniforms *= probs.double().sum(-1)
    return _search(probs, uniforms, whole=False)


def _probs_normalised_in_place(probs: Tensor, uniforms: Tensor) -> Tensor:
    probs /= probs.sum(-1, keepdim=True)
    return _search(probs, uniforms)


def _from_the_end(probs: Tensor, uniforms: Tensor) -> Tensor:
    return probs.shape[-1] - 1 - _search(probs.flip(-1), uniforms)


def _first_row_for_all(probs: Tensor, uniforms: Tensor) -> Tensor:
    return _search(probs[:1].expand_as(probs).contiguous(), uniforms)


def _flat_uniforms(probs: Tensor, uniforms: Tensor) -> Tensor:
    return torch.searchsorted(probs.cumsum(-1, dtype=torch.float64), uniforms, right=True)


DRAW = Grader(
    cases=[
        _draw_case(
            "probs = [[5, 3, 2, 6], [1, 4, 2, 9], [2, 6, 1, 7]] / 16, u = [0.6, 0.1, 0.5]",
            [[p / 16 for p in line] for line in ([5, 3, 2, 6], [1, 4, 2, 9], [2, 6, 1, 7])],
            [0.6, 0.1, 0.5],
            [2, 1, 2],
        ),
        _draw_case(
            "four rows of probabilities 0, 0.25, 0, 0.5, 0.25, 0; u = [0.0, 0.25, 0.7, 0.75]",
            [_HOLED] * 4,
            [0.0, 0.25, 0.7, 0.75],
            [1, 3, 3, 4],
        ),
        _draw_case("the same, one row, u = 1 - 2^-53, the largest there is", [_HOLED], [_LAST], [4]),
        _draw_case(
            "probabilities 0.5, 0.25, 0.25 - 2^-26, 0, 0: a sum below 1; u = 1 - 2^-53 and 0.3",
            [_SHORT, _SHORT],
            [_LAST, 0.3],
            [2, 0],
        ),
        _draw_case(
            "probabilities 0.5, 0.5 - 2^-26, 2^-26: a rare token; u = 1 - 2^-27, 1 - 2^-25, 0.5",
            [_RARE] * 3,
            [1 - 2.0**-27, 1 - 2.0**-25, 0.5],
            [2, 1, 1],
        ),
        _draw_case(
            "probabilities 0.5, 0.25, 0.25 - 2^-20: a sum that float32 knows to be below 1; u = 0.3 and 0.8",
            [[0.5, 0.25, 0.25 - 2.0**-20]] * 2,
            [0.3, 0.8],
            [0, 2],
        ),
        _draw_case("a single token of probability 1, u = 0.9", [[1.0]], [0.9], [0]),
        _draw_case("a row of 4,096 equal tokens, u = 0.123456", [[2.0**-12] * 4096], [0.123456], [505]),
    ],
    mutants=[
        Mutant(
            lambda p, u: _search(p, u, right=False),
            "You take the first sum that is at least u. At u = 0 that is the first token, even if its probability is"
            " 0; and a u on a boundary falls one token too early: strictly greater, right=True.",
        ),
        Mutant(
            lambda p, u: _search(p, u, whole=False),
            "A row's sum can be a hair below 1, and then a u close to 1 is beyond all of it: your token id is outside"
            " the vocabulary. Multiply u with the row's whole sum.",
        ),
        Mutant(
            lambda p, u: _search(p, u, whole=False, clamp=True),
            "Where u is beyond a sum that is a hair below 1 you take the last id, and that token may have a"
            " probability of 0. Multiply u with the row's whole sum; then it is never beyond.",
        ),
        Mutant(
            lambda p, u: _search(p, u, cdf=lambda p: p.cumsum(-1).double()),
            "You add up in float32. Near 1 its numbers are 6e-8 apart, so a rarer token has no share in the sum and is"
            " never drawn: cumsum(-1, dtype=torch.float64).",
        ),
        Mutant(
            lambda p, u: _search(p, u.float(), cdf=lambda p: p.cumsum(-1)),
            "You bring u and the sum to float32. A u just below 1 becomes 1 there, and no sum is greater: compute both"
            " in float64.",
        ),
        Mutant(
            lambda p, u: _search(p, u[:1].expand_as(u)),
            "All rows share the first u. Each request has a number of its own; otherwise one's tokens depend on who is"
            " in the batch.",
        ),
        Mutant(
            lambda p, u: _search(p, u, cdf=lambda p: p.cumsum(0, dtype=torch.float64)),
            "You add up over the batch. The running sum goes along a row: the last axis.",
        ),
        Mutant(
            lambda p, u: p.argmax(-1),
            "You take the likeliest token. That is greedy: u has no say in it.",
        ),
        Mutant(
            _likeliest_first,
            "You sort the tokens first. The draw is as fair, but the same seed now gives other tokens than the engine:"
            " the sum runs in the order of ids.",
        ),
        Mutant(
            lambda p, u: _search(p, u, squeeze=False),
            "The result is [B, 1]. One id for each row, [B]: .squeeze(1).",
        ),
        Mutant(
            lambda p, u: _search(p, u, squeeze=False).squeeze(),
            "squeeze() without an axis drops *every* axis of size 1, so a batch of one loses its batch: .squeeze(1).",
        ),
        Mutant(
            lambda p, u: (p > u[:, None]).int().argmax(-1),
            "You compare u with each probability by itself. It falls on a line where the tokens lie side by side:"
            " compare with the running sum.",
        ),
        Mutant(
            _flat_uniforms,
            "searchsorted wants a row of values for each row of sums: uniforms[:, None], [B, 1], and .squeeze(1)"
            " afterwards.",
            begins="RuntimeError: torch.searchsorted(): boundaries tensor should be 1 dimension",
        ),
        Mutant(_normalised_in_place, "You write into uniforms. They are the caller's: make a new tensor."),
        Mutant(_probs_normalised_in_place, "You write into probs. They are the caller's: make a new tensor."),
        Mutant(
            lambda p, u: torch.multinomial(p, 1).squeeze(1),
            "torch.multinomial draws a number of its own. The number is given, uniforms: one for each row, and the same"
            " one must always give the same token.",
        ),
        Mutant(
            lambda p, u: _search(p, 1 - u),
            "You look 1 - u up. The draw is as fair, but the same seed now gives other tokens than the engine: the"
            " running sum is compared with u itself.",
        ),
        Mutant(
            _from_the_end,
            "You add up from the last id. The draw is as fair, but the same seed now gives other tokens than the"
            " engine: the sum runs from id 0.",
        ),
        Mutant(
            _first_row_for_all,
            "You use the first row's sums for all rows. Each row has a distribution of its own: keep the whole [B, V].",
        ),
        Mutant(
            lambda p, u: _search(p, u, whole=False) % p.shape[-1],
            "Where u is beyond a sum that is a hair below 1, your % makes it token 0. Multiply u with the row's whole"
            " sum; then it is never beyond.",
        ),
        Mutant(
            lambda p, u: _search(p, u).int(),
            "Your ids are int32. Token ids are int64 throughout, as searchsorted gives them without out_int32.",
        ),
    ],
    alternatives=[
        _by_loop,
        lambda p, u: (p.double().cumsum(-1) <= u[:, None] * p.double().sum(-1, keepdim=True)).sum(-1),
        lambda p, u: _search(p.double() / p.double().sum(-1, keepdim=True), u),
        lambda p, u: (p.double().cumsum(-1) > u[:, None] * p.double().cumsum(-1)[:, -1:]).int().argmax(-1),
    ],
)

# --- 7.7 -------------------------------------------------------------------------------------------------------------

_UNEVEN = [-0.25, -3.5, -1.125, -6.75, -0.0625]
_THOUSANDS = [-(0.5 + (i % 7)) for i in range(7000)]  # a mean of 3.5; the product of the probabilities is 0 in float64


_CLOSE = 1e-5  # of a perplexity, relative: right answers in float32 are within 1e-6, the wrong ones beyond 1e-4


def _case(given: str, logprobs: Sequence[float], want: float) -> Case:
    """float32 is as right as float64 here: a number that is close enough counts as the wanted one."""

    def observe(f: Function) -> Observation:
        return formula(given, [logprobs], want).observe(lambda x: _snapped(f(x), want))

    return Case(given, observe, lambda: {"the result": want, "the arguments afterwards": UNTOUCHED})


def _snapped(result: Any, want: float) -> Any:
    is_close = isinstance(result, Real) and math.isclose(result, want, rel_tol=_CLOSE)
    return want if is_close else result


def _empty_case() -> Case:
    return Case("logprobs = []", lambda f: refusal(f, []), lambda: {EXCEPTION: REFUSED})


def _checked(mean: Callable[[Sequence[float]], Any]) -> Function:
    """An answer whose refusal is right."""

    def perplexity(logprobs: Sequence[float]) -> Any:
        if not logprobs:
            raise InputError("no")
        return mean(logprobs)

    return perplexity


def _refusing(refuse: Callable[[], Any]) -> Function:
    """An answer that is right but for what it does where there is nothing."""
    return lambda logprobs: math.exp(-fmean(logprobs)) if logprobs else refuse()


def _raise(error: Exception) -> None:
    raise error


def _of_product(logprobs: Sequence[float]) -> float:
    return math.prod(math.exp(x) for x in logprobs) ** (-1 / len(logprobs))


def _root_of_inverse(logprobs: Sequence[float]) -> float:
    return (1 / math.prod(math.exp(x) for x in logprobs)) ** (1 / len(logprobs))


PERPLEXITY = Grader(
    cases=[
        _case("logprobs = [log(1/2), log(1/8)]", [math.log(0.5), math.log(0.125)], 4.0),
        _case("logprobs = [-0.25, -3.5, -1.125, -6.75, -0.0625]", _UNEVEN, math.exp(11.6875 / 5)),
        _case("logprobs = (-0.75,), one token", (-0.75,), math.exp(0.75)),
        _case("7,000 tokens, their mean -3.5", _THOUSANDS, math.exp(3.5)),
        _case("logprobs = [0.0, 0.0]: a model that knew", [0.0, 0.0], 1.0),
        _empty_case(),
    ],
    mutants=[
        Mutant(
            _checked(lambda x: fmean(math.exp(-y) for y in x)),
            "You take exp of each number, and the mean of those. One unlikely token then outweighs a whole text: the"
            " mean of the logarithms first, exp of it afterwards.",
        ),
        Mutant(
            _checked(lambda x: 1 / fmean(math.exp(y) for y in x)),
            "You take the mean of the probabilities. What multiplies up to the text's probability has a geometric"
            " mean, which is exp of the mean of the logarithms.",
        ),
        Mutant(
            _checked(lambda x: math.exp(fmean(x))),
            "The sign is missing: log-probabilities are negative, and a perplexity is at least 1. exp(-mean).",
        ),
        Mutant(
            _checked(lambda x: -fmean(x)),
            "That is the loss: the mean of -log p, in nats. The perplexity is exp of it.",
        ),
        Mutant(
            _checked(lambda x: 2 ** -fmean(x)),
            "You take a power of 2 of natural logarithms. 2 goes with log2; these want exp.",
        ),
        Mutant(
            _checked(lambda x: math.exp(min(-sum(x), 700.0))),
            "You take the sum for the mean: a text twice as long would count as far harder. Divide by the number of"
            " log-probabilities.",
        ),
        Mutant(
            _checked(lambda x: math.exp(-sum(x) / (len(x) + 1))),
            "You divide by the number of tokens, the first among them. Nothing predicted that one: divide by the"
            " number of log-probabilities.",
        ),
        Mutant(
            _checked(lambda x: math.exp(-sum(x) / max(1, len(x) - 1))),
            "You divide by one too few. The first token has been left out already: all that you are given count.",
        ),
        Mutant(
            _checked(lambda x: math.exp(-fmean(x[1:] or x))),
            "You leave the first number out. It belongs to the *second* token: the first has none.",
        ),
        Mutant(
            _checked(lambda x: math.exp(-median(x))),
            "That is the median. The mean makes the perplexity one over the text's probability, per token.",
        ),
        Mutant(
            _checked(_of_product),
            "You multiply the probabilities. After some hundreds of tokens their product is 0 in float64: add"
            " logarithms instead.",
            begins="ZeroDivisionError: ",
        ),
        Mutant(
            _checked(lambda x: round(math.exp(-fmean(x)), 2)),
            "You round. Rounding is for whoever prints the number.",
        ),
        Mutant(
            _checked(lambda x: torch.tensor(x, dtype=torch.float32).mean().neg().exp()),
            "The value is right, but it is a tensor: .item() takes the number out of it.",
        ),
        Mutant(
            lambda x: math.exp(-sum(x) / len(x)),
            "Without any log-probability you divide by zero: raise InputError, with a sentence for the user.",
        ),
        Mutant(
            lambda x: math.exp(-fmean(x)),
            "Without any log-probability the mean raises an error of its own, which tells the user nothing: raise"
            " InputError, with a sentence.",
        ),
        Mutant(
            _refusing(lambda: 1.0),
            "Without any log-probability you return something, and nobody hears of it: raise InputError.",
        ),
        Mutant(
            _refusing(lambda: _raise(ValueError("no"))),
            "You raise ValueError. InputError is a kind of it, and it is what command lines answer with a sentence:"
            " from minillm.errors import InputError.",
        ),
        Mutant(_refusing(lambda: _raise(InputError())), "Your InputError has no message. Say what is missing."),
    ],
    alternatives=[
        _checked(lambda x: math.exp(-sum(x) / len(x))),
        _checked(lambda x: geometric_mean([math.exp(-y) for y in x])),
        _checked(lambda x: torch.tensor(x, dtype=torch.float64).mean().neg().exp().item()),
        _checked(lambda x: torch.tensor(x, dtype=torch.float32).mean().neg().exp().item()),
        _checked(lambda x: 2 ** (-sum(y / math.log(2) for y in x) / len(x))),
    ],
)
