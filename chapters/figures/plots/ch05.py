"""Plots of chapter 5."""

from itertools import accumulate

from themed_plot import ACCENTS, plot_of, themed_svg


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


PLOTS = {"positions-computed.svg": positions_with_and_without_a_cache}
