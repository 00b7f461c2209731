"""A chapter has its number before its title; its figures, exercises and listings are counted within it: 5.1, 5.2.

A chapter's number is the one in its file's name, so that it stays the same while chapters before it are still to
come. (Sphinx can number within chapters too, but it counts the pages that exist.)
"""

import re
from pathlib import PurePosixPath

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms import SphinxTransform


def chapter_number(docname: str) -> int | None:
    """5 for "chapters/05-the-kv-cache"; None for a page that is no chapter."""
    path = PurePosixPath(docname)
    match = re.match(r"(\d\d)-", path.name)
    return int(match[1]) if match and path.parent.name == "chapters" else None


class NumberedTitle(SphinxTransform):
    """Make "The KV cache" into "5. The KV cache", on the page and wherever the page is listed."""

    default_priority = 210

    def apply(self, **kwargs: object) -> None:
        """Before Sphinx notes the page's title."""
        number = chapter_number(self.env.docname)
        title = self.document.next_node(nodes.title)
        if number is not None and title is not None:
            title.insert(0, nodes.Text(f"{number}. "))


def number_within_chapters(app: Sphinx, env: BuildEnvironment) -> None:
    """Rewrite Sphinx's numbers, which run through the whole book, as (chapter, count within it)."""
    for docname, kinds in env.toc_fignumbers.items():
        chapter = chapter_number(docname)
        if chapter is None:
            continue
        for kind, numbers in kinds.items():
            in_order = sorted(numbers, key=lambda node_id: numbers[node_id])
            kinds[kind] = {node_id: (chapter, count) for count, node_id in enumerate(in_order, start=1)}


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_transform(NumberedTitle)
    app.connect("env-check-consistency", number_within_chapters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
