"""Rounds: in each, every engine is measured once in everything, one engine right after the other.

A machine whose speed drifts, or that is disturbed for a moment, treats neighbours alike: that is why the ratios of one
run can be trusted further than its figures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from minillm.benchmark.plan import Plan

PREFILL, DECODE = "prefill", "decode"
WARM_UP_PASSES = 2
"""Decode passes of a measurement in the round that is not counted."""


@runtime_checkable
class Timed(Protocol):
    """What is asked of an engine here: `RemoteEngine`."""

    def prefill(self, tokens: int, room: int, seed: int) -> float: ...

    def decode(self, batch: int, passes: int) -> float: ...


@dataclass(frozen=True)
class Run:
    """One measurement. `tokens` is the prompt that was prefilled, or the context behind which was decoded.

    `passes` is 1 for a prefill; `seconds` are for all passes together.
    """

    round: int
    engine: str
    what: str
    tokens: int
    batch: int
    passes: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Of a prefill: prompt tokens; of decoding: new tokens, of all sequences together."""
        return (self.tokens if self.what == PREFILL else self.batch * self.passes) / self.seconds


def take_turns(engines: Mapping[str, Timed], plan: Plan, after_round: Callable[[int], None]) -> list[Run]:
    """A B A B ...; the first round warms up and is not counted. Each prompt is of other random ids.

    `after_round` is called with the number of each round, the uncounted one (0) included.
    """
    runs: list[Run] = []
    for number in range(plan.runs + 1):
        counted = number > 0
        passes = plan.passes if counted else min(WARM_UP_PASSES, plan.passes)
        for length in plan.lengths:
            turn = [
                run for name, engine in engines.items() for run in _measure(name, engine, plan, number, length, passes)
            ]
            runs += turn if counted else []
        after_round(number)
    return runs


def _measure(name: str, engine: Timed, plan: Plan, number: int, length: int, passes: int) -> list[Run]:
    """One engine's turn: a prompt of this length, and what is decoded behind it."""
    seconds = engine.prefill(length, plan.room(length), seed=number * 1000 + length)
    runs = [Run(number, name, PREFILL, length, 1, 1, seconds)] if length in plan.prompts else []
    if length in plan.contexts:
        for batch in plan.batches:
            runs.append(Run(number, name, DECODE, length, batch, passes, engine.decode(batch, passes)))
    return runs
