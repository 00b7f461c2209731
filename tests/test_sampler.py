"""The sampler: steps against `transformers` or sums done by hand, draws against exact arithmetic, batches."""

import math
import random
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from minillm import logits_processors
from minillm.errors import InputError
from minillm.sampler import Sampled, SamplerState, SamplingParams, inverse_cdf, likeliest, sample, sample_one
from minillm.sampler import _as_numbers as as_numbers
from minillm.sampler import _process as process

VOCAB = 1000
NO_TOKENS = torch.zeros(1, 0, dtype=torch.long)


def random_logits(seed: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale  # [V]


def by_transformers(processor, logits: torch.Tensor, token_ids=None) -> torch.Tensor:
    ids = NO_TOKENS if token_ids is None else torch.tensor([token_ids])
    return processor(ids, logits[None].clone())[0]  # [V]


def kept(logits: torch.Tensor) -> list[int]:
    return logits.isfinite().nonzero().flatten().tolist()


# --- The likeliest --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("vocab", [1, 128, 1000, 49152])
def test_the_likeliest_is_the_first_of_the_highest(vocab, dtype):
    scores = torch.stack([random_logits(seed, vocab) for seed in range(5)]).to(dtype)  # [5, V]
    assert torch.equal(likeliest(scores), scores.argmax(dim=-1))
    few = (scores * 2).round()  # many of them tie
    few[1] = -torch.inf
    few[2, [vocab // 3, vocab // 2, vocab - 1]] = torch.inf
    few[3, [vocab // 2, vocab - 1]] = torch.nan
    assert torch.equal(likeliest(few), few.argmax(dim=-1))
    apart = scores.T.contiguous().T  # a row's numbers are no neighbours
    assert torch.equal(likeliest(apart), scores.argmax(dim=-1))
    assert torch.equal(likeliest(few[:, ::3]), few[:, ::3].argmax(dim=-1))
    assert torch.equal(likeliest(few[:1].expand(4, -1)), few[:1].argmax(dim=-1).expand(4))
    assert torch.equal(likeliest(scores.clone().requires_grad_()), scores.argmax(dim=-1))
    assert likeliest(scores[:0]).shape == (0,)


# --- Steps ----------------------------------------------------------------------------------------------


def test_logit_bias_adds_to_the_named_tokens_alone():
    logits = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(
        logits_processors.apply_logit_bias(logits, {2: -100.0, 0: 0.5}), torch.tensor([1.5, 2.0, -97.0])
    )


@pytest.mark.parametrize("penalty", [0.5, 1.3, 7.0])
def test_repetition_penalty_equals_transformers(penalty):
    logits, token_ids = random_logits(1), [5, 9, 5, 0, VOCAB - 1, 9, 123]
    theirs = by_transformers(RepetitionPenaltyLogitsProcessor(penalty), logits, token_ids)
    torch.testing.assert_close(
        logits_processors.apply_repetition_penalty(logits, token_ids, penalty), theirs, rtol=0, atol=0
    )


def test_presence_and_frequency_penalty_follow_the_formula_of_the_openai_api():
    # mu[j] - c[j] * frequency_penalty - (c[j] > 0) * presence_penalty, for c = 3, 0, 1, 0
    logits, counts = torch.tensor([2.0, 2.0, -1.0, 0.0]), {0: 3, 2: 1}
    by_frequency = logits_processors.apply_frequency_penalty(logits, counts, 0.5)
    torch.testing.assert_close(by_frequency, torch.tensor([0.5, 2.0, -1.5, 0.0]))
    by_presence = logits_processors.apply_presence_penalty(logits, counts, 0.25)
    torch.testing.assert_close(by_presence, torch.tensor([1.75, 2.0, -1.25, 0.0]))


def test_a_negative_penalty_makes_repeating_likelier():
    logits = torch.zeros(2)
    assert logits_processors.apply_presence_penalty(logits, [1], -0.5).tolist() == [0.0, 0.5]
    assert logits_processors.apply_frequency_penalty(logits, {1: 2}, -0.5).tolist() == [0.0, 1.0]


def test_repetition_penalty_sees_the_prompt_and_the_others_only_the_completion():
    state = SamplerState(SamplingParams(), prompt_token_ids=[0])
    state.observe(1)
    logits = torch.tensor([1.0, 1.0, 1.0])

    def processed(**penalty: float) -> list[float]:
        return logits_processors.process_logits(logits, SamplingParams(**penalty), state).tolist()

    assert processed(repetition_penalty=2.0) == [0.5, 0.5, 1.0]
    assert processed(presence_penalty=2.0) == [1.0, -1.0, 1.0]
    assert processed(frequency_penalty=2.0) == [1.0, -1.0, 1.0]


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 2.5])
def test_temperature_gives_the_distribution_of_transformers(temperature):
    logits = random_logits(2)
    theirs = by_transformers(TemperatureLogitsWarper(temperature), logits)
    ours = logits_processors.apply_temperature(logits, temperature)
    torch.testing.assert_close(ours.log_softmax(0), theirs.log_softmax(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("temperature", [1e-30, 1e-44, 1e-320])
def test_a_very_small_temperature_is_nearly_greedy_and_never_nan(temperature):
    # Plain division overflows to inf - inf in the softmax, or is 0 / 0 where float32 rounds the divisor to 0
    logits = random_logits(3) * 100
    probs = logits_processors.apply_temperature(logits, temperature).softmax(0)
    assert kept(probs.log()) == [int(logits.argmax())], "all of the probability belongs to the likeliest token"


@pytest.mark.parametrize("top_k", [1, 2, 50, VOCAB - 1, VOCAB, VOCAB + 1])
def test_top_k_equals_transformers(top_k):
    logits = random_logits(4)
    theirs = by_transformers(TopKLogitsWarper(top_k), logits)
    torch.testing.assert_close(logits_processors.keep_top_k(logits, top_k), theirs, rtol=0, atol=0)


def test_top_k_keeps_what_ties_with_the_last_token_kept_as_transformers_does():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 2.0, 0.0])
    assert kept(logits_processors.keep_top_k(logits, 2)) == [1, 2, 3, 4]
    assert kept(by_transformers(TopKLogitsWarper(2), logits)) == [1, 2, 3, 4]


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0, 10.0])
def test_top_p_equals_transformers(top_p, scale):
    logits = random_logits(5, scale=scale)
    theirs = by_transformers(TopPLogitsWarper(top_p), logits)
    torch.testing.assert_close(logits_processors.keep_top_p(logits, top_p), theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("top_p", "nucleus"), [(0.1, [1]), (0.49, [1]), (0.51, [1, 3]), (0.79, [1, 3]), (0.81, [0, 1, 3])]
)
def test_top_p_keeps_the_token_that_crosses_the_threshold(top_p, nucleus):
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    assert kept(logits_processors.keep_top_p(logits, top_p)) == nucleus


def test_top_p_keeps_what_ties_with_the_crossing_token_where_transformers_cuts_by_its_sort():
    logits = torch.tensor([0.25, 0.5, 0.25]).log()
    assert kept(logits_processors.keep_top_p(logits, 0.7)) == [0, 1, 2]
    assert len(kept(by_transformers(TopPLogitsWarper(0.7), logits))) == 2


def keep_top_p_by_full_sort(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """The definition, plainly: sort all, add up until `top_p` is reached, keep down to that value."""
    probs = logits.softmax(0)
    total = 0.0
    least = 0.0
    for prob in sorted(probs.tolist(), reverse=True):
        total, least = total + prob, prob
        if total >= top_p:
            break
    return torch.where(probs >= least, logits, torch.tensor(-math.inf))


@pytest.mark.parametrize("head", [1, 7, 256, 10 * VOCAB])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999999, 1.0 - 2**-53])
def test_looking_at_the_likeliest_first_changes_nothing_about_top_p(monkeypatch, head, top_p):
    monkeypatch.setattr(logits_processors, "NUCLEUS_HEAD", head)
    for seed, scale in enumerate([0.0, 0.1, 1.0, 3.0, 30.0]):
        for dtype in (torch.float32, torch.bfloat16):  # bfloat16 is coarse: many ties
            logits = random_logits(seed, scale=scale).to(dtype).float()
            expected = keep_top_p_by_full_sort(logits, top_p)
            assert torch.equal(logits_processors.keep_top_p(logits, top_p), expected), f"scale {scale}, {dtype}"


