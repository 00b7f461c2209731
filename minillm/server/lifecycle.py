"""From the first request to the last one: how a server ends without breaking what it has begun.

The first SIGTERM (or Ctrl-C) lets it take no more requests: they get a 503, so that a load balancer goes elsewhere,
and /health/ready says no. What runs has its grace to finish. What is left then ends with an error, and so does the
process, with exit code 0. A second signal ends it at once.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from minillm.engine.async_engine import AsyncEngine
from minillm.server.connection import Connection
from minillm.server.errors import SERVER, RequestError

BACKLOG = 128
"""Connections that the system holds until they are accepted. asyncio tries as many at a time, and if the process may
open no more files, writes a line for each.
"""

LAST_WORDS_S = 2
"""Seconds for the last events of the streams, and for readers that do not read them."""


class Lifecycle:
    """Whether requests are taken, and how many are at work."""

    def __init__(self) -> None:
        self.draining = False
        self.over = asyncio.Event()  # the grace is over: nobody waits for what a client has yet to send
        self.active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """A request is at work. Raises RequestError (503) when no more are taken."""
        if self.draining:
            raise shutting_down()
        self.active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def drain(self, grace_s: float) -> None:
        """Take no more requests, and wait for those at work, but not longer than `grace_s`."""
        self.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()


def shutting_down() -> RequestError:
    """503: for new requests, and for those that the grace was too short for."""
    told = "the server is shutting down: try another, or this one when it is back"
    return RequestError(told, code="shutting_down", status=503, type=SERVER, headers={"retry-after": "5"})


class _Server(uvicorn.Server):
    """uvicorn's server without its own idea of signals: it would close its sockets at once, and exit by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def new_server(app: FastAPI) -> uvicorn.Server:
    """The HTTP server. What it is made of is said, so that what was tested is what runs, whatever is installed."""
    config = uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )
    return _Server(config)


async def run_until_told(
    app: FastAPI, serving: AsyncEngine, lifecycle: Lifecycle, sock: socket.socket, grace_s: float
) -> None:
    """Serve on `sock` until SIGTERM or SIGINT, then end as this module says. In the main thread."""
    told, loop, signals = asyncio.Event(), asyncio.get_running_loop(), 0

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(128 + number)
        loop.call_soon_threadsafe(told.set)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    server = new_server(app)
    running, waiting = asyncio.create_task(server.serve([sock])), asyncio.create_task(told.wait())
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        await end(server, serving, lifecycle, grace_s)
        await running
    finally:
        waiting.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


async def end(server: uvicorn.Server, serving: AsyncEngine, lifecycle: Lifecycle, grace_s: float) -> None:
    """Let what runs finish, end the rest, then let the server close its connections."""
    await lifecycle.drain(grace_s)
    lifecycle.over.set()
    await serving.close()  # whoever still reads gets an error
    server.should_exit = True
