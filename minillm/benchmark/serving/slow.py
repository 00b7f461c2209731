"""Readers that do not read: do those beside them get their tokens later?"""

import asyncio
import itertools
import socket
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.benchmark.serving.asks import Alone
from minillm.benchmark.serving.reader import listen
from minillm.benchmark.serving.target import Target
from minillm.benchmark.serving.wire import as_bytes, connected

RECEIVE_BUFFER = 4096
READING_BUFFER = 2**20
WIDE = {"stream": True, "n": 2, "logprobs": 5, "max_tokens": 300}
"""Some hundreds of kilobytes, so that what the system takes in for a reader is soon full."""

ROUNDS = 3
TOLD = b"data: [DONE]"


@dataclass(frozen=True)
class Beside:
    """TPOT in seconds of the ordinary clients, beside readers that read and beside some that do not, round by round.
    whole: of the slow ones' streams, those that were complete once they read them.
    """

    tpot_reading_s: tuple[float, ...]
    tpot_slow_s: tuple[float, ...]
    verdicts: Counter[str]
    slow: int
    whole: int

    @property
    def ratio(self) -> float:
        """Beside slow readers over beside quick ones; 1: nobody noticed."""
        return statistics.median(self.tpot_slow_s) / statistics.median(self.tpot_reading_s)


async def read_beside(target: Target, alone: Sequence[Alone], slow: int) -> Beside:
    """As many ordinary clients as there are slow readers; rounds with readers that read take turns with the others."""
    verdicts, turns = Counter[str](), itertools.count()
    times: dict[bool, list[float]] = {True: [], False: []}
    whole = 0
    async with target.client() as client:

        async def be_ordinary() -> float | None:
            one = alone[next(turns) % len(alone)]
            heard = await listen(client, one.ask.body(target.model))
            verdicts[one.verdict_on(heard)] += 1
            return heard.tpot_s

        for reads in [True, False] * ROUNDS:
            over = asyncio.Event()
            beside = [asyncio.create_task(_wide(target, alone[i % len(alone)], reads, over)) for i in range(slow)]
            await asyncio.sleep(0.2)
            found = await asyncio.gather(*(be_ordinary() for _ in range(slow)))
            times[reads].append(statistics.median(one for one in found if one is not None))
            over.set()
            complete = sum(await asyncio.gather(*beside))
            whole += 0 if reads else complete
    return Beside(tuple(times[True]), tuple(times[False]), verdicts, slow * ROUNDS, whole)


async def _wide(target: Target, one: Alone, reads: bool, over: asyncio.Event) -> bool:
    """A client with a wide answer; reads it at once, or not before `over`. Whether the answer was whole."""
    loop, end = asyncio.get_running_loop(), b""
    async with connected(target, None if reads else RECEIVE_BUFFER) as client:
        await loop.sock_sendall(client, as_bytes(target, one.ask.body(target.model, **WIDE)))
        if not reads:
            await over.wait()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READING_BUFFER)
        while received := await loop.sock_recv(client, 65536):
            end = (end + received)[-100:]
    return TOLD in end
