"""17.5: quantiles of histograms whose observations can be counted on paper."""

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Any

from graders.common import REFUSED, formula, refusal
from graders.refusals import refusals
from minillm.errors import InputError
from minillm.exercises.grading import EXCEPTION, Case, Function, Grader, Mutant

_BOUNDS = (0.1, 0.2, 0.5, 1.0, math.inf)


def _of(given: str, q: float, counts: Sequence[float], want: float, bounds: Sequence[float] = _BOUNDS) -> Case:
    told = f"{given}: q {q}, bounds {list(bounds)}, counts {list(counts)}"
    return formula(told, [q, list(bounds), list(map(float, counts))], want)


def _no_quantile(q: float) -> Case:
    counts = [2.0, 6.0, 9.0, 10.0, 10.0]
    given = f"no quantile: q {q}, bounds {list(_BOUNDS)}, counts {counts}"
    return Case(given, lambda f: refusal(f, q, list(_BOUNDS), counts), lambda: {EXCEPTION: REFUSED})


def _first_reaching(rank: float, counts: Sequence[float]) -> int:
    return next(i for i, count in enumerate(counts) if count >= rank)


def _before(values: Sequence[float], i: int) -> float:
    return values[i - 1] if i else 0.0


def _quantile(
    *,
    rank: Callable[[float, Sequence[float]], float] = lambda q, counts: q * counts[-1],
    bucket: Callable[[float, Sequence[float]], int] = _first_reaching,
    low: Callable[[Sequence[float], int], float] = _before,
    before: Callable[[Sequence[float], int], float] = _before,
    within: Callable[[float, float, float, float, float], float] = lambda low, high, rank, below, count: (
        low + (high - low) * (rank - below) / (count - below)
    ),
    last: Callable[[Sequence[float]], float] = lambda bounds: bounds[-2],
    none: float = math.nan,
    allowed: Callable[[float], bool] = lambda q: 0 < q <= 1,
    refuse: Callable[[], Any] | None = None,
) -> Function:
    """The quantile with one thing done otherwise."""

    def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> Any:
        if not allowed(q):
            if refuse is not None:
                return refuse()
            raise InputError("no such quantile")
        if counts[-1] == 0:
            return none
        wanted = rank(q, counts)
        i = min(bucket(wanted, counts), len(counts) - 1)
        if math.isinf(bounds[i]):
            return last(bounds)
        return within(low(bounds, i), bounds[i], wanted, before(counts, i), counts[i])

    return quantile


def _added_up(counts: Sequence[float]) -> list[float]:
    return [sum(counts[: i + 1]) for i in range(len(counts))]


