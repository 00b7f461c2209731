"""What is asked, and what a client that is alone gets for it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from minillm.benchmark.serving.reader import Heard
from minillm.benchmark.serving.target import ANSWER_S, Target
from minillm.quality import held_text

CLOSE = 0.01
"""Two log-probabilities that are as near as this may change places with the company in which they are computed."""


@dataclass(frozen=True)
class Ask:
    """A prompt for /v1/completions, of which the likeliest tokens are wanted, `max_tokens` of them."""

    prompt: str
    max_tokens: int

    def body(self, model: str, **more: Any) -> dict[str, Any]:
        """What is sent."""
        return {
            "model": model,
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **more,
        }


@dataclass(frozen=True)
class Alone:
    """What an Ask gives when the server has nothing else to do. offsets: the character at which each token begins;
    gaps: by how many nats the likeliest token was ahead of the next one.
    """

    ask: Ask
    text: str
    offsets: tuple[int, ...]
    gaps: tuple[float, ...]

    def verdict_on(self, heard: Heard) -> str:
        """The same of a whole stream; or that it is not whole, and why."""
        return self.verdict(heard.text) if heard.complete else f"not whole: {heard.error}"

    def verdict(self, text: str) -> str:
        """What `text` is to it: equal, "close" where it leaves it at a token that had a near rival, or different."""
        if text == self.text:
            return "equal"
        same = next((i for i, (a, b) in enumerate(zip(text, self.text, strict=False)) if a != b), None)
        if same is None:  # one is the beginning of the other
            same = min(len(text), len(self.text))
        at = max((i for i, offset in enumerate(self.offsets) if offset <= same), default=0)
        return "close" if self.gaps and self.gaps[at] < CLOSE else "different"


def asks(count: int, words: tuple[int, int], tokens: tuple[int, int], seed: int = 0) -> list[Ask]:
    """`count` passages of the text that the package ships, of as many words, with answers of as many tokens."""
    text, choose = held_text().split(), random.Random(seed)
    found = []
    for _ in range(count):
        length = min(choose.randint(*words), len(text))
        start = choose.randrange(len(text) - length + 1)
        found.append(Ask(" ".join(text[start : start + length]), choose.randint(*tokens)))
    return found


def answers_alone(target: Target, wanted: Sequence[Ask]) -> list[Alone]:
    """The answers, one request at a time."""
    with httpx.Client(base_url=target.url, headers=target.headers, timeout=ANSWER_S) as client:
        return [_alone(client, target.model, ask) for ask in wanted]


def _alone(client: httpx.Client, model: str, ask: Ask) -> Alone:
    answer = client.post("/v1/completions", json=ask.body(model, logprobs=2))
    answer.raise_for_status()
    choice = answer.json()["choices"][0]
    logprobs = choice["logprobs"]
    gaps = []
    for top in logprobs["top_logprobs"]:
        best = sorted(top.values(), reverse=True)
        gaps.append(best[0] - best[1] if len(best) > 1 else 0.0)
    return Alone(ask, choice["text"], tuple(logprobs["text_offset"]), tuple(gaps))