@pytest.mark.parametrize("min_p", [1e-6, 0.01, 0.3, 1.0])
def test_min_p_equals_transformers(min_p):
    logits = random_logits(6)
    theirs = by_transformers(MinPLogitsWarper(min_p), logits)
    torch.testing.assert_close(logits_processors.keep_min_p(logits, min_p), theirs, rtol=0, atol=0)


LOGITS = st.lists(
    st.one_of(st.floats(-(2.0**100), 2.0**100, width=32), st.floats(-5, 5, width=32), st.just(-math.inf)),
    min_size=1,
).filter(lambda logits: max(logits) > -math.inf)


@given(
    logits=LOGITS,
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    top_k=st.integers(0, 60),
    temperature=st.floats(0, 1e6, exclude_min=True),
)
def test_the_filters_always_leave_the_likeliest_token_and_add_none(logits, top_p, min_p, top_k, temperature):
    row = torch.tensor(logits)
    params = SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    processed = logits_processors.process_logits(row, params, SamplerState(params))
    assert not processed.isnan().any()
    assert int(row.argmax()) in kept(processed), "a nucleus is never empty"
    assert set(kept(processed)) <= set(kept(row)), "what was impossible stays impossible"


# --- Order ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_all_steps_together_equal_those_of_transformers_in_this_order(seed):
    logits, prompt, completion = random_logits(seed), [1, 2, 3], [7, 7, 8]
    params = SamplingParams(temperature=0.8, repetition_penalty=1.2, min_p=0.02, top_k=40, top_p=0.9)
    state = SamplerState(params, prompt)
    for token_id in completion:
        state.observe(token_id)
    theirs = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(1.2),
            TemperatureLogitsWarper(0.8),
            MinPLogitsWarper(0.02),
            TopKLogitsWarper(40),
            TopPLogitsWarper(0.9),
        ]
    )
    ours = logits_processors.process_logits(logits, params, state).softmax(0)
    expected = by_transformers(theirs, logits, prompt + completion).softmax(0)
    assert kept(ours.log()) == kept(expected.log())
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_the_bias_comes_before_the_repetition_penalty():
    # (-1 + 3) / 4 = 0.5; the other way round, -1 * 4 + 3 = -1.
    params = SamplingParams(logit_bias={0: 3.0}, repetition_penalty=4.0)
    state = SamplerState(params, prompt_token_ids=[0])
    assert logits_processors.process_logits(torch.tensor([-1.0, 0.0]), params, state).tolist() == [0.5, 0.0]


