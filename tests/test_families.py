"""Every family of models against `transformers`: see families.py, whose table in the README is tested here too."""

import dataclasses
import json

import pytest
import torch
from families import (
    CHECKS,
    FAMILIES,
    ORIGINAL,
    README,
    TOKENS,
    WINDOW,
    Check,
    Family,
    apart,
    directory_of,
    ours,
    some_ids,
    table,
    table_in,
)
from tiny import save_tiny_model

from minillm import LLM, SamplingParams, attention
from minillm.compiled import compile_decode
from minillm.decode import decode
from minillm.decode_pass import require_plain_llama
from minillm.errors import InputError
from minillm.exercises.mine import check_exercises_fit
from minillm.inductor import TorchDecodePass
from minillm.kv_cache import Int8KVCache, KVCache, NoCache
from minillm.prefill import prefill
from minillm.rope import is_turned_alike

TABLE = "run `python tests/families.py`"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.title)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.names)
def test_a_family_computes_what_transformers_computes(family: Family, check: Check):
    assert apart(family, check) <= check.bound, f"apart by {apart(family, check):.2g}, allowed is {check.bound:.2g}"


def test_the_table_in_the_readme_is_what_the_checks_say():
    assert table_in(README.read_text(encoding="utf-8")) == table(), TABLE


# --- what no other library says --------------------------------------------------------------------------------------


def tiny(names: str):
    return ours(directory_of(next(family for family in FAMILIES if family.names == names)))


def test_a_windowed_decode_step_reads_the_window_and_no_more(monkeypatch):
    """The newest keys are sliced off: what lies before them may be anything."""
    model = tiny("Mistral 7B v0.1")
    caches = [KVCache(model.config, TOKENS) for _ in range(2)]
    for cache in caches:
        prefill(model, some_ids()[:, :20], cache)
    caches[1].keys[:, :, :, : 20 - WINDOW + 1] = float("nan")
    caches[1].values[:, :, :, : 20 - WINDOW + 1] = float("nan")
    seen = []
    single = attention.single_query_attention
    monkeypatch.setattr(attention, "single_query_attention", lambda q, k, v: seen.append(k.shape[2]) or single(q, k, v))
    expected, got = (prefill(model, some_ids()[:, 20:21], cache) for cache in caches)
    assert torch.equal(got, expected)
    assert seen == [WINDOW] * 2 * model.config.num_hidden_layers


@pytest.mark.parametrize("q_len", [1, 3, WINDOW, 12, 19])
@pytest.mark.parametrize("kv_len", [19, 40])
def test_a_window_is_the_mask_of_its_definition(q_len: int, kv_len: int):
    q, k, v = (torch.randn(1, heads, length, 8) for heads, length in ((4, q_len), (2, kv_len), (2, kv_len)))
    at, key = torch.arange(kv_len - q_len, kv_len)[:, None], torch.arange(kv_len)[None]
    mask = (key <= at) & (at - key < WINDOW)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(attention.windowed_attention(q, k, v, WINDOW), expected)


