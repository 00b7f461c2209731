"""AsyncEngine: the engine on a thread of its own, and as many readers as there are requests, each at its own pace.

The model computes in one thread; the event loop only hands requests in and pieces out. Between two steps the thread
takes what has been asked for meanwhile. A reader that stops reading stops nobody: its pieces wait in a queue of its
own, which holds no more than the request's tokens. A reader that goes away (its task is cancelled, or the loop over its
pieces is left) takes its request along.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from minillm.detokenizer import Piece
from minillm.engine.answer import Answer
from minillm.engine.engine import Engine, Output
from minillm.errors import InputError
from minillm.generation import Completion
from minillm.sampling_params import SamplingParams
from minillm.tokenizer import Tokenizer


@dataclass(eq=False)
class _Reader:
    """Who gets a request's pieces: a queue in an event loop. An exception in it is raised at the reader."""

    loop: asyncio.AbstractEventLoop
    pieces: "asyncio.Queue[Piece | Exception]"
    answer: Answer | None = None

    def give(self, item: Piece | Exception) -> None:
        """From the engine's thread. A loop that is closed has no readers any more."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, item)


class AsyncEngine:
    """Use it as `async with AsyncEngine(engine, tokenizer) as serving:`; leaving it ends what still runs.

    The engine belongs to it alone while it runs.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._readers: dict[str, _Reader] = {}
        self._thread = threading.Thread(target=self._run, name="minillm-engine", daemon=True)
        self._closed = False

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

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None = None
    ) -> AsyncIterator[Piece]:
        """The pieces of one request as they come; the last one has a finish_reason. Raises what `Engine.add` raises."""
        reader = self._submit(prompt_ids, params, request_id)
        async with contextlib.aclosing(self._pieces_of(reader)) as pieces:
            async for piece in pieces:
                yield piece

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None = None
    ) -> Completion:
        """One request, whole."""
        reader = self._submit(prompt_ids, params, request_id)
        async for _ in self._pieces_of(reader):
            pass
        assert reader.answer is not None, "a piece comes from an answer"
        return reader.answer.completion()

    def _submit(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None) -> _Reader:
        if self._closed or not self._thread.is_alive():
            raise InputError("the engine is not running: requests are taken inside `async with AsyncEngine(...)`")
        reader = _Reader(asyncio.get_running_loop(), asyncio.Queue())
        self._commands.put(lambda: self._enter(reader, prompt_ids, params, request_id))
        return reader

    async def _pieces_of(self, reader: _Reader) -> AsyncGenerator[Piece]:
        """What the reader is given, to its last piece; however it ends, the engine is told that the reader is gone."""
        try:
            while True:
                item = await reader.pieces.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self._commands.put(lambda: self._leave(reader))

    # What follows runs in the engine's thread alone.

    def _run(self) -> None:
        """Commands, then a step, then commands again; without work, wait for a command."""
        while self._obey():
            try:
                outputs = self.engine.step()
            except Exception as error:
                self._tell_failed(error)
                continue
            for output in outputs:
                self._hand_out(output)
        for reader in list(self._readers.values()):
            if reader.answer is not None:
                reader.give(reader.answer.abort())

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
        self, reader: _Reader, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None
    ) -> None:
        try:
            reader.answer = Answer(self.engine, self.tokenizer, prompt_ids, params, request_id)
        except Exception as error:  # it is the reader's own request that is wrong: the others go on
            reader.give(error)
            return
        self._readers[reader.answer.request.request_id] = reader

    def _leave(self, reader: _Reader) -> None:
        """The reader has its last piece, or is gone before it."""
        if reader.answer is None:
            return
        request_id = reader.answer.request.request_id
        if self._readers.get(request_id) is reader:
            del self._readers[request_id]
            self.engine.abort(request_id)

    def _hand_out(self, output: Output) -> None:
        request_id = output.request.request_id
        reader = self._readers.get(request_id)
        if reader is None or reader.answer is None:
            return
        try:
            reader.give(reader.answer.take(output))
        except Exception as error:  # in the text of one request: it ends alone
            del self._readers[request_id]
            self.engine.abort(request_id, "error")
            reader.give(error)

    def _tell_failed(self, error: Exception) -> None:
        """A pass failed: its requests have ended, and their readers are told. The others go on."""
        for request_id, reader in list(self._readers.items()):
            if reader.answer is not None and reader.answer.request.finish_reason == "error":
                del self._readers[request_id]
                reader.give(error)
