"""SmolLM2-135M, many requests at once: each gets the tokens that it gets alone.

The whole of it (64 requests, lengths drawn evenly from 5 to 800 and 1 to 200, each alone token by token) takes many
minutes and is a command: `python -m minillm.bench_batch --check 64 --dtype float32`. Here are fewer requests, spread
over the same lengths with more short ones than long ones, and each alone is read in one pass.
"""

from pathlib import Path

import pytest

import minillm
from minillm.benchmark.many.check import CLOSE, check
from minillm.benchmark.many.serve import Serving
from minillm.benchmark.many.workload import Ask

pytestmark = pytest.mark.real_model

COUNT, PROMPTS, OUTPUTS = 24, (5, 800), (1, 200)
NUM_BLOCKS = 70
"""Of 16 tokens: the largest request needs 51, and sixteen of them would run at once."""

FEW = 2
"""Places at which the two best logits may be within CLOSE. There were none when this was written."""


def spread(least: int, most: int) -> list[int]:
    """COUNT lengths from least to most, each longer than the one before by the same factor."""
    return [round(least * (most / least) ** (i / (COUNT - 1))) for i in range(COUNT)]


def mixed_asks(tokenizer) -> list[Ask]:
    """Pieces of a real text, each with its number of tokens to come; the longest answer begins first."""
    text = (Path(minillm.__file__).parent / "data" / "held_text.txt").read_text(encoding="utf-8")
    ids, starts = tokenizer.encode(text), [53 * i for i in range(COUNT)]
    assert len(ids) > starts[-1] + PROMPTS[1], "the text is long enough for all"
    prompts = [spread(*PROMPTS)[5 * i % COUNT] for i in range(COUNT)]
    outputs = [spread(*OUTPUTS)[(7 * i - 1) % COUNT] for i in range(COUNT)]
    return [
        Ask(tuple(ids[start : start + prompt]), output)
        for start, prompt, output in zip(starts, prompts, outputs, strict=True)
    ]


@pytest.mark.timeout(900)  # a minute, on two cores that have nothing else to do
def test_mixed_requests_through_a_pool_that_is_too_small_get_the_tokens_that_each_gets_alone(llm) -> None:
    asks = mixed_asks(llm.tokenizer)
    lengths = sorted(len(ask.prompt_ids) for ask in asks), sorted(ask.new_tokens for ask in asks)
    assert [(found[0], found[-1], len(found)) for found in lengths] == [(5, 800, COUNT), (1, 200, COUNT)]
    found = check(llm.model, asks, Serving(num_blocks=NUM_BLOCKS), in_one_pass=True)
    assert found.preemptions > 0, "this pool was to be too small"
    assert found.recomputed_tokens > 0
    assert found.tokens == sum(ask.new_tokens for ask in asks)
    assert found.wrong == [], f"alone, the request prefers another token by {CLOSE} or more"
    assert found.close <= FEW, "too many places at which no choice is clear"
    assert len(found.differences) <= found.close
