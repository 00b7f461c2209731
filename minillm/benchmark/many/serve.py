"""A set of requests through our engine: all of them are there at the start, and each token is timed as it comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.benchmark.many.step_figures import StepFigures, step_figures
from minillm.benchmark.many.workload import Ask
from minillm.device import clock
from minillm.engine.block_pool import blocks_for
from minillm.engine.engine import Engine
from minillm.engine.log import StepRecord
from minillm.engine.request import Request
from minillm.engine.scheduler import Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.metrics import time_per_output_token
from minillm.model import Llama

CONTINUOUS, STATIC = "continuous", "static"
POLICIES: dict[str, type[Scheduler]] = {CONTINUOUS: Scheduler, STATIC: StaticScheduler}


@dataclass(frozen=True)
class Serving:
    """How a set of requests is served: plain values, which cross a pipe as JSON.

    policy: "continuous" or "static". num_blocks: None: as many as the largest `max_batch_size` requests need at once.
    prefix_caching: None: what the policy does by itself.
    """

    policy: str = CONTINUOUS
    max_batch_size: int = 16
    num_blocks: int | None = None
    prefix_caching: bool | None = None
    block_size: int = 16


@dataclass(frozen=True)
class Served:
    """What became of a set of requests. ttft_s, tpot_s: of each of them, in seconds; ttft_s from the moment at which
    all came in, so that a wait for a place is part of it. steps: what the engine says of its steps, ours only.
    """

    total_s: float
    output_tokens: int
    ttft_s: list[float]
    tpot_s: list[float | None]
    steps: StepFigures | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Served":
        """From what `asdict` made, and JSON of that."""
        steps = values["steps"]
        return cls(**{**values, "steps": None if steps is None else StepFigures(**steps)})

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens that were asked for; no others are counted, whatever was computed."""
        return self.output_tokens / self.total_s


def served(total_s: float, token_times_s: Sequence[Sequence[float]], steps: StepFigures | None = None) -> Served:
    """From the times at which each request's tokens were there, in seconds since all came in."""
    return Served(
        total_s,
        sum(map(len, token_times_s)),
        [times[0] for times in token_times_s],
        [time_per_output_token(times) for times in token_times_s],
        steps,
    )


def steps_told(runs: Mapping[str, Served]) -> dict[str, StepFigures]:
    """The figures of those runs whose engine tells of its steps: ours."""
    return {name: run.steps for name, run in runs.items() if run.steps is not None}


def serve(model: Llama, asks: Sequence[Ask], serving: Serving, engine_class: type[Engine] = Engine) -> Served:
    """All requests to their ends."""
    return serve_and_keep(model, asks, serving, engine_class)[0]


def serve_and_keep(
    model: Llama, asks: Sequence[Ask], serving: Serving, engine_class: type[Engine] = Engine
) -> tuple[Served, list[Request]]:
    """The same, and the requests with their tokens."""
    records: list[StepRecord] = []
    engine = new_engine(model, asks, serving, engine_class, observer=records.append)
    started = clock(model.device)
    requests = [engine.add(ask.prompt_ids, ask.params) for ask in asks]
    times: dict[str, list[float]] = {request.request_id: [] for request in requests}
    step_seconds: list[float] = []
    now = clock(model.device)
    while engine.has_work:
        before, outputs = now, engine.step()
        now = clock(model.device)
        step_seconds.append(now - before)
        for output in outputs:
            times[output.request.request_id].append(now - started)
    figures = step_figures(records, step_seconds, model.config.max_position_embeddings)
    return served(now - started, list(times.values()), figures), requests


def new_engine(
    model: Llama, asks: Sequence[Ask], serving: Serving, engine_class: type[Engine] = Engine, **more: Any
) -> Engine:
    """An engine with room for these requests."""
    return engine_class(
        model,
        num_blocks=serving.num_blocks or blocks_of_largest(asks, serving),
        block_size=serving.block_size,
        max_batch_size=serving.max_batch_size,
        prefix_caching=serving.prefix_caching,
        policy=POLICIES[serving.policy],
        **more,
    )


def blocks_of_largest(asks: Sequence[Ask], serving: Serving, count: int | None = None) -> int:
    """Blocks that the `count` largest requests need side by side, at their ends (None: as many as run at once).

    Static batching reserves for each of them what the largest needs.
    """
    count = serving.max_batch_size if count is None else count
    needs = sorted((blocks_for(len(a.prompt_ids) + a.new_tokens - 1, serving.block_size) for a in asks), reverse=True)
    return needs[0] * min(count, len(needs)) if serving.policy == STATIC else sum(needs[:count])
