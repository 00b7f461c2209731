"""Figures of chapter 7: one distribution on its way through the steps, and the draw from what is left of it.

The percentages are SmolLM2-135M's after "She opened the door and saw a", as notebook 7 prints them.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

TOKENS = ("young", "group", "beautiful", "figure", "woman", "small", "man", "fire", "the others")

# Step, what it did, and the percentage of each token after it. "The others" are the remaining 49,144.
CHAIN: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("the model's own", "49,152 tokens", (15.3, 12.6, 7.1, 6.0, 5.1, 2.3, 2.0, 1.3, 48.3)),
    ("logit bias: group -1.2", "one token moves", (16.8, 4.2, 7.7, 6.6, 5.6, 2.5, 2.2, 1.4, 53.0)),
    ("temperature 0.7", "all move, none goes", (39.0, 5.3, 12.8, 10.3, 8.1, 2.5, 2.1, 1.1, 18.7)),
    ("min-p 0.05", "7 tokens stay", (48.6, 6.6, 16.0, 12.8, 10.1, 3.2, 2.6, 0.0, 0.0)),
    ("top-k 6", "6 stay", (49.9, 6.8, 16.4, 13.2, 10.4, 3.2, 0.0, 0.0, 0.0)),
    ("top-p 0.9", "5 stay", (51.6, 7.0, 17.0, 13.6, 10.7, 0.0, 0.0, 0.0, 0.0)),
)

_LEFT, _COLUMN, _ROW, _TALLEST = 12, 49, 104, 52
_KEPT_AT_LAST = sum(share > 0 for share in CHAIN[-1][2])


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start", more: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'  <text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{words}</text>'


def _svg(width: int, height: int, title: str, desc: str, lines: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, f"  <title>{title}</title>", f"  <desc>{desc}</desc>", *lines, "</svg>", ""])


def sampling_chain() -> str:
    """A row of bars for each step, from the model's distribution to the one that is drawn from."""
    lines = []
    for i, (step, note, shares) in enumerate(CHAIN):
        top, base = i * _ROW + 8, i * _ROW + 8 + 26 + _TALLEST + 10
        lines.append(_text(_LEFT, top + 14, step, "fig-title"))
        lines.append(_text(_LEFT + 9 * _COLUMN - 4, top + 14, note, "fig-note", "end"))
        lines.append(f'  <path d="M{_LEFT} {base} H{_LEFT + 9 * _COLUMN - 4}" stroke="var(--fig-grid)"/>')
        lines += [_bar(j, share, base) for j, share in enumerate(shares)]
    foot = len(CHAIN) * _ROW + 18
    for j, token in enumerate(TOKENS):
        centre = _LEFT + j * _COLUMN + 22
        colour = "var(--fig-ink)" if j < _KEPT_AT_LAST else "var(--fig-muted)"
        lines.append(
            _text(centre, foot + 14 * (j % 2), token, anchor="middle", more=f' font-size="12" fill="{colour}"')
        )
    width = _LEFT + 9 * _COLUMN + 8
    return _svg(
        width,
        foot + 26,
        "One distribution on its way through the steps",
        "Six rows of bars, one for each step, with the share in percent of eight tokens and of all others together. "
        + " ".join(f"{step}: {note}; {_in_words(shares)}." for step, note, shares in CHAIN),
        lines,
    )


def _in_words(shares: Sequence[float]) -> str:
    return ", ".join(f"{token} {share:g}" for token, share in zip(TOKENS, shares, strict=True) if share)


