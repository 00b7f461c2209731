"""Keys and values in 8 bits: the same however they come in, in half the bytes, and close to the numbers."""

import pytest
import torch
from quantized_models import model_in, native_config
from tiny import random_ids, save_tiny_model

from minillm import LLM, SamplingParams
from minillm.errors import InputError
from minillm.kv_cache import Int8KVCache, KVCache, kv_bytes_per_token
from minillm.prefill import prefill

CONFIG = native_config(num_hidden_layers=3)


@pytest.fixture(scope="module")
def model():
    return model_in(None, CONFIG)


def stored(cache: Int8KVCache) -> tuple[torch.Tensor, ...]:
    return tuple(part[:, :, :, : cache.length] for part in (cache.keys, cache.values, *cache.scales))


@pytest.mark.parametrize("chunk_size", [1, 3, 16, 39])
def test_in_chunks_and_token_by_token_is_the_same_as_at_once(model, chunk_size):
    """The query of a pass meets the rounded keys of that very pass, or chunks would change the result."""
    ids = random_ids(40, batch=2)
    whole, cache = Int8KVCache(CONFIG, 40, 2), Int8KVCache(CONFIG, 40, 2)
    expected = prefill(model, ids, whole)
    got = prefill(model, ids, cache, chunk_size)
    assert float(expected.std()) > 0.05
    # A number that lies between two codes may fall to either side: rounding differs in the last bit of float32.
    codes = [
        (mine.int() - theirs.int()).abs() for mine, theirs in zip(stored(cache)[:2], stored(whole)[:2], strict=True)
    ]
    assert max(int(difference.max()) for difference in codes) <= 1
    assert torch.allclose(got, expected, atol=1e-5 if not any(bool(d.any()) for d in codes) else 1e-2)


def test_the_attention_is_that_over_the_numbers_that_the_codes_stand_for():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 9, 16, generator=generator) for heads in (6, 2, 2))
    cache, plain = Int8KVCache(CONFIG, 9, 2), KVCache(CONFIG, 9, 2)
    got = cache.attend(1, q, k, v)
    keys, values = (
        codes[1].float() * scale[1][..., None]
        for codes, scale in zip((cache.keys, cache.values), cache.scales, strict=True)
    )
    assert torch.allclose(got, plain.attend(1, q, keys, values), atol=1e-6)


def test_a_number_is_off_by_half_a_step_at_most_and_each_head_has_its_own():
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(2, 2, 9, 16, generator=generator) for _ in range(2))
    k[0, 1, 3], v[1, 0, 5], k[1, 1, 8] = 1e4, 1e-6, 0.0
    cache = Int8KVCache(CONFIG, 9, 2)
    for given, back, scales in zip((k, v), cache.append(2, k, v), cache.scales, strict=True):
        scale = given.abs().amax(dim=-1) / 127
        assert torch.equal(scales[2], scale)
        assert bool(((back - given).abs().amax(dim=-1) <= scale * 0.5001).all())
    assert bool((cache.keys[2, 1, 1, 8] == 0).all())
    assert int(cache.keys[2].abs().max()) == 127


def test_tokens_one_by_one_are_written_behind_the_others():
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, 2, 6, 16, generator=generator) for _ in range(2))
    whole, cache = Int8KVCache(CONFIG, 6), Int8KVCache(CONFIG, 6)
    expected = whole.append(0, k, v)
    for position in range(6):
        got = cache.append(0, k[:, :, position : position + 1], v[:, :, position : position + 1])
        cache.advance(1)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, expected, strict=True))


def test_truncated_tokens_leave_no_trace(model):
    ids = random_ids(20)
    expected = prefill(model, ids, Int8KVCache(CONFIG, 30))
    cache = Int8KVCache(CONFIG, 30)
    prefill(model, ids[:, :12], cache)
    prefill(model, random_ids(15, seed=7), cache)
    cache.truncate(12)
    assert torch.allclose(prefill(model, ids[:, 12:], cache), expected, atol=1e-2)


def test_bytes_are_those_of_the_formula_and_go_when_it_is_released():
    cache = Int8KVCache(CONFIG, 10, 2)
    assert cache.bytes_per_token == 2 * 3 * 2 * (16 + 4)
    assert kv_bytes_per_token(CONFIG, torch.int8) == 2 * 3 * 2 * 16, "the codes alone"
    assert cache.reserved_bytes == 2 * 10 * cache.bytes_per_token
    assert cache.used_bytes == 0
    cache.advance(4)
    assert cache.used_bytes == 2 * 4 * cache.bytes_per_token
    cache.release()
    assert (cache.length, cache.max_seq_len, cache.reserved_bytes) == (0, 0, 0)


def test_what_does_not_fit_is_refused_and_loses_nothing(model):
    cache = Int8KVCache(CONFIG, 5)
    prefill(model, random_ids(5), cache)
    before = [part.clone() for part in stored(cache)]
    with pytest.raises(InputError, match="6 tokens do not fit into a cache of 5"):
        model(random_ids(1), cache)
    k = torch.zeros(1, 3, 1, 16)
    cache.truncate(4)
    with pytest.raises(InputError, match=r"keys of shape \[1, 3, 1, 16\]"):
        cache.append(0, k, k)
    cache.advance(1)
    assert all(torch.equal(now, then) for now, then in zip(stored(cache), before, strict=True))


def test_in_bfloat16_the_answer_has_the_dtype_of_the_question():
    k = torch.randn(1, 2, 4, 16, dtype=torch.bfloat16)
    cache = Int8KVCache(CONFIG, 4)
    assert cache.attend(0, torch.randn(1, 6, 4, 16, dtype=torch.bfloat16), k, k).dtype == torch.bfloat16


def test_what_is_no_number_does_not_become_one():
    k = torch.randn(1, 2, 4, 16)
    k[0, 1, 2, 3] = torch.nan
    cache = Int8KVCache(CONFIG, 4)
    assert not cache.append(0, k, k)[0][0, 1, 2].isfinite().any()


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), hidden_size=96, intermediate_size=64, head_dim=16)


@pytest.mark.parametrize("compile", [True, False])
def test_a_model_generates_with_it(tiny_dir, compile):
    llm = LLM(tiny_dir, device="cpu", dtype="float32", kv_dtype="int8", compile=compile)
    cache = llm.new_cache(50)
    assert isinstance(cache, Int8KVCache)
    completion = llm.generate("the cat", SamplingParams(max_tokens=30, ignore_eos=True))
    assert len(completion.token_ids) == 30
    held = len(llm.tokenizer.encode("the cat")) + 29
    assert completion.metrics.kv_bytes == held * llm.new_cache(1).bytes_per_token


def test_auto_is_the_models_own_dtype(tiny_dir):
    for word in (None, "auto"):
        cache = LLM(tiny_dir, device="cpu", dtype="bfloat16", kv_dtype=word).new_cache(5)
        assert (type(cache), cache.keys.dtype) == (KVCache, torch.bfloat16)


@pytest.mark.parametrize("word", ["int4", "INT8", "", "fp8", "float32"])
def test_unknown_words_are_refused_before_anything_is_loaded(tiny_dir, monkeypatch, word):
    monkeypatch.setattr("minillm.llm.load", lambda *args, **kwargs: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=f"unknown kv_dtype '{word}': use int8, or auto for the model's own dtype"):
        LLM(tiny_dir, device="cpu", kv_dtype=word)
