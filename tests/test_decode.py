"""The decode loop: which tokens come out, and every way in which it ends."""

from dataclasses import replace

import pytest
import torch
from tiny import random_ids, random_model

from minillm.decode import decode, ending_ids, finish_reason
from minillm.errors import InputError
from minillm.kv_cache import KVCache, NoCache
from minillm.prefill import prefill
from minillm.sampler import SamplingParams

PROMPT = random_ids(9)[0].tolist()


@pytest.fixture
def model():
    model = random_model()
    model.config = replace(model.config, eos_token_ids=())
    return model


def steps(model, params, *, cache=None, prompt=PROMPT, **kwargs):
    cache = cache or KVCache(model.config, 96)
    return list(decode(model, prefill(model, prompt, cache), cache, params, **kwargs))


def tokens(*args, **kwargs):
    return [step.token_id for step in steps(*args, **kwargs)]


def test_greedy_tokens_are_those_of_one_forward_pass_over_the_whole_text(model):
    """The oracle is the definition: token t is the argmax of the logits after tokens 0 .. t-1, computed afresh."""
    generated = tokens(model, SamplingParams(max_tokens=20))
    sequence = list(PROMPT)
    for token in generated:
        logits = prefill(model, sequence, KVCache(model.config, len(sequence)))
        assert token == int(logits.argmax()), f"after {len(sequence)} tokens"
        sequence.append(token)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=30),
        SamplingParams(max_tokens=30, temperature=0.9, seed=3),
        SamplingParams(max_tokens=30, temperature=1.3, top_p=0.9, top_k=40, min_p=0.01, seed=4),
        SamplingParams(max_tokens=30, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    ],
    ids=["greedy", "sampled", "filtered", "penalised"],
)
def test_without_a_cache_the_same_tokens_come_out(model, params):
    cached = tokens(model, params, prompt_ids=PROMPT)
    assert tokens(model, params, cache=NoCache(model.config), prompt_ids=PROMPT) == cached
    assert len(cached) == 30


def test_a_seed_repeats_its_tokens_and_another_seed_gives_others(model):
    one = SamplingParams(max_tokens=30, temperature=1.0, seed=1)
    assert tokens(model, one) == tokens(model, one)
    assert tokens(model, one) != tokens(model, replace(one, seed=2))


def test_exactly_one_new_token_is_computed_per_step(model, monkeypatch):
    widths = []
    forward = type(model).forward

    def counting(self, ids, cache):
        widths.append(ids.shape[1])
        return forward(self, ids, cache)

    monkeypatch.setattr(type(model), "forward", counting)
    tokens(model, SamplingParams(max_tokens=6), prompt_ids=PROMPT)
    assert widths == [9, 1, 1, 1, 1, 1], "one prefill, then one token per pass; the last token is never computed"
    widths.clear()
    tokens(model, SamplingParams(max_tokens=4), cache=NoCache(model.config), prompt_ids=PROMPT)
    assert widths == [9, 10, 11, 12], "without a cache, everything each time"


def test_max_tokens_ends_with_length(model):
    result = steps(model, SamplingParams(max_tokens=5))
    assert [step.finish_reason for step in result] == [None, None, None, None, "length"]


@pytest.mark.parametrize("as_stop_token_id", [False, True], ids=["end-of-sequence id", "stop_token_ids"])
def test_a_stop_token_ends_with_stop_and_is_the_last_step(model, as_stop_token_id):
    free = tokens(model, SamplingParams(max_tokens=20))
    stop = free[7]
    first = free.index(stop)
    params = SamplingParams(max_tokens=20, stop_token_ids=(stop,) if as_stop_token_id else ())
    if not as_stop_token_id:
        model.config = replace(model.config, eos_token_ids=(106, stop))
    result = steps(model, params)
    assert [step.token_id for step in result] == free[: first + 1]
    assert result[-1].finish_reason == "stop"


def test_a_stop_token_that_is_also_the_last_allowed_one_counts_as_stop(model):
    free = tokens(model, SamplingParams(max_tokens=3))
    model.config = replace(model.config, eos_token_ids=(free[2],))
    if free[2] not in free[:2]:
        assert steps(model, SamplingParams(max_tokens=3))[-1].finish_reason == "stop"


def test_ignore_eos_goes_on_but_a_stop_token_still_stops(model):
    free = tokens(model, SamplingParams(max_tokens=20))
    model.config = replace(model.config, eos_token_ids=(free[4],))
    assert tokens(model, SamplingParams(max_tokens=20, ignore_eos=True)) == free
    both = steps(model, SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=(free[4],)))
    assert both[-1].token_id == free[4]
    assert both[-1].finish_reason == "stop"