def _as_if_apart(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    return _quantile()(q, bounds, _added_up(counts))


def _by_bisection(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    if q <= 0 or q > 1:
        raise InputError(f"{q} is no quantile")
    total = counts[-1]
    if not total:
        return float("nan")
    i = bisect.bisect_left(counts, q * total)
    if i == len(bounds) - 1:
        return bounds[i - 1]
    edges, heights = [0.0, *bounds], [0.0, *counts]
    share = (q * total - heights[i]) / (heights[i + 1] - heights[i])
    return edges[i] + share * (edges[i + 1] - edges[i])


QUANTILE = Grader(
    cases=[
        _of("within the second bucket", 0.5, [2, 6, 9, 10, 10], 0.175),
        _of("within the first bucket", 0.1, [2, 6, 9, 10, 10], 0.05),
        _of("at the end of a bucket, and the next one is empty", 0.9, [2, 6, 9, 9, 10], 0.5),
        _of("empty buckets before it", 0.25, [0, 0, 8, 8, 8], 0.275),
        _of("in the bucket without an end", 0.9, [2, 6, 9, 10, 20], 1.0),
        _of("all are above the largest bound", 0.5, [0, 0, 0, 0, 7], 1.0),
        _of("the largest", 1.0, [2, 6, 9, 10, 10], 1.0),
        _of("counts of a rate", 0.5, [0.5, 1.5, 2.0, 2.0, 2.0], 0.15),
        _of("one observation", 0.5, [0, 1, 1, 1, 1], 0.15),
        _of("two buckets", 0.5, [4, 5], 1.25, bounds=(2.0, math.inf)),
        _of("no observations", 0.5, [0, 0, 0, 0, 0], math.nan),
        _no_quantile(0.0),
        _no_quantile(1.5),
        _no_quantile(95.0),
        _no_quantile(-0.5),
    ],
    mutants=[
        Mutant(
            _quantile(within=lambda low, high, rank, below, count: high),
            "You return the bucket's upper bound. Observations are taken to lie evenly in it: go as far into it as the"
            " rank does.",
        ),
        Mutant(
            _quantile(within=lambda low, high, rank, below, count: low),
            "You return the bucket's lower bound. Observations are taken to lie evenly in it: go as far into it as the"
            " rank does.",
        ),
        Mutant(
            _quantile(within=lambda low, high, rank, below, count: (low + high) / 2),
            "You return the middle of the bucket. Go as far into it as the rank does.",
        ),
        Mutant(
            _as_if_apart,
            "You add the counts up. They are added up already: each one has those of the buckets before it in it.",
        ),
        Mutant(
            _quantile(within=lambda low, high, rank, below, count: low + (high - low) * rank / count),
            "You divide the rank by the count, and both have the buckets before in them. Take what was below off both:"
            " (rank - before) / (count - before).",
        ),
        Mutant(
            _quantile(within=lambda low, high, rank, below, count: low + (high - low) * (rank - below) / count),
            "You divide by the count of all buckets so far. In this very bucket there are count - before.",
        ),
        Mutant(
            _quantile(low=lambda bounds, i: 0.0),
            "You let every bucket begin at 0. It begins at the bound before it.",
        ),
        Mutant(
            _quantile(low=lambda bounds, i: bounds[i - 1]),
            "For the first bucket you take bounds[-1], which is the last one, and infinite. The first bucket begins at"
            " 0.",
        ),
        Mutant(
            _quantile(before=lambda counts, i: counts[i - 1]),
            "For the first bucket you take counts[-1], which is the number of all. Before the first bucket there are"
            " 0.",
        ),
        Mutant(
            _quantile(last=lambda bounds: math.inf),
            "You return infinity for the last bucket. Prometheus returns the largest bound that is a number: what lies"
            " above it, nobody knows.",
        ),
        Mutant(
            _quantile(none=0.0),
            "You return 0 where nothing was observed. That looks like a very good latency: nan says that there is"
            " none.",
        ),
        Mutant(
            _quantile(bucket=lambda rank, counts: next((i for i, count in enumerate(counts) if count > rank), 99)),
            "You look for a count above the rank. Where it is reached exactly, it is that bucket, and the next may be"
            " empty: >=.",
        ),
        Mutant(
            _quantile(rank=lambda q, counts: q * sum(counts)),
            "You take the sum of the counts for the number of all. They are added up already: it is the last one.",
            begins="StopIteration",
        ),
        Mutant(
            _quantile(rank=lambda q, counts: math.ceil(q * counts[-1])),
            "You round the rank up to a whole observation. Prometheus does not: it reads a line, not a list.",
        ),
        Mutant(
            _quantile(rank=lambda q, counts: (1 - q) * counts[-1], bucket=lambda r, c: _first_reaching(r or 1e-9, c)),
            "You count from the wrong end: the share q lies below the quantile.",
        ),
        Mutant(
            _quantile(allowed=lambda q: 0 <= q <= 1, bucket=lambda r, c: _first_reaching(r, c)),
            "You let 0 pass, where the rank is 0: no observation lies below.",
        ),
        Mutant(
            _quantile(allowed=lambda q: 0 < q < 1),
            "You refuse 1. All observations are at most as large as that quantile: it is the end of the last bucket"
            " that has any.",
            begins="InputError",
        ),
        *refusals(lambda refuse: _quantile(refuse=refuse)),
    ],
    alternatives=[_quantile(), _by_bisection],
)
