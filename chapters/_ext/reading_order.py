"""Next and previous follow the reader: a chapter, its notebook, the next chapter.

The sidebar lists chapters and notebooks apart, and Sphinx takes its order from there: after the last chapter would
come the first notebook.
"""

import re
from pathlib import PurePosixPath
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def in_reading_order(docnames: list[str]) -> list[str]:
    """All pages, with each numbered notebook right behind the chapter that it belongs to; the others stay.

    Notebook 0 shows the five steps of chapter 1 by hand, and belongs to it.
    """
    numbered = {name: number for name in docnames if (number := _number(name)) is not None}
    notebooks = [name for name in numbered if _is_notebook(name)]
    ordered = []
    for name in docnames:
        if name in notebooks:
            continue
        ordered.append(name)
        if name in numbered:
            ordered += [book for book in notebooks if max(1, numbered[book]) == numbered[name]]
    return ordered + [name for name in notebooks if name not in ordered]


def _number(docname: str) -> int | None:
    match = re.match(r"(\d\d)-", PurePosixPath(docname).name)
    return int(match[1]) if match else None


def _is_notebook(docname: str) -> bool:
    return PurePosixPath(docname).parent.name == "notebooks"


def set_neighbours(
    app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Put the neighbours of this order into a page, where its theme looks for them."""
    order = in_reading_order(list(app.env.collect_relations()))
    if pagename not in order:
        return
    at = order.index(pagename)
    for key, number in (("prev", at - 1), ("next", at + 1)):
        context[key] = _link(app, pagename, order[number]) if 0 <= number < len(order) else None


def _link(app: Sphinx, pagename: str, docname: str) -> dict[str, str]:
    title = app.env.titles[docname].astext()
    return {"link": app.builder.get_relative_uri(pagename, docname), "title": title}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("html-page-context", set_neighbours)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
