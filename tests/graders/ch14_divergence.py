"""14.5: the Kullback-Leibler divergence of two tables of logits."""

import math

import torch
from torch import Tensor

from graders.common import random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation


def _by_hand(reference: Tensor, other: Tensor) -> Tensor:
    """Number by number, in Python's floats: log-probabilities by the largest logit."""

    def logs(row: list[float]) -> list[float]:
        most = max(row)
        total = most + math.log(math.fsum(math.exp(x - most) for x in row))
        return [x - total for x in row]

    rows = []
    for one, two in zip(reference.tolist(), other.tolist(), strict=True):
        rows.append(math.fsum(math.exp(p) * (p - q) for p, q in zip(logs(one), logs(two), strict=True)))
    return torch.tensor(rows, dtype=torch.float32)


def _case(given: str, reference: Tensor, other: Tensor) -> Case:
    def observe(f: Function) -> Observation:
        one, two = reference.clone(), other.clone()
        return {"the result": f(one, two), "afterwards": touched(reference=(one, reference), other=(two, other))}

    return Case(given, observe, lambda: {"the result": _by_hand(reference, other), "afterwards": "as they were"})


def _logs(reference: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    return reference.log_softmax(-1), other.log_softmax(-1)


def _kl(reference: Tensor, other: Tensor) -> Tensor:
    p, q = _logs(reference, other)
    return (p.exp() * (p - q)).sum(-1)


def _logarithms_of_softmax(reference: Tensor, other: Tensor) -> Tensor:
    p, q = reference.softmax(-1), other.softmax(-1)
    return (p * (p.log() - q.log())).sum(-1)


def _where_possible(reference: Tensor, other: Tensor) -> Tensor:
    p, q = reference.softmax(-1), other.softmax(-1)
    return torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)


def _floored(floor: float) -> Function:
    """With a small number under each probability, so that no logarithm is infinite."""

    def divergence(reference: Tensor, other: Tensor) -> Tensor:
        p, q = reference.softmax(-1), other.softmax(-1)
        return (p * ((p + floor) / (q + floor)).log()).sum(-1)

    return divergence


def _over_the_rows(reference: Tensor, other: Tensor) -> Tensor:
    p, q = reference.log_softmax(0), other.log_softmax(0)
    return (p.exp() * (p - q)).sum(-1)


def _without_softmax(reference: Tensor, other: Tensor) -> Tensor:
    return (reference.softmax(-1) * (reference - other)).sum(-1)


def _cross_entropy(reference: Tensor, other: Tensor) -> Tensor:
    return -(reference.softmax(-1) * other.log_softmax(-1)).sum(-1)


def _jensen_shannon(reference: Tensor, other: Tensor) -> Tensor:
    p, q = _logs(reference, other)
    middle = torch.logaddexp(p, q) - math.log(2)
    return ((p.exp() * (p - middle)).sum(-1) + (q.exp() * (q - middle)).sum(-1)) / 2


def _library(reference: Tensor, other: Tensor) -> Tensor:
    p, q = _logs(reference, other)
    return torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(dim=-1)


def _exponentials(reference: Tensor, other: Tensor) -> Tensor:
    """With the sums of exponentials by hand."""

    def logs(x: Tensor) -> Tensor:
        moved = x - x.max(dim=1, keepdim=True).values
        return moved - moved.exp().sum(dim=1, keepdim=True).log()

    p, q = logs(reference.double()), logs(other.double())
    return (p.exp() * (p - q)).sum(dim=1).float()


KL_DIVERGENCE = Grader(
    cases=[
        _case("logits of 3 rows of 7", random(3, 7, seed=1) * 2 + 5, random(3, 7, seed=2) * 2),
        _case(
            "4 rows of 50; the other model is nearly the same",
            random(4, 50, seed=3) * 3,
            random(4, 50, seed=3) * 2.4 + 1,
        ),
        _case("2 rows of 5, logits hundreds apart", random(2, 5, seed=5) * 300, random(2, 5, seed=6) * 250),
        _case("1 row of 9, twice the same logits, 40 higher", random(1, 9, seed=7), random(1, 9, seed=7) + 40),
    ],
    mutants=[
        Mutant(
            lambda reference, other: _kl(other, reference),
            "The two are exchanged. It is not symmetric: p, by which the tokens are weighed, is the reference's.",
        ),
        Mutant(
            _logarithms_of_softmax,
            "You go through softmax. Where logits are hundreds apart, a small probability is 0 there, and its"
            " logarithm -inf (or 0/0 nan): use log_softmax, which never makes the probability itself.",
        ),
        Mutant(
            _where_possible,
            "You leave out what the reference holds impossible, and that is half of it: where the other's probability"
            " is too small for a float32, its logarithm is -inf, and the sum infinite. log_softmax has no such end.",
        ),
        *(
            Mutant(
                _floored(floor),
                f"You put {floor:g} under the probabilities, so that no logarithm is infinite. No difference can then"
                f" be larger than {-math.log(floor):.0f} nats, and here it is hundreds: log_softmax needs no floor.",
            )
            for floor in (1e-12, 1e-10, 1e-9, 1e-8)
        ),
        Mutant(
            _over_the_rows,
            "Your softmax goes over the rows. A row is one position's distribution over the vocabulary: dim=-1.",
        ),
        Mutant(
            lambda reference, other: (
                other.softmax(-1) * (_logs(reference, other)[0] - _logs(reference, other)[1])
            ).sum(-1),
            "You weigh by the other's probabilities, and so it comes out negative: p, by which each difference counts,"
            " is the reference's.",
        ),
        Mutant(
            _without_softmax,
            "You subtract the logits themselves. They are log-probabilities only up to a constant, which differs from"
            " row to row and from model to model: log_softmax takes it away.",
        ),
        Mutant(
            lambda reference, other: _library(reference, other) / reference.shape[-1],
            "You take the mean over the vocabulary. The sum is weighed by p already, which adds up to 1: .sum(-1).",
        ),
        Mutant(
            lambda reference, other: _kl(reference, other) / math.log(2),
            "Those are bits. In nats the logarithm is the natural one.",
        ),
        Mutant(
            lambda reference, other: -_kl(reference, other),
            "The sign is wrong: a divergence is never negative. log p - log q, not the other way round.",
        ),
        Mutant(
            lambda reference, other: _kl(reference, other).mean(),
            "You give one number for all rows. One per row, so that nobody's average is mixed into another's: sum"
            " over the last axis alone.",
        ),
        Mutant(
            lambda reference, other: _kl(reference, other).sum(),
            "You add up all rows. One number for each of them is asked for: .sum(-1), and no further.",
        ),
        Mutant(
            _cross_entropy,
            "That is the cross-entropy, which is not 0 where both models agree. Take the reference's own entropy off:"
            " p (log p - log q).",
        ),
        Mutant(
            _jensen_shannon,
            "That is the Jensen-Shannon divergence, which treats the two alike. Here one of them is the reference.",
        ),
        Mutant(
            lambda reference, other: (_logs(reference, other)[0] - _logs(reference, other)[1]).sum(-1),
            "The weights are missing: each difference counts by how likely the reference holds the token, p.",
        ),
    ],
    alternatives=[
        _library,
        _exponentials,
        lambda r, o: torch.einsum("nv,nv->n", r.softmax(1), _logs(r, o)[0] - _logs(r, o)[1]),
    ],
)
