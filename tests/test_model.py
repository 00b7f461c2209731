"""The transformer against transformers' own on random weights, and the cache's invariants on ours."""

import dataclasses

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError
from tiny import oracle_pair, random_ids, random_model, tiny_config
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from minillm.attention import causal_attention, causal_mask
from minillm.config import RopeScaling
from minillm.errors import InputError
from minillm.kv_cache import KVCache, NoCache, kv_bytes_per_token
from minillm.linear import FEW_ROWS, WIDEN_FROM_ROWS, Linear, matvec_by_slabs, slabs_for
from minillm.model import rms_norm
from minillm.prefill import prefill
from minillm.rope import apply_rope, inverse_frequencies, rope_tables

LLAMA3 = RopeScaling(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)

CONFIGS = {
    "grouped queries, untied, odd head_dim": tiny_config(),
    "tied embeddings": tiny_config(tie_word_embeddings=True),
    "multi-head (every query head has its own keys)": tiny_config(num_key_value_heads=6),
    "multi-query (one key head)": tiny_config(num_key_value_heads=1),
    "attention and mlp biases": tiny_config(qkv_bias=True, output_bias=True, mlp_bias=True),
    "head_dim = hidden_size / heads": tiny_config(head_dim=8),
    "large rope_theta": tiny_config(rope_theta=500000.0),
    "linear rope scaling": tiny_config(rope_scaling=RopeScaling("linear", factor=4.0)),
    "llama3 rope scaling": tiny_config(rope_scaling=LLAMA3),
}


def all_logits(model, ids, cache=None):
    """[B, T, V]: our logits at every position, in one pass."""
    cache = cache or KVCache(model.config, ids.shape[1], batch_size=ids.shape[0])
    return model.logits(model(ids, cache))


def bound_for(expected: torch.Tensor) -> float:
    """1e-5 of the logits' own size: these random logits reach tens, where float32 steps are about 4e-6."""
    return 1e-5 * max(1.0, expected.abs().max().item())


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers_on_the_same_random_weights(name):
    theirs, ours = oracle_pair(CONFIGS[name])
    ids = random_ids(40, batch=2)
    with torch.no_grad():
        expected = theirs(ids).logits
    worst = (all_logits(ours, ids) - expected).abs().max().item()
    assert worst < bound_for(expected), f"{name}: logits differ by {worst} from transformers'"


@pytest.mark.parametrize("name", CONFIGS)
def test_token_by_token_on_a_cache_equals_one_pass_over_everything(name):
    model = random_model(CONFIGS[name])
    ids = random_ids(24, batch=2)
    whole = all_logits(model, ids)
    cache = KVCache(model.config, 24, batch_size=2)
    for position in range(24):
        logits = prefill(model, ids[:, position : position + 1], cache)
        torch.testing.assert_close(logits, whole[:, position], atol=bound_for(whole), rtol=0)


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 16, 23, 24, 25, 1000])
def test_prefill_in_chunks_gives_the_logits_of_prefill_in_one_piece(chunk_size):
    model = random_model()
    ids = random_ids(24)
    whole = prefill(model, ids, KVCache(model.config, 24))
    chunked = prefill(model, ids, KVCache(model.config, 24), chunk_size=chunk_size)
    torch.testing.assert_close(chunked, whole, atol=bound_for(whole), rtol=0)


def test_a_chunk_on_a_warm_cache_sees_what_came_before_it():
    """The classic bug: a causal mask aligned to the upper left corner hides the end of the cache from a chunk."""
    mask = causal_mask(q_len=2, kv_len=5)
    assert mask.tolist() == [[True, True, True, True, False], [True, True, True, True, True]]


