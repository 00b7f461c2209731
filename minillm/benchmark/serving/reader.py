"""A client that streams one answer and writes down when what came."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from minillm.server.event_stream import EventReader


@dataclass
class Heard:
    """What a client got. Times are seconds of a clock of this process; `times` has one for each event with text.

    complete: the stream came to its [DONE]. error: what was told instead, or what broke.
    """

    asked_s: float
    status: int | None = None
    text: str = ""
    times: list[float] = field(default_factory=list)
    tokens: int = 0
    complete: bool = False
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """From the request to the first text."""
        return self.times[0] - self.asked_s if self.times else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each token after the first."""
        return (self.times[-1] - self.times[0]) / (self.tokens - 1) if self.tokens > 1 and self.times else None


async def listen(client: httpx.AsyncClient, body: dict[str, Any], path: str = "/v1/completions") -> Heard:
    """Ask, and read to the end. Nothing that goes wrong is raised: it is what was heard."""
    heard = Heard(time.perf_counter())
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client.stream("POST", path, json=body) as response:
            heard.status = response.status_code
            if response.status_code != 200:
                heard.error = f"{response.status_code}: {(await response.aread())[:300].decode(errors='replace')}"
                return heard
            events = EventReader()
            async for received in response.aiter_bytes():
                for data in events.feed(received):
                    _take(heard, data)
    except httpx.HTTPError as error:
        heard.error = f"{type(error).__name__}: {error}"
    return heard


def _take(heard: Heard, data: str) -> None:
    if data == "[DONE]":
        heard.complete = True
        return
    event = json.loads(data)
    if "error" in event:
        heard.error = event["error"]["code"] or event["error"]["message"]
        return
    if event.get("usage"):
        heard.tokens = event["usage"]["completion_tokens"]
    for choice in event["choices"]:
        if choice["text"]:
            heard.text += choice["text"]
            heard.times.append(time.perf_counter())
