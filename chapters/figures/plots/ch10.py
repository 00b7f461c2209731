"""Plots of chapter 10."""

from themed_plot import ACCENTS, INK, plot_of, themed_svg

from minillm.machine.memory import Workload, demand
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME


def one_gpu_over_the_batch(model: str = "llama-2-13b", gpu: str = "H100", context: int = 4096) -> str:
    """What one GPU must hold, part by part, for batches of full sequences; and what it has."""
    shape, memory = BY_NAME[model].shape, find(gpu).memory_bytes / 1e9
    batches = (1, 4, 8, 12, 16, 20, 24, 28, 32)
    needs = [demand(shape, Workload(context, batch)) for batch in batches]
    weights = [need.weights / 1e9 for need in needs]
    caches = [need.kv_cache / 1e9 for need in needs]
    rests = [(need.activations + need.overhead) / 1e9 for need in needs]
    most = max(n for n in range(1, 33) if demand(shape, Workload(context, n)).total / 1e9 <= memory)
    with plot_of(height=360) as figure:
        axes = figure.subplots()
        axes.grid(visible=False, axis="x")
        axes.set_axisbelow(True)
        bottom = [0.0] * len(batches)
        for label, sizes, colour in (
            ("weights", weights, ACCENTS[0]),
            ("KV cache", caches, ACCENTS[1]),
            ("activations and overhead", rests, ACCENTS[2]),
        ):
            axes.bar(batches, sizes, width=2.6, bottom=bottom, color=colour, label=label)
            bottom = [below + size for below, size in zip(bottom, sizes, strict=True)]
        axes.axhline(memory, color=INK, linewidth=1.5, linestyle="--")
        axes.annotate(
            f"the GPU: {memory:.1f} GB, {most} sequences",
            (0, memory),
            xytext=(-4, 6),
            textcoords="offset points",
            color=INK,
            fontsize=12,
        )
        axes.set(xlim=(-1, 34), ylim=(0, 150), xticks=batches)
        axes.set_xlabel(f"sequences of {context:,} tokens")
        axes.set_title("GB on one GPU", fontsize=14)
        axes.legend(loc="upper left", fontsize=12)
        return themed_svg(
            figure,
            title="The memory of one H100 that Llama-2-13B needs, over the batch",
            desc=f"Stacked bars for 1 to 32 sequences of {context:,} tokens. Weights are {weights[0]:.0f} GB in all of"
            f" them. The KV cache grows by {caches[0]:.2f} GB per sequence, to {caches[-1]:.0f} GB. Activations and"
            f" overhead are a thin line of {rests[0]:.1f} GB on top. A dashed line at {memory:.1f} GB is what the GPU"
            f" has: {most} sequences stay below it.",
        )


PLOTS = {"will-it-fit.svg": one_gpu_over_the_batch}
