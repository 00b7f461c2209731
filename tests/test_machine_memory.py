"""Weights, KV cache and activations: counted as the engine, its libraries and published files have them."""

from dataclasses import replace

import pytest
import torch

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.kv_cache import kv_bytes_per_token as engine_kv_bytes_per_token
from minillm.linear import FEW_ROWS
from minillm.machine.formats import FORMATS, QUANTIZATIONS, dtype_bytes, format_of
from minillm.machine.memory import (
    Workload,
    activation_bytes,
    demand,
    kept_tokens,
    kv_bytes_per_token,
    kv_cache_bytes,
    possible_gpus,
    shard,
    weight_bytes,
)
from minillm.machine.shape import num_params, shape_of
from minillm.machine.well_known import BY_NAME, WELL_KNOWN
from minillm.model import Llama
from minillm.prefill import prefill

LLAMA_2_13B = BY_NAME["llama-2-13b"].shape
LLAMA_3_8B = BY_NAME["llama-3-8b"].shape
MISTRAL = BY_NAME["mistral-7b-v0.1"].shape
MIXTRAL = BY_NAME["mixtral-8x7b"].shape
SMOLLM2 = BY_NAME["smollm2-135m"].shape
GIB = 2**30


def test_13b_in_16_bit_take_26_gb_which_are_24_gib() -> None:
    size = weight_bytes(LLAMA_2_13B, FORMATS["float16"])
    assert size == 26_031_728_640
    assert round(size / 1e9, 1) == 26.0
    assert round(size / GIB, 1) == 24.2


def test_a_token_of_13b_leaves_819200_bytes_and_4096_of_them_three_and_an_eighth_gib() -> None:
    assert kv_bytes_per_token(LLAMA_2_13B, "float16") == 819_200
    one = kv_cache_bytes(LLAMA_2_13B, 4096, 1, "float16")
    assert one == 3_355_443_200
    assert one / GIB == 3.125
    many = kv_cache_bytes(LLAMA_2_13B, 4096, 32, "float16")
    assert round(many / 1e9) == 107
    assert many / GIB == 100