def _bar(j: int, share: float, base: float) -> str:
    """One token's bar with its percentage above it; where it has gone, a cross."""
    x, centre = _LEFT + j * _COLUMN + 4, _LEFT + j * _COLUMN + 22
    if not share:
        return _text(centre, base - 6, "\u00d7", anchor="middle", more=' font-size="13" fill="var(--fig-accent-2)"')
    height = max(1.0, share / 53 * _TALLEST)
    fill, edge = ("fill-0", "muted") if j == len(TOKENS) - 1 else ("fill-1", "accent-1")
    return "\n".join(
        [
            f'  <rect x="{x}" y="{base - height:.1f}" width="36" height="{height:.1f}"'
            f' fill="var(--fig-{fill})" stroke="var(--fig-{edge})"/>',
            _text(centre, base - height - 4, f"{share:.1f}", anchor="middle", more=' font-size="12"'),
        ]
    )


# Shares after the last step, in the order of ids: the order in which the running sum goes.
IN_ORDER = (("group", 1528, 0.0704), ("young", 1805, 0.5160), ("beautiful", 3953, 0.1699))
IN_ORDER += (("figure", 4110, 0.1363), ("woman", 4166, 0.1073))
DRAWN_U = 0.3238  # random.Random(7).random(), the first number of seed 7


def inverse_cdf_staircase() -> str:
    """The running sum as a staircase, and one u that goes across to a stair and down to a token."""
    left, top, height, wide = 48, 20, 240, 80
    sums = list(accumulate(share for _, _, share in IN_ORDER))
    at = [top + height * (1 - total) for total in (0.0, *sums)]  # heights of the stairs
    lines = [
        f'  <path d="M{left} {top} V{top + height} H{left + 5 * wide + 4}" fill="none" stroke="var(--fig-muted)"/>'
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = top + height * (1 - tick)
        lines.append(_text(left - 8, y + 4, f"{tick:g}", "fig-note", "end"))
        lines.append(f'  <path d="M{left - 4} {y:.1f} H{left}" stroke="var(--fig-muted)"/>')
    for j, (token, token_id, share) in enumerate(IN_ORDER):
        x = left + j * wide
        hit = token == "young"
        fill, edge = ("fill-2", "accent-2") if hit else ("fill-1", "accent-1")
        lines.append(
            f'  <rect x="{x}" y="{at[j + 1]:.1f}" width="{wide}" height="{at[j] - at[j + 1]:.1f}"'
            f' fill="var(--fig-{fill})" stroke="var(--fig-{edge})"/>'
        )
        middle = (at[j] + at[j + 1]) / 2 + 4
        place = x + wide - 8 if hit else x + wide / 2
        lines.append(_text(place, middle, f"{share:.3f}", anchor="end" if hit else "middle", more=' font-size="12"'))
        lines.append(_text(x + wide / 2, top + height + 20, token, anchor="middle", more=' font-size="13"'))
        lines.append(_text(x + wide / 2, top + height + 36, f"id {token_id}", "fig-note", "middle"))
    y = top + height * (1 - DRAWN_U)
    x = left + 1.25 * wide
    lines.append(
        f'  <path d="M{left} {y:.1f} H{x:g} V{top + height - 6}" fill="none" stroke="var(--fig-accent-2)"'
        ' stroke-width="2" stroke-dasharray="5 3"/>'
    )
    lines.append(f'  <path d="M{x - 4:g} {top + height - 7} h8 l-4 7 z" fill="var(--fig-accent-2)"/>')
    lines.append(
        _text(left + 6, y - 6, f"u = {DRAWN_U:.3f}", "fig-strong", more=' font-size="13" fill="var(--fig-accent-2)"')
    )
    return _svg(
        left + 5 * wide + 16,
        top + height + 48,
        "The draw: a number between 0 and 1, looked up in the running sum",
        "Five tokens in the order of their ids, each a block as high as its probability, stacked into a staircase"
        f" from 0 to 1. u = {DRAWN_U:.3f} on the vertical axis meets the block of the token young, which reaches from"
        f" {sums[0]:.3f} to {sums[1]:.3f}.",
        lines,
    )


PLOTS: dict[str, Callable[[], str]] = {
    "sampling-chain.svg": sampling_chain,
    "inverse-cdf.svg": inverse_cdf_staircase,
}
