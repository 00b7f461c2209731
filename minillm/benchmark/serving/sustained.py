"""Many clients that stream, for minutes: is every stream whole and what its client would have got alone?"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from minillm.benchmark.serving.asks import Alone
from minillm.benchmark.serving.probe import probed
from minillm.benchmark.serving.reader import Heard, listen
from minillm.benchmark.serving.target import Still, Target

LOOK_EVERY_S = 5.0
WARM_SHARE = 0.2
"""Of the time, in which memory may still grow: buffers and caches fill."""


@dataclass(frozen=True)
class Sustained:
    """What the clients got. verdicts: streams that were equal to those of a client that is alone, and others."""

    clients: int
    seconds: float
    heard: tuple[Heard, ...]
    verdicts: Counter[str]
    health_s: tuple[float, ...]
    resident: tuple[tuple[float, int], ...]  # (seconds since the beginning, bytes)
    prefix_hits: float  # of the prompts' tokens
    before: Still
    after: Still

    @property
    def lost(self) -> int:
        """Streams that are not whole."""
        return sum(not one.complete for one in self.heard)

    @property
    def tokens_per_s(self) -> float:
        """Of all clients together."""
        return sum(one.tokens for one in self.heard) / self.seconds

    @property
    def growth(self) -> float | None:
        """Resident memory at the end over that after a fifth of the time; None where it is not told."""
        warm = [held for at, held in self.resident if at >= WARM_SHARE * self.seconds]
        return warm[-1] / warm[0] if len(warm) > 1 else None


async def sustain(target: Target, alone: Sequence[Alone], clients: int, seconds: float) -> Sustained:
    """`clients` at a time, each with one request after the other, none begun after `seconds`."""
    before, counted = target.at_rest(), target.samples()
    turns, found, resident = itertools.count(), list[tuple[Alone, Heard]](), list[tuple[float, int]]()
    began = time.perf_counter()

    async def be_a_client(client: httpx.AsyncClient) -> None:
        while time.perf_counter() - began < seconds:
            one = alone[next(turns) % len(alone)]
            found.append((one, await listen(client, one.ask.body(target.model))))

    async def look() -> None:
        while True:
            now = await asyncio.to_thread(target.still)
            if now.resident_bytes is not None:
                resident.append((time.perf_counter() - began, now.resident_bytes))
            await asyncio.sleep(LOOK_EVERY_S)

    async with target.client() as client:
        with probed(target.url) as health:
            looking = asyncio.create_task(look())
            await asyncio.gather(*(be_a_client(client) for _ in range(clients)))
            looking.cancel()
    took = time.perf_counter() - began
    verdicts = Counter(one.verdict_on(heard) for one, heard in found)
    after, at_last = target.at_rest(), target.samples()
    looked, hit = (at_last[name] - counted[name] for name in HITS)
    return Sustained(
        clients=clients,
        seconds=took,
        heard=tuple(heard for _, heard in found),
        verdicts=verdicts,
        health_s=tuple(health),
        resident=tuple(resident),
        prefix_hits=hit / looked if looked else 0.0,
        before=before,
        after=after,
    )


HITS = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