@pytest.mark.parametrize("model", WELL_KNOWN, ids=lambda model: model.name)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_unquantized_weights_are_parameters_times_bytes(model, dtype: str) -> None:
    assert weight_bytes(model.shape, FORMATS[dtype]) == num_params(model.shape) * dtype_bytes(dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_kv_bytes_are_those_of_the_engine(kv_heads: int, dtype: str) -> None:
    config = ModelConfig(97, 24, 40, 3, 6, kv_heads, 10, 64)
    torch_dtype = getattr(torch, dtype)
    assert kv_bytes_per_token(shape_of(config), dtype) == engine_kv_bytes_per_token(config, torch_dtype)
    cache = KVCache(config, 48, batch_size=2, dtype=torch_dtype)
    assert kv_cache_bytes(shape_of(config), 48, 2, dtype) == cache.reserved_bytes


def test_a_cache_is_rounded_up_to_blocks_and_never_holds_more_than_the_window() -> None:
    assert [kept_tokens(LLAMA_3_8B, n, 16) for n in (1, 16, 17)] == [16, 16, 32]
    assert kept_tokens(LLAMA_3_8B, 17) == 17
    assert kept_tokens(MISTRAL, 32_768, 16) == 4096
    assert kept_tokens(MISTRAL, 100, 16) == 112
    assert kept_tokens(replace(MISTRAL, sliding_window=100), 500, 16) == 112, "a window is held in whole blocks too"


@pytest.mark.parametrize("name", [name for name in QUANTIZATIONS if name.startswith("q")])
def test_gguf_blocks_are_those_of_the_gguf_library(name: str) -> None:
    import gguf

    kind = gguf.GGMLQuantizationType[name.upper()]
    format = format_of(name)
    assert (format.block, format.block_bits // 8) == gguf.GGML_QUANT_SIZES[kind]
    rows, columns = gguf.quant_shape_to_byte_shape((6, 512), kind)
    assert format.matrix_bytes(6, 512) == rows * columns


def test_rows_that_no_large_block_divides_are_stored_in_small_ones() -> None:
    assert format_of("q4_k").matrix_bytes(10, 576) == format_of("q5_0").matrix_bytes(10, 576)
    assert format_of("q5_k").matrix_bytes(10, 576) == format_of("q5_1").matrix_bytes(10, 576)
    assert format_of("q6_k").matrix_bytes(10, 576) == format_of("q8_0").matrix_bytes(10, 576)
    assert format_of("q4_k").matrix_bytes(10, 512) == 10 * 2 * 144


def test_scales_and_what_stays_in_16_bit_are_counted() -> None:
    tables = 2 * 128_256 * 4096 * 2  # embedding and head, 16 bit
    norms = (2 * 32 + 1) * 4096 * 2
    projections = num_params(LLAMA_3_8B) - (tables + norms) // 2
    outputs = 32 * (4096 + 2 * 1024 + 4096 + 2 * 14_336 + 4096)  # output channels of all projections
    assert weight_bytes(LLAMA_3_8B, FORMATS["int8"]) == tables + norms + projections + 2 * outputs
    assert weight_bytes(LLAMA_3_8B, FORMATS["fp8"]) == tables + norms + projections + 4 * 7 * 32
    # per 128 weights: 64 bytes, a 16 bit scale, a zero point of 4 bits
    assert weight_bytes(LLAMA_3_8B, FORMATS["int4"]) == tables + norms + projections * 665 // 1280


def test_a_tied_table_is_counted_once_in_every_format() -> None:
    untied = replace(SMOLLM2, tie_word_embeddings=False)
    for name, format in FORMATS.items():
        table = format.matrix_bytes(49_152, 576) if format.everywhere else 49_152 * 576 * 2
        assert weight_bytes(untied, format) - weight_bytes(SMOLLM2, format) == table, name


def test_every_expert_has_biases_of_its_own() -> None:
    biased = replace(MIXTRAL, mlp_bias=True)
    more = weight_bytes(biased, FORMATS["int4"]) - weight_bytes(MIXTRAL, FORMATS["int4"])
    assert more == 32 * 8 * (2 * 14_336 + 4096) * 2
    assert weight_bytes(biased, FORMATS["bfloat16"]) == 2 * num_params(biased)


def test_a_router_and_biases_stay_unquantized() -> None:
    more = weight_bytes(replace(LLAMA_3_8B, qkv_bias=True), FORMATS["int4"]) - weight_bytes(LLAMA_3_8B, FORMATS["int4"])
    assert more == 32 * (4096 + 2 * 1024) * 2
    experts = weight_bytes(MIXTRAL, FORMATS["int4"]) - weight_bytes(replace(MIXTRAL, num_experts=7), FORMATS["int4"])
    assert experts == 32 * (3 * 4096 * 14_336 * 665 // 1280 + 4096 * 2)


def test_a_format_or_dtype_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'int3' are not known"):
        format_of("int3")
    with pytest.raises(InputError, match="'half' is not known"):
        dtype_bytes("half")


# Shapes whose peak is in the MLP, in attention (many heads, small MLP), and in the logits (a large vocabulary).
PEAKS = {
    "mlp": ModelConfig(97, 64, 512, 2, 4, 2, 16, 2048, tie_word_embeddings=True),
    "attention": ModelConfig(97, 64, 16, 2, 8, 8, 32, 2048, tie_word_embeddings=True),
    "grouped attention": ModelConfig(97, 64, 16, 2, 16, 1, 32, 2048, tie_word_embeddings=True),
    "logits": ModelConfig(60_000, 16, 16, 2, 2, 1, 8, 2048, tie_word_embeddings=True),
}


def allocator_peak(config: ModelConfig, tokens: int, batch: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of tensors at the peak of one prefill, beyond weights and cache, as torch's own allocator counts them."""
    model = Llama(config).to(dtype)
    for parameter in model.parameters():
        parameter.fill_(0.01)
    cache = KVCache(config, tokens, batch, dtype=dtype)
    ids = torch.zeros(batch, tokens, dtype=torch.int64)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        prefill(model, ids, cache)
    events = profile.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = peak = 0
    for _, change in changes:
        held += change
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("batch", [1, FEW_ROWS + 1], ids=["one row", "more rows than are copied on a CPU"])
@pytest.mark.parametrize("where", PEAKS)
def test_the_estimate_of_activations_is_what_the_engine_allocates_at_its_peak(where: str, batch: int) -> None:
    config = PEAKS[where]
    predicted = activation_bytes(shape_of(config), 256 * batch, batch, "float32")
    measured = allocator_peak(config, 256, batch)
    assert predicted == pytest.approx(measured, rel=0.05), f"{predicted:,} predicted, {measured:,} allocated"


def test_logits_of_a_half_precision_are_there_twice_as_they_are_computed_and_in_float32() -> None:
    config = PEAKS["logits"]
    predicted = activation_bytes(shape_of(config), 256 * 3, 3, "bfloat16")
    assert predicted == pytest.approx(allocator_peak(config, 256, 3, torch.bfloat16), rel=0.05)


def test_activations_grow_with_the_tokens_of_a_pass_and_halve_with_the_dtype() -> None:
    one = activation_bytes(LLAMA_3_8B, 2048, 1, "bfloat16")
    assert activation_bytes(LLAMA_3_8B, 4096, 1, "bfloat16") == 2 * one
    assert activation_bytes(LLAMA_3_8B, 2048, 1, "float32") == 2 * one
    dense = replace(MIXTRAL, num_experts=1, num_experts_per_tok=1)
    both = activation_bytes(MIXTRAL, 2048, 1, "bfloat16")
    assert both - activation_bytes(dense, 2048, 1, "bfloat16") == 2048 * 2 * 4 * 14_336, (
        "two experts work on each token"
    )


def test_a_pass_has_a_chunk_of_the_prompts_and_at_least_one_token_of_each_sequence() -> None:
    assert Workload(context=100, batch=4).tokens_at_peak == 400
    assert Workload(context=4096, batch=4).tokens_at_peak == 2048
    assert Workload(context=4096, batch=5000).tokens_at_peak == 5000


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_the_parts_of_a_model_shared_out_make_up_the_whole_but_for_what_every_gpu_holds(gpus: int) -> None:
    norms = (2 * 32 + 1) * 4096
    part = num_params(shard(LLAMA_3_8B, gpus))
    assert gpus * part == num_params(LLAMA_3_8B) + (gpus - 1) * norms
    assert gpus * kv_bytes_per_token(shard(LLAMA_3_8B, gpus), "bfloat16") == kv_bytes_per_token(LLAMA_3_8B, "bfloat16")


def test_with_fewer_kv_heads_than_gpus_each_is_held_by_several() -> None:
    part = shard(LLAMA_3_8B, 16)
    assert (part.num_attention_heads, part.num_key_value_heads) == (2, 1)
    assert 16 * kv_bytes_per_token(part, "bfloat16") == 2 * kv_bytes_per_token(LLAMA_3_8B, "bfloat16")


def test_heads_that_cannot_be_shared_evenly_are_refused_with_the_numbers_that_can() -> None:
    assert possible_gpus(LLAMA_3_8B) == (1, 2, 4, 8, 16, 32)
    assert possible_gpus(SMOLLM2) == (1, 3)
    six_kv_heads = replace(LLAMA_3_8B, num_attention_heads=24, num_key_value_heads=6, intermediate_size=24 * 512)
    assert possible_gpus(six_kv_heads) == (1, 2, 3, 6, 12, 24), (
        "4 and 8 divide the heads and the MLP, but not the KV heads"
    )
    with pytest.raises(InputError, match=r"3 GPUs cannot share .* take 1, 2, 4, 8, 16, 32"):
        shard(LLAMA_3_8B, 3)


@pytest.mark.parametrize(
    ("model", "format", "gpus"),
    [
        ("qwen2.5-72b", "bfloat16", (1, 2, 4, 8, 16, 32, 64)),
        ("qwen2.5-72b", "fp8", (1, 2, 4, 8, 16, 32, 64)),
        ("qwen2.5-72b", "int4", (1,)),  # 29,568 / 2 is no multiple of 128
        ("qwen2.5-72b", "int4-g64", (1, 2)),  # 29,568 / 2 is one of 64, 29,568 / 4 is not
        ("qwen2.5-72b", "q8_0", (1, 2, 4)),
        ("qwen2.5-72b", "q4_k", (1, 2, 4)),  # no multiple of 256 to begin with: stored in blocks of 32
        (
            "llama-3-8b",
            "int4",
            (1, 2, 4, 8, 16),
        ),  # 4,096 / 32 is one block of 128, but 14,336 / 32 are three and a half
        ("llama-3-8b", "q4_k", (1, 2, 4, 8)),  # 4,096 / 16 is one block of 256, 14,336 / 16 are three and a half
        ("smollm2-135m", "int4", (1,)),  # 576 is no multiple of 128, whole or shared
    ],
)
def test_no_block_of_a_quantized_row_is_shared_by_two_gpus(model: str, format: str, gpus: tuple[int, ...]) -> None:
    assert possible_gpus(BY_NAME[model].shape, FORMATS[format]) == gpus


def test_heads_whose_rows_would_be_cut_within_a_block_are_refused() -> None:
    """An MLP of 64 blocks would go over 8 GPUs; the 8 heads of 32, 256 numbers, are two blocks of 128."""
    shape = replace(LLAMA_3_8B, intermediate_size=64 * 128, num_attention_heads=8, num_key_value_heads=8, head_dim=32)
    assert possible_gpus(shape, FORMATS["int4"]) == (1, 2)
    with pytest.raises(InputError, match=r"4 GPUs .* in whole blocks of 128 weights in int4: take 1, 2"):
        demand(shape, Workload(16, weights=FORMATS["int4"], gpus=4))


def test_the_four_parts_add_up_and_each_comes_from_its_formula() -> None:
    load = Workload(4096, 32, weights=FORMATS["float16"], dtype="float16", kv_dtype="float16")
    need = demand(LLAMA_2_13B, load, overhead=7)
    assert need.weights == 26_031_728_640
    assert need.kv_cache == 100 * GIB
    assert need.activations == activation_bytes(LLAMA_2_13B, 2048, 32, "float16")
    assert need.total == need.weights + need.kv_cache + need.activations + 7
    assert need.rule_of_thumb == round(1.2 * (need.weights + need.kv_cache))


def test_weights_as_stored_are_shared_out_too() -> None:
    assert demand(LLAMA_3_8B, Workload(16, gpus=4), stored_bytes=401).weights == 101


@pytest.mark.parametrize("field", ["context", "batch", "block_size", "tokens_per_pass", "gpus"])
@pytest.mark.parametrize("value", [0, -1, 10**30])
def test_numbers_that_cannot_be_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(InputError, match=f"{field} must be at least 1"):
        Workload(**{"context": 1, field: value})
