"""Guard: what a request must pass before anything looks at it.

That is the name by which it calls the server, the key, the time of the server's life, and the body's size.

It is a layer around the whole app, so that what it refuses costs next to nothing, and no route can be forgotten.
"""

import asyncio
import reprlib
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minillm.server.errors import RequestError
from minillm.server.keys import called_name, is_authorized, may_be_called
from minillm.server.lifecycle import Lifecycle, shutting_down
from minillm.server.replies import error_reply
from minillm.server.settings import Settings

OPEN_PATHS = frozenset({"/", "/health", "/health/ready"})
"""Whoever watches the server asks there, without a key, and also while it shuts down; and a browser for the page, which
sends no key and will ask for one.
"""


class Guard:
    """An ASGI app around another."""

    def __init__(self, app: ASGIApp, settings: Settings, lifecycle: Lifecycle) -> None:
        self.app, self.settings, self.lifecycle = app, settings, lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it with an error."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        try:
            self._check(dict(scope["headers"]))
            with self.lifecycle.request():
                await self.app(scope, self._limited(receive), send)
        except RequestError as error:  # of the two lines above: the app has answered its own
            await error_reply(error)(scope, receive, send)

    def _check(self, headers: dict[bytes, bytes]) -> None:
        """Look at the key first: who has none is told nothing else.

        A server of this machine alone, without a key, is open to each program here, but not to web pages.
        """
        hosts, name = self.settings.hosts, called_name(headers.get(b"host", b""))
        if hosts is not None and not may_be_called(name, hosts):
            told = f"this server is not called {reprlib.repr(name)}: --allow-host would let it be"
            raise RequestError(told, code="wrong_host", status=HTTPStatus.FORBIDDEN.value)
        key = self.settings.api_key
        if key is not None and not is_authorized(headers.get(b"authorization", b""), key):
            raise _wrong_key()
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.max_body_bytes:
            raise self._too_large()

    def _limited(self, receive: Receive) -> Receive:
        """The body's parts, as long as they are not too much together: a chunked body does not say its length."""
        received, complete = 0, False

        async def receive_limited() -> Message:
            nonlocal received, complete
            message = await (receive() if complete else self._unless_over(receive))
            complete = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self.settings.max_body_bytes:
                raise self._too_large()
            return message

        return receive_limited

    async def _unless_over(self, receive: Receive) -> Message:
        """The next part of a body. Raises RequestError (503) where the server's grace ends before it comes."""
        part, over = asyncio.ensure_future(receive()), asyncio.ensure_future(self.lifecycle.over.wait())
        try:
            await asyncio.wait({part, over}, return_when=asyncio.FIRST_COMPLETED)
            if not part.done():
                raise shutting_down()
            return part.result()
        finally:
            part.cancel()
            over.cancel()

    def _too_large(self) -> RequestError:
        told = f"the body is larger than {self.settings.max_body_bytes:,} bytes, the most that this server takes"
        return RequestError(told, code="body_too_large", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE.value)


def _wrong_key() -> RequestError:
    told = "this server wants its API key, as the header 'Authorization: Bearer KEY': there is none, or a wrong one"
    return RequestError(told, code="invalid_api_key", status=401, headers={"www-authenticate": "Bearer"})
