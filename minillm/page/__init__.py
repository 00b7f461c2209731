"""Web pages that need no network and no other file: markup, styles, scripts and data put into each other.

Here is what the pages share: `assemble` and `write_page`, what a browser must know (`head.html`: above all that nothing
may be loaded from anywhere), the colours and shapes of `base.css`, numbers and text in words (`words.js`), tokens with
their probabilities (`tokens.css`, `tokens.js`), and the switch between light and dark (`theme.js`).
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from minillm.errors import InputError

ALONE = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The Content-Security-Policy of a page that is a file: it is all there is."""


def assemble(package: str, scripts: Sequence[str], data: Mapping[str, Any], policy: str | None = ALONE) -> str:
    """The whole page: page.html of `package`, with its page.css, its scripts and, as JSON, `data` in it.

    Styles and scripts that all pages share come first. policy: the Content-Security-Policy; None: who serves the page
    says it in a header.
    """
    # Inside a script element only "<" can do harm ("</script>", "<!--"); as an escape it is the same JSON.
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    inserts = {
        "HEAD": _part(__name__, "head.html"),
        "POLICY": "" if policy is None else f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        "STYLES": "".join((_part(__name__, "base.css"), _part(__name__, "tokens.css"), _part(package, "page.css"))),
        "SCRIPTS": "\n".join(
            [
                *(_part(__name__, name) for name in ("words.js", "tokens.js")),
                *(_part(package, name) for name in scripts),
                _part(__name__, "theme.js"),
            ]
        ),
        "DATA": text,
    }
    html = _part(package, "page.html")
    for name, insert in inserts.items():  # the data comes last: no mark is looked for in a user's text
        before, mark, after = html.partition("{{" + name + "}}")
        assert mark, f"page.html has no place for {name}"
        html = before + insert + after
    return html


def _part(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text(encoding="utf-8")


def check_destination(path: Path) -> None:
    """Raise InputError if a page could not be written to `path`: to be called before a long run."""
    with _errors_in_one_sentence(path):
        if path.is_dir():
            raise InputError(f"the page cannot be written to {str(path)!r}: it is a directory; name a file in it")
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            raise InputError(f"the page cannot be written to {str(path)!r}: it is not an ordinary, writable file")
        with _file_beside(path):
            pass


def write_page(path: Path, html: str) -> None:
    """Write `html` to `path` in one step: a reader sees the old file or the whole new one.

    Raises InputError where it cannot be written.
    """
    with _errors_in_one_sentence(path), _file_beside(path) as temporary:
        temporary.write_text(html, encoding="utf-8", newline="\n")
        temporary.replace(path.resolve())  # through a link, to the file that it names


@contextlib.contextmanager
def _file_beside(path: Path) -> Iterator[Path]:
    """An empty file in the directory of `path`, gone at the end unless it was renamed."""
    # Not tempfile's: its files can be read by their owner alone, and stay so when renamed.
    temporary = path.resolve().with_name(f".minillm-page-{os.getpid()}.part")
    temporary.touch()
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _errors_in_one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"the page cannot be written to {str(path)!r}: {reason}") from None
