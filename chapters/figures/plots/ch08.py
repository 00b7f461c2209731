"""Plots of chapter 8."""

from itertools import accumulate

from themed_plot import ACCENTS, FILLS, MUTED, plot_of, themed_svg

from minillm.stop_strings import StopMatcher

STOP = "\n\nUser:"
# The tokens of SmolLM2 for a text that begins the stop string twice in vain, and then has it.
PIECES = (
    *("It", " is", " Paris", ".", "\n", "\n", "Use", " it", " well", ",", " and"),
    *("\n", "\n", "User", " guides", " say", " so", ".", "\n", "\n", "User", ":"),
)


def characters_held_back() -> str:
    """How many characters have come, and how many are shown: with the hold-back rule, and with a fixed lag."""
    matcher = StopMatcher([STOP])
    lag = len(STOP) - 1
    come = list(accumulate(map(len, PIECES)))
    shown = list(accumulate(len(matcher.add(piece)) for piece in PIECES))
    tokens = range(1, len(PIECES) + 1)
    near = {"textcoords": "offset points"}
    with plot_of() as figure:
        axes = figure.subplots()
        axes.grid(False)
        axes.fill_between(tokens, shown, come, step="mid", color=FILLS[1], linewidth=0)
        axes.step(tokens, [max(0, n - lag) for n in come], where="mid", color=MUTED, linestyle="dotted", linewidth=1.5)
        axes.step(tokens, come, where="mid", color=ACCENTS[1])
        axes.step(tokens, shown, where="mid", color=ACCENTS[0])
        axes.set(xlim=(1, len(PIECES)), ylim=(0, None), xticks=(1, 5, 10, 15, 20))
        axes.set_xlabel("token")
        axes.set_title("characters that have come, and are shown", fontsize=14)
        axes.annotate("come", (13, come[12]), xytext=(-4, 12), **near, ha="right", color=ACCENTS[1])
        axes.annotate("shown", (16, shown[15]), xytext=(-6, 8), **near, ha="right", color=ACCENTS[0])
        axes.annotate(f"always {lag} behind", (9, come[8] - lag), xytext=(8, -22), **near, color=MUTED)
        return themed_svg(
            figure,
            title="What the hold-back rule holds back",
            desc=f"Steps over {len(PIECES)} tokens. The characters that have come and those that are shown are the same"
            " line, but for three places where the text begins the stop string: there the shown ones stay behind, by up"
            f" to {lag}. The first two times they catch up with the next token; the third time it is the stop string,"
            f" and they stop at {shown[-1]} of {come[-1]}. A dotted line that is always {lag} behind lies below them"
            " everywhere.",
        )


PLOTS = {"held-back.svg": characters_held_back}