@pytest.mark.parametrize("family", [family for family in FAMILIES if "window" in family.beyond], ids=lambda f: f.names)
def test_chunks_change_nothing_in_a_windowed_cache_of_int8(family: Family):
    model = ours(directory_of(family))
    if "longrope" in family.beyond:  # there, chunks do: see rope.py
        model.config = dataclasses.replace(model.config, rope_scaling=None)
    logits = [prefill(model, some_ids(), Int8KVCache(model.config, TOKENS), chunk_size) for chunk_size in (None, 11, 1)]
    torch.testing.assert_close(logits[1], logits[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits[2], logits[0], atol=1e-4, rtol=1e-4)


def test_where_longrope_crosses_its_original_context_decode_computes_the_cache_anew():
    """So every token is the one that a pass over the whole sequence would give, as with `generate` of transformers."""
    model, prompt = tiny("Phi-3 mini 128k"), some_ids()[0, :10].tolist()
    cache = KVCache(model.config, TOKENS)
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    steps = list(decode(model, prefill(model, prompt, cache), cache, params, prompt_ids=prompt))
    ids = prompt + [step.token_id for step in steps]
    for length in range(len(prompt), len(ids)):
        logits = prefill(model, ids[:length], NoCache(model.config))
        assert int(logits.argmax()) == ids[length], f"at {length} tokens, with an original context of {ORIGINAL}"
    reused = prefill(model, ids[-1:], cache)
    torch.testing.assert_close(reused, prefill(model, ids, NoCache(model.config)), atol=1e-4, rtol=1e-4)


def test_across_the_original_context_of_longrope_no_key_serves_and_everywhere_else_it_does():
    longrope, llama3 = tiny("Phi-3 mini 128k").config, tiny("Llama 3.1, 3.2, 3.3, DeepSeek-R1-Distill-Llama").config
    assert is_turned_alike(longrope, 5, ORIGINAL)
    assert is_turned_alike(longrope, ORIGINAL + 1, 40)
    assert not is_turned_alike(longrope, ORIGINAL, ORIGINAL + 1)
    assert not is_turned_alike(longrope, 40, 3)
    assert is_turned_alike(llama3, 3, 40)


def test_a_conversation_that_grows_across_it_begins_with_an_empty_cache(tmp_path):
    directory = save_tiny_model(tmp_path)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "original_max_position_embeddings": ORIGINAL,
        "short_factor": [1.0] * 5,
        "long_factor": [4.0] * 5,
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    llm, params = LLM(directory, device="cpu", dtype="float32"), SamplingParams(max_tokens=3, ignore_eos=True)
    cache, short, long = llm.new_cache(60), "the cat", "the cat wxyz wxyz wxyz wxyz"
    first = llm.start(short, params, cache=cache).run()
    assert cache.length < ORIGINAL < len(llm.tokenizer.encode(long))
    held = [*first.prompt_token_ids, *first.token_ids][: cache.length]
    second = llm.start(long, params, cache=cache, cached_ids=held)
    assert second.cached_tokens == 0, "keys turned by the short factors serve no long text"
    assert second.run().token_ids == llm.generate(long, params).token_ids
    again = llm.start(long, params, cache=cache, cached_ids=llm.tokenizer.encode(long))
    assert again.cached_tokens > ORIGINAL, "beyond it, keys serve again"


COMPILED = ("Llama 3.1, 3.2, 3.3, DeepSeek-R1-Distill-Llama", "Llama, stretched by YaRN", "Qwen2.5 with YaRN")
EAGER = {
    "SmolLM3": "layers without rotary embedding",
    "Mistral 7B v0.1": f"a sliding window of {WINDOW} tokens",
    "Qwen3": "norms of queries and keys",
    "Granite 3": "multipliers",
    "Phi-3 mini 128k": f"a sliding window of {3 * WINDOW} tokens, rotary angles that depend on the length",
    "Llama, stretched as it goes": "rotary angles that depend on the length",
}


@pytest.mark.parametrize("names", EAGER)
def test_a_compiled_pass_refuses_what_it_does_not_know_in_one_sentence_and_decode_goes_on(names: str):
    model, told = tiny(names), []
    assert not compile_decode(model, told.append)
    assert told == [
        "going on without compiled decode: compiled decode is made for a plain Llama, "
        f"and this model has {EAGER[names]}"
    ]
    assert model.decode_pass is None
    with pytest.raises(InputError, match="compiled decode is made for a plain Llama"):
        TorchDecodePass(model)


@pytest.mark.parametrize("names", COMPILED)
def test_what_is_a_plain_llama_to_the_compiled_passes(names: str):
    require_plain_llama(tiny(names).config)


@pytest.mark.parametrize("names", ["Qwen3", "Llama, stretched by YaRN"])
def test_the_exercises_do_not_run_a_model_beyond_them(names: str):
    with pytest.raises(InputError, match="--mine: the exercises write a plain Llama, and this model has"):
        check_exercises_fit(tiny(names).config)
    check_exercises_fit(tiny("SmolLM, SmolLM2").config)