@pytest.mark.parametrize("with_prompt_ids", [False, True])
def test_a_full_context_ends_with_length(model, with_prompt_ids):
    kwargs = {"prompt_ids": PROMPT} if with_prompt_ids else {}
    result = steps(model, SamplingParams(max_tokens=1000), **kwargs)
    assert len(PROMPT) + len(result) == model.config.max_position_embeddings
    assert result[-1].finish_reason == "length"


def test_a_full_context_without_a_cache_ends_at_the_same_token(model):
    cached = steps(model, SamplingParams(max_tokens=1000))
    recomputed = steps(model, SamplingParams(max_tokens=1000), cache=NoCache(model.config), prompt_ids=PROMPT)
    assert [step.token_id for step in recomputed] == [step.token_id for step in cached]
    assert recomputed[-1].finish_reason == "length"


def test_a_step_is_handed_out_before_the_next_pass_is_computed(model):
    cache = KVCache(model.config, 96)
    running = decode(model, prefill(model, PROMPT, cache), cache, SamplingParams(max_tokens=9))
    next(running)
    assert cache.length == len(PROMPT)
    next(running)
    assert cache.length == len(PROMPT) + 1


def test_what_is_refused_is_refused_at_the_call_and_not_at_the_first_token(model):
    cache = KVCache(model.config, 96)
    logits = prefill(model, PROMPT, cache)
    with pytest.raises(InputError, match="stop strings"):
        decode(model, logits, cache, SamplingParams(stop="x"))


def test_a_reader_who_goes_away_leaves_a_whole_cache_to_go_on_with(model):
    whole = tokens(model, SamplingParams(max_tokens=9))
    cache = KVCache(model.config, 96)
    running = decode(model, prefill(model, PROMPT, cache), cache, SamplingParams(max_tokens=9))
    first = [next(running).token_id for _ in range(4)]
    running.close()
    assert cache.length == len(PROMPT) + 3
    logits = prefill(model, first[-1:], cache)
    rest = decode(model, logits, cache, SamplingParams(max_tokens=5))
    assert first + [step.token_id for step in rest] == whole


@pytest.mark.parametrize("length", [0, 5, 9])
def test_a_cache_that_is_cut_back_between_two_tokens_is_filled_again_and_the_tokens_stay_the_same(model, length):
    params, cache = SamplingParams(max_tokens=12), KVCache(model.config, 96)
    undisturbed = tokens(model, params, prompt_ids=PROMPT)
    generated = []
    for step in decode(model, prefill(model, PROMPT, cache), cache, params, prompt_ids=PROMPT):
        generated.append(step.token_id)
        if len(generated) == 4:
            cache.truncate(length)
    assert generated == undisturbed


def test_a_prompt_that_fills_the_context_gets_one_token(model):
    prompt = random_ids(96)[0].tolist()
    result = steps(model, SamplingParams(max_tokens=9), prompt=prompt)
    assert [step.finish_reason for step in result] == ["length"]


@pytest.mark.parametrize(
    ("token", "count", "length", "reason"),
    [(4, 3, 9, None), (2, 3, 9, "stop"), (4, 8, 9, "length"), (4, 3, 20, "length"), (4, 3, 21, "length"),
     (2, 8, 20, "stop"), (4, 7, 19, None)],
)  # fmt: skip
def test_the_token_itself_is_asked_first_and_then_either_limit(token, count, length, reason):
    assert finish_reason(token, {0, 2}, count, 8, length, 20) == reason


def test_the_ids_that_end_a_request_are_the_models_and_its_own(model):
    config = replace(model.config, eos_token_ids=(5, 9))
    own = SamplingParams(stop_token_ids=(9, 7))
    assert ending_ids(own, config) == {5, 7, 9}
    assert ending_ids(replace(own, ignore_eos=True), config) == {7, 9}


def test_log_probabilities_are_those_of_the_raw_logits_whatever_the_processors_do(model):
    params = SamplingParams(max_tokens=3, temperature=5.0, top_k=2, seed=0, logprobs=4)
    cache = KVCache(model.config, 96)
    logits = prefill(model, PROMPT, cache)
    expected = torch.log_softmax(logits[0], dim=-1)
    step = next(decode(model, logits, cache, params))
    assert step.logprob == pytest.approx(expected[step.token_id].item(), abs=1e-5)
    best = expected.topk(4)
    assert [token for token, _ in step.top_logprobs] == best.indices.tolist()
    assert [value for _, value in step.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("params", "cache", "prompt_ids", "sentence"),
    [
        (SamplingParams(stop="x"), "kv", None, "detokenizer.detokenize"),
        (SamplingParams(), "none", None, "needs prompt_ids"),
        (SamplingParams(repetition_penalty=1.1), "kv", None, "looks at the prompt"),
        (SamplingParams(), "kv", [1, 2], "prompt_ids has 2"),
        (SamplingParams(stop_token_ids=(107,)), "kv", None, "107"),
        (SamplingParams(logit_bias={500: 1.0}), "kv", None, "500"),
    ],
)
def test_what_the_loop_could_only_ignore_or_get_wrong_is_refused(model, params, cache, prompt_ids, sentence):
    chosen = KVCache(model.config, 96) if cache == "kv" else NoCache(model.config)
    with pytest.raises(InputError, match=sentence):
        steps(model, params, cache=chosen, prompt_ids=prompt_ids)


