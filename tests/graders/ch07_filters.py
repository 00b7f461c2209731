"""7.3 and 7.4: what cuts the distribution, against sums on plain lists."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from graders import ch07_oracle as oracle
from graders.ch07_logits import IN_PLACE, RANDOM
from graders.ch07_oracle import NEVER, logs, row
from graders.common import UNTOUCHED, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

_FOUR = logs(0.15, 0.5, 0.05, 0.3)
_GIVEN = "logits with probabilities 0.15, 0.5, 0.05, 0.3"


def _case(
    given: str,
    logits: Sequence[float],
    share: float,
    keep: Callable[[Sequence[float], float], list[float]],
    name: str,
) -> Case:
    def observe(f: Function) -> Observation:
        mine = row(logits)
        before = mine.clone()
        result = f(mine, share)
        return {"the result": result, "logits afterwards": touched(logits=(mine, before))}

    def want() -> Observation:
        exact = row(logits).tolist()  # as float32 holds them
        return {"the result": row(keep(exact, share)), "logits afterwards": UNTOUCHED}

    return Case(f"{given}; {name} = {share}", observe, want)


def _only(logits: Tensor, kept: Tensor, dropped: float = NEVER) -> Tensor:
    """Logits where `kept`, `dropped` elsewhere."""
    return torch.where(kept, logits, dropped)


_LOW = (-1e4, -1e5, -1e9, -1e10, -1e30, torch.finfo(torch.float32).min)


def _finite(low: float) -> str:
    return (
        f"You give dropped tokens a logit of {low:g}. It must be -inf: a later step may raise or divide it, and only"
        " -inf has a probability of exactly 0."
    )


_ZERO = "You set dropped logits to 0. A logit of 0 is an ordinary score; a probability of 0 is the logit -inf."
_SHORTER = (
    "You return the kept logits alone. A token's place in the row is its id: keep the row as long as it was, with -inf"
    " at the tokens that go."
)
_PROBS = "You return probabilities. The steps after this one expect logits: keep those as they were."
_SCALED = "You return probabilities, scaled up to one. The steps after this one expect logits: keep those as they were."
_LOGPROBS = (
    "You return log-probabilities of what is left. A softmax would not see the difference, but a token that stays keeps"
    " the very logit that it had."
)

# --- 7.3 -------------------------------------------------------------------------------------------------------------


def _min_p_case(given: str, logits: Sequence[float], share: float) -> Case:
    return _case(given, logits, share, oracle.min_p, "min_p")


def _reached(x: Tensor, min_p: float) -> Tensor:
    probs = x.softmax(0)
    return probs >= min_p * probs.max()


def _min_p_in_place(x: Tensor, min_p: float) -> Tensor:
    x[~_reached(x, min_p)] = NEVER
    return x


MIN_P = Grader(
    cases=[
        _min_p_case(_GIVEN, _FOUR, 0.2),
        _min_p_case("the same logits, each 7 larger", [x + 7 for x in _FOUR], 0.2),
        _min_p_case(f"{_GIVEN}, each 30 smaller", [x - 30 for x in _FOUR], 0.45),
        _min_p_case("37 random logits", RANDOM, 0.05),
        _min_p_case("20 tokens, all but one with probability 0.048", [1.0] * 7 + [1.6] + [1.0] * 12, 0.3),
        _min_p_case("logits = [2.0, 5.0, 5.0, 4.9], two equal", [2.0, 5.0, 5.0, 4.9], 1.0),
        _min_p_case("logits = [-inf, 3.0, 2.5, -1.0], one token dropped", [NEVER, 3.0, 2.5, -1.0], 0.1),
        _min_p_case("logits = [-inf, 3.0, -90.0, 2.5]", [NEVER, 3.0, -90.0, 2.5], 0.0),
    ],
    mutants=[
        Mutant(
            lambda x, m: _only(x, x.softmax(0) >= m),
            "You compare each probability with min_p itself. The bar is min_p times the *largest* probability: it is"
            " high where the model is sure, and low where it is not. (Yours can drop every token.)",
        ),
        Mutant(
            lambda x, m: _only(x, x >= m * x.max()),
            "You take a share of the largest logit. Logits have no zero (add 7 to all, and nothing has changed), so"
            " they have no shares: compare probabilities.",
        ),
        Mutant(
            lambda x, m: _only(x, x.softmax(0) >= x.softmax(0).max() - m),
            "You subtract min_p from the largest probability. It is a factor: min_p times as likely.",
        ),
        Mutant(
            lambda x, m: _only(x, x.softmax(0) > m * x.softmax(0).max()) if m else x,
            "You ask for *more* than min_p times the largest. At min_p = 1 that drops the likeliest token itself, and"
            " none is left: at least as likely, >=.",
        ),
        Mutant(
            lambda x, m: _only(x, x >= x.max() + math.log10(m)) if m else x,
            "Logits are natural logarithms: math.log, not log10.",
        ),
        Mutant(
            lambda x, m: _only(x, x >= x.max() + math.log(m)),
            "The logarithm of 0 raises. A min_p of 0 keeps all: return early.",
            begins="ValueError: ",
        ),
        Mutant(lambda x, m: _only(x, ~_reached(x, m)), "You keep what should go, and drop what should stay."),
        Mutant(
            lambda x, m: _only(x, x >= x.max() - math.log(m or 1e-30)),
            "The sign: the logarithm of a number below 1 is negative already. The bar lies *below* the largest logit:"
            " logits.max() + log(min_p).",
        ),
        Mutant(
            lambda x, m: _only(x, x.softmax(0) >= (1 - m) * x.softmax(0).max()),
            "Your bar is 1 - min_p times the largest probability. It is min_p times: a larger min_p drops more.",
        ),
        Mutant(
            lambda x, m: _only(x, x.softmax(0) >= 1 - m),
            "You compare each probability with 1 - min_p. The bar is min_p times the largest probability.",
        ),
        *(Mutant(lambda x, m, low=low: _only(x, _reached(x, m), low), _finite(low)) for low in _LOW),
        Mutant(lambda x, m: _only(x, _reached(x, m)).log_softmax(0), _LOGPROBS),
        Mutant(lambda x, m: _only(x, _reached(x, m), 0.0), _ZERO),
        Mutant(lambda x, m: x[_reached(x, m)], _SHORTER),
        Mutant(lambda x, m: _only(x.softmax(0), _reached(x, m), 0.0), _PROBS),
        Mutant(lambda x, m: _only(x, _reached(x, m)).softmax(0), _SCALED),
        Mutant(_min_p_in_place, IN_PLACE),
    ],
    alternatives=[
        lambda x, m: _only(x, _reached(x, m)),
        lambda x, m: x.masked_fill(x - x.max() < math.log(m), NEVER) if m > 0 else x.clone(),
        lambda x, m: _only(x, (x - x.max()).exp() >= m),
    ],
)

# --- 7.4 -------------------------------------------------------------------------------------------------------------


def _top_p_case(given: str, logits: Sequence[float], share: float) -> Case:
    return _case(given, logits, share, oracle.top_p, "top_p")


def _cut(x: Tensor, stays: Callable[[Tensor, Tensor], Tensor], top_p: float, home: bool = True) -> Tensor:
    """Sort, decide from (running sum, sum before) who stays, and send the decision back to the tokens' places."""
    if top_p == 1.0:
        return x
    probs, order = x.softmax(0).sort(descending=True, stable=True)
    total = probs.cumsum(0)
    kept = stays(total, total - probs)
    return _only(x, kept.new_zeros(kept.shape).scatter(0, order, kept) if home else kept)


