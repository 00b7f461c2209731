"""AsyncEngine: the engine on a thread of its own, and as many readers as there are requests, each at its own pace.

The model computes in one thread; the event loop only hands requests in and pieces out. Between two steps the thread
takes what has been asked for meanwhile. A reader that stops reading stops nobody: its pieces wait in a queue of its
own, which holds no more than the request's tokens. A reader that goes away (its task is cancelled, or the loop over its
pieces is left) takes its request along.
"""

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Self, TypeVar

from minillm.detokenizer import Piece
from minillm.engine.answer import Answer
from minillm.engine.engine import Engine, Output
from minillm.errors import InputError
from minillm.generation import Completion
from minillm.sampling_params import SamplingParams
from minillm.tokenizer import Tokenizer

Seen = TypeVar("Seen")


class Reading:
    """Requests that are read together: `async for index, piece in reading`, until each has had its last piece.

    `index` is the request's place among those that were handed in. Made by `AsyncEngine.reading`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answers: list[Answer] = []  # of the engine's thread, until they have come to their ends
        self.entered: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._pieces: asyncio.Queue[tuple[int, Piece] | Exception] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces, as they come. Raises what went wrong with one of the requests: the others end with it."""
        left = len(self.answers)
        while left:
            item = await self._pieces.get()
            if isinstance(item, Exception):
                raise item
            yield item
            left -= item[1].finish_reason is not None

    def completions(self) -> list[Completion]:
        """The results, when all pieces have been read."""
        return [answer.completion() for answer in self.answers]

    # From the engine's thread. A loop that is closed has no readers any more.

    def give(self, item: tuple[int, Piece] | Exception) -> None:
        """A piece, or what went wrong."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, item)

    def enter(self, error: Exception | None = None) -> None:
        """The requests are in the engine, or none of them is, because of `error`."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: Exception | None) -> None:
        if self.entered.done():  # the reader was cancelled meanwhile
            return
        if error is None:
            self.entered.set_result(None)
        else:
            self.entered.set_exception(error)


NOT_RUNNING = "the engine is not running: requests are taken inside `async with AsyncEngine(...)`"


class AsyncEngine:
    """Use it as `async with AsyncEngine(engine, tokenizer) as serving:`; leaving it ends what still runs.

    The engine belongs to it alone while it runs.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._readers: dict[str, tuple[Reading, int]] = {}  # by request id: who reads it, and its index there
        self._thread = threading.Thread(target=self._run, name="minillm-engine", daemon=True)
        self._closed = False  # no more requests are taken
        self._ended = False  # nor would they be computed

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all requests (their readers get a piece with "abort") and the thread."""
        if not self._closed:
            self._closed = True
            self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def is_running(self) -> bool:
        """Whether requests are taken."""
        return not self._closed and self._thread.is_alive()

    @contextlib.asynccontextmanager
    async def reading(
        self, requests: Sequence[tuple[Sequence[int], SamplingParams]], request_id: str | None = None
    ) -> AsyncGenerator[Reading]:
        """Hand in several requests, all of them or none, and read their pieces; leaving it ends those that still run.

        Raises what `Engine.add` raises. request_id: of the one request; of several, it is followed by "-0", "-1", ...
        """
        if not self.is_running:
            raise InputError(NOT_RUNNING)
        reading = Reading(asyncio.get_running_loop())
        self._commands.put(lambda: self._enter(reading, requests, request_id))
        try:
            await reading.entered
            yield reading
        finally:
            self._commands.put(lambda: self._leave(reading))

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None = None
    ) -> AsyncIterator[Piece]:
        """The pieces of one request as they come; the last one has a finish_reason. Raises what `Engine.add` raises."""
        async with self.reading([(prompt_ids, params)], request_id) as reading:
            async for _, piece in reading:
                yield piece

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None = None
    ) -> Completion:
        """One request, whole."""
        async with self.reading([(prompt_ids, params)], request_id) as reading:
            async for _ in reading:
                pass
            return reading.completions()[0]

    async def look(self, at: Callable[[Engine], Seen]) -> Seen:
        """What `at` finds in the engine between two steps: in the engine's thread, which does nothing else meanwhile.

        So `at` should copy what it wants to know, and not work on it. Raises InputError where the engine does not run.
        """
        if not self.is_running:
            raise InputError(NOT_RUNNING)
        seen: concurrent.futures.Future[Seen] = concurrent.futures.Future()

        def command() -> None:
            if not seen.set_running_or_notify_cancel():
                return
            try:
                seen.set_result(at(self.engine))
            except Exception as error:  # it is the one who looks whose business this is
                seen.set_exception(error)

        self._commands.put(command)
        return await asyncio.wrap_future(seen)

    # What follows runs in the engine's thread alone.

    def _run(self) -> None:
        """Commands, then a step, then commands again; without work, wait for a command."""
        try:
            while self._obey():
                try:
                    outputs = self.engine.step()
                except Exception as error:
                    self._tell_failed(error)
                    continue
                for output in outputs:
                    self._hand_out(output)
        finally:
            self._end_all()

    def _obey(self) -> bool:
        """Do what was asked for. False when it is time to end."""
        while True:
            try:
                command = self._commands.get(block=not self.engine.has_work)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _enter(
        self, reading: Reading, requests: Sequence[tuple[Sequence[int], SamplingParams]], request_id: str | None
    ) -> None:
        try:
            if self._ended:
                raise InputError(NOT_RUNNING)
            for index, (ids, params) in enumerate(requests):
                name = f"{request_id}-{index}" if request_id is not None and len(requests) > 1 else request_id
                answer = Answer(self.engine, self.tokenizer, ids, params, name)
                self._readers[answer.request.request_id] = reading, len(reading.answers)
                reading.answers.append(answer)
        except Exception as error:  # it is the reader's own request that is wrong: the others go on
            self._leave(reading)
            reading.enter(error)
            return
        reading.enter()

    def _leave(self, reading: Reading, reason: str = "abort") -> None:
        """The reader has its last piece, or is gone before it."""
        for answer in reading.answers:
            request_id = answer.request.request_id
            if self._readers.get(request_id, (None, 0))[0] is reading:
                del self._readers[request_id]
                self.engine.abort(request_id, reason)

    def _hand_out(self, output: Output) -> None:
        reading, index = self._readers.get(output.request.request_id, (None, 0))
        if reading is None:
            return
        try:
            reading.give((index, reading.answers[index].take(output)))
        except Exception as error:  # in the text of one request: it ends alone
            self._leave(reading, "error")
            reading.give(error)

    def _tell_failed(self, error: Exception) -> None:
        """A pass failed: its requests have ended, and their readers are told. The others go on."""
        failed = {
            reading
            for reading, index in self._readers.values()
            if reading.answers[index].request.finish_reason == "error"
        }
        for reading in failed:
            self._leave(reading, "error")
            reading.give(error)

    def _end_all(self) -> None:
        """Nobody waits for what does not come: neither those who read, nor those who have just come."""
        for reading, index in list(self._readers.values()):
            reading.give((index, reading.answers[index].abort()))
        self._readers.clear()
        self._closed = self._ended = True
        with contextlib.suppress(queue.Empty):
            while True:
                command = self._commands.get(block=False)
                if command is not None:
                    command()