def test_the_repetition_penalty_comes_before_the_other_penalties():
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, frequency_penalty=1.0)
    state = SamplerState(params)
    state.observe(0)
    assert logits_processors.process_logits(torch.tensor([4.0]), params, state).tolist() == [0.0]  # 4 / 2 - 1 - 1


def test_the_filters_see_the_temperature():
    logits = torch.tensor([0.6, 0.3, 0.1]).log()
    cold, hot = (SamplingParams(temperature=t, top_p=0.8) for t in (0.25, 1.0))
    assert kept(logits_processors.process_logits(logits, cold, SamplerState(cold))) == [0]
    assert kept(logits_processors.process_logits(logits, hot, SamplerState(hot))) == [0, 1]


def test_top_p_counts_only_what_min_p_and_top_k_left():
    logits = torch.tensor([0.5, 0.2, 0.15, 0.15]).log()
    # Of the two tokens left, the first holds 0.5 / 0.7 = 71 %; of all four, only 50 %.
    for first_filter in ({"min_p": 0.35}, {"top_k": 2}):
        params = SamplingParams(temperature=1.0, top_p=0.7, **first_filter)
        assert kept(logits_processors.process_logits(logits, params, SamplerState(params))) == [0], first_filter


# --- Purity and odd rows --------------------------------------------------------------------------------

