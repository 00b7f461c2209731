"""The front door on a tiny random model: the relations that must hold for any model."""

import json

import pytest
import torch
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.errors import InputError, MissingError, NumbersError
from minillm.kv_cache import NoCache
from minillm.prefill import prefill

PROMPTS = ["the cat", "a", "naïve 🙂 flag 🇩🇪", "12345", " leading space", "line\nbreak\n\n", "x" * 40]


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=256)


@pytest.fixture(scope="module")
def tiny(tiny_dir):
    return LLM(tiny_dir, device="cpu", dtype="float32")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_joined_pieces_of_the_stream_are_the_text_of_generate(tiny, prompt, temperature):
    """A random model spells random bytes: unfinished and invalid UTF-8 is the normal case here."""
    params = SamplingParams(max_tokens=60, temperature=temperature, seed=5, ignore_eos=True)
    completion = tiny.generate(prompt, params)
    assert "".join(tiny.stream(prompt, params)) == completion.text
    assert tiny.tokenizer.decode(completion.token_ids) == completion.text
    assert len(completion.token_ids) == 60


def test_a_list_of_prompts_gives_each_ones_own_completion(tiny):
    params = SamplingParams(max_tokens=12, temperature=0.8, seed=1)
    together = tiny.generate(PROMPTS, params)
    assert [c.token_ids for c in together] == [tiny.generate(p, params).token_ids for p in PROMPTS]


def test_one_bad_prompt_in_a_list_is_refused_before_any_is_run(tiny, monkeypatch):
    monkeypatch.setattr(type(tiny.model), "forward", lambda *args: pytest.fail("a prompt was run"))
    with pytest.raises(InputError, match="prompt is empty"):
        tiny.generate(["the cat", ""])


def test_no_cache_gives_the_same_completion(tiny):
    params = SamplingParams(max_tokens=20)
    running = tiny.start("the cat", params, use_cache=False)
    text = "".join(piece.text for piece in running)
    assert text == tiny.generate("the cat", params).text
    assert running.completion().metrics.kv_bytes == 0


def test_a_stop_string_cuts_the_text_before_it_and_ends_the_request(tiny):
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    free = tiny.generate("the cat", params)
    stop = free.text[11:14]
    cut = tiny.generate("the cat", SamplingParams(max_tokens=60, ignore_eos=True, stop=stop))
    assert cut.text == free.text[: free.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert len(cut.token_ids) < 60, "no token is computed after the match"
    pieces = list(tiny.stream("the cat", SamplingParams(max_tokens=60, ignore_eos=True, stop=stop)))
    assert "".join(pieces) == cut.text


def test_metrics_add_up(tiny):
    completion = tiny.generate("the cat sat", SamplingParams(max_tokens=16, ignore_eos=True))
    m = completion.metrics
    per_token = 2 * 3 * 2 * 10 * 4
    assert (m.prompt_tokens, m.completion_tokens) == (len(completion.prompt_token_ids), 16)
    assert m.kv_bytes == (m.prompt_tokens + 15) * per_token, "the last token is never computed, so it has no K and V"
    assert 0 < m.ttft_s <= m.total_s
    assert m.total_s == pytest.approx(m.ttft_s + 15 * m.tpot_s)
    assert m.decode_tokens_per_s == pytest.approx(1 / m.tpot_s)


def test_one_token_has_no_time_per_output_token(tiny):
    m = tiny.generate("the cat", SamplingParams(max_tokens=1)).metrics
    assert m.tpot_s is None
    assert m.decode_tokens_per_s is None


def test_logprobs_are_given_on_request_only(tiny):
    assert tiny.generate("the", SamplingParams(max_tokens=3)).logprobs is None
    completion = tiny.generate("the", SamplingParams(max_tokens=3, logprobs=2, ignore_eos=True))
    assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    for entry in completion.logprobs:
        assert entry.top[0] == (entry.token_id, pytest.approx(entry.logprob)), "greedy: the chosen token is the best"
        assert len(entry.top) == 2


def test_a_request_given_up_midway_reports_what_it_had(tiny):
    running = tiny.start("the cat", SamplingParams(max_tokens=50, ignore_eos=True))
    pieces = iter(running)
    for _ in range(4):
        next(pieces)
    completion = running.completion()
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == 4


def test_a_request_given_up_midway_gives_what_it_held_back(tiny):
    """Half of a stop string, half of a character: at the end of a request nothing may be lost."""
    free = tiny.generate("the cat", SamplingParams(max_tokens=30, ignore_eos=True))
    params = SamplingParams(max_tokens=30, ignore_eos=True, stop=free.text[:8] + "ZZZZ")
    running = tiny.start("the cat", params)
    pieces = iter(running)
    for _ in range(4):
        next(pieces)
    completion = running.completion()
    assert completion.text == tiny.tokenizer.decode(completion.token_ids)
    assert completion.text.startswith(running.text)
    assert len(running.text) < len(completion.text)


def test_a_request_runs_once(tiny):
    """Run again, it would write its prompt behind its own completion in the cache."""
    running = tiny.start("the cat", SamplingParams(max_tokens=2))
    assert [*running]
    with pytest.raises(InputError, match="already"):
        next(iter(running))


def test_tools_and_other_variables_reach_the_chat_template(tmp_path):
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ tools | tojson }}{{ 'think' if thinking }}"
    llm = LLM(save_tiny_model(tmp_path, chat_template=template), device="cpu", dtype="float32")
    messages, params = [{"role": "user", "content": "hi"}], SamplingParams(max_tokens=2)
    variables = {"tools": [{"name": "f"}], "thinking": True}
    prompt = llm.start(messages, params, variables=variables).prompt_ids
    assert llm.tokenizer.decode(prompt) == 'hi[{"name": "f"}]think'
    answer = llm.chat(messages, params, **variables)
    assert answer.metrics.prompt_tokens == len(prompt)
    assert "".join(llm.stream_chat(messages, params, **variables)) == answer.text
    with pytest.raises(InputError, match="does not use 'tool'"):
        llm.chat(messages, params, tool=[])
    with pytest.raises(InputError, match="without tools, thinking: give messages"):
        llm.start("hi", params, variables=variables)


