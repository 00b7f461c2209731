"""What batching does on paper, against plain counting."""

import random

import pytest

from minillm.machine.batching import decode_steps, largest_batch
from minillm.machine.roofline import Machine, decode_work, prefill_work, shortest_seconds, step_work
from minillm.machine.shape import num_params
from minillm.machine.well_known import BY_NAME

LLAMA = BY_NAME["llama-3-8b"].shape
H100 = Machine(3.35e12, 989.4e12)


@pytest.mark.parametrize("seed", range(20))
def test_steps_of_both_policies_are_those_of_a_batch_that_is_played_through(seed):
    chance = random.Random(seed)
    lengths = [chance.randint(1, 9) for _ in range(chance.randint(1, 15))]
    places = chance.randint(1, 5)
    for refill in (False, True):
        waiting, running, steps = list(lengths), [], 0
        while waiting or running:
            free = places - len(running) if refill or not running else 0
            running, waiting = running + waiting[:free], waiting[free:]
            running = [left - 1 for left in running if left > 1]
            steps += 1
        assert decode_steps(lengths, places, refill=refill) == steps


def test_refilling_never_takes_more_steps_and_no_policy_beats_full_places():
    lengths = [3, 100, 5, 8, 60, 2]
    static, continuous = (decode_steps(lengths, 2, refill=refill) for refill in (False, True))
    assert continuous <= static
    assert continuous >= sum(lengths) / 2


def test_without_requests_there_are_no_steps():
    assert decode_steps([], 3, refill=False) == decode_steps([], 3, refill=True) == 0


def test_a_step_of_decoding_requests_alone_is_a_decode_step():
    assert step_work(LLAMA, [(511, 1)] * 8, 8) == decode_work(LLAMA, 8, 512)


def test_a_step_of_one_whole_prompt_is_its_prefill():
    assert step_work(LLAMA, [(0, 700)], 1) == prefill_work(LLAMA, 700)


def test_a_chunk_that_samples_nothing_spares_the_head():
    head = LLAMA.vocab_size * LLAMA.hidden_size
    with_it, without = step_work(LLAMA, [(64, 64)], 1), step_work(LLAMA, [(64, 64)], 0)
    assert with_it.flops - without.flops == 2 * head
    assert with_it.bytes == without.bytes


@pytest.mark.parametrize(("memory", "tpot_s"), [(85e9, 1.0), (85e9, 0.02), (20e9, 0.02), (17e9, 1e-3), (10e9, 1.0)])
def test_the_largest_batch_is_within_both_limits_and_one_more_is_not(memory, tpot_s):
    def allowed(batch):
        held = 2 * num_params(LLAMA) + batch * 131_072 * 4096
        return held <= memory and shortest_seconds(decode_work(LLAMA, batch, 4096), H100) <= tpot_s

    batch = largest_batch(LLAMA, 4096, H100, memory, tpot_s)
    assert batch == 0 or allowed(batch)
    assert not allowed(batch + 1)
