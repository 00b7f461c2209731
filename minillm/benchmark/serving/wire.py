"""A request as bytes on a connection, for clients that do what no library of clients does."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

from minillm.benchmark.serving.target import Target

RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER: on, for 0 seconds. Closing then throws away what is under way, and says so by a reset."""


def as_bytes(target: Target, body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """The whole request; the server is to close the connection after its answer."""
    data = json.dumps(body).encode()
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: {urlsplit(target.url).netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in target.headers.items()),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


@contextlib.asynccontextmanager
async def connected(target: Target, receive_buffer: int | None = None) -> AsyncIterator[socket.socket]:
    """A connection for the event loop's `sock_` calls. receive_buffer: bytes that are taken in unread."""
    where = urlsplit(target.url)
    loop = asyncio.get_running_loop()
    family, kind, protocol, _, address = (await loop.getaddrinfo(where.hostname, where.port, type=socket.SOCK_STREAM))[
        0
    ]
    with socket.socket(family, kind, protocol) as client:
        client.setblocking(False)
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await loop.sock_connect(client, address)
        yield client


def reset_on_close(client: socket.socket) -> None:
    """Let the connection end by a reset and not in good order."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
