"""Plots of chapter 9."""

from themed_plot import ACCENTS, MUTED, plot_of, themed_svg

from minillm.machine.roofline import Machine, attainable_flops, decode_work, forward_bytes, forward_flops
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME


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


PLOTS = {"roofline-h100.svg": roofline_of_an_h100}