def test_a_chat_is_its_rendered_template(tiny):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    answer = tiny.chat(messages, SamplingParams(max_tokens=5))
    expected = tiny.tokenizer.encode_chat(messages)
    assert list(answer.prompt_token_ids) == expected
    assert "".join(tiny.stream_chat(messages, SamplingParams(max_tokens=5))) == answer.text


def test_end_of_sequence_ids_are_united_from_every_file_that_states_them(tmp_path):
    """Bugs of this kind end a chat never: the id stands in generation_config.json alone, or as a list."""
    directory = save_tiny_model(tmp_path)
    (directory / "generation_config.json").write_text('{"eos_token_id": [7, 9]}', encoding="utf-8")
    llm = LLM(directory, device="cpu", dtype="float32")
    assert set(llm.config.eos_token_ids) == {7, 9, llm.tokenizer.token_to_id("<|im_end|>")}


def test_a_table_rounded_up_beyond_the_vocabulary_is_no_trouble(tmp_path):
    """Llama-family models pad their embedding to a multiple of 64 or 128; a random model chooses such ids too."""
    llm = LLM(save_tiny_model(tmp_path, vocab_size=384), device="cpu", dtype="float32")
    spelled = llm.tokenizer.encode("the cat sat on the mat")
    assert max(spelled) < 320
    padding = dict.fromkeys(range(320, 384), 100.0)
    completion = llm.generate("the cat", SamplingParams(max_tokens=5, logit_bias=padding))
    assert all(token_id >= 320 for token_id in completion.token_ids)
    assert completion.text == ""
    with pytest.raises(InputError, match="outside the vocabulary"):
        llm.tokenizer.decode([384])


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="do not belong together"):
        LLM(save_tiny_model(tmp_path, vocab_size=259))


def test_an_empty_prompt_is_refused(tiny):
    with pytest.raises(InputError, match="prompt is empty"):
        tiny.generate("")


def test_a_whitespace_prompt_is_a_prompt(tiny):
    assert len(tiny.generate("  \n", SamplingParams(max_tokens=2, ignore_eos=True)).token_ids) == 2


@pytest.mark.parametrize("extra", [0, 1, 500])
def test_a_prompt_that_fills_the_context_is_refused_not_cut(tiny, extra):
    with pytest.raises(InputError, match=f"{256 + extra} tokens"):
        tiny.generate("\x01" * (256 + extra))
    tiny.generate("\x01" * 255, SamplingParams(max_tokens=5))


def test_generation_ends_where_the_context_does(tiny):
    completion = tiny.generate("\x01" * 250, SamplingParams(max_tokens=50, ignore_eos=True))
    assert len(completion.token_ids) == 6
    assert completion.finish_reason == "length"


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", [1, 2], [b"x"], ["ok", None], "\ud800"])
def test_a_prompt_of_the_wrong_type_is_one_sentence(tiny, prompt):
    with pytest.raises(InputError):
        tiny.generate(prompt)


def test_a_text_is_no_conversation_and_a_dict_no_params(tiny):
    with pytest.raises(InputError, match="chat takes messages"):
        tiny.chat("hello")
    with pytest.raises(InputError, match="SamplingParams"):
        tiny.generate("hello", {"max_tokens": 3})


