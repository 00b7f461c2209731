"""What a benchmark makes of the records of an engine's steps: arithmetic, no model and no clock.

Waste is averaged over the steps as they are counted, and not, as in `log_totals`, by their time: a schedule without a
model has no times.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from minillm.engine.log import StepRecord
from minillm.engine.log_totals import by_request, steps_of, totals


@dataclass(frozen=True)
class StepFigures:
    """Of all steps together.

    computed_tokens: tokens that passes computed; prompt_tokens: those of them that belong to prompts;
    recomputed_tokens: those that had been computed before, and whose blocks were taken away.

    kv_waste: of the slots in blocks that are in use, the share that holds no token, on average over the steps.
    waste_of_whole_contexts: what that share would be if every running request had room for the model's whole context.

    schedule_s, forward_s, sample_s: seconds by the records. other_s: seconds of the steps that are none of these.
    """

    steps: int
    computed_tokens: int
    prompt_tokens: int
    recomputed_tokens: int
    preemptions: int
    cached_tokens: int
    mean_running: float
    most_blocks: int
    kv_waste: float
    waste_of_whole_contexts: float
    schedule_s: float
    forward_s: float
    sample_s: float
    other_s: float

    @property
    def bookkeeping_share(self) -> float:
        """Of the steps' time, the share that was neither the model's pass nor the choice of tokens."""
        bookkeeping = self.schedule_s + self.other_s
        return bookkeeping / (bookkeeping + self.forward_s + self.sample_s)


def step_figures(log: Sequence[StepRecord], step_seconds: Sequence[float], context: int) -> StepFigures:
    """step_seconds: how long each step took from outside. context: the tokens that the model's context holds."""
    found, steps = totals(log), steps_of(log)
    schedule_s, forward_s, sample_s = (
        float(sum(getattr(step, name) for step in steps)) for name in ("schedule_s", "forward_s", "sample_s")
    )
    return StepFigures(
        steps=found.steps,
        computed_tokens=found.computed_tokens,
        prompt_tokens=_of_prompts(log),
        recomputed_tokens=found.recomputed_tokens,
        preemptions=found.preemptions,
        cached_tokens=found.cached_tokens,
        mean_running=found.requests_per_step or 0.0,
        most_blocks=found.most_blocks,
        kv_waste=_mean(
            empty_share(step.tokens_held, step.blocks_used * step.block_size) for step in steps if step.blocks_used
        ),
        waste_of_whole_contexts=_mean(
            empty_share(step.tokens_held, step.num_running * context) for step in steps if step.num_running
        ),
        schedule_s=schedule_s,
        forward_s=forward_s,
        sample_s=sample_s,
        other_s=max(0.0, sum(step_seconds) - schedule_s - forward_s - sample_s),
    )


def empty_share(tokens_held: int, slots: int) -> float:
    """Of `slots` slots that are reserved, the share that holds no token."""
    return 1 - tokens_held / slots


def _of_prompts(log: Sequence[StepRecord]) -> int:
    """Tokens that passes computed of prompts, for the first time or again."""
    return sum(
        max(0, min(part.start + part.num_tokens, request.prompt_tokens) - part.start)
        for request in by_request(log)
        for _, part in request.parts
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
