"""The role `define`: the place where a chapter introduces a term of the glossary.

``{define}`KV cache` `` (or ``{define}`cached <KV cache>` ``) marks the words, links them to the
glossary, and makes the glossary link back to the chapter. A term that is not in the glossary, or that two places
introduce, is a warning: the build fails.
Later uses are ``{term}`KV cache` ``, Sphinx's own.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.roles import XRefRole
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

GLOSSARY = "chapters/glossary"
logger = logging.getLogger(__name__)


class Define(XRefRole):
    """A reference to a term, inside the anchor that the glossary links back to."""

    def process_link(
        self, env: BuildEnvironment, refnode: nodes.Element, has_explicit_title: bool, title: str, target: str
    ) -> tuple[str, str]:
        """Become what the role `term` makes."""
        refnode["refdomain"], refnode["reftype"] = "std", "term"
        return super().process_link(env, refnode, has_explicit_title, title, target)

    def result_nodes(
        self, document: nodes.document, env: BuildEnvironment, node: nodes.Element, is_ref: bool
    ) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Note the place, which is kept with the page's metadata and goes when the page goes."""
        term = node["reftarget"].lower()
        anchor = f"define-{nodes.make_id(term)}"
        places = [doc for doc in env.metadata if term in env.metadata[doc].get("defines", {})]
        if places:
            logger.warning("the term %r is introduced already in %s", term, places[0], location=node)
        env.metadata[env.docname].setdefault("defines", {})[term] = anchor
        return [nodes.inline("", "", node, ids=[anchor], classes=["define"])], []


def link_back(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """In the glossary: under each definition, the page that introduces the term."""
    if docname != GLOSSARY:
        return
    introduced = {
        term: (page, anchor)
        for page, data in app.env.metadata.items()
        for term, anchor in data.get("defines", {}).items()
    }
    for item in list(doctree.findall(nodes.definition_list_item)):
        places = [introduced[term] for term in _terms(item) if term in introduced]
        definition = item.next_node(nodes.definition)
        if places and definition is not None:
            page, anchor = places[0]
            title = nodes.inline("", app.env.titles[page].astext())
            link = make_refnode(app.builder, docname, page, anchor, title)
            definition += nodes.paragraph("", "Introduced in ", link, nodes.Text("."), classes=["introduced"])


def _terms(item: nodes.Element) -> list[str]:
    """The words that one definition is for."""
    return [node.astext().lower() for node in item.findall(nodes.term)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.add_role("define", Define(innernodeclass=nodes.inline, warn_dangling=True))
    app.connect("doctree-resolved", link_back)
    app.connect("env-updated", lambda app, env: [GLOSSARY] if GLOSSARY in env.found_docs else [])
    return {"parallel_read_safe": True, "parallel_write_safe": True}
