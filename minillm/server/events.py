"""Server-sent events: how a stream is written, and how it ends.

Each event is `data: JSON` and an empty line. A stream that is complete ends with `data: [DONE]`. One that is not ends
with an event whose JSON is an error, in the shape of all errors, and without [DONE].
"""

from typing import Any

from pydantic import BaseModel

from minillm.server.errors import RequestError
from minillm.server.replies import json_bytes

DONE = b"data: [DONE]\n\n"
MEDIA_TYPE = "text/event-stream; charset=utf-8"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""A stream is new each time, and a proxy that collected it (nginx does) would take away what it is for."""


def event(data: BaseModel, exclude: set[str] | None = None) -> bytes:
    """One event. JSON has its line breaks escaped, so it is one line."""
    return b"data: " + data.model_dump_json(exclude=exclude).encode() + b"\n\n"


def error_event(error: RequestError) -> bytes:
    """The event that ends a stream which cannot go on."""
    body: Any = error.body()
    return b"data: " + json_bytes(body) + b"\n\n"