STEPS = {
    "logit_bias": lambda x: logits_processors.apply_logit_bias(x, {1: 5.0}),
    "repetition_penalty": lambda x: logits_processors.apply_repetition_penalty(x, [0, 1], 1.5),
    "frequency_penalty": lambda x: logits_processors.apply_frequency_penalty(x, {1: 2}, 0.5),
    "presence_penalty": lambda x: logits_processors.apply_presence_penalty(x, [1], 0.5),
    "temperature": lambda x: logits_processors.apply_temperature(x, 0.5),
    "min_p": lambda x: logits_processors.keep_min_p(x, 0.5),
    "top_k": lambda x: logits_processors.keep_top_k(x, 2),
    "top_p": lambda x: logits_processors.keep_top_p(x, 0.5),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_step_returns_new_logits_and_leaves_the_callers_alone(step, dtype):
    logits = random_logits(7, vocab=50).to(dtype)
    before = logits.clone()
    after = STEPS[step](logits)
    assert torch.equal(logits, before), "changed in place"
    assert not torch.equal(after, before), "did nothing, so this test would prove nothing"
    assert after.dtype == dtype


def test_sampling_leaves_the_callers_logits_alone():
    logits = torch.stack([random_logits(8), random_logits(9)])
    before = logits.clone()
    params = SamplingParams(temperature=0.5, top_k=3, top_p=0.5, repetition_penalty=2.0, logit_bias={0: 9.0})
    sample(logits, [params, SamplingParams()], [SamplerState(params, [1]), SamplerState(SamplingParams(), [1])])
    assert torch.equal(logits, before)


def test_logits_that_nobody_asks_to_change_are_not_copied():
    logits = torch.stack([random_logits(8), random_logits(9)])
    plain, biased = SamplingParams(logprobs=2), SamplingParams(logit_bias={0: 9.0})
    assert process(logits, [plain, plain], [SamplerState(plain, [1]) for _ in range(2)]) is logits
    processed = process(logits, [plain, biased], [SamplerState(plain), SamplerState(biased)])
    assert torch.equal(processed[0], logits[0])
    assert processed[1, 0] == logits[1, 0] + 9.0


def test_every_step_does_nothing_at_its_neutral_value():
    params = SamplingParams(temperature=1.0)
    state = SamplerState(params, prompt_token_ids=[1, 2])
    state.observe(3)
    logits = random_logits(10)
    processed = logits_processors.process_logits(logits, params, state)
    assert torch.equal(processed, logits - logits.max()), "only the shift that a softmax does not see"


ODD_ROWS = {
    "all equal": torch.zeros(VOCAB),
    "one token": torch.tensor([-3.0]),
    "huge": torch.tensor([1e30, -1e30, 0.0, 1e30]),
    "nearly all impossible": torch.tensor([-math.inf, -math.inf, 0.5, -math.inf]),
    "as large as float32 goes": torch.tensor([torch.finfo(torch.float32).max, 0.0]),
}
ODD_PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1e-30, seed=1),
    SamplingParams(temperature=1.0, top_k=2, seed=1),
    SamplingParams(temperature=1.0, top_p=0.3, seed=1),
    SamplingParams(temperature=1e6, min_p=1.0, seed=1),
    SamplingParams(temperature=1.0, top_p=0.3, min_p=0.1, top_k=1, repetition_penalty=1.3, logprobs=1, seed=1),
]


@pytest.mark.parametrize("row", ODD_ROWS)
@pytest.mark.parametrize("params", ODD_PARAMS, ids=range(len(ODD_PARAMS)))
def test_odd_rows_still_give_a_possible_token(row, params):
    logits = ODD_ROWS[row]
    chosen = sample_one(logits[None], params, SamplerState(params, [0]))
    assert logits[chosen.token_id] > -math.inf
    assert -math.inf < chosen.logprob <= 0.0


# --- The draw -------------------------------------------------------------------------------------------

ALMOST_ONE = 1.0 - 2.0**-53  # the largest number that a generator returns


@pytest.mark.parametrize(("u", "token_id"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (ALMOST_ONE, 4)])
def test_each_token_owns_the_half_open_interval_of_its_probability(u, token_id):
    assert inverse_cdf(torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0]), u) == token_id


@given(
    weights=st.lists(st.integers(0, 64), min_size=1, max_size=40).filter(any),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.just(ALMOST_ONE), st.integers(0, 255).map(lambda n: n / 256)),
)
def test_the_draw_is_exact_where_the_arithmetic_can_be(weights, u):
    weights = [*weights, 2**12 - sum(weights)]  # multiples of 2**-12: every sum is exact in float64
    probs = torch.tensor(weights) / 2**12
    running, expected = Fraction(0), None
    for token_id, weight in enumerate(weights):
        running += Fraction(weight, 2**12)
        if running > Fraction(u):
            expected = token_id
            break
    assert inverse_cdf(probs, u) == expected


