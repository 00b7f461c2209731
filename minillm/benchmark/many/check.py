"""Whoever shares the batch, whatever the pool: are the engine's tokens those of every request alone?

In float32, where a sum in another order changes a logit in its fifth digit. That is enough to turn a choice around
where the two best logits are as close as that, and from there on two correct runs tell different stories. So the
request alone is fed the engine's tokens, one after the other, and asked before each which it would choose: at every
place of every answer the two must agree, except where its own two best are closer than CLOSE.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.benchmark.many.serve import Serving, blocks_of_largest, serve_and_keep
from minillm.benchmark.many.workload import Ask
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.model import Llama
from minillm.prefill import prefill

CLOSE = 1e-3
"""Logits of SmolLM2 reach 30, and differ by some 1e-4 between a pass over one request and a pass over many."""


@dataclass(frozen=True)
class Difference:
    """A place of an answer where the engine chose another token. gap: by how much the request alone preferred its own,
    in logits.
    """

    request: int
    place: int
    gap: float


@dataclass(frozen=True)
class Checked:
    """tokens: places that were compared. close: those at which the request alone had its two best within CLOSE.
    differences: where the engine chose otherwise; `wrong`, those of them that closeness does not excuse.
    """

    requests: int
    tokens: int
    close: int
    preemptions: int
    recomputed_tokens: int
    cached_tokens: int
    differences: list[Difference]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Checked":
        """From what `asdict` made, and JSON of that."""
        return cls(**{**values, "differences": [Difference(**one) for one in values["differences"]]})

    @property
    def wrong(self) -> list[Difference]:
        """There must be none."""
        return [difference for difference in self.differences if difference.gap >= CLOSE]


def check(model: Llama, asks: Sequence[Ask], serving: Serving, *, in_one_pass: bool = False) -> Checked:
    """Serve the requests together, then ask about each alone.

    in_one_pass: alone, the whole answer is read in a single pass, as a prompt is, instead of token by token. The
    same logits up to the order of sums, an order of magnitude sooner. Raises InputError where the pool was so large
    that nothing was preempted: that would prove less than it says.
    """
    result, requests = serve_and_keep(model, asks, serving)
    assert result.steps is not None, "our engine tells its steps"
    if not result.steps.preemptions:
        raise InputError(f"{serving.num_blocks} blocks were enough for all: to force preemption, give fewer")
    alone = read_alone if in_one_pass else decode_alone
    tokens = close = 0
    differences: list[Difference] = []
    for number, request in enumerate(requests):
        for place, logits in enumerate(alone(model, request.prompt_ids, request.generated_ids)):
            best, second = logits.topk(2).values.tolist()
            gap = best - logits[request.generated_ids[place]].item()
            tokens += 1
            close += best - second < CLOSE
            if gap > 0:
                differences.append(Difference(number, place, gap))
    figures = result.steps
    return Checked(
        len(requests),
        tokens,
        close,
        figures.preemptions,
        figures.recomputed_tokens,
        figures.cached_tokens,
        differences,
    )


def tight_pool(asks: Sequence[Ask], serving: Serving) -> int:
    """Blocks that force preemption: enough for the largest request alone, and for a third of what would run at once."""
    return max(blocks_of_largest(asks, serving, 1), blocks_of_largest(asks, serving) // 3)


def decode_alone(
    model: Llama, prompt_ids: Sequence[int], token_ids: Sequence[int]
) -> Iterator[Float[Tensor, " vocab"]]:
    """The logits before each token of an answer: prefill, then a pass for every token, on a cache of its own."""
    cache = KVCache(model.config, len(prompt_ids) + len(token_ids), device=model.device, dtype=model.dtype)
    logits = prefill(model, prompt_ids, cache)  # [1, V]
    yield logits[0]
    for token_id in token_ids[:-1]:
        logits = prefill(model, [token_id], cache)  # [1, V]
        yield logits[0]


def read_alone(model: Llama, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Iterator[Float[Tensor, " vocab"]]:
    """The same, in one pass over prompt and answer."""
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=model.device)  # [1, T]
    cache = KVCache(model.config, ids.shape[1], device=model.device, dtype=model.dtype)
    with torch.inference_mode():
        hidden = model(ids, cache)[0, len(prompt_ids) - 1 :]  # [n, E]
        yield from model.logits(hidden)  # n x [V]
