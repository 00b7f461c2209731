"""What the records of an engine's steps say about a whole run: arithmetic on `StepRecord`s, no model and no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from minillm.engine.log import StepRecord


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


def step_figures(
    records: Sequence[StepRecord],
    step_seconds: Sequence[float],
    prompt_tokens: Mapping[str, int],
    context: int,
) -> StepFigures:
    """step_seconds: how long each step took from outside. prompt_tokens: each request's, by its id. context: the tokens
    that the model's context holds.
    """
    computed, of_prompts, again = _tokens(records, prompt_tokens)
    schedule_s, forward_s, sample_s = (
        sum(getattr(record, name) for record in records) for name in ("schedule_s", "forward_s", "sample_s")
    )
    return StepFigures(
        steps=len(records),
        computed_tokens=computed,
        prompt_tokens=of_prompts,
        recomputed_tokens=again,
        preemptions=sum(len(record.preempted) for record in records),
        cached_tokens=sum(num_cached for record in records for _, num_cached in record.admitted),
        mean_running=_mean(len(record.parts) for record in records),
        most_blocks=max((record.blocks_used for record in records), default=0),
        kv_waste=_mean(
            empty_share(record.tokens_held, record.blocks_used * record.block_size)
            for record in records
            if record.blocks_used
        ),
        waste_of_whole_contexts=_mean(
            empty_share(record.tokens_held, record.num_running * context) for record in records if record.num_running
        ),
        schedule_s=schedule_s,
        forward_s=forward_s,
        sample_s=sample_s,
        other_s=max(0.0, sum(step_seconds) - schedule_s - forward_s - sample_s),
    )


def empty_share(tokens_held: int, slots: int) -> float:
    """Of `slots` slots that are reserved, the share that holds no token."""
    return 1 - tokens_held / slots


def _tokens(records: Sequence[StepRecord], prompt_tokens: Mapping[str, int]) -> tuple[int, int, int]:
    """Tokens computed: all of them, those of prompts, and those that had been computed before."""
    computed = of_prompts = again = 0
    known: dict[str, int] = {}  # by request: up to which position its tokens have been computed at some time
    for record in records:
        for part in record.parts:
            end, prompt = part.start + part.num_tokens, prompt_tokens[part.request_id]
            before = known.get(part.request_id, 0)
            computed += part.num_tokens
            of_prompts += max(0, min(end, prompt) - part.start)
            again += max(0, min(end, before) - part.start)
            known[part.request_id] = max(before, end)
    return computed, of_prompts, again


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return fmean(found) if found else 0.0
