"""Plots of chapter 14."""

from statistics import NormalDist

from themed_plot import ACCENTS, INK, MUTED, plot_of, themed_svg

SPREAD, OUTLIER = 0.04, 0.4


def rounding_levels() -> str:
    """Thirty-two weights of a group, and the places that three formats have for them; one other weight is large."""
    weights = [SPREAD * NormalDist().inv_cdf((i + 0.5) / 32) for i in range(32)]
    least, most = min(weights), max(weights)
    step = (most - least) / 15
    rows = (
        ("4 bits, one scale for the whole row", [OUTLIER * (i - 7) / 8 for i in range(16)], ACCENTS[1]),
        ("4 bits, scale and minimum of the group's own", [least + i * step for i in range(16)], ACCENTS[2]),
        ("8 bits, one scale for the whole row", [OUTLIER * i / 127 for i in range(-127, 128)], ACCENTS[0]),
    )
    with plot_of(height=330) as figure:
        axes = figure.subplots()
        for place, (name, levels, colour) in zip((3, 2, 1), rows, strict=True):
            inside = [level for level in levels if -0.42 < level < 0.42]
            axes.vlines(inside, place - 0.22, place + 0.08, color=colour, linewidth=1 if len(levels) > 16 else 2)
            axes.plot(weights, [place + 0.2] * 32, ".", color=INK, markersize=4)
            axes.plot([OUTLIER], [place + 0.2], ".", color=MUTED, markersize=7)
            axes.annotate(name, (-0.41, place + 0.36), color=colour, fontsize=13)
        axes.annotate("a large weight in the row", (0.41, 3.36), color=MUTED, ha="right", fontsize=12)
        axes.set(xlim=(-0.43, 0.43), ylim=(0.6, 3.75), yticks=[])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False)
        axes.set_xlabel("weight")
        used = [len({min(levels, key=lambda level: abs(level - w)) for w in weights}) for _, levels, _ in rows]
        return themed_svg(
            figure,
            title="Where 32 weights may go",
            desc="Three strips over the same axis of weights from -0.4 to 0.4. Dots are the same 32 weights, all within"
            f" {most:.2f} of zero; one more, elsewhere in the row, is 0.4. With 16 levels spread over the whole row the"
            f" 32 weights share {used[0]} of them. With 16 levels from the group's own smallest weight to its largest"
            f" they use {used[1]}. With 255 levels over the whole row they use {used[2]}.",
        )


PLOTS = {"rounding-levels.svg": rounding_levels}
