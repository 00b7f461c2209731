"""In a `console` example only a line that begins with `$ ` is typed: Pygments' own lexer takes `#` and `%` too.

A trace's table has a line that begins with ` #  `. Taken for the prompt of root, it is coloured as a command, and the
copy button hands it over as one.
"""

import re
from typing import ClassVar

from pygments.lexers.shell import BashSessionLexer
from sphinx.application import Sphinx


class DollarSessionLexer(BashSessionLexer):
    """A shell session whose one prompt is `$ `, and whose lines go on after `> `."""

    name = "Dollar session"
    aliases: ClassVar = ["console"]
    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_lexer("console", DollarSessionLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
