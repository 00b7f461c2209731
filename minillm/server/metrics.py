"""/metrics: what the engine does, for Prometheus, under the names that vLLM's dashboards use where they mean the same.

All of it is read off the engine's own record of its steps (see `engine/log.py`), so times are the engine's: from when a
request came into it until a token was chosen. What the network and a slow reader add is not in them.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from minillm.engine.engine import Engine
from minillm.engine.log import PartRecord, StepRecord

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
LAST_STEPS = 32
REASONS = ("stop", "length", "abort", "error")

_COUNTERS = {
    "prompt_tokens": "Tokens of the prompts that have been read",
    "generation_tokens": "Tokens that have been generated",
    "prefix_cache_queries": "Prompt tokens that were looked for in the prefix cache",
    "prefix_cache_hits": "Prompt tokens that were found in the prefix cache",
    "num_preemptions": "How often a request lost its blocks",
}
_SECONDS = {
    "time_to_first_token_seconds": "From a request's arrival to its first token",
    "inter_token_latency_seconds": "From a token to the next one of the same request",
    "request_time_per_output_token_seconds": "TPOT: the mean of that over a request",
    "e2e_request_latency_seconds": "From a request's arrival to its last token",
    "request_queue_time_seconds": "From a request's arrival until it began to run",
    "request_prefill_time_seconds": "From when a request began to run to its first token",
    "request_decode_time_seconds": "From a request's first token to its last one",
}
_TOKENS = {
    "request_prompt_tokens": "Tokens of a request's prompt",
    "request_generation_tokens": "Tokens that a request generated",
    "iteration_tokens_total": "Tokens computed in a step",
}


@dataclass
class _Life:
    """A request that has not ended. Times in seconds, on the clock of the records."""

    arrived_s: float
    prompt_tokens: int
    admitted_s: float | None = None
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0


class EngineMetrics:
    """`Engine(..., observer=metrics.observe)`, then `metrics.watch(engine)`. Its registry is its own.

    last_steps: the newest records, the newest last. Of the engine's thread, as `observe` is.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # memory, processor time, open files; nothing where there is no /proc
        self._names = {"registry": self.registry, "labelnames": ["model_name"]}
        self._model_name = model_name
        self._counters = {
            name: self._child(Counter(f"vllm:{name}", told, **self._names)) for name, told in _COUNTERS.items()
        }
        self._histograms = {
            name: self._child(Histogram(f"vllm:{name}", told, buckets=buckets, **self._names))
            for names, buckets in ((_SECONDS, SECONDS), (_TOKENS, TOKENS))
            for name, told in names.items()
        }
        ended = Counter(
            "vllm:request_success",
            "Requests that have ended, by reason",
            labelnames=["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._ended = {reason: ended.labels(model_name, reason) for reason in REASONS}
        self._lives: dict[str, _Life] = {}
        self.last_steps: deque[StepRecord] = deque(maxlen=LAST_STEPS)

    def watch(self, engine: Engine) -> None:
        """Gauges that are read when somebody asks: the engine may be idle, and then has no steps to tell of."""
        scheduler = engine.scheduler
        gauges = {
            "num_requests_running": ("Requests that run", lambda: len(scheduler.running)),
            "num_requests_waiting": ("Requests that wait", lambda: len(scheduler.waiting)),
            "kv_cache_usage_perc": (
                "Blocks of the KV cache in use, 0 to 1",
                lambda: scheduler.pool.num_used / scheduler.pool.num_blocks,
            ),
        }
        for name, (told, read) in gauges.items():
            self._child(Gauge(f"vllm:{name}", told, **self._names)).set_function(read)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """A gauge of the tasks on the server's event loop: what clients leave behind would be seen in it."""
        tasks = Gauge("minillm:event_loop_tasks", "Tasks on the server's event loop", **self._names)
        self._child(tasks).set_function(lambda: len(asyncio.all_tasks(loop)))

    def text(self) -> bytes:
        """What Prometheus reads."""
        return generate_latest(self.registry)

    def observe(self, record: StepRecord) -> None:
        """Count a step. In the engine's thread."""
        if record.is_step:
            self.last_steps.append(record)
        for arrival in record.arrived:
            self._lives[arrival.request_id] = _Life(arrival.at_s, arrival.prompt_tokens)
        for request_id, cached in record.admitted:
            self._admit(self._lives[request_id], cached, record.started_s)
        self._counters["num_preemptions"].inc(len(record.preempted))
        if record.parts:
            self._histograms["iteration_tokens_total"].observe(record.num_tokens)
        self._take_tokens(record.parts, record)
        for request_id, reason in record.finished:
            self._end(self._lives.pop(request_id), reason)

    def _admit(self, life: _Life, cached: int, now: float) -> None:
        """Once: a request that has lost its blocks finds its own work in the cache, which says nothing of prompts."""
        if life.admitted_s is not None:
            return
        life.admitted_s = now
        self._histograms["request_queue_time_seconds"].observe(max(0.0, now - life.arrived_s))
        self._counters["prefix_cache_queries"].inc(life.prompt_tokens)
        self._counters["prefix_cache_hits"].inc(min(cached, life.prompt_tokens))

    def _take_tokens(self, parts: Sequence[PartRecord], record: StepRecord) -> None:
        failed = {request_id for request_id, reason in record.finished if reason == "error"}
        now = record.ended_s
        for part in parts:
            if not part.samples or part.request_id in failed:
                continue
            life = self._lives[part.request_id]
            if life.tokens == 0:
                life.first_s = now
                self._counters["prompt_tokens"].inc(life.prompt_tokens)
                self._histograms["time_to_first_token_seconds"].observe(now - life.arrived_s)
                self._histograms["request_prefill_time_seconds"].observe(now - (life.admitted_s or life.arrived_s))
            else:
                self._histograms["inter_token_latency_seconds"].observe(now - life.last_s)
            life.last_s = now
            life.tokens += 1
            self._counters["generation_tokens"].inc()

    def _end(self, life: _Life, reason: str) -> None:
        self._ended[reason].inc()
        if life.tokens == 0:
            return
        self._histograms["e2e_request_latency_seconds"].observe(life.last_s - life.arrived_s)
        self._histograms["request_prompt_tokens"].observe(life.prompt_tokens)
        self._histograms["request_generation_tokens"].observe(life.tokens)
        self._histograms["request_decode_time_seconds"].observe(life.last_s - life.first_s)
        if life.tokens > 1:
            mean = (life.last_s - life.first_s) / (life.tokens - 1)
            self._histograms["request_time_per_output_token_seconds"].observe(mean)

    def _child(self, metric: Any) -> Any:
        return metric.labels(self._model_name)
