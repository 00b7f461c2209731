"""The engine's log for the eye: one web page that shows who computed what when, and what the cache held meanwhile.

    log = StepLog()
    engine = Engine(model, observer=log.append)
    ...
    write_timeline(Path("out.html"), log)

Requests are rows. What is drawn in them is here as plain data (`Timeline`), in columns, so that a run of thousands of
steps stays light; the page is in `minillm.timeline_page`. All times are seconds since the first request came in.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from minillm.engine.log import PartRecord, StepRecord
from minillm.engine.log_totals import LogTotals, RequestLog, by_request, steps_of, totals
from minillm.errors import InputError
from minillm.page import write_page
from minillm.timeline_page import render

MOST_TITLE = 120
"""Characters of a title: more do not fit in a row, and a page of many requests must stay light."""


@dataclass(frozen=True)
class Work:
    """What a request had computed: `tokens` from position `start` on, in `step`; or one each in `count` steps in a row.

    again: how many of them for the second time. samples: whether a token came out of it (of each step).
    """

    step: int
    count: int
    start: int
    tokens: int
    again: int
    samples: bool


@dataclass(frozen=True)
class Row:
    """One request. admissions: (step, tokens found in the prefix cache). ended_s, reason: None if it has not ended."""

    id: str
    title: str
    arrived_s: float
    prompt: int
    max_tokens: int
    generated: int
    first_token_s: float | None
    ended_s: float | None
    reason: str | None
    admissions: tuple[tuple[int, int], ...]
    preemptions: tuple[int, ...]
    work: tuple[tuple[int | bool, ...], ...]


@dataclass(frozen=True)
class Steps:
    """The steps' figures, each as a column: see `StepRecord`."""

    start_s: tuple[float, ...]
    schedule_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    sample_s: tuple[float, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    used: tuple[int, ...]
    held: tuple[int, ...]


@dataclass(frozen=True)
class Timeline:
    """One run, as the page shows it."""

    name: str
    block_size: int
    blocks: int
    totals: LogTotals
    steps: Steps
    requests: tuple[Row, ...]


def write_timeline(
    path: Path | str,
    log: Sequence[StepRecord] | Mapping[str, Sequence[StepRecord]],
    titles: Mapping[str, str] | None = None,
) -> None:
    """Write the page that shows a run to `path`; or several runs by their names, to be compared on one time axis.

    titles: by request id, what a row is called besides: the beginning of its prompt, say. Raises InputError where the
    page cannot be written (before a long run, `minillm.page.check_destination` tells), or there is no run.
    """
    runs = log if isinstance(log, Mapping) else {"": log}
    if not runs:
        raise InputError("there is no run to show: give a log, or several by their names")
    shown = [timeline_of(records, titles or {}, name) for name, records in runs.items()]
    write_page(Path(path), render({"runs": [dataclasses.asdict(one) for one in shown]}))


def timeline_of(log: Sequence[StepRecord], titles: Mapping[str, str], name: str = "") -> Timeline:
    """The timeline of a run, whether it has come to its end or not."""
    steps, requests = steps_of(log), by_request(log)
    began = min([request.arrived_s for request in requests] + [step.started_s for step in steps], default=0.0)
    return Timeline(
        name=name,
        block_size=log[0].block_size if log else 1,
        blocks=log[0].blocks_total if log else 0,
        totals=totals(log),
        steps=Steps(
            start_s=tuple(_rounded(step.started_s - began) for step in steps),
            schedule_s=tuple(_rounded(step.schedule_s) for step in steps),
            forward_s=tuple(_rounded(step.forward_s) for step in steps),
            sample_s=tuple(_rounded(step.sample_s) for step in steps),
            running=tuple(step.num_running for step in steps),
            waiting=tuple(step.num_waiting for step in steps),
            used=tuple(step.blocks_used for step in steps),
            held=tuple(step.tokens_held for step in steps),
        ),
        requests=tuple(_row(request, titles.get(request.request_id, ""), began) for request in requests),
    )


def _row(request: RequestLog, title: str, began: float) -> Row:
    first, ended = request.first_token_s, request.ended_s
    return Row(
        id=_shortened(request.request_id),
        title=_shortened(title),
        arrived_s=_rounded(request.arrived_s - began),
        prompt=request.prompt_tokens,
        max_tokens=request.max_tokens,
        generated=request.num_generated,
        first_token_s=None if first is None else _rounded(first - began),
        ended_s=None if ended is None else _rounded(ended - began),
        reason=request.reason,
        admissions=tuple(request.admissions),
        preemptions=tuple(request.preemptions),
        work=tuple(dataclasses.astuple(work) for work in work_of(request)),
    )


def work_of(request: RequestLog) -> list[Work]:
    """A request's parts in order; decode, token by token in one step after the other, as one piece."""
    found: list[Work] = []
    for (step, part), again in zip(request.parts, request.computed_again(), strict=True):
        last = found[-1] if found else None
        if last is not None and last.start >= request.prompt_tokens and _goes_on(last, step, part, again):
            found[-1] = dataclasses.replace(last, count=last.count + 1)
        else:
            found.append(Work(step, 1, part.start, part.num_tokens, again, part.samples))
    return found


def _goes_on(last: Work, step: int, part: PartRecord, again: int) -> bool:
    """Whether a part of one token comes in the step after a piece of such parts, all for the first time."""
    return last.tokens == part.num_tokens == 1 and not last.again and not again and step == last.step + last.count


def _shortened(text: str) -> str:
    return text if len(text) <= MOST_TITLE else text[: MOST_TITLE - 1] + "…"


def _rounded(seconds: float) -> float:
    """To the microsecond, and not below zero."""
    return max(0.0, round(seconds, 6))
