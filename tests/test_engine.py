"""The engine: whatever the batch, the budget, the pool and the history, a request's tokens are those of a solo run."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiny import random_ids, random_model, tiny_config

from minillm.config import RopeScaling
from minillm.decode import decode
from minillm.engine import Engine, Request
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.prefill import prefill
from minillm.sampling_params import SamplingParams

MODEL = random_model(tiny_config(eos_token_ids=(5,)))
SMALL = random_model(tiny_config(num_hidden_layers=1))
WINDOWED = random_model(tiny_config(sliding_window=7, sliding_layers=(0, 2)))


def solo(prompt, params, model=MODEL):
    """The tokens of a request alone, by `prefill` and `decode` on a dense cache."""
    cache = KVCache(model.config, min(len(prompt) + params.max_tokens, model.config.max_position_embeddings))
    logits = prefill(model, prompt, cache)
    steps = list(decode(model, logits, cache, params, prompt_ids=prompt))
    return [step.token_id for step in steps], steps[-1].finish_reason


def prompts(count, seed=0, shortest=1, longest=40):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [random_ids(length, seed=seed * 100 + i)[0].tolist() for i, length in enumerate(lengths)]


def run(engine):
    """Step until all is done, and check at every step that no block is lost and no step too large."""
    steps = 0
    while engine.has_work:
        engine.step()
        check_conserved(engine)
        steps += 1
        assert steps < 5000, "the engine does not come to an end"


def check_conserved(engine):
    """Every block is free or used; users are exactly the tables of requests that run."""
    pool, running = engine.scheduler.pool, engine.scheduler.running
    users = [0] * pool.num_blocks
    for request in running:
        for block in request.block_table:
            users[block] += 1
    assert users == [pool.users(block) for block in range(pool.num_blocks)]
    assert pool.num_free == users.count(0)
    assert all(not request.block_table and not request.num_computed for request in engine.scheduler.waiting)


MIXED = [
    SamplingParams(max_tokens=12),
    SamplingParams(max_tokens=9, temperature=0.8, top_p=0.9, seed=3),
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=7, repetition_penalty=1.3, frequency_penalty=0.4),
    SamplingParams(max_tokens=15, temperature=1.1, top_k=20, seed=11, ignore_eos=True),
    SamplingParams(max_tokens=1),
]


@pytest.mark.parametrize("model", [MODEL, WINDOWED], ids=["plain", "sliding window"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"num_blocks": 60, "block_size": 4},
        {"num_blocks": 200, "block_size": 1, "token_budget": 7, "max_batch_size": 5},
        {"num_blocks": 15, "block_size": 4, "max_batch_size": 8},  # 60 tokens: one request at its longest
        {"num_blocks": 9, "block_size": 7, "max_batch_size": 8, "prefix_caching": False},
        {"num_blocks": 4, "block_size": 16, "max_batch_size": 3, "token_budget": 5},
    ],
    ids=["roomy", "single slots", "tight", "tight, no prefixes", "four blocks"],
)
def test_tokens_are_those_of_a_solo_run(model, sizes) -> None:
    engine = Engine(model, **sizes)
    requests = [(prompt, MIXED[i % len(MIXED)]) for i, prompt in enumerate(prompts(12, seed=4))]
    running = [engine.add(prompt, params) for prompt, params in requests]
    run(engine)
    for request, (prompt, params) in zip(running, requests, strict=True):
        assert (list(request.generated_ids), request.finish_reason) == solo(prompt, params, model)
    assert engine.scheduler.pool.num_used == 0
    if sizes["num_blocks"] * sizes["block_size"] < 70:
        assert sum(request.num_preemptions for request in running) > 0, "this pool was to be too small"


def test_a_pass_over_many_requests_gives_the_logits_of_each_alone() -> None:
    prompt_ids = prompts(4, seed=9, shortest=6, longest=30)
    cache = PagedKVCache(MODEL.config, num_blocks=40, block_size=4)
    tables = [
        [7, 3, 9, 21, 4, 30, 11, 2],
        [5, 6, 8, 10, 12, 13, 14, 15],
        [39, 38, 37, 36, 35, 34, 33, 32],
        [16, 17, 18, 19, 20, 22, 23, 24],
    ]
    expected = []
    for ids in prompt_ids:
        expected.append(MODEL(torch.tensor([ids]), KVCache(MODEL.config, 40))[0])
    # In two passes: different amounts of each first, then the rest; the last request in a single token.
    first = [2, 5, 1, len(prompt_ids[3]) - 1]
    starts = [0] * 4
    for counts in (first, [len(ids) - n for ids, n in zip(prompt_ids, first, strict=True)]):
        spans = [Span(table, start, n) for table, start, n in zip(tables, starts, counts, strict=True)]
        row = [token for ids, span in zip(prompt_ids, spans, strict=True) for token in ids[span.start : span.end]]
        hidden = MODEL(torch.tensor([row]), PagedBatch(cache, spans))[0]
        for part, span, whole in zip(hidden.split(counts), spans, expected, strict=True):
            torch.testing.assert_close(part, whole[span.start : span.end], atol=2e-5, rtol=0)
        starts = [span.end for span in spans]


def test_a_shared_prefix_is_computed_once() -> None:
    engine = Engine(MODEL, num_blocks=200, block_size=4, max_batch_size=8, token_budget=64)
    prefix = random_ids(40, seed=77)[0].tolist()
    all_prompts = [prefix + ids for ids in prompts(8, seed=5, shortest=1, longest=6)]
    requests = [engine.add(ids, SamplingParams(max_tokens=5, ignore_eos=True)) for ids in all_prompts]
    run(engine)
    assert requests[0].num_cached == 0
    assert all(request.num_cached == 40 for request in requests[1:]), [r.num_cached for r in requests]
    for request, ids in zip(requests, all_prompts, strict=True):
        assert list(request.generated_ids) == solo(ids, request.params)[0]


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_a_prompt_that_is_all_in_the_cache_still_computes_its_last_token(length) -> None:
    engine = Engine(MODEL, num_blocks=20, block_size=16)
    ids, params = random_ids(length, seed=8)[0].tolist(), SamplingParams(max_tokens=6, ignore_eos=True)
    for expected in (0, min(length - 1, length // 16 * 16)):
        request = engine.add(ids, params)
        run(engine)
        assert request.num_cached == expected
        assert list(request.generated_ids) == solo(ids, params)[0]


def test_two_requests_that_share_their_last_block_do_not_write_into_it() -> None:
    """Copy on write: both are wholly in the cache, and each goes on in its own way."""
    engine = Engine(MODEL, num_blocks=20, block_size=8)
    ids = random_ids(16, seed=12)[0].tolist()
    engine.add(ids, SamplingParams(max_tokens=2))
    run(engine)
    one = engine.add(ids, SamplingParams(max_tokens=12, ignore_eos=True))
    other = engine.add(ids, SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0, seed=2))
    engine.step()
    assert one.block_table[0] == other.block_table[0]
    assert one.block_table[1] != other.block_table[1]
    run(engine)
    for request in (one, other):
        assert list(request.generated_ids) == solo(ids, request.params)[0]


def test_a_pool_that_one_request_fills_serves_the_same_prompt_again() -> None:
    """The whole prompt is found, all blocks are its own, and there is none left for a copy of the last one."""
    engine = Engine(MODEL, num_blocks=2, block_size=8)
    ids, params = random_ids(16, seed=3)[0].tolist(), SamplingParams(max_tokens=1)
    for _ in range(3):
        request = engine.add(ids, params)
        run(engine)
        assert (list(request.generated_ids), request.finish_reason) == solo(ids, params)


def test_what_can_never_fit_is_refused_at_once() -> None:
    engine = Engine(MODEL, num_blocks=4, block_size=4)
    ids = random_ids(10)[0].tolist()
    with pytest.raises(InputError, match="needs 5 blocks of 4 tokens, and there are 4"):
        engine.add(ids, SamplingParams(max_tokens=8))
    assert not engine.has_work
    request = engine.add(ids, SamplingParams(max_tokens=7))  # 16 tokens are held; the 17th is never computed
    run(engine)
    assert list(request.generated_ids) == solo(ids, request.params)[0]


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [([], "the prompt is empty"), ([1, 107], "token id 107 is outside"), ([-1], "-1 is outside"), ([1] * 96, "96")],
)
def test_a_bad_prompt_is_refused(ids, sentence) -> None:
    engine = Engine(MODEL, num_blocks=40, block_size=4)
    with pytest.raises(InputError, match=sentence):
        engine.add(ids, SamplingParams(max_tokens=1))
    assert not engine.has_work


def test_ids_of_requests_differ() -> None:
    engine = Engine(MODEL, num_blocks=40, block_size=4)
    engine.add([1, 2], SamplingParams(max_tokens=1), "0")
    with pytest.raises(InputError, match="there is a request '0' already"):
        engine.add([3], SamplingParams(max_tokens=1), "0")
    assert engine.add([3], SamplingParams(max_tokens=1)).request_id != "0"


def test_the_context_ends_a_request() -> None:
    engine = Engine(MODEL, num_blocks=24, block_size=4)
    ids = random_ids(90, seed=2)[0].tolist()
    request = engine.add(ids, SamplingParams(max_tokens=50, ignore_eos=True))
    run(engine)
    assert (len(request.token_ids), request.finish_reason) == (96, "length")


def test_a_request_that_has_nothing_left_to_choose_ends_alone() -> None:
    engine = Engine(MODEL, num_blocks=60, block_size=4)
    ids = prompts(3, seed=6)
    # In float32, 1e-38 as a repetition penalty makes infinities of the logits of the prompt's tokens.
    bad = engine.add(ids[0], SamplingParams(max_tokens=5, repetition_penalty=1e-45))
    good = [engine.add(one, SamplingParams(max_tokens=8, temperature=0.9, seed=i)) for i, one in enumerate(ids)]
    run(engine)
    assert bad.finish_reason == "error"
    assert bad.error is not None
    assert "no token left to choose" in bad.error
    for request, one in zip(good, ids, strict=True):
        assert list(request.generated_ids) == solo(one, request.params)[0]
    assert engine.scheduler.pool.num_used == 0


def test_numbers_that_became_nan_are_not_found_by_others(monkeypatch) -> None:
    engine = Engine(MODEL, num_blocks=30, block_size=4)
    ids, params = random_ids(17, seed=31)[0].tolist(), SamplingParams(max_tokens=4, ignore_eos=True)
    whole = MODEL.logits
    with monkeypatch.context() as patch:
        patch.setattr(MODEL, "logits", lambda hidden: whole(hidden) * float("nan"))
        engine.cache.keys.fill_(float("nan"))
        engine.cache.keys[:, 10:] = 0
        broken = engine.add(ids, params)
        run(engine)
    assert broken.finish_reason == "error"
    engine.cache.keys[:, 5:10] = 0  # what this test spoiled beyond the request's own blocks
    again = engine.add(ids, params)
    run(engine)
    assert again.num_cached == 0
    assert list(again.generated_ids) == solo(ids, params)[0]


def test_a_pass_that_fails_ends_its_requests_and_leaks_nothing(monkeypatch) -> None:
    engine = Engine(MODEL, num_blocks=60, block_size=4, max_batch_size=2)
    one, two, waiting = (engine.add(ids, SamplingParams(max_tokens=6)) for ids in prompts(3, seed=14))
    with monkeypatch.context() as patch:
        patch.setattr(MODEL, "logits", lambda hidden: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError):
            engine.step()
    assert [one.finish_reason, two.finish_reason, waiting.finish_reason] == ["error", "error", None]
    assert engine.scheduler.pool.num_used == 0
    run(engine)
    assert list(waiting.generated_ids) == solo(waiting.prompt_ids, waiting.params)[0]


def test_models_that_turn_keys_by_length_are_refused() -> None:
    scaling = RopeScaling("dynamic", 2.0, original_max_position_embeddings=48)
    with pytest.raises(InputError, match="'dynamic'"):
        Engine(random_model(tiny_config(rope_scaling=scaling)))


def test_decoding_requests_do_not_wait_for_a_long_prompt() -> None:
    engine = Engine(MODEL, num_blocks=60, block_size=4, token_budget=16)
    short = engine.add([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True))
    engine.step()
    engine.add(random_ids(80, seed=1)[0].tolist(), SamplingParams(max_tokens=2))
    for generated in range(2, 7):
        engine.step()
        assert short.num_generated == generated


def test_no_step_exceeds_its_budget(monkeypatch) -> None:
    engine = Engine(MODEL, num_blocks=100, block_size=4, token_budget=9, max_batch_size=4)
    for ids in prompts(10, seed=3):
        engine.add(ids, SamplingParams(max_tokens=5))
    sizes = []
    schedule = engine.scheduler.schedule

    def watched():
        plan = schedule()
        sizes.append((plan.num_tokens, len(engine.scheduler.running)))
        return plan

    monkeypatch.setattr(engine.scheduler, "schedule", watched)
    run(engine)
    assert max(tokens for tokens, _ in sizes) == 9
    assert max(batch for _, batch in sizes) == 4


class EngineMachine(RuleBasedStateMachine):
    """Requests come, go and are aborted in any order, on a pool that is too small for them."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(SMALL, num_blocks=12, block_size=3, max_batch_size=4, token_budget=8)
        self.expected: list[tuple[Request, list[int], str]] = []
        self.aborted: set[Request] = set()

    @rule(prompt=st.integers(0, 11), max_tokens=st.integers(1, 9), seed=st.integers(0, 2), drawn=st.booleans())
    def add(self, prompt, max_tokens, seed, drawn) -> None:
        # Few prompts, many of which begin alike: prefixes are found, shared and evicted.
        ids = random_ids(24, seed=prompt % 3)[0].tolist()[: 2 * prompt + 1]
        params = SamplingParams(max_tokens=max_tokens, temperature=0.9 if drawn else 0.0, seed=seed)
        self.expected.append((self.engine.add(ids, params), *solo_cached(prompt, max_tokens, seed, drawn)))

    @rule()
    def step(self) -> None:
        self.engine.step()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def abort(self, data) -> None:
        request, _, _ = data.draw(st.sampled_from(self.expected))
        ended = request.finish_reason
        self.engine.abort(request.request_id)
        assert request.finish_reason == (ended or "abort")
        if not ended:
            self.aborted.add(request)

    @invariant()
    def blocks_are_conserved(self) -> None:
        check_conserved(self.engine)

    @invariant()
    def tokens_are_those_of_a_solo_run(self) -> None:
        for request, tokens, reason in self.expected:
            generated = list(request.generated_ids)
            assert generated == tokens[: len(generated)]
            if request.finish_reason is not None and request not in self.aborted:
                assert (generated, request.finish_reason) == (tokens, reason)

    def teardown(self) -> None:
        run(self.engine)
        self.tokens_are_those_of_a_solo_run()
        assert all(request.finish_reason is not None for request, _, _ in self.expected)
        assert self.engine.scheduler.pool.num_used == 0


KNOWN: dict[tuple, tuple[list[int], str]] = {}


def solo_cached(prompt, max_tokens, seed, drawn):
    key = (prompt, max_tokens, seed, drawn)
    if key not in KNOWN:
        ids = random_ids(24, seed=prompt % 3)[0].tolist()[: 2 * prompt + 1]
        params = SamplingParams(max_tokens=max_tokens, temperature=0.9 if drawn else 0.0, seed=seed)
        KNOWN[key] = solo(ids, params, SMALL)
    return KNOWN[key]


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=15, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