def _down_to_the_crossing(x: Tensor, top_p: float, early: bool = True) -> Tensor:
    """Right (but for top_p = 1, unless early): the bar is the crossing token's probability."""
    if early and top_p == 1.0:
        return x
    probs = x.softmax(0)
    ranked = probs.sort(descending=True).values
    before = ranked.cumsum(0) - ranked
    return _only(x, probs >= ranked[before < top_p].min())


def _where_exceeded(x: Tensor, top_p: float) -> Tensor:
    if top_p == 1.0:
        return x
    probs = x.softmax(0)
    ranked = probs.sort(descending=True).values
    index = (ranked.cumsum(0) <= top_p).sum().clamp(max=x.shape[0] - 1)
    return _only(x, probs >= ranked[index])


def _one_too_many(x: Tensor, top_p: float) -> Tensor:
    if top_p == 1.0:
        return x
    probs = x.softmax(0)
    ranked = probs.sort(descending=True).values
    index = ((ranked.cumsum(0) < top_p).sum() + 1).clamp(max=x.shape[0] - 1)
    return _only(x, probs >= ranked[index])


def _removed_from_below(x: Tensor, top_p: float) -> Tensor:
    """As in transformers: of the ascending row, the tokens go that hold 1 - top_p together."""
    if top_p == 1.0:
        return x
    ranked, order = x.sort(stable=True)
    gone = ranked.softmax(0).cumsum(0) <= 1 - top_p
    gone[-1] = False
    return x.masked_fill(gone.scatter(0, order, gone), NEVER)