@given(logits=LOGITS, u=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, ALMOST_ONE])))
def test_a_token_of_probability_zero_is_never_drawn(logits, u):
    probs = torch.tensor(logits).softmax(0)
    assert probs[inverse_cdf(probs, u)] > 0.0


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.05, 0.03, 0.015, 0.005])
    draws = 4000
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(draws // 4)]
    states = [SamplerState(p) for p in params]
    counts = torch.zeros(len(probs))
    for _ in range(4):
        for chosen in sample(probs.log().expand(len(params), -1), params, states):
            counts[chosen.token_id] += 1
    expected = probs * draws
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 24.3, f"7 degrees of freedom exceed 24.3 once in 1000 times; counts {counts.tolist()}"


def test_a_token_too_rare_for_a_float32_running_sum_keeps_its_share():
    # 1 + 1e-9 is 1 in float32: the second token would own no interval at all.
    probs = torch.tensor([1.0, 1e-9])
    assert inverse_cdf(probs, 1.0 - 2e-9) == 0
    assert inverse_cdf(probs, 1.0 - 0.5e-9) == 1


# --- Seeds and batches ----------------------------------------------------------------------------------


def complete(params: SamplingParams, steps: int = 20) -> list[int]:
    """A completion by a toy model whose logits depend on the last token."""
    state, token_ids = SamplerState(params, [3]), [3]
    for _ in range(steps):
        chosen = sample_one(random_logits(token_ids[-1], scale=1.0)[None], params, state)
        state.observe(chosen.token_id)
        token_ids.append(chosen.token_id)
    return token_ids[1:]


def test_a_seed_repeats_a_completion_and_another_seed_does_not():
    first = complete(SamplingParams(temperature=1.0, seed=11))
    assert complete(SamplingParams(temperature=1.0, seed=11)) == first
    assert complete(SamplingParams(temperature=1.0, seed=12)) != first
    assert complete(SamplingParams(temperature=1.0, seed=-11)) != first, "the sign is part of the seed"


def test_without_a_seed_completions_differ():
    assert complete(SamplingParams(temperature=1.0)) != complete(SamplingParams(temperature=1.0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_step_takes_exactly_one_number_from_its_own_generator(temperature):
    params = SamplingParams(temperature=temperature, top_k=3, seed=5)
    state, generator = SamplerState(params), random.Random(5)
    torch_state = torch.get_rng_state()
    for _ in range(3):
        sample_one(random_logits(1)[None], params, state)
        generator.random()
    assert state.next_uniform() == generator.random()
    assert torch.equal(torch.get_rng_state(), torch_state), "torch's shared generator must not move"


MIXED = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=1),
    SamplingParams(repetition_penalty=1.5, logprobs=3),
    SamplingParams(temperature=0.7, top_p=0.9, seed=2, logprobs=0),
    SamplingParams(temperature=1.5, top_k=20, min_p=0.01, seed=3, presence_penalty=1.0, frequency_penalty=0.5),
    SamplingParams(logit_bias={4: 100.0}),
    SamplingParams(temperature=1e-9, seed=4, logprobs=20),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_gets_the_same_tokens_and_logprobs_alone_and_in_any_batch(dtype):
    def run(requests: list[int]) -> dict[int, list[Sampled]]:
        states = {r: SamplerState(MIXED[r], [r, 50]) for r in requests}
        results: dict[int, list[Sampled]] = {r: [] for r in requests}
        for step in range(5):
            logits = torch.stack([random_logits(100 * r + step) for r in requests]).to(dtype)
            outcomes = sample(logits, [MIXED[r] for r in requests], [states[r] for r in requests])
            for r, outcome in zip(requests, outcomes, strict=True):
                states[r].observe(outcome.token_id)
                results[r].append(outcome)
        return results

    everyone = list(range(len(MIXED)))
    alone = {r: run([r])[r] for r in everyone}
    assert run(everyone) == alone
    assert run(everyone[::-1]) == alone
    assert run([1, 3]) == {r: alone[r] for r in (1, 3)}


def test_greedy_takes_the_lowest_id_of_equals():
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0]])
    assert sample_one(logits, SamplingParams(), SamplerState(SamplingParams())).token_id == 1


