"""Rounds: in each, every engine is measured once in everything, one engine right after the other.

A machine whose speed drifts, or that is disturbed for a moment, treats neighbours alike: that is why the ratios of one
run can be trusted further than its figures. What the machine itself can do is read in the same turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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

    `passes` is 1 for a prefill; `seconds` are for all passes together. `limit` is the machine's own speed in that which
    limits the passes, operations or bytes per second: the better of what was read right before them and right after,
    for a reading can be disturbed as a pass can.
    """

    round: int
    engine: str
    what: str
    tokens: int
    batch: int
    passes: int
    seconds: float
    limit: float

    @property
    def tokens_per_s(self) -> float:
        """Of a prefill: prompt tokens; of decoding: new tokens, of all sequences together."""
        return (self.tokens if self.what == PREFILL else self.batch * self.passes) / self.seconds


def limits_of(runs: Sequence[Run], what: str) -> list[float]:
    """What the machine could do beside each prefill, or beside each run of decoding."""
    return [run.limit for run in runs if run.what == what]


def take_turns(
    engines: Mapping[str, Timed], plan: Plan, read_limit: Callable[[str], float], after_round: Callable[[int], None]
) -> list[Run]:
    """A B A B ...; the first round warms up and is not counted. Each prompt is of other random ids.

    `read_limit` gives the machine's speed of the moment for a prefill or for decoding; the engines rest meanwhile.
    `after_round` is called with the number of each round, the uncounted one (0) included.
    """
    runs: list[Run] = []
    for number in range(plan.runs + 1):
        counted = number > 0
        passes = plan.passes if counted else min(WARM_UP_PASSES, plan.passes)
        for length in plan.lengths:
            turn = [
                run
                for name, engine in engines.items()
                for run in _measure(name, engine, plan, number, length, passes, read_limit)
            ]
            runs += turn if counted else []
        after_round(number)
    return runs


def _measure(
    name: str,
    engine: Timed,
    plan: Plan,
    number: int,
    length: int,
    passes: int,
    read_limit: Callable[[str], float],
) -> list[Run]:
    """One engine's turn: a prompt of this length, and what is decoded behind it."""
    runs = []

    def measured(what: str, batch: int, passes: int, work: Callable[[], float]) -> None:
        before, seconds, after = read_limit(what), work(), read_limit(what)
        runs.append(Run(number, name, what, length, batch, passes, seconds, max(before, after)))

    def prefill() -> float:
        return engine.prefill(length, plan.room(length), seed=number * 1000 + length)

    if length in plan.prompts:
        measured(PREFILL, 1, 1, prefill)
    else:
        prefill()
    for batch in plan.batches if length in plan.contexts else ():
        measured(DECODE, batch, passes, partial(engine.decode, batch, passes))
    return runs