def _by_loop(x: Tensor, top_p: float) -> Tensor:
    """Another right answer, in Python's own loop."""
    if top_p >= 1.0:
        return x
    probs = x.double().softmax(0).tolist()
    total, least = 0.0, 1.0
    for prob in sorted(probs, reverse=True):
        total, least = total + prob, prob
        if total >= top_p:
            break
    return torch.tensor([a if p >= least else NEVER for a, p in zip(x.tolist(), probs, strict=True)], dtype=x.dtype)


def _sorted_result(x: Tensor, top_p: float) -> Tensor:
    ranked = x.sort(descending=True).values
    return _cut(ranked, lambda total, before: before < top_p, top_p)


def _from_below(x: Tensor, top_p: float) -> Tensor:
    if top_p == 1.0:
        return x
    probs, order = x.softmax(0).sort(stable=True)
    before = probs.cumsum(0) - probs
    return _only(x, torch.zeros_like(before, dtype=torch.bool).scatter(0, order, before < top_p))


def _no_softmax(x: Tensor, top_p: float) -> Tensor:
    if top_p == 1.0:
        return x
    ranked, order = x.sort(descending=True, stable=True)
    kept = ranked.cumsum(0) - ranked < top_p
    return _only(x, torch.zeros_like(kept).scatter(0, order, kept))


def _top_p_in_place(x: Tensor, top_p: float) -> Tensor:
    x[_down_to_the_crossing(x, top_p) == NEVER] = NEVER
    return x


