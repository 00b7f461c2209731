"""Numbers into codes and back: against the `gguf` library's formulas, in bounds, and in bytes."""

import gc

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as QType
from quantized_models import FORMATS, in_format, model_in, native_config, widened
from tiny import random_ids

from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.linear import Linear
from minillm.model import Llama, weight_bytes_per_pass
from minillm.quantization import (
    QuantizedWeight,
    empty_quantized,
    from_gguf_blocks,
    pack_nibbles,
    quantize,
    quantize_int8,
    quantize_q4_1,
    quantize_q8_0,
    unpack_nibbles,
)
from minillm.quantized_linear import QuantizedEmbedding, QuantizedLinear

QTYPES = {"q8_0": QType.Q8_0, "q4_0": QType.Q4_0, "q4_1": QType.Q4_1}
BYTES = {"int8": 32, "q8_0": 34, "q4_1": 20, "q4_0": 18}
"""Of 32 weights; int8 has 4 more per row."""


def numbers(rows: int = 24, columns: int = 96, seed: int = 0, std: float = 1.0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * std


def equal(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    pairs = ((one.codes, other.codes), (one.scale, other.scale), (one.minimum, other.minimum))
    return one.format == other.format and all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


def grouped_error(weight: torch.Tensor, quantized: QuantizedWeight) -> torch.Tensor:
    """The largest error of each group of 32, [out, in / 32]."""
    return (quantized.dequantized() - weight).abs().unflatten(1, (-1, 32)).amax(dim=2)


class TestAgainstTheGgufLibrary:
    @pytest.mark.parametrize("format", QTYPES)
    def test_its_blocks_stand_for_the_numbers_that_it_says(self, format):
        blocks = gguf.quantize(numbers().numpy(), QTYPES[format])
        expected = torch.from_numpy(gguf.dequantize(blocks, QTYPES[format]))
        quantized = from_gguf_blocks(torch.from_numpy(blocks), format)
        assert torch.equal(quantized.dequantized(), expected)
        assert quantized.shape == (24, 96)
        assert quantized.nbytes == blocks.nbytes

    @pytest.mark.parametrize("format", QTYPES)
    def test_any_bytes_are_taken_apart_right(self, format):
        """All codes, also the -128 that no quantizer writes."""
        rng = np.random.default_rng(3)
        blocks = rng.integers(0, 256, (8, 5, BYTES[format]), dtype=np.uint8)
        halves = 4 if format == "q4_1" else 2
        scales = rng.standard_normal((8, 5, halves // 2)).astype(np.float16)
        blocks[:, :, :halves] = scales.view(np.uint8).reshape(8, 5, halves)
        blocks = blocks.reshape(8, -1)
        expected = torch.from_numpy(gguf.dequantize(blocks, QTYPES[format]))
        assert torch.equal(from_gguf_blocks(torch.from_numpy(blocks), format).dequantized(), expected)

    def test_q8_0_takes_its_scales_and_codes_to_the_last_but_one(self):
        """The library chooses codes for the scale before it is rounded to float16: by one code they may differ."""
        weight = numbers(rows=200)
        ours = quantize_q8_0(weight)
        theirs = from_gguf_blocks(torch.from_numpy(gguf.quantize(weight.numpy(), QType.Q8_0)), "q8_0")
        assert torch.equal(ours.scale, theirs.scale)
        assert int((ours.codes.int() - theirs.codes.int()).abs().max()) <= 1
        assert float((ours.dequantized() - weight).square().mean()) <= float(
            (theirs.dequantized() - weight).square().mean()
        )

    def test_q4_1_takes_its_scales_and_is_no_worse(self):
        weight = numbers(rows=200)
        ours = quantize_q4_1(weight)
        theirs = from_gguf_blocks(torch.from_numpy(gguf.quantize(weight.numpy(), QType.Q4_1)), "q4_1")
        assert torch.equal(ours.scale, theirs.scale)
        assert torch.equal(ours.minimum, theirs.minimum)
        codes, expected = (unpack_nibbles(quantized.codes).int() for quantized in (ours, theirs))
        assert int((codes - expected).abs().max()) <= 1
        assert float((ours.dequantized() - weight).square().mean()) <= float(
            (theirs.dequantized() - weight).square().mean()
        )


def test_int8_is_the_formula_by_hand():
    weight = numbers().numpy()
    quantized = quantize_int8(torch.from_numpy(weight))
    for row in range(len(weight)):
        scale = np.float32(np.abs(weight[row]).max()) / np.float32(127)
        assert quantized.scale[row] == scale
        assert np.array_equal(quantized.codes[row].numpy(), np.rint(weight[row] / scale).astype(np.int8))
    assert torch.equal(quantized.codes.abs().amax(dim=1), torch.full((24,), 127, dtype=torch.int8))


def test_packed_codes_come_back_and_lie_as_in_a_gguf_block():
    codes = torch.randint(0, 16, (5, 96), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    packed = pack_nibbles(codes)
    assert packed.shape == (5, 48)
    assert torch.equal(unpack_nibbles(packed), codes)
    assert int(packed[2, 16 + 3]) == int(codes[2, 32 + 3]) + 16 * int(codes[2, 32 + 19])


class TestErrorBounds:
    """Half a step, and what float16 takes from the scale (2 ** -11 of it, times the code) and from the minimum."""

    @pytest.mark.parametrize("std", [1e-6, 1e-3, 1.0, 1e3])
    def test_int8(self, std):
        weight = numbers(std=std)
        quantized = quantize_int8(weight)
        error = (quantized.dequantized() - weight).abs().amax(dim=1)
        assert bool((error <= quantized.scale * 0.5001).all())

    @pytest.mark.parametrize("std", [1e-3, 1.0, 1e3])
    def test_q8_0(self, std):
        weight = numbers(std=std)
        quantized = quantize_q8_0(weight)
        scale = quantized.scale.float()
        assert bool((grouped_error(weight, quantized) <= scale * (0.5001 + 127 * 2**-11)).all())

    @pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0], ids=["negative only", "both", "positive only"])
    @pytest.mark.parametrize("std", [1e-2, 1.0, 1e3])
    def test_q4_1(self, std, shift):
        weight = (numbers().clamp(-2.9, 2.9) + shift) * std
        quantized = quantize_q4_1(weight)
        scale, least = quantized.scale.float(), quantized.minimum.float()
        bound = scale * (0.5001 + 15 * 2**-11) + least.abs() * 2**-11
        assert bool((grouped_error(weight, quantized) <= bound).all())

    @pytest.mark.parametrize("format", ["q8_0", "q4_1"])
    def test_numbers_below_float16_s_steps_are_lost_only_as_far_as_these(self, format):
        """Scales below 6e-8 do not exist in float16: such weights become 0, or the group's least, and stay as small."""
        weight = numbers(std=1e-9)
        assert float((quantize(weight, format).dequantized() - weight).abs().max()) < 1e-7

    @pytest.mark.parametrize("format", FORMATS)
    def test_zeros_stay_zeros_beside_others(self, format):
        weight = numbers()
        weight[3] = 0.0
        weight[5, 32:64] = 0.0
        dequantized = in_format(weight, format).dequantized()
        assert bool((dequantized[3] == 0).all())
        assert bool(dequantized.isfinite().all())
        if format != "int8":
            assert bool((dequantized[5, 32:64] == 0).all())
        assert bool((dequantized[4] != 0).any())

    def test_a_constant_group_is_its_constant(self):
        weight = numbers()
        weight[0], weight[1], weight[2] = 0.37, -0.37, 1000.3
        for format in ("int8", "q8_0", "q4_1"):
            assert torch.allclose(quantize(weight, format).dequantized()[:3], weight[:3], rtol=2**-10, atol=0.0), format

    def test_int8_takes_numbers_of_any_size(self):
        weight = numbers(rows=4) * torch.tensor([1e-44, 1e-30, 1e6, 1e37])[:, None]
        quantized = quantize_int8(weight)
        error = (quantized.dequantized() - weight).abs().amax(dim=1)
        assert bool((error <= quantized.scale * 0.51 + 1e-42).all())


class TestWhatDoesNotFit:
    @pytest.mark.parametrize(("format", "size"), [("q4_1", 1e6), ("q4_1", -1e6), ("q4_1", 3e38), ("q8_0", 1e7)])
    def test_weights_beyond_float16_are_refused_instead_of_made_infinite(self, format, size):
        weight = numbers()
        weight[7, 50] = size
        with pytest.raises(InputError, match=rf"cannot be quantized to {format}: .* float16, .*; use int8") as caught:
            quantize(weight, format)
        assert "\n" not in str(caught.value)

    def test_what_still_fits_is_right(self):
        weight = numbers(std=1e6 / 5)
        assert torch.allclose(quantize_q8_0(weight).dequantized(), weight, rtol=0.0, atol=1e6 / 127)
        weight = numbers().clamp(-4, 4) * 16_000
        assert torch.allclose(quantize_q4_1(weight).dequantized(), weight, rtol=0.0, atol=128_000 / 15)

    @pytest.mark.parametrize("format", ["int8", "q8_0", "q4_1"])
    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    def test_what_is_no_number_does_not_become_one(self, format, value):
        """The engine then stops at the first logits, as it does for the same weights in float32."""
        weight = numbers()
        weight[7, 50] = value
        assert not bool(quantize(weight, format).dequantized()[7, 50].isfinite())

    @pytest.mark.parametrize("format", ["int8", "q8_0", "q4_1"])
    def test_rows_that_groups_do_not_fill(self, format):
        sentence = f"{format} needs matrices whose rows are multiples of 32 long, not of 48 numbers"
        with pytest.raises(InputError, match=sentence):
            quantize(numbers(columns=48), format)
        with pytest.raises(InputError, match=sentence):
            empty_quantized(format, 3, 48)

    @pytest.mark.parametrize("format", ["q4_0", "int4", "Q8_0", ""])
    def test_formats_that_nothing_is_quantized_to(self, format):
        with pytest.raises(InputError, match=f"cannot be quantized to '{format}': use one of int8, q8_0, q4_1"):
            quantize(numbers(), format)

    def test_codes_of_another_format(self):
        place = empty_quantized("q8_0", 24, 96)
        with pytest.raises(InputError, match="rows of q4_1 do not fit into a matrix of q8_0"):
            place.write(0, quantize_q4_1(numbers()))


@pytest.mark.parametrize("format", FORMATS)
class TestRoomForAMatrix:
    def test_what_is_written_in_pieces_is_the_matrix_quantized_at_once(self, format):
        whole = in_format(numbers(), format)
        place = empty_quantized(format, 24, 96)
        for start, stop in ((0, 5), (5, 6), (6, 24)):
            given = whole.rows(slice(start, stop)) if format == "q4_0" else numbers()[start:stop]
            place.write(start, given)
        assert equal(place, whole)
        assert torch.equal(place.dequantized(), whole.dequantized())

    def test_the_bytes_are_those_of_the_formula_and_lie_in_a_row(self, format):
        place = empty_quantized(format, 24, 96)
        assert place.shape == (24, 96)
        assert place.nbytes == 24 * 3 * BYTES[format] + (24 * 4 if format == "int8" else 0)
        if format != "int8":
            assert place.codes.stride(0) == 2 * place.scale.stride(0) == 3 * BYTES[format]
            assert place.scale.data_ptr() - place.codes.data_ptr() == place.codes.shape[1]

    def test_parts_are_views_and_picked_rows_copies(self, format):
        place = empty_quantized(format, 24, 96)
        place.write(0, in_format(numbers(), format))
        first, second = place.split([10, 14])
        assert (first.shape, second.shape) == ((10, 96), (14, 96))
        assert torch.equal(torch.cat((first.dequantized(), second.dequantized())), place.dequantized())
        picked = place.rows(torch.tensor([3, 20, 3]))
        assert torch.equal(picked.dequantized(), place.dequantized()[[3, 20, 3]])
        second.write(0, in_format(numbers(rows=14, seed=9), format))
        assert torch.equal(place.dequantized()[10:], in_format(numbers(rows=14, seed=9), format).dequantized())
        assert torch.equal(place.dequantized()[:10], in_format(numbers(), format).dequantized()[:10])
        assert torch.equal(picked.dequantized()[0], in_format(numbers(), format).dequantized()[3])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_numbers_come_in_the_dtype_that_is_asked_for(self, format, dtype):
        quantized = in_format(numbers(), format)
        assert quantized.dequantized(dtype).dtype == dtype
        assert torch.equal(quantized.dequantized(dtype), quantized.dequantized().to(dtype))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("format", FORMATS)
class TestAModel:
    CONFIG = native_config(qkv_bias=True, output_bias=True)

    def make(self, format, tied, dtype=torch.float32) -> Llama:
        return model_in(format, native_config(qkv_bias=True, output_bias=True, tie_word_embeddings=tied), dtype=dtype)

    def test_its_bytes_and_numbers_are_counted_once(self, format, tied):
        model, plain = self.make(format, tied), Llama(self.make(format, tied).config)
        shapes = [module.weight.shape for module in plain.modules() if isinstance(module, Linear)]
        shapes += [] if tied else [plain.embed_tokens.weight.shape]
        weights = sum(rows * columns for rows, columns in shapes)
        per_row = 4 * sum(rows for rows, _ in shapes) if format == "int8" else 0
        others = sum(p.nbytes for name, p in plain.named_parameters() if "norm" in name or "bias" in name)
        assert model.nbytes == weights * BYTES[format] // 32 + per_row + others
        assert model.num_parameters == plain.num_parameters
        table = model.embed_tokens.weight.nbytes
        assert weight_bytes_per_pass(model) == model.nbytes - (0 if tied else table)

    def test_nothing_in_float_is_kept_of_its_matrices(self, format, tied):
        """Also not after a pass, and nowhere that the garbage collector sees."""
        vocab, hidden = 113, 96
        config = native_config(vocab_size=vocab, hidden_size=hidden, tie_word_embeddings=tied)
        model = model_in(format, config)
        model.logits(model(random_ids(5), KVCache(config, 9)))
        for name, parameter in model.named_parameters():
            assert parameter.dim() == 1, f"{name} is a matrix in float"
        gc.collect()
        shapes = [slot.shape for slot in model.checkpoint_slots().values() if isinstance(slot, QuantizedWeight)]
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        floats = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.dim() == 2]
        assert not [tuple(t.shape) for t in floats if tuple(t.shape) in shapes and hidden in t.shape]

    def test_it_computes_with_the_numbers_that_the_codes_stand_for(self, format, tied):
        model = self.make(format, tied)
        oracle, ids = widened(model), random_ids(7)
        got = model.logits(model(ids, KVCache(model.config, 9)))
        expected = oracle.logits(oracle(ids, KVCache(model.config, 9)))
        assert float(expected.std()) > 0.05
        assert torch.allclose(got, expected, atol=1e-4, rtol=1e-4)

    def test_in_bfloat16_codes_and_scales_are_the_same(self, format, tied):
        model, wide = self.make(format, tied, torch.bfloat16), self.make(format, tied)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        slots = wide.checkpoint_slots()
        for name, slot in model.checkpoint_slots().items():
            if isinstance(slot, QuantizedWeight):
                assert equal(slot, slots[name]), name
        ids = random_ids(7)
        hidden = model(ids, KVCache(model.config, 9, dtype=torch.bfloat16))
        assert hidden.dtype == torch.bfloat16
        expected = wide.logits(wide(ids, KVCache(model.config, 9)))
        assert float((model.logits(hidden) - expected).abs().max()) < 0.2 * float(expected.std())

    def test_a_tied_head_is_the_embedding_itself(self, format, tied):
        model = self.make(format, tied)
        assert isinstance(model.embed_tokens, QuantizedEmbedding)
        assert isinstance(model.lm_head, QuantizedLinear)
        assert (model.embed_tokens.weight is model.lm_head.weight) == tied
        ids = random_ids(6)
        assert torch.equal(model.embed_tokens(ids)[0], model.embed_tokens.weight.dequantized()[ids[0]])


def test_matrices_may_be_in_different_formats_and_some_in_none():
    config = native_config(tie_word_embeddings=False)
    formats = {"qkv_proj": "q8_0", "down_proj": "q4_1", "embed_tokens": "int8"}
    model = Llama(config, formats=lambda name: formats.get(name.rpartition(".")[2]))
    for slot in model.checkpoint_slots().values():
        values = numbers(*slot.shape) if len(slot.shape) == 2 else torch.ones(slot.shape)
        slot.write(0, values) if isinstance(slot, QuantizedWeight) else slot.copy_(values)
    assert isinstance(model.lm_head, Linear)
    assert isinstance(model.layers[1].mlp.gate_up_proj, Linear)
    assert model.layers[1].self_attn.qkv_proj.weight.format == "q8_0"
    oracle, ids = widened(model), random_ids(7)
    got, expected = (m.logits(m(ids, KVCache(config, 9))) for m in (model, oracle))
    assert torch.allclose(got, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("format", ["int8", "q8_0", "q4_1"])
def test_a_hidden_size_that_groups_do_not_fill_is_refused_in_one_sentence(format):
    with pytest.raises(InputError, match=f"{format} needs matrices whose rows are multiples of 32 long, not of 48"):
        Llama(native_config(hidden_size=48), formats=lambda name: format)
