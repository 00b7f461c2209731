"""SIGTERM while many are served: does every client get its answer to the end, or a clear word that it does not?"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from minillm.benchmark.serving.asks import Alone
from minillm.benchmark.serving.reader import Heard, listen
from minillm.benchmark.serving.target import Target

UNTIL_TOLD_S = 3.0
"""From the clients' coming to the signal."""


@dataclass(frozen=True)
class Ended:
    """ends: how each accepted stream ended. exit_code: None where the process had to be killed."""

    grace_s: float
    ends: Counter[str]
    verdicts: Counter[str]
    seconds: float
    exit_code: int | None

    @property
    def all_told(self) -> bool:
        """Every stream came to its end or to an event that says that it does not."""
        return set(self.ends) <= {"whole", "error event", "refused"}


async def end(target: Target, alone: Sequence[Alone], clients: int, grace_s: float, tokens: int) -> Ended:
    """`clients` ask for answers of `tokens` tokens; three seconds later the server, which has `grace_s`, is told."""
    assert target.process is not None, "only a server of its own is ended"
    process = target.process

    async def tell() -> tuple[float, int | None]:
        await asyncio.sleep(UNTIL_TOLD_S)
        process.send_signal(signal.SIGTERM)
        began = time.perf_counter()
        while process.poll() is None and time.perf_counter() - began < grace_s + 60:
            await asyncio.sleep(0.02)
        return time.perf_counter() - began, process.returncode

    async with target.client() as client:
        telling = asyncio.create_task(tell())
        asked = [alone[i % len(alone)] for i in range(clients)]
        heard = await asyncio.gather(*(listen(client, one.ask.body(target.model, max_tokens=tokens)) for one in asked))
        seconds, code = await telling
    verdicts = Counter(
        one.verdict(text.text[: len(one.text)]) for one, text in zip(asked, heard, strict=True) if text.complete
    )
    return Ended(grace_s, Counter(map(_end, heard)), verdicts, seconds, code)


def _end(heard: Heard) -> str:
    if heard.complete:
        return "whole"
    if heard.status == 503:
        return "refused"
    return "error event" if heard.error == "shutting_down" else f"broken: {heard.error}"