def test_bias_and_penalties_count_for_greedy_requests_too():
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    biased = SamplingParams(logit_bias={2: 5.0})
    assert sample_one(logits, biased, SamplerState(biased)).token_id == 2
    for penalty in ({"repetition_penalty": 2.0}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        params = SamplingParams(**penalty)
        state = SamplerState(params)
        state.observe(0)
        assert sample_one(logits, params, state).token_id == 1, penalty


# --- Log-probabilities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_log_probabilities_are_those_of_the_raw_logits_in_float32(dtype, temperature):
    logits = random_logits(12)[None].to(dtype)
    raw = torch.log_softmax(logits[0].float(), 0)
    params = SamplingParams(
        temperature=temperature, top_k=5, logit_bias={7: 30.0}, repetition_penalty=1.4, logprobs=4, seed=1
    )
    chosen = sample_one(logits, params, SamplerState(params, [1, 2]))
    assert chosen.token_id == 7, "the bias decides the token"
    assert chosen.logprob == raw[7].item(), "but not its log-probability"
    assert chosen.top_logprobs is not None
    assert [logprob for _, logprob in chosen.top_logprobs] == raw.topk(4).values.tolist()
    assert [raw[token_id].item() for token_id, _ in chosen.top_logprobs] == raw.topk(4).values.tolist()


def test_alternatives_that_tie_come_in_the_order_of_their_ids():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0, 1.0]])
    for count, expected in enumerate([[], [1], [1, 3], [1, 3, 2], [1, 3, 2, 4]]):
        params = SamplingParams(logprobs=count)
        chosen = sample_one(logits, params, SamplerState(params))
        assert chosen.top_logprobs is not None
        assert [token_id for token_id, _ in chosen.top_logprobs] == expected


class Elsewhere(torch.Tensor):
    """A tensor that says it is not on the CPU, and counts how often its numbers are asked for."""

    copies = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")

    def tolist(self) -> list[list[float]]:
        Elsewhere.copies += 1
        return super().tolist()


def test_what_was_chosen_comes_from_another_device_in_one_copy(monkeypatch):
    monkeypatch.setattr(Elsewhere, "copies", 0)
    columns = torch.tensor([[2**24 + 1], [3]]), torch.tensor([[-0.1], [-2.0]]), torch.tensor([[7.5], [-math.inf]])
    here = [tuple(row) for row in as_numbers(*columns)]
    there = [tuple(row) for row in as_numbers(*(column.as_subclass(Elsewhere) for column in columns))]
    assert there == here == [(2**24 + 1, columns[1][0].item(), 7.5), (3, -2.0, -math.inf)]
    assert Elsewhere.copies == 1


def test_alternatives_are_reported_only_on_request():
    logits = torch.tensor([[0.0, 2.0]])
    assert sample_one(logits, SamplingParams(), SamplerState(SamplingParams())).top_logprobs is None
    none_listed = SamplingParams(logprobs=0)
    assert sample_one(logits, none_listed, SamplerState(none_listed)).top_logprobs == ()


# --- Trouble --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 2])
def test_a_model_that_computes_nan_or_infinity_is_reported_as_a_fault_of_the_model(bad, temperature, place):
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    logits[1, place] = bad
    params = SamplingParams(temperature=temperature, top_p=0.9, top_k=2, min_p=0.1, seed=1)
    with pytest.raises(RuntimeError, match="row 1"):
        sample(logits, [params, params], [SamplerState(params), SamplerState(params)])


def test_a_row_without_any_possible_token_is_a_fault_of_the_model():
    with pytest.raises(RuntimeError, match="row 0"):
        sample_one(torch.full((1, 3), -math.inf), SamplingParams(), SamplerState(SamplingParams()))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_params_that_leave_no_token_are_refused_in_a_sentence(temperature):
    params = SamplingParams(temperature=temperature, repetition_penalty=3e38, top_p=0.5, seed=1)
    with pytest.raises(InputError, match="no token left to choose"):
        sample_one(torch.full((1, 3), -10.0), params, SamplerState(params, [0, 1, 2]))


def test_a_batch_with_too_few_params_or_states_is_refused():
    params = SamplingParams()
    with pytest.raises(InputError, match="2 rows of logits, 1 params and 2 states"):
        sample(torch.zeros(2, 3), [params], [SamplerState(params), SamplerState(params)])


def test_an_empty_batch_gives_nothing():
    assert sample(torch.zeros(0, 3), [], []) == []
