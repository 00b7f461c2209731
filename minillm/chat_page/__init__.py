"""The page at `/` of the server: talk with the model, and watch what the engine does for it.

`page.html` is the markup; `page.css` its looks; `api.js` asks the server and puts what goes wrong into a sentence;
`answer.js` knows what has come of an answer, and when; `strip.js` shows its tokens, `journey.js` its five steps and
times, `engine.js` the engine that it shares with others; `page.js` talks and listens to the reader.

Everything is in one file: the page asks this server for its data, and nobody for anything else.
"""

import base64
import hashlib
import re

from minillm.page import assemble

SCRIPTS = ("api.js", "answer.js", "strip.js", "journey.js", "engine.js", "page.js")


def render(needs_key: bool) -> tuple[str, str]:
    """The page, and the Content-Security-Policy to send with it: these very styles and scripts, and no others."""
    html = assemble(__name__, SCRIPTS, {"needs_key": needs_key}, policy=None)
    style, script = (_digest(html, tag) for tag in ("style", "script"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def _digest(html: str, tag: str) -> str:
    """What stands in the one element <tag>, as a policy names it."""
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
