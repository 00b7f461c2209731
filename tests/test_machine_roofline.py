"""The roofline's arithmetic, against numbers worked by hand and against operations that torch counts."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from minillm.attention import causal_mask
from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.kv_cache import KVCache, kv_bytes_per_token
from minillm.machine.roofline import (
    Machine,
    Work,
    attainable_flops,
    bound_by,
    decode_limit,
    decode_work,
    forward_bytes,
    forward_flops,
    mbu,
    mfu,
    prefill_work,
    shortest_seconds,
    smallest_compute_bound_batch,
    smallest_compute_bound_prompt,
    visible_pairs,
)
from minillm.machine.shape import ModelShape, num_params, shape_of
from minillm.metrics import decode_ceiling
from minillm.model import Llama, weight_bytes_per_pass

H100 = Machine(3.35e12, 989e12)
LLAMA_2_13B = ModelShape(32000, 5120, 13824, 40, 40, 40, 128, 4096)
LLAMA_3_8B = ModelShape(128256, 4096, 14336, 32, 32, 8, 128, 8192)
TINY = ModelConfig(
    vocab_size=101,
    hidden_size=32,
    intermediate_size=56,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=128,
)


def test_below_the_ridge_memory_limits_and_above_it_arithmetic():
    assert H100.ridge_point == pytest.approx(295, abs=0.5)
    assert attainable_flops(1.0, H100) == 3.35e12
    assert attainable_flops(H100.ridge_point, H100) == pytest.approx(989e12)
    assert attainable_flops(1e6, H100) == 989e12
    assert (bound_by(Work(2.0, 1.0), H100), bound_by(Work(1e6, 1.0), H100)) == ("memory", "compute")


def test_the_slower_of_reading_and_computing_decides_how_long_a_pass_takes():
    machine = Machine(10.0, 1000.0)
    assert shortest_seconds(Work(flops=500.0, bytes=20.0), machine) == 2.0
    assert shortest_seconds(Work(flops=5000.0, bytes=20.0), machine) == 5.0


@pytest.mark.parametrize(("batch", "new_tokens", "context"), [(1, 7, 0), (3, 1, 11), (2, 5, 6)])
def test_the_operations_are_those_that_torch_counts(batch, new_tokens, context):
    """Torch's counter leaves out norms and the softmax, and counts masked pairs of a prompt: both are accounted for."""
    model = Llama(TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    cache = KVCache(TINY, 64, batch)
    model(torch.ones(batch, context, dtype=torch.long), cache) if context else None
    cache.advance(context)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # the fused kernel is not counted
        hidden = model(torch.ones(batch, new_tokens, dtype=torch.long), cache)
        model.logits(hidden[:, -1])
    counted = counter.get_total_flops()
    per_pair = 4 * TINY.num_attention_heads * TINY.head_dim * TINY.num_hidden_layers
    square, triangle = new_tokens * (context + new_tokens), sum(context + i for i in range(1, new_tokens + 1))
    masked = batch * per_pair * (square - triangle)
    norms = 2 * batch * new_tokens * (2 * TINY.num_hidden_layers + 1) * TINY.hidden_size
    assert forward_flops(shape_of(TINY), batch, new_tokens, context) == counted - masked + norms


def test_the_bytes_are_those_of_the_model_and_of_its_cache():
    model = Llama(TINY)
    per_token = kv_bytes_per_token(TINY, torch.float32)
    read = forward_bytes(shape_of(TINY), 3, 2, 11, bytes_per_weight=4.0, bytes_per_kv=4.0)
    assert read == weight_bytes_per_pass(model) + 3 * 13 * per_token


def test_the_example_of_the_h100():
    """26 GB over 3.35 TB/s, about 129 tokens/s, is the ceiling for an empty cache; each token of context lowers it."""
    assert num_params(LLAMA_2_13B) == 13_015_864_320
    one = decode_work(LLAMA_2_13B, 1, 1)
    assert decode_limit(one, 1, H100) == pytest.approx(130.3, abs=0.1), "the embedding is not read: 25.7 GB are"
    long = decode_work(LLAMA_2_13B, 1, 4096)
    assert long.bytes - one.bytes == 4095 * 819_200
    assert decode_limit(long, 1, H100) == pytest.approx(decode_ceiling(3.35e12, one.bytes - 819_200, 4096.0 * 819_200))


def test_weights_are_read_once_for_a_batch_and_keys_and_values_once_per_sequence():
    one, many = (decode_work(LLAMA_2_13B, batch, 1000) for batch in (1, 32))
    assert many.bytes - one.bytes == 31 * 1000 * 819_200
    assert many.flops == 32 * one.flops
    assert decode_limit(many, 32, H100) / decode_limit(one, 1, H100) == pytest.approx(32 * one.bytes / many.bytes)


def test_prefill_of_a_long_prompt_is_bound_by_arithmetic_and_decode_by_memory():
    prefill = Work(float(forward_flops(LLAMA_3_8B, 1, 4096)), forward_bytes(LLAMA_3_8B, 1, 4096))
    assert bound_by(prefill, H100) == "compute"
    assert bound_by(decode_work(LLAMA_3_8B, 1, 4096), H100) == "memory"


@pytest.mark.parametrize("context", [1, 100, 300])
def test_the_smallest_batch_is_bound_by_arithmetic_and_one_less_by_memory(context):
    batch = smallest_compute_bound_batch(LLAMA_3_8B, context, H100)
    assert batch is not None
    assert bound_by(decode_work(LLAMA_3_8B, batch, context), H100) == "compute"
    assert bound_by(decode_work(LLAMA_3_8B, batch - 1, context), H100) == "memory"


@pytest.mark.parametrize("context", [1, 77, 300])
def test_a_batch_exactly_at_the_ridge_is_bound_by_arithmetic(context):
    for batch in (1, 2, 3, 7, 50, 99, 200):
        work = decode_work(LLAMA_3_8B, batch, context)
        for speed in (1.0, 0.1, 1 / 3):  # the last two are no exact halves: the ridge itself is rounded
            machine = Machine(work.bytes * speed, work.flops * speed)
            exact = Fraction(machine.flops_per_s) / Fraction(machine.bandwidth_bytes_per_s)
            expected = "compute" if Fraction(work.flops) / Fraction(work.bytes) >= exact else "memory"
            assert bound_by(work, machine) == expected
            found = smallest_compute_bound_batch(LLAMA_3_8B, context, machine)
            assert found == (batch if expected == "compute" else batch + 1)
        assert bound_by(work, Machine(work.bytes, work.flops)) == "compute"


def test_where_keys_and_values_alone_keep_memory_busy_no_batch_is_large_enough():
    assert smallest_compute_bound_batch(LLAMA_3_8B, 4096, H100) is None
    assert bound_by(decode_work(LLAMA_3_8B, 10**9, 4096), H100) == "memory"


def test_a_window_bounds_what_is_read_and_computed():
    windowed = replace(LLAMA_3_8B, sliding_window=100)
    assert decode_work(windowed, 1, 5000) == decode_work(LLAMA_3_8B, 1, 100)
    head = 2 * LLAMA_3_8B.vocab_size * LLAMA_3_8B.hidden_size
    further = 50 * (forward_flops(LLAMA_3_8B, 1, 1, 99) - head)  # 50 tokens more, each as if it were the 100th
    assert forward_flops(windowed, 1, 150) == forward_flops(LLAMA_3_8B, 1, 100) + further


def test_the_pairs_are_those_that_a_loop_counts():
    shape = replace(shape_of(TINY), sliding_window=7)
    nothing = forward_flops(shape, 1, 1, 0) - 4 * 60 * 3
    per_token = nothing - 2 * 101 * 32
    for context in (0, 3, 6, 7, 20):
        for new_tokens in (1, 2, 5, 30):
            pairs = sum(min(7, context + i) for i in range(1, new_tokens + 1))
            expected = per_token * new_tokens + 2 * 101 * 32 + 4 * 60 * 3 * pairs
            assert forward_flops(shape, 1, new_tokens, context) == expected


def test_of_the_experts_only_those_are_read_that_a_token_is_sent_to():
    sparse = replace(LLAMA_3_8B, num_experts=8, num_experts_per_tok=2)
    expert = 2 * 3 * 4096 * 14336 * 32
    one, two, many = (forward_bytes(sparse, batch, 1) - batch * 131_072 for batch in (1, 2, 10_000))
    assert two - one == pytest.approx(1.5 * expert), "two of eight again, of which a quarter is there already"
    assert many - one == pytest.approx(6 * expert), "all eight"
    with pytest.raises(InputError, match="experts"):
        smallest_compute_bound_batch(sparse, 1, H100)


def test_utilization_is_the_share_of_the_limit():
    assert mbu(bytes_per_pass=50.0, seconds_per_pass=2.0, bandwidth_bytes_per_s=100.0) == 0.25
    assert mfu(flops_per_pass=50.0, seconds_per_pass=2.0, flops_per_s=100.0) == 0.25


@pytest.mark.parametrize("speeds", [(0.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_a_machine_without_speed_is_refused(speeds):
    with pytest.raises(InputError, match="speeds above zero"):
        Machine(*speeds)


@pytest.mark.parametrize(("new_tokens", "context"), [(1, 0), (1, 9), (7, 0), (3, 4), (6, 2), (40, 23)])
def test_the_pairs_are_those_that_the_causal_mask_leaves(new_tokens, context):
    assert visible_pairs(new_tokens, context) == int(causal_mask(new_tokens, context + new_tokens).sum())


@pytest.mark.parametrize("itemsize", [4.0, 2.0, 0.5])
@pytest.mark.parametrize("shape", [LLAMA_3_8B, LLAMA_2_13B, replace(LLAMA_3_8B, sliding_window=64)])
def test_the_knee_is_the_first_prompt_that_arithmetic_limits(shape, itemsize):
    knee = smallest_compute_bound_prompt(shape, H100, itemsize, itemsize)
    limits = [bound_by(prefill_work(shape, tokens, itemsize, itemsize), H100) for tokens in range(1, 2 * knee)]
    assert limits == ["memory"] * (knee - 1) + ["compute"] * knee


def test_on_a_machine_that_computes_slowly_every_prompt_is_limited_by_arithmetic():
    assert smallest_compute_bound_prompt(LLAMA_3_8B, Machine(1e12, 1e9)) == 1
