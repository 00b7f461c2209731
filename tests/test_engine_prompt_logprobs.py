"""prompt_logprobs: what the model held of a prompt's tokens, however the engine came to compute them."""

import pytest
import torch
from tiny import random_model, save_tiny_model, tiny_config

from minillm import LLM, SamplingParams
from minillm.engine import Engine
from minillm.engine.prompt_logprobs import ROWS
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.perplexity import text_logprobs
from minillm.prefill import as_batch, one_pass

MODEL = random_model(tiny_config(max_position_embeddings=256))
VOCAB = MODEL.config.vocab_size
PROMPT = [(7 * i * i + 3 * i + 1) % VOCAB for i in range(90)]
assert len(PROMPT) > ROWS
ASKED = SamplingParams(max_tokens=3, prompt_logprobs=2, ignore_eos=True)


def finish(engine, *requests):
    while engine.has_work:
        engine.step()
    assert {request.finish_reason for request in requests} == {"length"}
    assert engine.scheduler.pool.num_used == 0


@pytest.fixture(scope="module")
def rows():
    """The logits of each position, from one plain pass."""
    with torch.inference_mode():
        cache = KVCache(MODEL.config, len(PROMPT), device=MODEL.device, dtype=MODEL.dtype)
        return MODEL.logits(one_pass(MODEL, as_batch(PROMPT, MODEL, batch_size=1), cache)[0]).log_softmax(-1)


@pytest.mark.parametrize("budget", [4, 7, 64, 512])
@pytest.mark.parametrize("length", [1, 2, 16, 17, 90])
def test_in_chunks_of_any_size_they_are_those_of_the_text(rows, budget, length) -> None:
    engine = Engine(MODEL, num_blocks=40, block_size=4, max_batch_size=4, token_budget=budget)
    other = engine.add(PROMPT[5:40], SamplingParams(max_tokens=9, ignore_eos=True))
    request = engine.add(PROMPT[:length], ASKED)
    finish(engine, request, other)
    first, *rest = request.prompt_logprobs
    assert first is None
    assert [one.token_id for one in rest] == PROMPT[1:length]
    if length > 1:
        expected = text_logprobs(MODEL, PROMPT[:length])
        assert [one.logprob for one in rest] == pytest.approx(expected, abs=1e-4)
    for one, row in zip(rest, rows, strict=False):
        values, ids = row.topk(2)
        assert [token for token, _ in one.top_logprobs] == ids.tolist()
        assert [value for _, value in one.top_logprobs] == pytest.approx(values.tolist(), abs=1e-4)
    assert other.prompt_logprobs == []


def test_a_prefix_that_is_known_is_computed_all_the_same_and_found_by_those_who_do_not_ask() -> None:
    engine = Engine(MODEL, num_blocks=60, block_size=4)
    plain = SamplingParams(max_tokens=3, ignore_eos=True)
    finish(engine, engine.add(PROMPT, plain))
    asked = engine.add(PROMPT, ASKED)
    finish(engine, asked)
    assert asked.num_cached == 0
    assert len(asked.prompt_logprobs) == len(PROMPT)
    again = engine.add(PROMPT, plain)
    finish(engine, again)
    assert again.num_cached >= len(PROMPT) - 4
    assert again.generated_ids == asked.generated_ids


def test_one_that_lost_its_blocks_has_each_entry_once() -> None:
    engine = Engine(MODEL, num_blocks=26, block_size=4, max_batch_size=3, token_budget=16)
    params = SamplingParams(max_tokens=40, prompt_logprobs=0, ignore_eos=True)
    requests = [engine.add(PROMPT[i : i + 30], params) for i in range(3)]
    finish(engine, *requests)
    assert sum(request.num_preemptions for request in requests) > 0
    for i, request in enumerate(requests):
        expected = text_logprobs(MODEL, PROMPT[i : i + 30])
        assert [one.logprob for one in request.prompt_logprobs[1:]] == pytest.approx(expected, abs=1e-4)
        assert all(one.top_logprobs == () for one in request.prompt_logprobs[1:])


def test_the_library_gives_them_with_generate_and_refuses_them_with_a_stream(tmp_path) -> None:
    llm = LLM(save_tiny_model(tmp_path, num_hidden_layers=1), dtype="float32")
    asked = SamplingParams(max_tokens=2, prompt_logprobs=1, ignore_eos=True)
    one = llm.generate("the cat sat", asked)
    assert [one.prompt_logprobs] == [other.prompt_logprobs for other in llm.generate(["the cat sat"], asked)]
    assert one.prompt_logprobs[0] is None
    found = [entry.logprob for entry in one.prompt_logprobs[1:]]
    assert found == pytest.approx(text_logprobs(llm.model, one.prompt_token_ids), abs=1e-4)
    assert llm.generate("the cat sat", SamplingParams(max_tokens=2)).prompt_logprobs is None
    with pytest.raises(InputError, match="prompt_logprobs come with generate alone"):
        list(llm.stream("the cat sat", asked))