def test_requests_that_run_side_by_side_do_not_touch_each_other(tiny):
    """There is no state outside a request: two generators advanced in turns give what each gives alone."""
    params = SamplingParams(max_tokens=20, temperature=0.7, seed=2, ignore_eos=True)
    alone = ["".join(tiny.stream(prompt, params)) for prompt in ("the cat", "the dog")]
    streams = [tiny.start(prompt, params) for prompt in ("the cat", "the dog")]
    iterators = [iter(stream) for stream in streams]
    for _ in range(25):
        for iterator in iterators:
            next(iterator, None)
    assert [stream.text for stream in streams] == alone


@pytest.mark.parametrize("dtype", ["float64", "int8", "", "Float32", torch.int32])
def test_an_unknown_dtype_is_refused_by_name(tiny_dir, dtype):
    with pytest.raises(InputError, match="unknown dtype"):
        LLM(tiny_dir, dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "tpu", "", "cpu:0:1"])
def test_an_unknown_device_is_refused_by_name(tiny_dir, device):
    with pytest.raises(InputError, match="unknown device"):
        LLM(tiny_dir, device=device)


def test_the_cpu_by_its_number_is_the_cpu(tiny_dir):
    assert LLM(tiny_dir, device="cpu:0").model.device == LLM(tiny_dir, device=torch.device("cpu", 0)).model.device


def test_cuda_asked_for_and_absent_is_one_sentence(tiny_dir, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(MissingError, match="sees no CUDA GPU"):
        LLM(tiny_dir, device="cuda")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_end_to_end(tiny_dir, dtype):
    llm = LLM(tiny_dir, device="cpu", dtype=dtype)
    completion = llm.generate("the cat", SamplingParams(max_tokens=10, ignore_eos=True))
    assert len(completion.token_ids) == 10
    assert completion.metrics.kv_bytes == (completion.metrics.prompt_tokens + 9) * 2 * 3 * 2 * 10 * 2


def test_a_cache_and_no_cache_at_once_are_refused(tiny):
    with pytest.raises(InputError, match="contradict"):
        tiny.start("x", use_cache=False, cache=tiny.new_cache(10))


@pytest.mark.parametrize("model", [None, 5, ["smollm2-135m"]])
def test_a_model_named_by_something_else_than_text_is_one_sentence(model):
    with pytest.raises(InputError, match="str or a Path"):
        LLM(model)


@pytest.mark.parametrize("model", ["x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have_is_no_model(model):
    with pytest.raises(MissingError, match="there is no model"):
        LLM(model)


def test_numbers_that_outgrow_the_dtype_are_one_sentence(tiny_dir):
    llm = LLM(tiny_dir, device="cpu", dtype="float16")
    llm.model.norm.weight.fill_(60000.0)
    with pytest.raises(NumbersError, match="float16 ends at"):
        llm.generate("the cat", SamplingParams(max_tokens=2))


def test_an_engine_says_what_it_is(tiny):
    assert "3 layers" in repr(tiny)
    assert "float32 on cpu" in repr(tiny)


def test_a_request_that_is_stopped_before_its_prefill_leaves_no_keys_of_a_longer_sequence(tmp_path):
    """Under longrope, keys computed beyond the original context are turned by other factors than those within it."""
    config = json.loads((save_tiny_model(tmp_path) / "config.json").read_text(encoding="utf-8"))
    rule = {"rope_type": "longrope", "original_max_position_embeddings": 30, "rope_theta": 10000.0}
    config["rope_parameters"] = {**rule, "short_factor": [1.0] * 5, "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    params, cache = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True), llm.new_cache(96)
    long = llm.start("1234" + "a" * 50, params, cache=cache)
    long.run()
    stopped = llm.start("1234" + "b" * 50, params, cache=cache, cached_ids=long.prompt_ids)
    kept = stopped.prompt_ids[: cache.length]
    short = llm.start("1234cc", params, cache=cache, cached_ids=kept)
    logits = prefill(llm.model, short.prompt_ids[cache.length :], cache)
    torch.testing.assert_close(logits, prefill(llm.model, short.prompt_ids, NoCache(llm.config)))


def test_keys_of_a_longer_dynamic_sequence_do_not_serve_a_shorter_one(tmp_path):
    """Under dynamic scaling the base grows with the sequence: what a long one left in the cache is turned too far."""
    config = json.loads((save_tiny_model(tmp_path) / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 30}), encoding="utf-8")
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    params, cache = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True), llm.new_cache(96)
    long = llm.start("1234" + "a" * 50, params, cache=cache)
    long.run()
    short = llm.start("1234cc", params, cache=cache, cached_ids=long.prompt_ids)
    logits = prefill(llm.model, short.prompt_ids[cache.length :], cache)
    torch.testing.assert_close(logits, prefill(llm.model, short.prompt_ids, NoCache(llm.config)))
