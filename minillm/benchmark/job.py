"""The whole of a benchmark: the ceilings, every mode in turn, and whether the engines agree."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from minillm.benchmark.agreement import Agreement
from minillm.benchmark.ceilings import Ceilings, multiplied_in
from minillm.benchmark.engine import MINILLM, EngineSpec
from minillm.benchmark.peers import Lineup
from minillm.benchmark.plan import Mode, Plan
from minillm.benchmark.report import Report, agreement_json, as_json
from minillm.benchmark.session import Tell, compare_outputs, measure_mode
from minillm.benchmark.subject import Subject
from minillm.benchmark.summary import summarize
from minillm.benchmark.watch import machine_is_busy
from minillm.config import ModelConfig
from minillm.machine.limits import device_title
from minillm.machine.measure import bandwidth_reader
from minillm.machine.shape import num_params, shape_of

LIBRARIES = ("minillm", "torch", "numpy", "transformers", "llama_cpp_python")


@dataclass(frozen=True)
class Job:
    """What is asked for: modes, peers by name, where; `kv_dtype` and `compile` are for our own engine."""

    plan: Plan
    modes: tuple[Mode, ...]
    peers: tuple[str, ...]
    device: torch.device
    kv_dtype: str | None
    compile: bool | None
    as_request: bool
    command: str


@dataclass
class Findings:
    """What is known so far: modes as JSON, agreement by mode, and every reason for which not to trust it."""

    modes: list[dict[str, Any]] = field(default_factory=list)
    agreement: dict[Mode, dict[str, Agreement]] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)


def run_job(job: Job, subject: Subject, report: Report, tell: Tell) -> dict[str, Any]:
    """Measure, print as it becomes known, and return everything as JSON values."""
    findings = Findings()
    if busy := machine_is_busy():
        findings.cautions.append(busy)
        report.caution(busy)
    read = bandwidth_reader(job.device)
    ceilings = {dtype: Ceilings(dtype, job.device, read) for dtype in dict.fromkeys(mode.dtype for mode in job.modes)}
    report.ceilings(
        device_title(job.device),
        {dtype: limits.before for dtype, limits in ceilings.items()},
        {dtype: multiplied_in(dtype, job.device) for dtype in ceilings},
    )
    report.say(f"{subject.name}: {num_params(shape_of(subject.checkpoint.config)):,} parameters\n")
    lineup = Lineup(_our_spec(job, subject), subject.checkpoint, job.peers, subject.scratch)
    for mode in job.modes:
        _run_mode(mode, job, subject, lineup, ceilings[mode.dtype], report, findings, tell)
    for mode, found in findings.agreement.items():
        report.agreement(mode, found)
    report.legend(job.peers)
    return _everything(job, subject, findings)


def _run_mode(
    mode: Mode,
    job: Job,
    subject: Subject,
    lineup: Lineup,
    ceilings: Ceilings,
    report: Report,
    findings: Findings,
    tell: Tell,
) -> None:
    """One mode: measured, printed, and added to the findings."""
    result = measure_mode(mode, lineup.specs(mode), job.plan, ceilings, tell)
    rows = summarize(result.runs, result.loaded, shape_of(subject.checkpoint.config), result.machine)
    report.result(result, rows, job.plan, as_request=job.as_request)
    findings.modes.append(as_json(result, rows))
    findings.cautions += result.cautions
    if result.agreement:
        findings.agreement[mode] = result.agreement
    # What two quantizers made of the weights differs; what they were made from must not.
    plain = lineup.unquantized(mode)
    if job.peers and plain not in findings.agreement and plain not in job.modes:
        tell(f"{plain.name}: comparing what the engines compute")
        findings.agreement[plain] = compare_outputs(lineup.specs(plain))


def _our_spec(job: Job, subject: Subject) -> EngineSpec:
    path, dtype = str(subject.checkpoint.path), job.modes[0].dtype
    threads = torch.get_num_threads()
    return EngineSpec(MINILLM, path, str(job.device), dtype, threads, kv_dtype=job.kv_dtype, compile=job.compile)


def _everything(job: Job, subject: Subject, findings: Findings) -> dict[str, Any]:
    return {
        **provenance(job.command, job.device, subject.name, subject.checkpoint.config, findings.cautions),
        "modes": findings.modes,
        "agreement": {mode.name: agreement_json(found) for mode, found in findings.agreement.items()},
    }


def provenance(
    command: str, device: torch.device, name: str, config: ModelConfig, cautions: Sequence[str]
) -> dict[str, Any]:
    """What was run when, on what, with what, and why it is not to be trusted, where it is not."""
    return {
        "command": command,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {"name": device_title(device), "device": str(device), "threads": torch.get_num_threads()},
        "versions": _versions(),
        "model": {"name": name, "parameters": num_params(shape_of(config))},
        "trusted": not cautions,
        "cautions": list(cautions),
    }


def _versions() -> Mapping[str, str]:
    """Of Python and of the libraries that are there."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
