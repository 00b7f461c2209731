"""Plots of chapter 3."""

import math
from collections.abc import Callable

from themed_plot import ACCENTS, FILLS, INK, MUTED, plot_of, themed_svg

THETA, HEAD_DIM = 100_000.0, 64  # SmolLM2's


def _radians_per_token(pair: int) -> float:
    return THETA ** (-2 * pair / HEAD_DIM)


def clocks(pairs: tuple[int, ...] = (0, 3, 6, 12), positions: int = 8) -> str:
    """A clock for each pair (row) and position (column): where the hand of a pair that began at noon stands.

    Angles count counter-clockwise from the right, as in the formula; a hand begins there.
    """
    with plot_of() as figure:
        axes = figure.subplots()
        for row, pair in enumerate(pairs):
            for position in range(positions):
                x, y = 1.2 * position, -1.35 * row
                angle = position * _radians_per_token(pair)
                turn = [step * angle / 24 for step in range(25)]
                axes.fill(
                    [x, *(x + 0.42 * math.cos(a) for a in turn)],
                    [y, *(y + 0.42 * math.sin(a) for a in turn)],
                    color=FILLS[0],
                )
                rim = [step * math.tau / 48 for step in range(49)]
                axes.plot([x + 0.5 * math.cos(a) for a in rim], [y + 0.5 * math.sin(a) for a in rim], color=MUTED, lw=1)
                axes.plot([x, x + 0.5 * math.cos(angle)], [y, y + 0.5 * math.sin(angle)], color=ACCENTS[0], lw=2.5)
            tokens = math.tau / _radians_per_token(pair)
            axes.text(-0.8, -1.35 * row + 0.02, f"pair {pair}", ha="right", va="bottom", color=INK)
            axes.text(
                -0.8, -1.35 * row - 0.02, f"{tokens:,.0f} tokens a turn", ha="right", va="top", color=MUTED, size=11
            )
        for position in range(positions):
            axes.text(1.2 * position, 0.72, str(position), ha="center", va="bottom", color=MUTED)
        axes.text(-0.8, 0.72, "position", ha="right", va="bottom", color=MUTED)
        axes.set(xlim=(-3.4, 1.2 * positions - 0.6), ylim=(-1.35 * len(pairs) + 0.7, 1.1), aspect="equal")
        axes.axis("off")
        return themed_svg(
            figure,
            title="Four pairs of a head as clocks, at positions 0 to 7",
            desc="A grid of clocks. Each row is a pair of numbers, each column a position. The hand of pair 0 turns by"
            " a radian from one position to the next and is past a whole turn at position 7; that of pair 3 turns by a"
            " third of a radian; that of pair 6 by a tenth; that of pair 12 hardly moves.",
        )


def similarity_over_distance(furthest: int = 256) -> str:
    """The score of a query and a key that are the same vector, all pairs of equal length, over their distance.

    It is the mean of cos(distance x frequency) over the pairs: 1 where they stand at the same place.
    """
    distances = range(furthest + 1)
    pairs = range(HEAD_DIM // 2)
    scores = [sum(math.cos(d * _radians_per_token(pair)) for pair in pairs) / len(pairs) for d in distances]
    with plot_of() as figure:
        axes = figure.subplots()
        axes.plot(distances, scores, color=ACCENTS[0])
        axes.set(xlim=(0, furthest), ylim=(0, 1.02), xticks=range(0, furthest + 1, furthest // 8))
        axes.set_xlabel("tokens between query and key")
        axes.set_title("score of two equal vectors, as a share of that at distance 0", fontsize=14)
        return themed_svg(
            figure,
            title="The score of two equal vectors over the distance at which they stand",
            desc=f"A curve that begins at 1 for distance 0, falls quickly to {scores[8]:.2f} at distance 8, and then,"
            f" in waves, more and more slowly, to {scores[furthest]:.2f} at distance {furthest}.",
        )


PLOTS: dict[str, Callable[[], str]] = {
    "rotary-clocks.svg": clocks,
    "rotary-distance.svg": similarity_over_distance,
}
