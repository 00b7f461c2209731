"""Service: from a request's body to its answer, whole or as a stream, on an engine that many share.

Nothing here computes on the event loop for long: JSON, templates, tokens and long answers are made in other threads,
and the model has one of its own. What goes wrong before the first byte of an answer has been sent becomes a status;
after that, an error event.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Send

from minillm.detokenizer import Piece
from minillm.engine.async_engine import AsyncEngine, Reading
from minillm.server.admission import check_room
from minillm.server.answers import Envelope, answer, failure
from minillm.server.chunks import Chunks
from minillm.server.errors import SERVER, RequestError, parse_json, parse_request
from minillm.server.events import DONE, HEADERS, MEDIA_TYPE, error_event, event
from minillm.server.exchange import Exchange
from minillm.server.lifecycle import shutting_down
from minillm.server.prepare import Prepared, Served, num_choices, prepare
from minillm.server.replies import as_request_error
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.settings import Settings

LAST_EVENT_S = 1.0
"""For the error event of a stream whose reader may have stopped reading."""

LONG_BYTES = 65_536
"""A body from which on its text may take seconds to become tokens: a context of 8,192 tokens is some 40 kB."""

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")
Asked = ChatCompletionRequest | CompletionRequest


class Service:
    """What the routes share. created: when the model was loaded, in seconds since 1970."""

    def __init__(
        self, serving: AsyncEngine, served: Served, settings: Settings, fingerprint: str | None = None
    ) -> None:
        self.serving, self.served, self.settings, self.fingerprint = serving, served, settings, fingerprint
        self.created = int(time.time())
        self._coming = 0  # choices that are on their way into the engine
        # Long texts have a thread of their own: they wait for each other, and no short one waits for them.
        self._long = ThreadPoolExecutor(1, thread_name_prefix="minillm-long-text")

    def close(self) -> None:
        """Wait for the text that is being made into tokens; those that wait for their turn have nobody any more."""
        self._long.shutdown(cancel_futures=True)

    async def respond(self, kind: type[Asked], http: Request) -> Response:
        """The response to a body of this kind. Raises RequestError for what is wrong with it."""
        deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
        request, size = await self.read(kind, http, deadline)
        work = self._stream if request.stream else self._whole

        async def answered(send: Send) -> None:
            try:
                await work(request, size, deadline, send)
            except Exception as error:
                raise as_request_error(error) from error

        return Exchange(answered)

    async def read(self, kind: type[Body], http: Request, deadline: float | None = None) -> tuple[Body, int]:
        """The parsed body of a request, and its size in bytes."""
        _check_json(http)
        async with self._until(deadline):
            try:
                data = await http.body()
            except ClientDisconnect:
                raise RequestError("the client went away before its body was there") from None
            return await self._compute(lambda: parse_request(kind, parse_json(data)), len(data)), len(data)

    async def off_loop(self, compute: Callable[[], Result], size: int = 0) -> Result:
        """What takes the longer the longer a body is (of `size` bytes), in another thread."""
        async with self._until(None):
            return await self._compute(compute, size)

    async def _compute(self, compute: Callable[[], Result], size: int) -> Result:
        lane = self._long if size > LONG_BYTES else None  # None: the loop's own threads
        return await asyncio.get_running_loop().run_in_executor(lane, compute)

    async def _whole(self, request: Asked, size: int, deadline: float, send: Send) -> None:
        envelope = self._envelope()
        async with self._until(deadline):
            async with self._reading(request, size, envelope) as (prepared, reading):
                async for index, piece in reading:
                    _check(piece, reading, index)
            generated = reading.completions()
            body = await asyncio.to_thread(
                lambda: answer(request, prepared, generated, self.served, envelope).model_dump_json().encode()
            )
            await _start(send, "application/json", envelope, {"content-length": str(len(body))})
            await _send(send, body, more=False)

    async def _stream(self, request: Asked, size: int, deadline: float, send: Send) -> None:
        envelope, started = self._envelope(), False
        try:
            async with self._until(deadline):
                async with self._reading(request, size, envelope) as (prepared, reading):
                    await _start(send, MEDIA_TYPE, envelope, HEADERS)
                    started = True
                    async for data in _events(reading, Chunks(request, prepared, self.served, envelope)):
                        await _send(send, data)
                await _send(send, DONE, more=False)
        except Exception as error:
            if not started:
                raise
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_EVENT_S):
                    await _send(send, error_event(as_request_error(error)), more=False)

    @contextlib.asynccontextmanager
    async def _reading(self, request: Asked, size: int, envelope: Envelope) -> AsyncGenerator[tuple[Prepared, Reading]]:
        """The request in the engine, by the answer's id. Raises RequestError if it is wrong, or there is no place."""
        with contextlib.ExitStack() as places:
            places.enter_context(self._places(num_choices(request)))
            prepared = await self._compute(lambda: prepare(request, self.served), size)
            if not self.serving.is_running:
                raise shutting_down()
            async with self.serving.reading(prepared.requests, envelope.full_id(request)) as reading:
                places.close()  # the engine counts them now
                yield prepared, reading

    @contextlib.contextmanager
    def _places(self, choices: int) -> Iterator[None]:
        """Places for a request's choices, until they are in the engine. Raises RequestError if there are not enough."""
        engine = self.serving.engine
        most = engine.scheduler.max_batch_size + self.settings.max_waiting
        check_room(choices, len(engine.requests), self._coming, most)
        self._coming += choices
        try:
            yield
        finally:
            self._coming -= choices

    @contextlib.asynccontextmanager
    async def _until(self, deadline: float | None) -> AsyncGenerator[None]:
        """Raises RequestError (504) when the time of the event loop is past `deadline`; None: a timeout from now."""
        loop, seconds = asyncio.get_running_loop(), self.settings.timeout_s
        limit = asyncio.timeout_at(loop.time() + seconds if deadline is None else deadline)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            told = f"the request took longer than {seconds:g} seconds, the most that this server gives one"
            no_retry = {"x-should-retry": "false"}  # by OpenAI's clients, which would ask for the same again
            raise RequestError(told, code="timeout", status=504, type=SERVER, headers=no_retry) from None

    def _envelope(self) -> Envelope:
        return Envelope(uuid.uuid4().hex, int(time.time()), self.fingerprint)


