"""Plots of chapter 6."""

from themed_plot import ACCENTS, MUTED, plot_of, themed_svg

from minillm.machine.roofline import forward_bytes
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME

CALLS_PER_LAYER = 80  # of this engine: 2,454 calls in the 30 layers of SmolLM2, see notebook 6
SECONDS_PER_CALL = 5e-6


def pass_seconds_by_weights() -> str:
    """A decode pass on an H100 over the bytes that it reads: what memory needs, and what launching needs."""
    bandwidth = find("h100").bandwidth_bytes_per_s
    floor_ms = 1e3 * 32 * CALLS_PER_LAYER * SECONDS_PER_CALL
    names = {"smollm2-135m": "SmolLM2-135M", "llama-3.2-1b": "Llama-3.2-1B", "llama-3-8b": "Llama-3-8B"}
    names["llama-2-13b"] = "Llama-2-13B"
    read = {title: forward_bytes(BY_NAME[name].shape, 1, 1) for name, title in names.items()}
    ends = [0.15e9, 150e9]
    with plot_of(height=340) as figure:
        axes = figure.subplots()
        axes.loglog([b / 1e9 for b in ends], [1e3 * b / bandwidth for b in ends], color=ACCENTS[0])
        axes.axhline(floor_ms, color=ACCENTS[1])
        for title, num_bytes in read.items():
            ms = 1e3 * num_bytes / bandwidth
            axes.plot(num_bytes / 1e9, ms, "o", color=ACCENTS[0], markersize=8)
            axes.vlines(num_bytes / 1e9, ms, floor_ms, color=MUTED, linewidth=1, linestyle=":")
            axes.annotate(title, (num_bytes / 1e9, ms), (10, -12), textcoords="offset points", color=ACCENTS[0])
        axes.annotate(
            f"2,560 calls of 5 µs (32 layers): {floor_ms:.1f} ms",
            (ends[0] / 1e9, floor_ms),
            (6, 8),
            textcoords="offset points",
            color=ACCENTS[1],
        )
        axes.annotate("reading the weights", (46, 24), color=ACCENTS[0], ha="right")
        axes.set(xlim=(ends[0] / 1e9, ends[1] / 1e9), ylim=(0.03, 60))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("GB of weights read per pass, 16 bit")
        axes.set_title("ms for a decode pass on an H100, at least", fontsize=14)
        told = ", ".join(f"{title}: {1e3 * b / bandwidth:.2f}" for title, b in read.items())
        return themed_svg(
            figure,
            title="What a decode pass needs for reading, and what for launching",
            desc="Milliseconds over GB of weights, both logarithmic. A rising line is the time to read the weights at"
            f" 3.35 TB/s; points on it, in ms: {told}. A level line at {floor_ms:.1f} ms is the time for 2,560 calls of"
            " 5 microseconds each, in 32 layers. All four points lie below it.",
        )


PLOTS = {"launch-floor.svg": pass_seconds_by_weights}
