"""The curve as a picture: throughput, and time per token, against the number of requests; measured and predicted."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minillm.benchmark.many.summary import CurveRow
from minillm.errors import InputError, MissingError

FORMATS = (".svg", ".png", ".pdf")


def require_plot(path: Path) -> None:
    """Raise before anything is measured: InputError for a file that cannot be, MissingError without matplotlib."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"--plot writes {', '.join(FORMATS)}, not {path.name!r}")
    if not path.parent.is_dir():
        raise MissingError(f"--plot cannot write {path}: there is no directory {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingError('--plot draws with matplotlib, which is not installed: pip install "minillm[book]"')


def plot_curve(rows: Sequence[CurveRow], title: str, path: Path) -> None:
    """Two panels, one beside the other; both axes count in powers of two, so that "twice" is one step everywhere."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    figure.suptitle(title)
    throughput, per_token = figure.subplots(1, 2)
    batches = [row.batch for row in rows]

    measured = [row.tokens_per_s for row in rows]
    below = [row.tokens_per_s - row.least for row in rows]
    above = [row.most - row.tokens_per_s for row in rows]
    throughput.plot(batches, [row.predicted_tokens_per_s for row in rows], "--", color="C7", label="roofline: at most")
    if rows[0].batch == 1:
        each = rows[0].tokens_per_s
        throughput.plot(batches, [each * batch for batch in batches], ":", color="C7", label="N times one request")
    throughput.errorbar(batches, measured, [below, above], fmt="o-", color="C0", capsize=3, label="measured")
    throughput.set_ylabel("tokens per second, all requests")

    per_token.plot(batches, [row.predicted_tpot_s * 1e3 for row in rows], "--", color="C7", label="roofline: at least")
    per_token.plot(batches, [row.tpot_s * 1e3 for row in rows], "o-", color="C1", label="measured")
    per_token.set_ylabel("milliseconds per token (TPOT)")
    for axes in (throughput, per_token):
        _finish(axes, batches)
    figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _finish(axes: Any, batches: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.4g}")
    axes.set_xlabel("requests that decode at once")
    axes.grid(alpha=0.3)
    axes.legend()
