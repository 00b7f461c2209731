"""Static batching: the same tokens, a batch at a time, with room for the longest of it reserved for every member."""

import random

import pytest
from test_engine import SMALL, prompts, solo
from tiny import random_ids

from minillm.engine import Engine
from minillm.engine.block_pool import blocks_for
from minillm.engine.request import Request
from minillm.engine.static_scheduler import StaticScheduler
from minillm.errors import InputError
from minillm.sampling_params import SamplingParams


def static_engine(**sizes) -> Engine:
    return Engine(SMALL, **{"num_blocks": 200, "block_size": 4, "policy": StaticScheduler, **sizes})


def step_by_step(engine):
    """(who runs, who waits, blocks in use) in each step, until all have ended."""
    seen = []
    schedule = engine.scheduler.schedule

    def watched():
        plan = schedule()
        assert not plan.preempted, "whoever runs has all its blocks"
        seen.append((list(engine.scheduler.running), list(engine.scheduler.waiting), engine.scheduler.pool.num_used))
        return plan

    engine.scheduler.schedule = watched
    while engine.has_work:
        engine.step()
        assert len(seen) < 5000, "the engine does not come to an end"
    return seen


@pytest.mark.parametrize(
    "sizes",
    [{}, {"num_blocks": 24}, {"max_batch_size": 3, "token_budget": 5}, {"block_size": 7, "num_blocks": 20}],
    ids=["roomy", "tight", "small budget", "odd blocks"],
)
def test_tokens_are_those_of_a_solo_run(sizes) -> None:
    engine = static_engine(**sizes)
    wishes = [
        SamplingParams(max_tokens=12),
        SamplingParams(max_tokens=20, temperature=0.9, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=1),
    ]
    requests = [engine.add(ids, wishes[i % 3]) for i, ids in enumerate(prompts(9, seed=4))]
    step_by_step(engine)
    for request in requests:
        expected = solo(request.prompt_ids, request.params, SMALL)
        assert (list(request.generated_ids), request.finish_reason) == expected
    assert engine.scheduler.pool.num_used == 0


def test_nobody_is_admitted_while_a_batch_runs() -> None:
    engine = static_engine(max_batch_size=2)
    lengths = [2, 12, 2, 2, 2]
    requests = [engine.add([1, 2, i], SamplingParams(max_tokens=n, ignore_eos=True)) for i, n in enumerate(lengths)]
    batches = []
    for running, _, _ in step_by_step(engine):
        if not batches or not set(running) <= set(batches[-1]):
            assert not batches or not set(running) & set(batches[-1]), "a batch was filled up while it ran"
            batches.append(running)
    assert batches == [requests[:2], requests[2:4], requests[4:]]


def test_who_comes_while_a_batch_runs_waits_for_its_end() -> None:
    engine = static_engine()
    first = engine.add([1, 2], SamplingParams(max_tokens=6, ignore_eos=True))
    engine.step()
    second = engine.add([3], SamplingParams(max_tokens=1))
    while first.finish_reason is None:
        assert second in engine.scheduler.waiting
        engine.step()
    assert second.num_generated == 0
    step_by_step(engine)
    assert second.finish_reason is not None


def test_every_member_reserves_for_the_longest_until_all_have_ended() -> None:
    engine = static_engine()
    wanted = [(3, 2), (30, 11), (5, 20)]  # prompt, completion: the second is the longest, with 40 tokens to hold
    for length, most in wanted:
        engine.add(random_ids(length)[0].tolist(), SamplingParams(max_tokens=most, ignore_eos=True))
    seen = step_by_step(engine)
    assert len(seen) == 20
    assert {used for _, _, used in seen} == {3 * blocks_for(40, 4)}, "from the first step to the last"
    assert len(seen[-1][0]) == 1, "two had ended long before"


def test_a_batch_takes_no_more_members_than_there_are_reservations_for() -> None:
    engine = static_engine(num_blocks=10)  # 40 tokens
    short = [engine.add([i + 1], SamplingParams(max_tokens=8, ignore_eos=True)) for i in range(3)]  # 2 blocks each
    long = engine.add(random_ids(13)[0].tolist(), SamplingParams(max_tokens=4, ignore_eos=True))  # 4 blocks
    last = engine.add([9], SamplingParams(max_tokens=1))
    seen = step_by_step(engine)
    # With the long one, each of four would reserve 4 blocks: 16 of 10. It comes next, and the last one along with it.
    assert seen[0][0] == short
    assert seen[-1][0] == [long]
    assert [long, last] in [running for running, _, _ in seen]


def test_a_request_that_can_never_fit_is_refused() -> None:
    engine = static_engine(num_blocks=4)
    with pytest.raises(InputError, match="needs 5 blocks of 4 tokens, and there are 4"):
        engine.add(random_ids(10)[0].tolist(), SamplingParams(max_tokens=8))
    assert not engine.has_work
    request = engine.add(random_ids(10)[0].tolist(), SamplingParams(max_tokens=7, ignore_eos=True))
    step_by_step(engine)
    assert request.num_generated == 7


@pytest.mark.parametrize("seed", range(4))
def test_aborts_at_any_moment_leak_nothing(seed) -> None:
    chance = random.Random(seed)
    engine = static_engine(num_blocks=30, max_batch_size=4, token_budget=9)
    requests: list[Request] = []
    for ids in prompts(12, seed=seed):
        requests.append(engine.add(ids, SamplingParams(max_tokens=chance.randint(1, 9))))
    aborted = set()
    while engine.has_work:
        if chance.random() < 0.4:
            request = chance.choice(requests)
            if request.finish_reason is None:
                aborted.add(request)
            for _ in range(2):  # a second time does nothing
                engine.abort(request.request_id)
        used = engine.scheduler.pool.num_used
        assert engine.scheduler.running or not used, "blocks are kept for nobody"
        engine.step()
    assert engine.scheduler.pool.num_used == 0
    for request in requests:
        tokens, reason = solo(request.prompt_ids, request.params, SMALL)
        assert request.finish_reason == ("abort" if request in aborted else reason)
        assert list(request.generated_ids) == tokens[: request.num_generated]


def test_prefixes_are_not_shared_and_whoever_asks_for_it_is_told() -> None:
    with pytest.raises(InputError, match="static batching shares no prefixes"):
        static_engine(prefix_caching=True)
    engine = static_engine()
    requests = [engine.add([1, 2, 3, 4, 5, 6], SamplingParams(max_tokens=2)) for _ in range(3)]
    step_by_step(engine)
    assert [request.num_cached for request in requests] == [0, 0, 0]
