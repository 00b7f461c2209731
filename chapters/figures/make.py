"""Draw the book's plots: `python chapters/figures/make.py` writes them beside this file.

A plot here is made of arithmetic alone. What is measured belongs in a notebook, on the reader's own machine.
"""

import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from themed_plot import ACCENTS, INK, MUTED, plot_of, themed_svg

from minillm.machine.memory import Workload, demand
from minillm.machine.roofline import Machine, attainable_flops, decode_work, forward_bytes, forward_flops
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME


def positions_with_and_without_a_cache(prompt_tokens: int = 16, tokens: int = 128) -> str:
    """How many positions go through the model until the n-th token is there, for n = 1 ... tokens.

    Without a cache, each pass computes the prompt and everything generated so far. With one, the first pass computes
    the prompt, and every later pass one position.
    """
    numbers = range(1, tokens + 1)
    without = list(accumulate(prompt_tokens + n - 1 for n in numbers))
    cached = list(accumulate(prompt_tokens if n == 1 else 1 for n in numbers))
    with plot_of() as figure:
        axes = figure.subplots()
        axes.plot(numbers, without, color=ACCENTS[1])
        axes.plot(numbers, cached, color=ACCENTS[0])
        axes.set(xlim=(0, tokens), ylim=(0, None), xticks=range(0, tokens + 1, tokens // 8))
        axes.set_xlabel("tokens generated")
        axes.set_title("positions computed until the n-th token", fontsize=14)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.annotate(
            f"without a cache: {without[-1]:,}",
            (tokens, without[-1]),
            xytext=(-16, -6),
            textcoords="offset points",
            ha="right",
            va="center",
            color=ACCENTS[1],
        )
        axes.annotate(
            f"with a cache: {cached[-1]:,}",
            (tokens, cached[-1]),
            xytext=(-4, 16),
            textcoords="offset points",
            ha="right",
            va="center",
            color=ACCENTS[0],
        )
        return themed_svg(
            figure,
            title="Positions computed until the n-th token, without a cache and with one",
            desc=f"Two curves over 1 to {tokens} generated tokens, after a prompt of {prompt_tokens}. Without a cache "
            f"the count grows with the square, to {without[-1]:,} positions. With a cache it is a line that reaches "
            f"{cached[-1]:,}, and can hardly be told from the axis.",
        )


def roofline_of_an_h100() -> str:
    """What an H100's two speeds allow, and under it Llama-3-8B in bfloat16: decode by batch, prefill by length."""
    h100, llama = find("h100"), BY_NAME["llama-3-8b"].shape
    machine = Machine(h100.bandwidth_bytes_per_s, h100.flops("bfloat16"))

    def prefill(tokens: int) -> float:
        return forward_flops(llama, 1, tokens) / forward_bytes(llama, 1, tokens)

    decode = {f"batch {batch}": decode_work(llama, batch, 512).intensity for batch in (1, 8, 64)}
    prompts = {f"{tokens:,} tokens": prefill(tokens) for tokens in (16, 128, 4096)}
    with plot_of(height=360) as figure:
        axes = figure.subplots()
        ends = [0.5, machine.ridge_point, 20_000.0]
        axes.loglog(ends, [attainable_flops(i, machine) / 1e12 for i in ends], color=ACCENTS[1])
        axes.axvline(machine.ridge_point, color=MUTED, linewidth=1, linestyle=":")
        axes.annotate(
            f"ridge: {machine.ridge_point:.0f}",
            (machine.ridge_point, 1.1),
            xytext=(6, 0),
            textcoords="offset points",
            color=MUTED,
        )
        places = ((decode, ACCENTS[0], (9, -6), "left"), (prompts, ACCENTS[2], (-9, 5), "right"))
        for points, colour, offset, side in places:
            for name, intensity in points.items():
                reach = attainable_flops(intensity, machine) / 1e12
                axes.plot(intensity, reach, "o", color=colour, markersize=8)
                axes.annotate(name, (intensity, reach), offset, textcoords="offset points", color=colour, ha=side)
        axes.annotate("decode", (30, 7), color=ACCENTS[0], fontsize=16)
        axes.annotate("prefill", (5, 500), color=ACCENTS[2], fontsize=16)
        axes.set(xlim=(ends[0], ends[-1]), ylim=(1, 3000))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("FLOP per byte")
        axes.set_title("TFLOP/s that an H100 can reach", fontsize=14)
        told = ", ".join(f"{name}: {intensity:.1f}" for name, intensity in (*decode.items(), *prompts.items()))
        return themed_svg(
            figure,
            title="The roofline of an H100, and passes of Llama-3-8B under it",
            desc="Operations per second over operations per byte, both logarithmic: a slope that memory sets, up to a"
            f" ridge at {machine.ridge_point:.0f}, and then a flat roof at 989 TFLOP/s. Points on it, in FLOP per byte:"
            f" {told}. Decode is on the slope; the longer prompts are under the roof.",
        )


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


PLOTS: dict[str, Callable[[], str]] = {
    "positions-computed.svg": positions_with_and_without_a_cache,
    "roofline-h100.svg": roofline_of_an_h100,
    "will-it-fit.svg": one_gpu_over_the_batch,
}


def make(folder: Path) -> None:
    """Write every plot into `folder`."""
    for name, draw in PLOTS.items():
        (folder / name).write_bytes(draw().encode("utf-8"))  # bytes: the same line ends on every system


if __name__ == "__main__":
    make(Path(__file__).parent)
    print(*PLOTS, sep="\n", file=sys.stderr)
