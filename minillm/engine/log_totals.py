"""A log, read by request instead of by step; and a run in a few figures."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from minillm.engine.log import ArrivalRecord, PartRecord, StepRecord
from minillm.errors import InputError


@dataclass(eq=False)
class RequestLog:
    """What became of one request. Steps are counted from 0, as in `steps_of`; times are those of the records.

    parts: (step, its part). admissions: (step, tokens found in the prefix cache). preemptions: the steps. ended_s,
    reason: None while it has not ended.
    """

    request_id: str
    arrived_s: float
    prompt_tokens: int
    max_tokens: int
    parts: list[tuple[int, PartRecord]] = field(default_factory=list)
    admissions: list[tuple[int, int]] = field(default_factory=list)
    preemptions: list[int] = field(default_factory=list)
    first_token_s: float | None = None
    ended_s: float | None = None
    reason: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds from its arrival to its first token; None if there was none."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def num_generated(self) -> int:
        """Tokens of its completion. Where sampling failed, the last part led to none."""
        failed = self.reason == "error" and bool(self.parts) and self.parts[-1][1].samples
        return sum(part.samples for _, part in self.parts) - failed

    def computed_again(self) -> list[int]:
        """For each part, how many of its tokens had been computed before a preemption."""
        again, furthest = [], 0
        for _, part in self.parts:
            end = part.start + part.num_tokens
            again.append(max(0, min(furthest, end) - part.start))
            furthest = max(furthest, end)
        return again


def steps_of(log: Sequence[StepRecord]) -> list[StepRecord]:
    """The records that are steps."""
    return [record for record in log if record.is_step]


class _Live(dict[str, RequestLog]):
    """The requests that have not ended, by id."""

    def __missing__(self, name: str) -> RequestLog:
        raise InputError(f"the log does not say when request {name!r} came in: give it whole, from its first record on")


def by_request(log: Sequence[StepRecord]) -> list[RequestLog]:
    """All requests of a log, in the order of arrival. An id may come again once its first owner has ended.

    Raises InputError for a log whose beginning is missing.
    """
    found: list[RequestLog] = []
    live = _Live()
    step = 0
    for record in log:
        finished = list(record.finished)
        for arrival in record.arrived:
            if arrival.request_id in live:  # ended between two steps, and its id was given away at once
                last = next(end for end in finished if end[0] == arrival.request_id)
                finished.remove(last)
                _end(live, record, *last)
            live[arrival.request_id] = _arrive(found, arrival)
        for name, cached in record.admitted:
            live[name].admissions.append((step, cached))
        for name in record.preempted:
            live[name].preemptions.append(step)
        for part in record.parts:
            request = live[part.request_id]
            request.parts.append((step, part))
            if part.samples and request.first_token_s is None:
                request.first_token_s = record.ended_s
        for name, reason in finished:
            _end(live, record, name, reason)
        step += record.is_step
    return found


def _arrive(found: list[RequestLog], arrival: ArrivalRecord) -> RequestLog:
    found.append(RequestLog(arrival.request_id, arrival.at_s, arrival.prompt_tokens, arrival.max_tokens))
    return found[-1]


def _end(live: _Live, record: StepRecord, name: str, reason: str) -> None:
    """With the step, if it took part in it (or if the step failed, and nobody has a part); else before it."""
    request = live[name]
    del live[name]
    took_part = not record.parts or any(part.request_id == name for part in record.parts)
    request.ended_s, request.reason = (record.ended_s if took_part else record.started_s), reason
    if request.num_generated == 0:
        request.first_token_s = None  # its only part was to lead to one, and failed


@dataclass(frozen=True)
class LogTotals:
    """A run in figures; None where there was nothing to measure.

    duration_s: from the first arrival to the end of the last step. prompt_tokens, generated_tokens: of all requests.
    computed_tokens: by all passes; recomputed_tokens of them for the second time, after a preemption. cached_tokens:
    found in the prefix cache instead of computed. tokens_per_s: generated tokens by duration. ttft_s, slowest_ttft_s:
    the median and the longest wait for a first token, from arrival on. tokens_per_step, requests_per_step: means.
    reserved_waste: the share of reserved slots that held no token, each step counted by its time. most_blocks: in use
    at once. schedule_share: scheduling and bookkeeping, of the time of all steps.
    """

    requests: int
    steps: int
    duration_s: float
    prompt_tokens: int
    generated_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    cached_tokens: int
    preemptions: int
    tokens_per_s: float | None
    ttft_s: float | None
    slowest_ttft_s: float | None
    tokens_per_step: float | None
    requests_per_step: float | None
    reserved_waste: float | None
    most_blocks: int
    schedule_share: float | None

    @property
    def recomputed_share(self) -> float | None:
        """Of all computed tokens, those that had been computed before."""
        return self.recomputed_tokens / self.computed_tokens if self.computed_tokens else None


def totals(log: Sequence[StepRecord]) -> LogTotals:
    """The figures of a run."""
    steps, requests = steps_of(log), by_request(log)
    began = min((request.arrived_s for request in requests), default=0.0)
    duration_s = max(0.0, steps[-1].ended_s - began) if steps else 0.0
    generated = sum(request.num_generated for request in requests)
    computed = sum(step.num_tokens for step in steps)
    ttfts = [request.ttft_s for request in requests if request.ttft_s is not None]
    times = [step.ended_s - step.started_s for step in steps]
    reserved = sum(step.blocks_used * step.block_size * took for step, took in zip(steps, times, strict=True))
    held = sum(step.tokens_held * took for step, took in zip(steps, times, strict=True))
    return LogTotals(
        requests=len(requests),
        steps=len(steps),
        duration_s=duration_s,
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        generated_tokens=generated,
        computed_tokens=computed,
        recomputed_tokens=sum(sum(request.computed_again()) for request in requests),
        cached_tokens=sum(cached for request in requests for _, cached in request.admissions),
        preemptions=sum(len(request.preemptions) for request in requests),
        tokens_per_s=generated / duration_s if duration_s else None,
        ttft_s=statistics.median(ttfts) if ttfts else None,
        slowest_ttft_s=max(ttfts, default=None),
        tokens_per_step=computed / len(steps) if steps else None,
        requests_per_step=sum(len(step.parts) for step in steps) / len(steps) if steps else None,
        reserved_waste=1 - held / reserved if reserved else None,
        most_blocks=max((step.blocks_used for step in steps), default=0),
        schedule_share=sum(step.schedule_s for step in steps) / sum(times) if steps else None,
    )