def penalised(model, prompt, penalties, count):
    """Greedy tokens with penalties, by the definition: each from a pass over everything, penalties worked here."""
    sequence, generated = list(prompt), []
    for _ in range(count):
        logits = prefill(model, sequence, KVCache(model.config, len(sequence)))[0].clone()
        for token in set(sequence):
            repetition = penalties.get("repetition_penalty", 1.0)
            logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
        for token in set(generated):
            logits[token] -= penalties.get("presence_penalty", 0.0)
            logits[token] -= penalties.get("frequency_penalty", 0.0) * generated.count(token)
        token = int(logits.argmax())
        sequence.append(token)
        generated.append(token)
    return generated


@pytest.mark.parametrize(
    "penalties",
    [{"repetition_penalty": 5.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}],
    ids=["repetition", "presence", "frequency"],
)
def test_penalties_count_the_prompt_and_every_token_generated(penalties):
    """Forgetting to tell the sampler of a token, or of the prompt, changes nothing that any other test sees."""
    model = random_model(std=0.1)
    model.config = replace(model.config, eos_token_ids=())
    expected = penalised(model, PROMPT, penalties, 30)
    assert expected != tokens(model, SamplingParams(max_tokens=30)), "the penalty must matter here"
    assert tokens(model, SamplingParams(max_tokens=30, **penalties), prompt_ids=PROMPT) == expected


def test_the_repetition_penalty_looks_at_the_prompt():
    model = random_model(std=0.1)
    prompt = list(PROMPT)
    for _ in range(2):  # put what is likeliest into the prompt, so that the penalty has something to change
        prompt.insert(0, int(prefill(model, prompt, KVCache(model.config, 20)).argmax()))
    cache = KVCache(model.config, 96)
    params = SamplingParams(repetition_penalty=100.0)
    first = next(decode(model, prefill(model, prompt, cache), cache, params, prompt_ids=prompt))
    assert first.token_id == penalised(model, prompt, {"repetition_penalty": 100.0}, 1)[0]
    assert first.token_id not in prompt
    assert cache.length == len(prompt)


def test_a_cache_that_no_memory_can_hold_is_one_sentence(model):
    config = replace(model.config, max_position_embeddings=10**12)
    with pytest.raises(InputError, match="more than there is"):
        KVCache(config, 10**12)


def test_a_cache_of_another_dtype_is_one_sentence(model):
    with pytest.raises(InputError, match=r"dtype=model\.dtype"):
        prefill(model, PROMPT, KVCache(model.config, 96, dtype=torch.bfloat16))


@pytest.mark.parametrize("ids", [[5.9, 2.0], [True, False], torch.tensor([1], dtype=torch.uint16)])
def test_what_is_no_whole_number_is_refused_not_rounded(model, ids):
    with pytest.raises(InputError, match="whole numbers"):
        prefill(model, ids, KVCache(model.config, 96))


@pytest.mark.parametrize(
    ("layer", "k_shape", "v_shape"),
    [(-1, (1, 2, 3, 10), (1, 2, 3, 10)), (3, (1, 2, 3, 10), (1, 2, 3, 10)), (0, (1, 1, 3, 10), (1, 1, 3, 10)),
     (0, (1, 2, 3, 1), (1, 2, 3, 1)), (0, (1, 2, 3, 10), (1, 2, 1, 10))],
)  # fmt: skip
def test_what_would_be_repeated_until_it_fits_the_cache_is_refused(model, layer, k_shape, v_shape):
    cache = KVCache(model.config, 96)
    cache.keys.zero_()
    with pytest.raises(InputError, match="do not fit a"):
        KVCache.append.__wrapped__(cache, layer, torch.ones(k_shape), torch.ones(v_shape))
    assert not cache.keys.any()


def test_a_cache_does_not_advance_backwards(model):
    with pytest.raises(InputError, match="see truncate"):
        KVCache(model.config, 96).advance(-1)


def test_ids_may_be_integers_of_any_width(model):
    narrow, wide = (torch.tensor([1, 2], dtype=dtype) for dtype in (torch.int32, torch.int64))
    logits = [prefill(model, ids, KVCache(model.config, 96)) for ids in (narrow, wide)]
    assert torch.equal(*logits)
