"""A matplotlib figure as SVG text in the colours of the page's theme, the same bytes on every run.

matplotlib wants real colours, so a plot is drawn in placeholders, which become the custom properties of
`_static/book.css`. One unit is one CSS pixel: sizes of figures and of text are pixels.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.figure import Figure

# What a plot may be drawn in. The values mean nothing: they are only unlikely to be anything else.
INK, MUTED, GRID, PAPER = "#010203", "#010204", "#010205", "#010206"
ACCENTS = ("#020201", "#020202", "#020203", "#020204")
FILLS = ("#030201", "#030202", "#030203", "#030204")
VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"}
VARIABLES |= {colour: f"accent-{number}" for number, colour in enumerate(ACCENTS, start=1)}
VARIABLES |= {colour: f"fill-{number}" for number, colour in enumerate(FILLS, start=1)}

POINTS_PER_INCH = 72  # one unit of matplotlib's SVG is a point

STYLE: dict[Any, Any] = {  # matplotlib knows its keys by a type of its own
    "font.size": 14,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=ACCENTS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 2.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # words stay words: searchable, and in the page's own font
    "svg.hashsalt": "minillm",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelsize": 12,
    "ytick.color": MUTED,
    "ytick.labelsize": 12,
}


@contextmanager
def plot_of(width: int = 520, height: int = 320) -> Iterator[Figure]:
    """A figure of width x height pixels in the book's style. Draw on it and take its SVG inside the `with`.

    520 pixels is the most that a phone shows without scrolling.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # not the style of whoever runs this
        mpl.rcParams.update(STYLE)
        yield Figure(figsize=(width / POINTS_PER_INCH, height / POINTS_PER_INCH))


def themed_svg(figure: Figure, title: str, desc: str) -> str:
    """The figure as SVG text. title and desc are for readers who cannot see it.

    Raises ValueError for a colour that is not one of the placeholders: it would be wrong in one of the themes.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for unwanted in (r"<!--.*?-->\s*", r"<metadata>.*?</metadata>\s*", r"<defs>\s*<style.*?</style>\s*</defs>\s*"):
        svg = re.sub(unwanted, "", svg, flags=re.DOTALL)
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)  # the page's own
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'stroke-linejoin="round"', svg, count=1)
    svg = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", svg)
    for colour, name in VARIABLES.items():
        svg = svg.replace(colour, f"var(--fig-{name})")
    if left := set(re.findall(r'#[0-9a-f]{6}\b(?=[";])', svg)):
        raise ValueError(f"the plot {title!r} has fixed colours: {', '.join(sorted(left))}")
    head = f" <title>{escape(title)}</title>\n <desc>{escape(desc)}</desc>\n"
    return svg.replace(">\n", f">\n{head}", 1).rstrip() + "\n"
