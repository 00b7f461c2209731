"""The scheduler without a model: thousands of steps on tiny pools, with a cache that remembers what was written where.

Each slot of the pretended cache holds the tokens of a sequence up to and including its own. Before a step computes a
token, every slot before it must hold exactly that request's tokens: a block that was shared wrongly, written by two or
handed out too early shows at once.
"""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.engine.block_pool import BlockPool, blocks_for
from minillm.engine.prefix_cache import PrefixCache, block_hash
from minillm.engine.request import Request
from minillm.engine.scheduler import Scheduler
from minillm.errors import InputError
from minillm.sampling_params import SamplingParams


class Simulation:
    """A scheduler, the pretended cache, and requests whose next token is a function of the tokens before it."""

    def __init__(self, **sizes) -> None:
        self.scheduler = Scheduler(**sizes)
        self.slots: dict[int, tuple[int, ...]] = {}
        self.live: list[Request] = []
        self.computed = 0

    def add(self, prompt, max_tokens) -> Request:
        request = Request(
            str(len(self.live)), tuple(prompt), SamplingParams(max_tokens=max_tokens), len(prompt) + max_tokens
        )
        self.scheduler.add(request)
        self.live.append(request)
        return request

    def step(self) -> None:
        plan = self.scheduler.schedule()
        assert plan.num_tokens <= self.scheduler.token_budget
        assert len(self.scheduler.running) <= self.scheduler.max_batch_size
        assert len({part.request for part in plan.scheduled}) == len(plan.scheduled)
        assert plan.scheduled or not self.live, "there is work, and a step does none"
        size = self.scheduler.block_size
        for source, target in plan.copies:
            for i in range(size):
                self.slots[target * size + i] = self.slots.get(source * size + i, ())
        for part in plan.scheduled:
            request, start = part.request, part.request.num_computed
            for position in range(start, start + part.num_tokens):
                assert self.scheduler.pool.users(request.block_table[position // size]) == 1, (
                    "a shared block is written"
                )
                self.slots[self.slot(request, position)] = tuple(request.token_ids[: position + 1])
        for part in plan.scheduled:  # once all are written: attention reads everything before
            for position in range(part.request.num_computed + part.num_tokens):
                held = self.slots.get(self.slot(part.request, position))
                assert held == tuple(part.request.token_ids[: position + 1]), "not this request's keys and values"
            self.computed += part.num_tokens
        self.scheduler.computed(plan)
        for part in plan.scheduled:
            request = part.request
            if not part.samples:
                continue
            request.token_ids.append(sum(request.token_ids) * 7 % 5)
            if len(request.token_ids) == request.max_length:
                self.end(request, "length")
        self.check()

    def slot(self, request, position) -> int:
        size = self.scheduler.block_size
        return request.block_table[position // size] * size + position % size

    def end(self, request, reason) -> None:
        request.finish_reason = reason
        self.scheduler.finish(request)
        if request in self.live:
            self.live.remove(request)

    def check(self) -> None:
        pool = self.scheduler.pool
        users = Counter(block for request in self.scheduler.running for block in request.block_table)
        assert all(pool.users(block) == users[block] for block in range(pool.num_blocks))
        assert pool.num_free + len(users) == pool.num_blocks
        for request in self.scheduler.running:
            needed = blocks_for(request.num_computed, self.scheduler.block_size)
            assert len(request.block_table) == needed, "a block too many or too few"
        assert {*self.scheduler.running, *self.scheduler.waiting} == set(self.live)


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_thousands_of_steps_on_tiny_pools(seed, prefix_caching) -> None:
    chance = random.Random(seed)
    size = chance.choice([1, 2, 3, 5])
    batch = chance.randint(1, 6)
    simulation = Simulation(
        num_blocks=blocks_for(chance.randint(14, 40), size),
        block_size=size,
        max_batch_size=batch,
        token_budget=batch + chance.randint(0, 12),
        prefix_caching=prefix_caching,
    )
    capacity = simulation.scheduler.pool.num_blocks * size
    steps = 0
    while steps < 300 or simulation.live:
        if steps < 300 and chance.random() < 0.3:
            # Tokens of two kinds only, so that prompts often begin alike.
            prompt = [chance.randint(0, 1) for _ in range(chance.randint(1, capacity - 1))]
            simulation.add(prompt, chance.randint(1, capacity + 1 - len(prompt)))
        if simulation.live and chance.random() < 0.05:
            request = chance.choice(simulation.live)
            simulation.end(request, "abort")
            simulation.end(request, "abort")  # twice is once
        simulation.step()
        steps += 1
        assert steps < 20_000, "requests do not end"
    assert simulation.scheduler.pool.num_used == 0


def test_the_oldest_request_makes_progress_whatever_comes_after_it() -> None:
    simulation = Simulation(num_blocks=10, block_size=2, max_batch_size=8, token_budget=8)
    simulation.add([0, 1, 2], 16)
    for number in range(60):
        oldest = simulation.live[0]
        before, preemptions = len(oldest.token_ids), oldest.num_preemptions
        simulation.add([3, number, 4, 5, 6], 6)
        for _ in range(2):
            simulation.step()
        if oldest.finish_reason is None:
            assert len(oldest.token_ids) > before
        assert oldest.num_preemptions == preemptions


def test_a_shared_prefix_of_many_requests_is_computed_once() -> None:
    """32 requests, 600 tokens in common, all there from the start: nine tenths of the prefill are saved, and more."""
    simulation = Simulation(num_blocks=400, block_size=16, max_batch_size=32, token_budget=2048)
    prefix = [i % 7 for i in range(600)]
    total = 0
    for number in range(32):
        prompt = [*prefix, 9, number]
        total += len(prompt)
        simulation.add(prompt, 1)
    while simulation.live:
        simulation.step()
    assert simulation.computed < 0.1 * total


def test_preempted_requests_go_on_where_they_were() -> None:
    simulation = Simulation(num_blocks=6, block_size=2, max_batch_size=4, token_budget=8, prefix_caching=False)
    requests = [simulation.add([i, i, i], 8) for i in range(3)]
    while simulation.live:
        simulation.step()
    assert sum(request.num_preemptions for request in requests) > 0
    for number, request in enumerate(requests):
        alone = [number] * 3
        while len(alone) < 11:
            alone.append(sum(alone) * 7 % 5)
        assert request.token_ids == alone


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"num_blocks": 0}, "at least 1 block"),
        ({"num_blocks": 4, "block_size": 0}, "must be at least 1"),
        ({"num_blocks": 4, "max_batch_size": 0}, "must be at least 1"),
        ({"num_blocks": 4, "max_batch_size": 9, "token_budget": 8}, r"token_budget \(8\) must be at least"),
    ],
)
def test_sizes_that_could_stop_everything_are_refused(sizes, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        Scheduler(**sizes)


def test_a_pool_hands_out_what_was_unused_longest_and_nothing_twice() -> None:
    reused = []
    pool = BlockPool(3, on_reuse=reused.append)
    first, second, third = (pool.allocate() for _ in range(3))
    assert sorted([first, second, third]) == [0, 1, 2]
    with pytest.raises(InputError, match="all 3 blocks are in use"):
        pool.allocate()
    pool.share(second)
    pool.free(second, keep=True)
    assert pool.num_free == 0, "it has another user"
    pool.free(first, keep=True)
    pool.free(second, keep=True)
    pool.free(third)
    with pytest.raises(InputError, match="nobody uses it"):
        pool.free(third)
    pool.share(first)  # found again: no longer to be handed out
    assert [pool.allocate(), pool.allocate()] == [third, second]
    assert (pool.num_free, pool.num_used) == (0, 3)
    assert reused[3:] == [third, second]


def test_equal_hashes_are_no_proof() -> None:
    """A hash that is the same for everything: what is found must still have the same tokens, back to the start."""
    cache = PrefixCache(2, hash_block=lambda parent, tokens: b"same" + bytes([len(parent) > 0]))
    cache.insert([1, 2, 3, 4], [10, 11])
    assert cache.find([1, 2, 3, 4, 5]) == [10, 11]
    assert cache.find([1, 2, 9, 9]) == [10]
    assert cache.find([7, 8, 3, 4]) == []
    cache.insert([7, 8, 3, 4], [20, 21])  # no room under its hash: it goes without
    assert cache.find([7, 8, 3, 4]) == []


def test_equal_tokens_under_an_equal_hash_still_need_the_same_prefix() -> None:
    cache = PrefixCache(2, hash_block=lambda parent, tokens: b"second" if parent else bytes(tokens))
    cache.insert([1, 2, 3, 4], [10, 11])
    cache.insert([7, 8], [20])
    assert cache.find([7, 8, 3, 4]) == [20]


def test_the_same_block_after_another_prefix_is_another_block() -> None:
    cache = PrefixCache(2)
    cache.insert([1, 2, 3, 4], [10, 11])
    assert cache.find([5, 6, 3, 4]) == []
    cache.forget(10)
    assert cache.find([1, 2, 3, 4]) == [], "without the first block, the second is out of reach"
    cache.insert([1, 2], [12])
    assert cache.find([1, 2, 3, 4]) == [12, 11], "and within reach again when it is back"
    assert (10 in cache, 12 in cache, len(cache)) == (False, True, 2)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), max_size=20), st.integers(1, 4))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_what_is_found_is_the_longest_common_prefix_in_full_blocks(known, wanted, size) -> None:
    cache = PrefixCache(size)
    cache.insert(known, list(range(len(known) // size)))
    shared = 0
    while shared < min(len(known), len(wanted)) and known[shared] == wanted[shared]:
        shared += 1
    assert cache.find(wanted) == list(range(shared // size))


def test_a_hash_covers_the_tokens_and_what_is_before_them() -> None:
    first = block_hash(b"", [1, 2])
    assert len(first) == 16
    assert len({first, block_hash(b"", [1, 3]), block_hash(first, [1, 2]), block_hash(b"", [1, 2, 0])}) == 4
    assert block_hash(b"", (1, 2)) == first
