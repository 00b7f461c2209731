"""From single runs to what is reported: medians with their spread, percentiles, ratios, shares of a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from minillm.benchmark.many.decode_curve import decode_step_work, mean_context
from minillm.benchmark.many.parts import Curve
from minillm.benchmark.many.serve import Served
from minillm.benchmark.remote import Loaded
from minillm.machine.roofline import Machine, bound_by, shortest_seconds
from minillm.machine.shape import ModelShape

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class CurveRow:
    """`batch` requests that decode at once; rates are tokens per second of all together, tpot_s seconds per step.

    speed_up: against one request, where that was measured. predicted: what the roofline allows at most, and what it is
    limited by there.
    """

    batch: int
    tokens_per_s: float
    least: float
    most: float
    tpot_s: float
    speed_up: float | None
    predicted_tokens_per_s: float
    predicted_tpot_s: float
    bound_by: str

    @property
    def share(self) -> float:
        """Of the prediction, what was reached."""
        return self.tokens_per_s / self.predicted_tokens_per_s


def curve_rows(
    seconds: Mapping[int, Sequence[float]], curve: Curve, shape: ModelShape, loaded: Loaded, machine: Machine
) -> list[CurveRow]:
    """seconds: of each run, by batch. A row for each batch, in the order of `curve`."""
    context = mean_context(curve.context, curve.steps)
    rates = {batch: [batch * curve.steps / run for run in runs] for batch, runs in seconds.items()}
    rows = []
    for batch in curve.batches:
        work = decode_step_work(shape, batch, context, loaded.pass_bytes, loaded.kv_bytes_per_token)
        least_s = shortest_seconds(work, machine)
        rate = median(rates[batch])
        rows.append(
            CurveRow(
                batch=batch,
                tokens_per_s=rate,
                least=min(rates[batch]),
                most=max(rates[batch]),
                tpot_s=median(seconds[batch]) / curve.steps,
                speed_up=rate / median(rates[1]) if 1 in rates else None,
                predicted_tokens_per_s=batch / least_s,
                predicted_tpot_s=least_s,
                bound_by=bound_by(work, machine),
            )
        )
    return rows


@dataclass(frozen=True)
class ServedRow:
    """One engine with one set of requests. tokens_per_s: of output, as asked for. ratio: ours over this one's.

    ttft_s, tpot_s: percentiles over the requests of all runs.
    """

    engine: str
    tokens_per_s: float
    least: float
    most: float
    total_s: float
    ratio: float | None
    ttft_s: dict[int, float]
    tpot_s: dict[int, float]


def served_rows(runs: Mapping[str, Sequence[Served]]) -> list[ServedRow]:
    """A row for each engine, ours (the first) before the others."""
    ours = median(run.output_tokens_per_s for run in next(iter(runs.values())))
    rows = []
    for number, (engine, own) in enumerate(runs.items()):
        rates = [run.output_tokens_per_s for run in own]
        rows.append(
            ServedRow(
                engine=engine,
                tokens_per_s=median(rates),
                least=min(rates),
                most=max(rates),
                total_s=median(run.total_s for run in own),
                ratio=ours / median(rates) if number else None,
                ttft_s=percentiles([ttft for run in own for ttft in run.ttft_s]),
                tpot_s=percentiles([tpot for run in own for tpot in run.tpot_s if tpot is not None]),
            )
        )
    return rows


def percentiles(values: Sequence[float]) -> dict[int, float]:
    """The PERCENTILES of some values, linear between neighbours; {} where there are no values."""
    return {p: float(np.percentile(values, p)) for p in PERCENTILES} if values else {}


def served_json(runs: Mapping[str, Sequence[Served]]) -> dict[str, Any]:
    """Every run, and what was made of them."""
    return {
        "summary": [asdict(row) for row in served_rows(runs)],
        "runs": {engine: [_run_json(run) for run in own] for engine, own in runs.items()},
    }


def _run_json(run: Served) -> dict[str, Any]:
    values = {"output_tokens_per_s": run.output_tokens_per_s, **asdict(run)}
    if run.steps is not None:
        values["steps"] |= {"bookkeeping_share": run.steps.bookkeeping_share}
    return values
