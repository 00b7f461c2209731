"""The directive `figure-svg`: a drawing that becomes part of the page, so that its colours follow the theme.

    ```{figure-svg} figures/journey.svg
    :name: fig-journey
    The caption, in Markdown.
    ```

An `<img>` cannot see which theme the reader has chosen; an `<svg>` in the page can, if its colours are the custom
properties of `_static/book.css`. The file carries its own words for those who cannot see it: `<title>` and `<desc>`
come first in it. Ids are made unique with the figure's name. `{numref}` refers to a figure.
"""

import re
from pathlib import Path
from typing import ClassVar
from xml.etree import ElementTree as ET

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SVG = "{http://www.w3.org/2000/svg}"
PAINTED = ("fill", "stroke", "stop-color", "flood-color", "color")
THEMED = re.compile(r"none|inherit|transparent|currentColor|url\(#[\w.-]+\)|var\(--fig-[\w-]+\)")
NARROWEST = 0.65  # below this share of its natural width a drawing scrolls instead of shrinking: text must stay legible


class FigureError(ValueError):
    """An SVG that cannot become part of a page: one sentence that says why."""


class FigureSvg(SphinxDirective):
    """`figure-svg PATH` with a `:name:`; the content is the caption."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {"name": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """A figure node that holds the drawing as raw HTML, and its caption."""
        relative, absolute = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(relative)
        try:
            if "name" not in self.options:
                raise FigureError("a figure needs a :name:, by which {numref} refers to it")
            if not self.content:
                raise FigureError("a figure needs a caption")
            drawing = inline_svg(Path(absolute).read_text(encoding="utf-8"), prefix=self.options["name"])
        except (OSError, FigureError) as error:
            raise self.error(f"{relative}: {error}") from None
        figure = nodes.figure("", classes=["figure-svg"])
        self.set_source_info(figure)
        figure += nodes.raw("", f'<div class="figure-scroll">{drawing}</div>', format="html")
        caption, *legend = self.parse_content_to_nodes()
        figure += nodes.caption("", "", *caption.children)
        if legend:
            figure += nodes.legend("", *legend)
        self.add_name(figure)
        return [figure]


def inline_svg(text: str, prefix: str) -> str:
    """The `<svg>` element of a file, ready to stand in an HTML page.

    prefix: makes ids unique in the page. Raises FigureError for a drawing that would not follow the theme, scale, be
    read aloud, or stay by itself.
    """
    try:
        svg = ET.fromstring(text)
    except ET.ParseError as error:
        raise FigureError(f"not well-formed SVG ({error})") from None
    for element in svg.iter():
        _check(element)
    _describe(svg, prefix)
    _fit(svg)
    _make_ids_unique(svg, prefix)
    ET.register_namespace("", SVG.strip("{}"))
    return ET.tostring(svg, encoding="unicode")


def _check(element: ET.Element) -> None:
    """Refuse what does not follow the theme, or reaches outside the file."""
    tag = element.tag.removeprefix(SVG)
    if tag in {"style", "script", "image", "foreignObject"}:
        raise FigureError(f"<{tag}> is not possible in a figure: it would act on, or load from, outside of it")
    declarations = [tuple(part.split(":", 1)) for part in element.get("style", "").split(";") if ":" in part]
    for name, value in [*element.attrib.items(), *declarations]:
        if name.strip() in PAINTED and not THEMED.fullmatch(value.strip()):
            raise FigureError(f"<{tag}> has the fixed colour {name.strip()}={value.strip()!r}: use var(--fig-...)")
        if name.endswith("href") and not value.startswith("#"):
            raise FigureError(f"<{tag}> refers to {value!r}, outside of the file")


def _describe(svg: ET.Element, prefix: str) -> None:
    """role="img" with the title as its name and `<desc>` as its description.

    `<title>` itself is taken out: browsers show it as a tooltip over the whole drawing.
    """
    title, desc = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    if title is None or desc is None or not (title.text or "").strip() or not (desc.text or "").strip():
        raise FigureError("the <svg> needs a <title> and a <desc>, for readers who cannot see it")
    svg.set("role", "img")
    svg.set("aria-label", " ".join((title.text or "").split()))
    svg.set("aria-describedby", "desc")  # gets its prefix with all other ids
    desc.set("id", "desc")
    svg.remove(title)


def _fit(svg: ET.Element) -> None:
    """As wide as it was drawn where there is room, smaller where there is less, scrolling where it would get tiny."""
    box = re.split(r"[\s,]+", svg.get("viewBox", ""))
    if len(box) != 4:
        raise FigureError("the <svg> needs a viewBox, to be scaled by")
    width = float(box[2])
    for fixed in ("width", "height"):
        svg.attrib.pop(fixed, None)
    svg.set("style", f"width:100%;max-width:{width:g}px;min-width:{NARROWEST * width:g}px")


def _make_ids_unique(svg: ET.Element, prefix: str) -> None:
    """Put the figure's name before every id, and before every reference to one."""
    for element in svg.iter():
        for name, value in list(element.attrib.items()):
            if name == "id":
                element.set(name, f"{prefix}-{value}")
            elif name.endswith("href"):  # also the older xlink:href
                del element.attrib[name]
                element.set("href", f"#{prefix}-{value[1:]}")
            elif name in {"aria-describedby", "aria-labelledby"}:
                element.set(name, " ".join(f"{prefix}-{part}" for part in value.split()))
            else:
                element.set(name, re.sub(r"url\(#([\w.-]+)\)", rf"url(#{prefix}-\1)", value))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("figure-svg", FigureSvg)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