async def _events(reading: Reading, chunks: Chunks) -> AsyncIterator[bytes]:
    """The events of a stream, all but the one that says that it is complete."""
    exclude = None if chunks.include_usage else {"usage"}
    async for index, piece in reading:
        _check(piece, reading, index)
        held = reading.answers[index].prompt_logprobs if chunks.awaits_prompt(index) else None
        for chunk in chunks.of(index, piece, held):
            yield event(chunk, exclude)
    if chunks.include_usage:
        yield event(chunks.usage(reading.completions()))


def _check(piece: Piece, reading: Reading, index: int) -> None:
    """Raise RequestError for a piece that ends its request before its end."""
    if piece.finish_reason == "abort":
        raise shutting_down()
    if piece.finish_reason == "error":
        request = reading.answers[index].request
        raise failure(request.error or "the request could not go on", request.own_fault)


def _check_json(http: Request) -> None:
    """A page of another site can send a form or a text without asking the browser, but not JSON."""
    given = http.headers.get("content-type", "")
    media_type = given.partition(";")[0].strip().lower()
    if media_type != "application/json":
        told = f"the body must be JSON, with the header 'Content-Type: application/json', not {given[:100]!r}"
        raise RequestError(told, code="unsupported_media_type", status=415)


async def _start(send: Send, media_type: str, envelope: Envelope, headers: dict[str, str]) -> None:
    named = {"content-type": media_type, "x-request-id": envelope.id, **headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})


async def _send(send: Send, data: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
