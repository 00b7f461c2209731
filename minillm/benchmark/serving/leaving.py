"""Clients that disconnect at random moments: does anything stay behind, and does anybody else notice?"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from minillm.benchmark.serving.asks import Alone
from minillm.benchmark.serving.reader import listen
from minillm.benchmark.serving.target import Still, Target
from minillm.benchmark.serving.wire import as_bytes, connected, reset_on_close

AT_A_TIME = 50
LONGEST_STAY_S = 2.0
OTHERS = 4


@dataclass(frozen=True)
class Left:
    """moments: where the clients were when they left. verdicts: of the others, who stayed all the time."""

    clients: int
    moments: Counter[str]
    verdicts: Counter[str]
    before: Still
    after: Still

    @property
    def nothing_is_left(self) -> bool:
        """Neither requests nor blocks, and no more tasks and files than before."""
        files = self.before.open_files is None or (self.after.open_files or 0) <= self.before.open_files
        return self.after.requests == 0 == self.after.blocks_share and self.after.tasks <= self.before.tasks and files


async def leave(target: Target, alone: Sequence[Alone], clients: int, seed: int = 0) -> Left:
    """`clients` come and go, fifty at a time, with four others beside them."""
    choose, moments, verdicts = random.Random(seed), Counter[str](), Counter[str]()
    turns, left = itertools.count(), itertools.count()
    before = target.at_rest()

    async def come_and_go() -> None:
        while next(left) < clients:
            moments[await _one(target, alone[next(turns) % len(alone)], choose)] += 1

    async def stay(client: httpx.AsyncClient) -> None:
        while True:
            one = alone[next(turns) % len(alone)]
            heard = await listen(client, one.ask.body(target.model))
            verdicts[one.verdict_on(heard)] += 1
            if sum(moments.values()) >= clients:
                return

    async with target.client() as client:
        others = [asyncio.create_task(stay(client)) for _ in range(OTHERS)]
        await asyncio.gather(*(come_and_go() for _ in range(AT_A_TIME)))
        await asyncio.gather(*others)
    after = await asyncio.to_thread(target.when, lambda now: not now.requests and now.tasks <= before.tasks)
    return Left(clients, moments, verdicts, before, after)


async def _one(target: Target, one: Alone, choose: random.Random) -> str:
    """A client from its coming to its going; the word says when it went."""
    loop, streams = asyncio.get_running_loop(), choose.random() < 0.7
    data = as_bytes(target, one.ask.body(target.model, stream=streams, n=choose.randint(1, 2), max_tokens=400))
    moment = "in its own body"
    async with connected(target) as client:
        if choose.random() < 0.3:
            reset_on_close(client)
        if choose.random() < 0.15:
            await loop.sock_sendall(client, data[: choose.randrange(1, len(data))])
            await asyncio.sleep(choose.random() * 0.1)
            return moment
        await loop.sock_sendall(client, data)
        moment = "before the answer"
        try:
            async with asyncio.timeout(choose.random() * LONGEST_STAY_S):
                while received := await loop.sock_recv(client, 65536):
                    moment = "in the answer" if b"\n" in received else moment
                return "at its end"
        except TimeoutError:
            return moment
