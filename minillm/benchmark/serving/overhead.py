"""What the server adds to each token of one request: the client's time between tokens beside the engine's own step."""

import asyncio
import statistics
import time
from dataclasses import dataclass

from minillm.benchmark.serving.asks import Ask
from minillm.benchmark.serving.reader import listen
from minillm.benchmark.serving.target import Target
from minillm.engine.answer import Answer
from minillm.engine.engine import Engine
from minillm.errors import InputError
from minillm.llm import LLM
from minillm.sampling_params import SamplingParams

ROUNDS = 5
ENGINE = "vllm:inter_token_latency_seconds"


@dataclass(frozen=True)
class Overhead:
    """Seconds per token, one entry per round. steps_s: of the engine alone, in a process without a server, its text
    not counted; in_server_s: in the server's engine thread; client_s: as the client saw them come.
    """

    steps_s: tuple[float, ...]
    in_server_s: tuple[float, ...]
    client_s: tuple[float, ...]

    @property
    def share(self) -> float:
        """Of a step, what the server adds to it: the median over the rounds."""
        pairs = zip(self.client_s, self.steps_s, strict=True)
        return statistics.median(client / step - 1 for client, step in pairs)


def measure_overhead(target: Target, llm: LLM, engine: Engine, ask: Ask) -> Overhead:
    """The same request to the engine alone and through the server, in turns. `engine` is as the server's is."""
    steps, in_server, client = [], [], []
    _step_alone(llm, engine, ask)  # what is made once is made now, and here
    asyncio.run(_ask(target, ask))
    for _ in range(ROUNDS):
        steps.append(_step_alone(llm, engine, ask))
        before = target.samples()
        client.append(asyncio.run(_ask(target, ask)))
        after = target.samples()
        total, count = (after[f"{ENGINE}_{name}"] - before[f"{ENGINE}_{name}"] for name in ("sum", "count"))
        in_server.append(total / count)
    return Overhead(tuple(steps), tuple(in_server), tuple(client))


def _step_alone(llm: LLM, engine: Engine, ask: Ask) -> float:
    """Seconds of a decode step, the mean over a request."""
    params = SamplingParams(max_tokens=ask.max_tokens, ignore_eos=True)
    answer, seconds = Answer(engine, llm.tokenizer, llm.tokenizer.encode(ask.prompt), params), []
    while engine.has_work:
        began = time.perf_counter()
        outputs = engine.step()
        seconds.append(time.perf_counter() - began)
        for output in outputs:
            answer.take(output)
    return statistics.fmean(seconds[1:])  # the first one reads the prompt


async def _ask(target: Target, ask: Ask) -> float:
    """Seconds from a token to the next one, the mean over a request."""
    async with target.client() as client:
        heard = await listen(client, ask.body(target.model))
    if heard.tpot_s is None:
        raise InputError(f"the server did not answer: {heard.error}")
    return heard.tpot_s