def test_attention_equals_the_formula_written_out_for_one_head_at_a_time():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 3, 10), torch.randn(2, 2, 7, 10), torch.randn(2, 2, 7, 10)
    for q_len in (1, 3):
        mixed = causal_attention(q[:, :, -q_len:], k, v)
        for head in range(6):
            for t in range(q_len):
                seen = 7 - q_len + t + 1
                scores = k[:, head // 3, :seen] @ q[:, head, 3 - q_len + t, :, None] / 10**0.5  # [B, seen, 1]
                expected = (scores.softmax(dim=1) * v[:, head // 3, :seen]).sum(dim=1)  # [B, D]
                torch.testing.assert_close(mixed[:, head, t], expected, atol=1e-5, rtol=0)


def test_batched_rows_equal_each_row_alone():
    model = random_model()
    ids = random_ids(20, batch=4)
    together = all_logits(model, ids)
    for row in range(4):
        alone = all_logits(model, ids[row : row + 1])[0]
        torch.testing.assert_close(together[row], alone, atol=bound_for(alone), rtol=0)


def test_without_a_cache_the_logits_are_the_same():
    model = random_model()
    ids = random_ids(20)
    cached = prefill(model, ids, KVCache(model.config, 20))
    recomputed = prefill(model, ids, NoCache(model.config))
    torch.testing.assert_close(recomputed, cached, atol=bound_for(cached), rtol=0)


def test_prefill_in_chunks_is_refused_without_a_cache():
    model = random_model()
    with pytest.raises(InputError, match="needs a cache"):
        prefill(model, random_ids(8), NoCache(model.config), chunk_size=3)


def test_a_refused_prefill_in_chunks_has_computed_nothing():
    model = random_model()
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    with pytest.raises(InputError, match="needs a cache"):
        prefill(model, random_ids(8), NoCache(model.config), chunk_size=3)
    assert not passes


def test_without_a_cache_a_chunk_that_takes_the_whole_prompt_is_no_chunk():
    model = random_model()
    ids = random_ids(8)
    whole = prefill(model, ids, NoCache(model.config))
    assert torch.equal(prefill(model, ids, NoCache(model.config), chunk_size=8), whole)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_one_row_of_each_sequence_goes_through_the_head(chunk_size):
    model = random_model()
    rows = []
    model.lm_head.register_forward_hook(lambda module, inputs, output: rows.append(inputs[0].shape[:-1].numel()))
    prefill(model, random_ids(8, batch=2), KVCache(model.config, 8, batch_size=2), chunk_size)
    assert rows == [2]


def test_a_prefill_in_chunks_is_one_pass_per_chunk():
    model = random_model()
    widths = []
    model.register_forward_hook(lambda module, inputs, output: widths.append(inputs[0].shape[1]))
    prefill(model, random_ids(8), KVCache(model.config, 8), chunk_size=3)
    assert widths == [3, 3, 2]


def test_truncated_tokens_leave_no_trace():
    model = random_model()
    ids = random_ids(30)
    cache = KVCache(model.config, 30)
    prefill(model, random_ids(25, seed=9), cache)
    cache.truncate(0)
    prefill(model, ids[:, :12], cache)
    prefill(model, random_ids(10, seed=10), cache)
    cache.truncate(12)
    again = prefill(model, ids[:, 12:], cache)
    fresh = prefill(model, ids, KVCache(model.config, 30))
    torch.testing.assert_close(again, fresh, atol=bound_for(fresh), rtol=0)


def test_a_forward_pass_that_is_not_counted_in_changes_nothing():
    """Ctrl-C in the middle of a pass: what was written behind `length` must not matter."""
    model = random_model()
    ids = random_ids(16)
    cache = KVCache(model.config, 16)
    prefill(model, ids[:, :8], cache)
    model(random_ids(5, seed=4), cache)
    assert cache.length == 8
    torch.testing.assert_close(
        prefill(model, ids[:, 8:], cache), prefill(model, ids, KVCache(model.config, 16)), atol=1e-4, rtol=0
    )


def test_bytes_of_the_cache_are_those_of_the_formula():
    config = tiny_config()
    cache = KVCache(config, max_seq_len=33, batch_size=3, dtype=torch.bfloat16)
    per_token = 2 * 3 * 2 * 10 * 2  # K and V x layers x kv heads x head_dim x bytes
    assert kv_bytes_per_token(config, torch.bfloat16) == per_token
    assert cache.reserved_bytes == 33 * 3 * per_token
    assert cache.used_bytes == 0
    prefill(random_model(config).to(torch.bfloat16), random_ids(7, batch=3), cache)
    assert cache.used_bytes == 7 * 3 * per_token
    cache.release()
    assert (cache.length, cache.reserved_bytes, cache.max_seq_len) == (0, 0, 0)


@pytest.mark.parametrize("max_seq_len", [0, -1, 97])
def test_a_cache_longer_than_the_models_context_or_empty_is_refused(max_seq_len):
    with pytest.raises(InputError, match=f"cache of {max_seq_len} tokens"):
        KVCache(tiny_config(), max_seq_len)


def test_tokens_past_the_end_of_the_cache_are_refused_and_lose_nothing():
    model = random_model()
    cache = KVCache(model.config, 10)
    prefill(model, random_ids(8), cache)
    with pytest.raises(InputError, match="do not fit"):
        prefill(model, random_ids(3), cache)
    with pytest.raises(InputError, match="do not fit"):
        model(random_ids(3), cache)
    with pytest.raises(InputError, match="do not fit"):
        cache.advance(3)
    assert cache.length == 8
    prefill(model, random_ids(2), cache)
    assert cache.length == 10


@pytest.mark.parametrize("length", [-1, 9])
def test_truncating_to_more_than_is_held_or_less_than_nothing_is_refused(length):
    model = random_model()
    cache = KVCache(model.config, 10)
    prefill(model, random_ids(8), cache)
    with pytest.raises(InputError, match="cannot truncate"):
        cache.truncate(length)


@pytest.mark.parametrize("ids", [[], [-1], [107], [3, 4, 5000]])
def test_ids_that_are_no_tokens_are_refused(ids):
    model = random_model()
    with pytest.raises(InputError, match=r"empty|outside the vocabulary"):
        prefill(model, ids, KVCache(model.config, 10))


@pytest.mark.parametrize(
    "ids", [(3, 107), [True, 107], [3, np.int64(107)], [torch.tensor(107)], np.array([107], np.uint8), [[3, 107]]]
)
def test_an_id_outside_the_vocabulary_is_found_in_whatever_it_comes(ids):
    model = random_model()
    with pytest.raises(InputError, match="token id 107 is outside the vocabulary of 107 tokens"):
        prefill(model, ids, KVCache(model.config, 10))


@pytest.mark.parametrize("ids", ["text", [[1, 2], [3, 4]], [[1], [2, 3]], None, [1.5j], [[[1]]]])
def test_ids_of_the_wrong_form_are_one_sentence(ids):
    model = random_model()
    with pytest.raises(InputError, match="ids"):
        prefill(model, ids, KVCache(model.config, 10))


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    inv_freq = inverse_frequencies(tiny_config())
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 10), torch.randn(1, 1, 1, 10)

    def at(x, position):
        return apply_rope(x, *rope_tables(torch.tensor([[position]]), inv_freq))

    assert torch.allclose(at(q, 17).norm(), q.norm(), atol=1e-5)
    near, far = (at(q, 9) * at(k, 4)).sum(), (at(q, 1009) * at(k, 1004)).sum()
    assert torch.allclose(near, far, atol=1e-3), "the score must depend on the distance 5 alone"
    assert not torch.allclose(near, (at(q, 9) * at(k, 5)).sum(), atol=1e-3), "and it must depend on it"


def test_angles_stay_float32_in_a_bfloat16_model():
    """In bfloat16, positions 256 and 257 are the same number."""
    model = random_model().to(torch.bfloat16)
    assert model.inv_freq.dtype == torch.float32
    cos, _ = rope_tables(torch.tensor([[256, 257]]), model.inv_freq)
    assert cos.dtype == torch.float32
    assert not torch.equal(cos[:, :, 0], cos[:, :, 1])


def test_an_unknown_rope_scaling_is_refused_by_name():
    with pytest.raises(InputError, match="'ntk-aware' is not supported"):
        RopeScaling("ntk-aware", factor=2.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close_to_float32_and_the_logits_come_in_float32(dtype):
    model = random_model(std=0.1)
    ids = random_ids(20)
    exact = all_logits(model, ids)
    half = model.to(dtype)
    cache = KVCache(model.config, 20, dtype=dtype)
    logits = all_logits(half, ids, cache)
    assert logits.dtype == torch.float32
    error = (logits - exact).abs().max() / exact.abs().max()
    assert 0 < error < 0.05, f"relative error {error:.4f}"


def test_a_tied_head_is_the_embedding_itself_and_counts_once():
    tied, untied = random_model(tiny_config(tie_word_embeddings=True)), random_model()
    assert tied.lm_head.weight is tied.embed_tokens.weight
    assert untied.nbytes - tied.nbytes == 107 * 48 * 4


def test_slots_cover_every_weight_exactly_once():
    """Each slot gets its own number; afterwards no weight may hold anything else than one of these numbers."""
    model = random_model(dataclasses.replace(tiny_config(), qkv_bias=True, output_bias=True, mlp_bias=True))
    for parameter in model.parameters():
        parameter.fill_(-1.0)
    slots = model.checkpoint_slots()
    assert sum(slot.numel() for slot in slots.values()) == sum(p.numel() for p in model.parameters())
    for number, slot in enumerate(slots.values()):
        slot.fill_(number)
    assert all((parameter >= 0).all() for parameter in model.parameters()), "a weight is in no slot"
    assert all((slot == number).all() for number, slot in enumerate(slots.values())), "two slots overlap"


def random_linear(in_features, out_features, bias):
    """A Linear with weights: by itself it leaves them to a checkpoint."""
    linear = Linear(in_features, out_features, bias=bias)
    for parameter in linear.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return linear.requires_grad_(False)


def as_if_on(monkeypatch, *, native=True, tiles=False, intel=False):
    """Let `Linear` believe that it is on such a processor."""
    monkeypatch.setattr("minillm.linear.cpu_multiplies", lambda dtype: native or dtype == torch.float32)
    monkeypatch.setattr("minillm.linear.cpu_multiplies_tiles", lambda dtype: tiles and dtype == torch.bfloat16)
    monkeypatch.setattr("minillm.linear.cpu_is_intel", lambda: intel)


@pytest.mark.parametrize(("in_features", "out_features"), [(48, 80), (7, 13), (1, 1), (10, 64)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("intel", [True, False])
def test_one_row_through_linear_equals_the_same_row_among_others(monkeypatch, in_features, out_features, bias, intel):
    as_if_on(monkeypatch, intel=intel)
    torch.manual_seed(0)
    linear = random_linear(in_features, out_features, bias)
    rows = torch.randn(1, 3, in_features)
    together = linear(rows)
    for t in range(3):
        torch.testing.assert_close(linear(rows[:, t : t + 1]), together[:, t : t + 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("num_rows", [1, 2, FEW_ROWS + 1, 2 * WIDEN_FROM_ROWS])
def test_rows_in_half_precision_are_the_same_on_every_processor(monkeypatch, dtype, bias, num_rows):
    torch.manual_seed(0)
    linear = random_linear(48, 80, bias).to(dtype)
    rows = torch.randn(1, num_rows, 48, dtype=dtype)
    exact = rows.double() @ linear.weight.double().mT + (linear.bias.double() if bias else 0)
    for processor in ({"native": False}, {"native": True}, {"native": True, "tiles": True}):
        as_if_on(monkeypatch, **processor)
        output = linear(rows)
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), exact, atol=4 * torch.finfo(dtype).eps, rtol=0)


class Products(TorchDispatchMode):
    """Notes the products that are computed, and where in each the memory of `weight` is an operand."""

    NAMES = ("mv", "addmv", "mm", "addmm", "bmm")

    def __init__(self, weight):
        super().__init__()
        self.weight, self.seen = weight, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.seen.append((name, [arg.data_ptr() == self.weight.data_ptr() for arg in args].index(True)))
        return func(*args, **(kwargs or {}))


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
AMD, INTEL, AMX, OLD = {}, {"intel": True}, {"intel": True, "tiles": True}, {"native": False}
BY_NAME, SLABS, WEIGHT_FIRST, LIBRARY = ("mv", 0), ("bmm", 0), ("mm", 0), ("mm", 1)


@pytest.mark.parametrize(
    ("dtype", "processor", "one_row", "few_rows"),
    [
        (F32, AMD, SLABS, WEIGHT_FIRST),
        (F32, INTEL, LIBRARY, LIBRARY),
        (BF16, AMD, LIBRARY, LIBRARY),
        (BF16, INTEL, LIBRARY, LIBRARY),
        (BF16, AMX, BY_NAME, WEIGHT_FIRST),
        (BF16, OLD, BY_NAME, LIBRARY),
        (F16, AMX, LIBRARY, LIBRARY),
        (F16, OLD, BY_NAME, LIBRARY),
    ],
)
def test_each_processor_takes_its_own_route_to_a_product_and_none_copies_the_weights(
    monkeypatch, dtype, processor, one_row, few_rows
):
    as_if_on(monkeypatch, **processor)
    linear = random_linear(48, 80, bias=False).to(dtype)
    for num_rows, route in ((1, one_row), (2, few_rows), (FEW_ROWS, few_rows), (FEW_ROWS + 1, LIBRARY)):
        rows = torch.randn(1, num_rows, 48, dtype=dtype)
        with Products(linear.weight) as products:
            linear(rows)
        assert products.seen == [route], f"{num_rows} rows"


def test_a_matrix_vector_product_is_the_same_however_it_is_cut():
    torch.manual_seed(0)
    x, weight = torch.randn(20), torch.randn(12, 20)
    for slabs in (1, 2, 3, 4, 6, 12):
        torch.testing.assert_close(matvec_by_slabs(x, weight, slabs), weight @ x, atol=1e-5, rtol=0)


def test_wrong_shapes_are_caught_while_the_tests_run():
    """The import hook checks the shape annotations; were it off, every shape in the source would be mere prose."""
    with pytest.raises(TypeCheckError):
        causal_attention(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 4, 8))


@pytest.mark.parametrize(
    ("out_features", "threads", "slabs"),
    [(576, 2, 2), (576, 7, 8), (576, 28, 32), (576, 1, 1), (13, 4, 13), (53, 4, 1)],
)
def test_every_thread_gets_a_slab_where_the_rows_can_be_cut_so(out_features, threads, slabs):
    assert slabs_for(out_features, threads) == slabs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_in_half_precision_rounds_where_transformers_does(dtype):
    """To the model's dtype before the weight is applied: the last bit of every activation depends on it."""
    torch.manual_seed(0)
    theirs = LlamaRMSNorm(576, eps=1e-5).to(dtype)
    theirs.weight.data.normal_()
    x = torch.randn(7, 576).to(dtype)
    assert torch.equal(rms_norm(x, theirs.weight.data, 1e-5), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_is_its_formula_with_the_mean_taken_in_float32(dtype):
    torch.manual_seed(0)
    x, weight = (torch.randn(3, 5, 576) * 40).to(dtype), torch.randn(576).to(dtype)
    wide = x.float()
    expected = wide / (wide.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt() * weight.float()
    error = (rms_norm(x, weight, 1e-5).float() - expected).abs().max().item()
    assert error < 4 * torch.finfo(dtype).eps * expected.abs().max().item()
    assert torch.isfinite(rms_norm((x * 100).clamp(-60000, 60000), weight, 1e-5)).all(), "squares must not overflow"
