"""How long /health takes, asked by a process of its own: the clients' process is busy, and would measure itself."""

import contextlib
import http.client
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from urllib.parse import urlsplit

EVERY_S = 0.1


@contextlib.contextmanager
def probed(url: str) -> Iterator[list[float]]:
    """Ask every tenth of a second for the time of a `with`; afterwards the list has the seconds that each took.

    What could not be asked is infinite.
    """
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe(duplex=False)
    over = context.Event()
    process = context.Process(target=_ask, args=(url, over, theirs), daemon=True)
    process.start()
    found: list[float] = []
    try:
        yield found
    finally:
        over.set()
        found.extend(mine.recv())
        process.join()


def _ask(url: str, over: Event, results: Connection) -> None:
    where = urlsplit(url)
    assert where.hostname is not None, "an address"
    seconds = []
    client = http.client.HTTPConnection(where.hostname, where.port, timeout=30)
    while not over.wait(EVERY_S):
        began = time.perf_counter()
        try:
            client.request("GET", "/health")
            response = client.getresponse()
            response.read()
            seconds.append(time.perf_counter() - began if response.status == 200 else float("inf"))
        except OSError:
            seconds.append(float("inf"))
            client.close()
    results.send(seconds)
