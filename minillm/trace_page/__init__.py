"""The page that replays one request.

`page.html` is the markup; `page.css` its looks; `replay.js` knows what is true at which moment of a request; `draw.js`
draws the time line; `page.js` shows the rest and listens to the reader. The data comes from `minillm.trace_html`.
"""

from collections.abc import Mapping
from typing import Any

from minillm.page import assemble


def render(trace: Mapping[str, Any]) -> str:
    """The whole page, with `trace` in it."""
    return assemble(__name__, ("replay.js", "draw.js", "page.js"), trace)
