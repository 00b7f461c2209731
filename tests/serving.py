"""A server in a thread of the tests' own process, on a socket of this machine's own: real HTTP, and open to a look."""

import asyncio
import contextlib
import socket
import threading
import time
from dataclasses import dataclass

import uvicorn
from tiny import save_tiny_model

from minillm import LLM
from minillm.engine import Engine
from minillm.engine.async_engine import AsyncEngine
from minillm.server.app import make_app
from minillm.server.lifecycle import Lifecycle, end, new_server
from minillm.server.metrics import EngineMetrics
from minillm.server.prepare import Served
from minillm.server.service import Service
from minillm.server.settings import Settings

NAME = "tiny"


def tiny_llm(tmp_path_factory, context: int = 512) -> LLM:
    """A model of one layer, which is quick, in float32, where greedy tokens are sure."""
    directory = save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=context, num_hidden_layers=1)
    return LLM(directory, dtype="float32")


@dataclass(eq=False)
class Running:
    """A server that runs, and its parts."""

    port: int
    engine: Engine
    serving: AsyncEngine
    lifecycle: Lifecycle
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A connection; receive_buffer: bytes that the system takes in for a reader that does not read."""
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(30)
        client.connect(("127.0.0.1", self.port))
        return client

    def tasks(self) -> int:
        """Tasks on the server's loop, without the one that counts."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(timeout=10)

    def call(self, coroutine):
        """Run something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait_until(self, holds) -> None:
        """Wait until `holds()`; fail where that does not come."""
        deadline = time.monotonic() + 30
        while not holds():
            assert time.monotonic() < deadline, "it did not come to be"
            time.sleep(0.005)

    def wait_until_idle(self) -> None:
        """Nothing is left of any request: no request in the engine, no block in use, nothing at work."""
        self.wait_until(lambda: not self.engine.requests and not self.lifecycle.active)
        assert self.engine.scheduler.pool.num_used == 0
        assert not self.engine.has_work


def slow_down(server: Running, seconds: float) -> None:
    """Let each step of the engine take so much longer, so that others have the time to look on."""
    step = server.engine.step

    def slowly():
        time.sleep(seconds)
        return step()

    server.engine.step = slowly


def hold_after(server: Running, steps: int) -> threading.Event:
    """Let the engine take so many steps, and the next one only when the event is set (or a test's time is over)."""
    step, go_on, taken = server.engine.step, threading.Event(), iter(range(steps))

    def held():
        if next(taken, None) is None:
            go_on.wait(30)
        return step()

    server.engine.step = held
    return go_on


@contextlib.contextmanager
def running(llm: LLM, settings: Settings | None = None, *, name: str = NAME, send_buffer: int | None = None, **sizes):
    """A server for the time of a `with`. sizes: of the engine. Leaving it looks whether anything is left behind.

    send_buffer: bytes that the system keeps for each client, which is megabytes if nobody says anything.
    """
    found: list[Running] = []
    ready = threading.Event()

    async def main() -> None:
        metrics, lifecycle = EngineMetrics(name), Lifecycle()
        engine = Engine(
            llm.model,
            **{"num_blocks": 200, "block_size": 4, "max_batch_size": 8, "observer": metrics.observe, **sizes},
        )
        metrics.watch(engine)
        metrics.watch_loop(asyncio.get_running_loop())
        sock = socket.create_server(("127.0.0.1", 0))
        if send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        async with AsyncEngine(engine, llm.tokenizer) as serving:
            service = Service(serving, Served.on(engine, name, llm.tokenizer), settings or Settings(), "fp_test")
            server = new_server(make_app(service, metrics, lifecycle))
            loop = asyncio.get_running_loop()
            found.append(Running(sock.getsockname()[1], engine, serving, lifecycle, server, loop))
            ready.set()
            await server.serve([sock])
        service.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(30)
        here = found[0]
        here.wait_until(lambda: here.server.started)
        yield here
        if here.serving.is_running:
            here.wait_until_idle()
    finally:
        if found and thread.is_alive():
            here.call(end(here.server, here.serving, here.lifecycle, 0.0)).result(timeout=30)
        thread.join(timeout=30)
    assert not thread.is_alive()
