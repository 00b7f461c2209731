"""Exchange: a response that is computed while its client is there, and no longer."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

Work = Callable[[Send], Awaitable[None]]
"""Computes an answer and sends it."""


class Exchange(Response):
    """Runs `work`; cancels it when the client goes away. The request's body must have been read."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is raised before the response has begun gets to the app's error handlers."""
        work = asyncio.ensure_future(self._work(send))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await work
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
