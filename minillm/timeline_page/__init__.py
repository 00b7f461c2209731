"""The page that shows many requests on one time axis.

`page.html` is the markup; `page.css` its looks; `run.js` knows what is true of which request in which step; `view.js`
which part of the time is in sight; `draw.js` draws; `page.js` shows the figures and listens to the reader. The data
comes from `minillm.engine.timeline`.
"""

from collections.abc import Mapping
from typing import Any

from minillm.page import assemble


def render(timeline: Mapping[str, Any]) -> str:
    """The whole page, with `timeline` in it."""
    return assemble(__name__, ("run.js", "view.js", "draw.js", "page.js"), timeline)
