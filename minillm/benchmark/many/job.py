"""The whole of `bench_batch`: the ceilings, then each part that was asked for, on one set of engines."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch

from minillm.benchmark.agreement import agreement
from minillm.benchmark.ceilings import measure_ceilings, multiplied_in
from minillm.benchmark.engine import MINILLM, TRANSFORMERS, EngineSpec
from minillm.benchmark.job import provenance
from minillm.benchmark.many.check import tight_pool
from minillm.benchmark.many.parts import BatchJob, Curve
from minillm.benchmark.many.plot import plot_curve
from minillm.benchmark.many.policy_alone import serve_without_a_model
from minillm.benchmark.many.serve import STATIC, Served, Serving, steps_told
from minillm.benchmark.many.summary import curve_rows, served_json, served_rows
from minillm.benchmark.many.tables import BatchReport
from minillm.benchmark.many.workload import Workload
from minillm.benchmark.plan import NOT_QUANTIZED
from minillm.benchmark.remote import RemoteEngine
from minillm.benchmark.report import agreement_json
from minillm.benchmark.session import Tell
from minillm.benchmark.subject import Subject
from minillm.benchmark.watch import Watch, cautions, machine_is_busy
from minillm.config import ModelConfig
from minillm.machine.limits import device_title
from minillm.machine.measure import read_bandwidth
from minillm.machine.roofline import Machine
from minillm.machine.shape import shape_of

OURS_STATIC = f"{MINILLM} {STATIC}"
WITH, WITHOUT = "found again", "not looked for"
WARM_UP = Workload(2, (8, 8), (2, 2))
"""Served before anything is timed, by every engine."""


def run_batch_job(job: BatchJob, subject: Subject, report: BatchReport, tell: Tell) -> dict[str, Any]:
    """Measure, print as it becomes known, and return everything as JSON values."""
    return _Measuring(job, subject, report, tell).everything()


def run_schedule_only(job: BatchJob, name: str, config: ModelConfig, report: BatchReport) -> dict[str, Any]:
    """What needs no model but its config: blocks, waste, preemptions. Raises InputError for a short context."""
    job.check_context(config.max_position_embeddings)

    def serve(workload: Workload, serving: Serving) -> Served:
        return serve_without_a_model(config, workload.asks(config.vocab_size), serving)

    found: dict[str, Any] = {}
    if job.mixed is not None:
        runs = {
            MINILLM: serve(job.mixed, job.serving),
            OURS_STATIC: serve(job.mixed, replace(job.serving, policy=STATIC)),
        }
        report.say(f"{_title(job.mixed)}: the schedule alone\n")
        report.steps(steps_told(runs), timed=False)
        found["mixed"] = {name: asdict(steps) for name, steps in steps_told(runs).items()}
    if job.prefix is not None:
        runs = {WITH: serve(job.prefix, job.serving), WITHOUT: serve(job.prefix, _without_prefixes(job.serving))}
        report.prefix(job.prefix, runs, timed=False)
        found["prefix"] = {name: asdict(steps) for name, steps in steps_told(runs).items()}
    return {**provenance(job.command, job.device, name, config, []), **found}


class _Measuring:
    """One run of the benchmark: the engines, the ceilings, and every reason for which not to trust it."""

    def __init__(self, job: BatchJob, subject: Subject, report: BatchReport, tell: Tell) -> None:
        self.job, self.subject, self.report, self.tell = job, subject, report, tell
        self.shape = shape_of(subject.checkpoint.config)
        self.cautions: list[str] = []

    def everything(self) -> dict[str, Any]:
        """Part by part."""
        job = self.job
        if busy := machine_is_busy():
            self._caution(busy)
        self.ceilings = self._measure_ceilings(read_bandwidth(job.device))
        dtype = job.mode.dtype
        by_dtype, product = {dtype: self.ceilings}, {dtype: multiplied_in(dtype, job.device)}
        self.report.ceilings(device_title(job.device), by_dtype, product)
        found: dict[str, Any] = {}
        with ExitStack() as stack:
            self.tell(f"loading {MINILLM}")
            self.ours = stack.enter_context(RemoteEngine(MINILLM, self._spec(MINILLM)))
            compiled = ", compiled" if self.ours.loaded.compiled else ""
            self.report.say(f"{self.subject.name}, {job.mode.name}{compiled}\n")
            self.ours.serve(WARM_UP, job.serving)
            if job.check is not None:
                found["check"] = self._check(job.check)
            if job.curve is not None:
                found["curve"] = self._curve(job.curve)
            if job.prefix is not None:
                found["prefix"] = self._prefix(job.prefix)
            if job.mixed is not None:
                found["mixed"] = self._mixed(job.mixed, stack)
        return {
            **provenance(job.command, job.device, self.subject.name, self.subject.checkpoint.config, self.cautions),
            "mode": asdict(job.mode),
            "engine": asdict(self.ours.loaded),
            "ceilings": asdict(self.ceilings),
            **found,
        }

    def _check(self, workload: Workload) -> dict[str, Any]:
        serving = self.job.serving
        if serving.num_blocks is None:
            blocks = tight_pool(workload.asks(self.ours.loaded.vocab_size), serving)
            serving = replace(serving, num_blocks=blocks)
        self.tell(f"{_title(workload)}: together, then each alone; this takes minutes")
        found = self.ours.check(workload, serving)
        self.report.checked(found, serving)
        return {**asdict(found), "equal": not found.wrong, "num_blocks": serving.num_blocks}

    def _curve(self, curve: Curve) -> dict[str, Any]:
        seconds: dict[int, list[float]] = {batch: [] for batch in curve.batches}
        alone: list[float] = []

        def a_round(number: int) -> None:
            steps = curve.steps if number else 1
            self.ours.prefill(curve.context, curve.context + curve.new_tokens, seed=number)
            took = self.ours.decode(1, steps)
            by_batch = {batch: self.ours.decode_together(batch, curve.context, steps) for batch in curve.batches}
            if number:
                alone.append(steps / took)
                for batch, found in by_batch.items():
                    seconds[batch].append(found)

        self._rounds("the curve", a_round, [self.ours], warm_up=True)
        rows = curve_rows(seconds, curve, self.shape, self.ours.loaded, self.ceilings)
        alone_rate = median(alone)
        self.report.curve(rows, curve, self.ceilings, alone_rate)
        if self.job.plot is not None:
            title = f"{self.subject.name}, {self.job.mode.name}, behind {curve.context:,} tokens"
            plot_curve(rows, title, self.job.plot)
        return {
            "context": curve.context,
            "new_tokens": curve.new_tokens,
            "alone_tokens_per_s": alone_rate,
            "rows": [{**asdict(row), "share": row.share, "seconds": seconds[row.batch]} for row in rows],
        }

    def _prefix(self, workload: Workload) -> dict[str, Any]:
        ways = {WITH: self.job.serving, WITHOUT: _without_prefixes(self.job.serving)}
        runs: dict[str, list[Served]] = {name: [] for name in ways}

        def a_round(number: int) -> None:
            for name, serving in ways.items():
                runs[name].append(self.ours.serve(workload, serving))

        self._rounds("the shared prefix", a_round, [self.ours])
        self.report.prefix(workload, _middle_runs(runs), timed=True)
        return {"workload": asdict(workload), **served_json(runs)}

    def _mixed(self, workload: Workload, stack: ExitStack) -> dict[str, Any]:
        serving = self.job.serving
        ways: dict[str, tuple[RemoteEngine, Serving]] = {
            MINILLM: (self.ours, serving),
            OURS_STATIC: (self.ours, replace(serving, policy=STATIC)),
        }
        found: dict[str, Any] = {"workload": asdict(workload)}
        if TRANSFORMERS in self.job.peers:
            self.tell(f"loading {TRANSFORMERS}")
            peer = stack.enter_context(RemoteEngine(TRANSFORMERS, self._spec(TRANSFORMERS)))
            peer.serve(WARM_UP, serving)
            ways[f"{TRANSFORMERS} {STATIC}"] = (peer, serving)
            agreed = agreement(self.ours, peer)
            self.report.agreement(self.job.mode, {TRANSFORMERS: agreed})
            found["agreement"] = agreement_json({TRANSFORMERS: agreed})
        runs: dict[str, list[Served]] = {name: [] for name in ways}

        def a_round(number: int) -> None:
            for name, (engine, how) in ways.items():
                runs[name].append(engine.serve(workload, how))
                done = runs[name][-1]
                self.tell(f"{name}: {done.output_tokens_per_s:.1f} tok/s, {done.total_s:.1f} s")

        self._rounds("the mixed set", a_round, [engine for engine, _ in ways.values()])
        self.report.served(_title(workload), served_rows(runs))
        self.report.steps(steps_told(_middle_runs(runs)), timed=True)
        return {**found, **served_json(runs)}

    def _rounds(
        self, what: str, a_round: Callable[[int], None], engines: list[RemoteEngine], *, warm_up: bool = False
    ) -> None:
        """Rounds 1, 2, ... (0 first, to warm up); the machine is looked at after each, and the ceilings once more."""
        device, runs = self.job.device, self.job.runs
        watch = Watch(lambda: read_bandwidth(device), sorted({engine.process_id for engine in engines}))
        for number in range(0 if warm_up else 1, runs + 1):
            a_round(number)
            look = watch.look()
            name = f"round {number} of {runs}" if number else "the round that is not counted"
            self.tell(f"{what}: {name} is over, memory reads {look.bandwidth_bytes_per_s / 1e9:.1f} GB/s")
        for sentence in cautions(watch.looks[1 if warm_up else 0 :]):
            self._caution(f"{what}: {sentence}")
        best = max(self.ceilings.bandwidth_bytes_per_s, *(look.bandwidth_bytes_per_s for look in watch.looks))
        again = self._measure_ceilings(best)
        self.ceilings = Machine(best, max(self.ceilings.flops_per_s, again.flops_per_s))

    def _measure_ceilings(self, bandwidth_bytes_per_s: float) -> Machine:
        return measure_ceilings(self.job.mode.dtype, self.job.device, bandwidth_bytes_per_s)

    def _caution(self, sentence: str) -> None:
        self.cautions.append(sentence)
        self.report.caution(sentence)

    def _spec(self, engine: str) -> EngineSpec:
        job, path = self.job, str(self.subject.checkpoint.path)
        threads, mode = torch.get_num_threads(), job.mode
        if engine != MINILLM:
            return EngineSpec(engine, path, str(job.device), mode.dtype, threads)
        quantize = None if mode.quantize == NOT_QUANTIZED else mode.quantize
        return EngineSpec(engine, path, str(job.device), mode.dtype, threads, quantize, None, job.compile)


def _without_prefixes(serving: Serving) -> Serving:
    return replace(serving, prefix_caching=False)


def _middle_runs(runs: Mapping[str, Sequence[Served]]) -> dict[str, Served]:
    """Of each engine's runs, the one that took the median time (the longer of two)."""
    return {name: sorted(own, key=lambda run: run.total_s)[len(own) // 2] for name, own in runs.items()}


def _title(workload: Workload) -> str:
    (shortest, longest), (least, most) = workload.prompt, workload.output
    return f"{workload.count:,} requests, {shortest:,} to {longest:,} tokens in, {least:,} to {most:,} out"