TOP_P = Grader(
    cases=[
        _top_p_case(_GIVEN, _FOUR, 0.7),
        _top_p_case(f"{_GIVEN}: the likeliest alone is enough", _FOUR, 0.4),
        _top_p_case(f"{_GIVEN}, each 5 larger", [x + 5 for x in _FOUR], 0.9),
        _top_p_case("37 random logits", RANDOM, 0.9),
        _top_p_case("37 random logits", RANDOM, 0.35),
        _top_p_case("probabilities 0.2, 0.2, 0.2, 0.4: three equal ones", logs(0.2, 0.2, 0.2, 0.4), 0.5),
        _top_p_case(
            "probabilities 0.125, 0.5, 0.125, 0.25: the likeliest is top_p", logs(0.125, 0.5, 0.125, 0.25), 0.5
        ),
        _top_p_case("probabilities 0, 0.25, 0.45, 0, 0.3: two dropped already", logs(0, 0.25, 0.45, 0, 0.3), 0.6),
        _top_p_case("logits = [20.0, 1.0, -10.0, 4.0]: rare tokens", [20.0, 1.0, -10.0, 4.0], 1.0),
    ],
    mutants=[
        Mutant(
            lambda x, p: _cut(x, lambda total, before: total <= p, p),
            "You drop the token that crosses top_p. It belongs to the nucleus; without it, nothing at all is left"
            " where the likeliest token alone exceeds top_p.",
        ),
        Mutant(
            lambda x, p: _cut(x, lambda total, before: (total <= p) | (before == 0), p),
            "You save the likeliest token, but still drop the one that crosses top_p. A token stays if the sum of"
            " those *before* it is below top_p; the first then needs no rule of its own.",
        ),
        Mutant(
            _one_too_many,
            "One token too many: the sum has reached top_p before it.",
        ),
        Mutant(
            _where_exceeded,
            "You look for the sum that *exceeds* top_p. Where it equals top_p it has reached it already, and the next"
            " token goes: compare with <, not <=.",
        ),
        Mutant(
            _removed_from_below,
            "You add up from below, as transformers does, and go by ranks: of tokens exactly as likely as the crossing"
            " one, the sort decides who stays. Every probability of at least the crossing token's stays.",
        ),
        Mutant(
            lambda x, p: _only(x, x.softmax(0).cumsum(0) - x.softmax(0) < p) if p < 1 else x,
            "You add up in the order of ids. The nucleus are the *likeliest* tokens: sort first, descending.",
        ),
        Mutant(
            lambda x, p: _only(x, x.softmax(0) >= p) if p < 1 else x,
            "You compare each probability by itself with top_p. It is about a sum: how many of the likeliest together"
            " reach it.",
        ),
        Mutant(
            lambda x, p: _cut(x, lambda total, before: before < p, p, home=False),
            "Your mask is in sorted order, and you lay it on logits that are not. Send it home first: mask.scatter(0,"
            " order, mask). Or compare every probability with the crossing token's.",
        ),
        Mutant(
            _sorted_result,
            "You return the logits sorted. A token's place in the row is its id: everything after this step would draw"
            " the wrong tokens.",
        ),
        Mutant(
            lambda x, p: _cut(x, lambda total, before: before < p, p),
            "You cut between equals: of tokens exactly as likely as the crossing one, the sort decides who stays."
            " Compare values in place of ranks: every probability of at least the crossing token's stays.",
        ),
        Mutant(
            lambda x, p: _down_to_the_crossing(x, p, early=False),
            "At top_p = 1 rounding decides: the sum reaches 1 in float32 before the rarest tokens have been added, and"
            " they go. 1 keeps all: return early.",
        ),
        Mutant(
            _from_below,
            "You add up from the unlikeliest. The nucleus are the likeliest: sort with descending=True.",
        ),
        Mutant(
            lambda x, p: _only(x, x.softmax(0) >= 1 - p),
            "You compare each probability by itself with 1 - top_p. top_p is about a sum: how many of the likeliest"
            " together reach it.",
        ),
        Mutant(
            _no_softmax,
            "You add up logits. Only probabilities sum to 1: softmax first.",
        ),
        *(
            Mutant(lambda x, p, low=low: _only(x, _down_to_the_crossing(x, p) > NEVER, low), _finite(low))
            for low in _LOW
        ),
        Mutant(lambda x, p: _down_to_the_crossing(x, p).log_softmax(0), _LOGPROBS),
        Mutant(lambda x, p: _only(x, _down_to_the_crossing(x, p) > NEVER, 0.0), _ZERO),
        Mutant(lambda x, p: x[_down_to_the_crossing(x, p) > NEVER], _SHORTER),
        Mutant(lambda x, p: _only(x.softmax(0), _down_to_the_crossing(x, p) > NEVER, 0.0), _PROBS),
        Mutant(lambda x, p: _down_to_the_crossing(x, p).softmax(0), _SCALED),
        Mutant(_top_p_in_place, IN_PLACE),
    ],
    alternatives=[_down_to_the_crossing, _by_loop],
)
