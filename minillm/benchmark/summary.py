"""From single runs to what is reported: medians with their spread, shares of the ceilings, ratios to the peers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from minillm.benchmark.engine import MINILLM
from minillm.benchmark.remote import Loaded
from minillm.benchmark.turns import PREFILL, Run
from minillm.machine.roofline import Machine, mbu, mfu, prefill_work
from minillm.machine.shape import ModelShape
from minillm.metrics import decode_kv_bytes


@dataclass(frozen=True)
class Row:
    """One engine in one measurement; rates in tokens per second, from the slowest run to the fastest.

    `utilization` is MFU for a prefill, at the median, against the best products that were seen; and MBU for decoding:
    the median of the runs' shares, each of what memory gave beside that run. `ratio` is our median rate over this
    engine's: above 1, ours is faster; None in our own row.
    """

    what: str
    tokens: int
    batch: int
    engine: str
    median: float
    least: float
    most: float
    seconds_per_pass: float
    utilization: float
    ratio: float | None


def summarize(runs: Sequence[Run], loaded: Mapping[str, Loaded], shape: ModelShape, best: Machine) -> list[Row]:
    """A row for each engine in each measurement, in the order of the runs: prefill first, then decoding by batch."""
    points = sorted({(run.what != PREFILL, run.batch, run.tokens, run.what) for run in runs})
    rows = []
    for _, batch, tokens, what in points:
        same = [run for run in runs if (run.what, run.tokens, run.batch) == (what, tokens, batch)]
        ours = [run.tokens_per_s for run in same if run.engine == MINILLM]
        for engine in loaded:
            own = [run for run in same if run.engine == engine]
            rates = [run.tokens_per_s for run in own]
            seconds = median(run.seconds / run.passes for run in own)
            share = median(_utilization(run, loaded[engine], shape, best) for run in own)
            ratio = None if engine == MINILLM else median(ours) / median(rates)
            rows.append(Row(what, tokens, batch, engine, median(rates), min(rates), max(rates), seconds, share, ratio))
    return rows


def _utilization(run: Run, engine: Loaded, shape: ModelShape, best: Machine) -> float:
    """Of the machine's speed in that which limits the passes, the share that they reached."""
    if run.what == PREFILL:
        return mfu(prefill_flops_without_head(shape, run.tokens), run.seconds, best.flops_per_s)
    return mbu(bytes_per_pass(run, engine), run.seconds / run.passes, run.limit)


def prefill_flops_without_head(shape: ModelShape, tokens: int) -> float:
    """Operations of a prefill. The head's are left out: they are a matrix-vector product, which memory limits."""
    return prefill_work(shape, tokens).flops - 2 * shape.vocab_size * shape.hidden_size


def bytes_per_pass(run: Run, engine: Loaded) -> float:
    """Bytes that one decode pass of a run reads, on average: the weights as they are stored, and keys and values."""
    kv_bytes = run.batch * decode_kv_bytes(run.tokens, run.passes + 1, engine.kv_bytes_per_token)
    return engine.pass_bytes + kv_bytes / run.passes
