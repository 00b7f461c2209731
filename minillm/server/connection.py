"""A client's connection: uvicorn's, with errors in the one shape, and an end for those that never ask.

What is no HTTP at all never gets to the app, so its refusal is made here. And who connects and then is silent, or sends
the head of a request a byte at a time, would hold a connection for ever: a head has its time, after which the
connection is closed. (A body has the request's deadline; between two requests uvicorn's own limit holds.)
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from minillm.server.errors import SERVER, RequestError
from minillm.server.replies import json_bytes

HEAD_S = 10.0
"""Seconds from the connection, or from a request's first byte, until its head is there."""

MAX_CONNECTIONS = 900
"""At a time. A process may usually have 1,024 files open, and these are most of them."""

MAX_BEHIND = 65_536
"""Bytes that are taken in of requests behind the one that is being answered."""


class Connection(H11Protocol):
    """One connection. uvicorn makes it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._behind = 0  # bytes that came behind the request that is being answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The time for the first head begins; if there are too many connections already, this one ends."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            told = f"{MAX_CONNECTIONS:,} connections are open already, and this server takes no more: try again"
            self._refuse(RequestError(told, code="too_many_connections", status=503, type=SERVER))
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: a whole head, or a part of one, or of a body; or of a request behind this one."""
        super().data_received(data)
        self._watch_head()
        # uvicorn reads no further than a request that it works on. Then it does not see the client go either.
        self._behind = self._behind + len(data) if self.conn.their_state is h11.DONE else 0
        if 0 < self._behind <= MAX_BEHIND:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        super().connection_lost(exc)
        self._forget_head()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP, or has a head beyond all measure."""
        self._refuse(RequestError("this is not a request in HTTP/1.1", code="invalid_http"))

    def _watch_head(self) -> None:
        """A timer runs exactly while a head is incomplete, or a body that has its answer already (a refusal)."""
        answered = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if self.transport.is_closing() or not (self.conn.their_state is h11.IDLE or answered):
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        told = f"the head of the request was not complete within {HEAD_S:g} seconds"
        self._refuse(RequestError(told, code="timeout", status=408))

    def _refuse(self, error: RequestError) -> None:
        """Answer, if nothing has been answered yet, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json_bytes(error.body())
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=error.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
