"""The compiled decode pass: the eager numbers, the eager cache, and no compile after the first.

Inductor needs seconds of C++ compiler for each graph, so all tests share one pass on one tiny model: batch sizes 1 and
2, keys read in blocks of 8 as on CUDA.
"""

import pytest
import torch
import torch._inductor.config
from tiny import random_ids, random_model, tiny_config
from torch._dynamo.utils import counters

from minillm.errors import InputError
from minillm.inductor import TorchDecodePass
from minillm.inductor import torch_pass as torch_pass_module
from minillm.inductor.steps import HeadStep, LayerStep, product
from minillm.inductor.weights import Matrix, layer_weights, matrix_of
from minillm.kv_cache import KVCache, NoCache
from minillm.prefill import prefill
from minillm.quantization import quantize
from minillm.quantized_linear import QuantizedLinear

KV_BLOCK = 8


def compiles() -> int:
    """How many graphs torch's compiler has been given in this process, found in its cache or not."""
    return counters["aot_autograd"]["total"]


@pytest.fixture(scope="module")
def model():
    return random_model(std=0.1)


@pytest.fixture(scope="module")
def compiled(model):
    before = compiles()
    decode_pass = TorchDecodePass(model, (1, 2), kv_block=KV_BLOCK)
    assert compiles() - before == 3, "one layer per batch size and one head: three compiles, however many layers"
    return decode_pass


def filled(config, max_seq_len: int, batch: int, fill: float) -> KVCache:
    """A cache whose unwritten places all hold `fill`."""
    cache = KVCache(config, max_seq_len, batch)
    cache.keys.fill_(fill)
    cache.values.fill_(fill)
    return cache


@torch.inference_mode()
def steps_of_both(model, decode_pass, ids, max_seq_len, prompt=3):
    """Hidden states of every step after the prompt, eager and compiled, and both caches."""
    batch = ids.shape[0]
    eager, ours = filled(model.config, max_seq_len, batch, 0.0), filled(model.config, max_seq_len, batch, float("nan"))
    for cache in (eager, ours):
        model(ids[:, :prompt], cache)
        cache.advance(prompt)
    hidden = []
    for t in range(prompt, ids.shape[1]):
        token = ids[:, t : t + 1]
        hidden.append((model(token, eager), decode_pass.hidden(token, ours)))
        eager.advance(1)
        ours.advance(1)
    return hidden, eager, ours


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("max_seq_len", [21, 64])
def test_every_step_has_the_eager_numbers_whatever_lies_behind_in_the_cache(model, compiled, batch, max_seq_len):
    """Across blocks, to the last place of a cache whose length is no multiple of the block, with NaN behind."""
    ids = random_ids(21, batch=batch)
    hidden, eager, ours = steps_of_both(model, compiled, ids, max_seq_len)
    for expected, got in hidden:
        assert got.shape == (batch, 1, model.config.hidden_size)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
        for row in range(batch):
            logits = compiled.logits(got[row : row + 1])
            torch.testing.assert_close(logits, model.logits(expected[row : row + 1]), atol=1e-4, rtol=0)
    assert ours.length == eager.length == 21
    torch.testing.assert_close(ours.keys[..., :21, :], eager.keys[..., :21, :], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.values[..., :21, :], eager.values[..., :21, :], atol=1e-5, rtol=1e-4)
    assert ours.keys[..., 21:, :].isnan().all(), "something was written behind the newest token"
    assert ours.values[..., 21:, :].isnan().all(), "something was written behind the newest token"


def test_nothing_is_compiled_after_the_pass_is_made(model, compiled):
    before = compiles()
    for batch in (1, 2):
        for max_seq_len in (33, 50):
            steps_of_both(model, compiled, random_ids(33, batch=batch), max_seq_len)
    compiled.logits(torch.zeros(1, 1, model.config.hidden_size))
    assert compiles() == before, "a generation compiled something again"


def test_the_pass_does_not_advance_the_cache(model, compiled):
    cache = KVCache(model.config, 16)
    prefill(model, [1, 2, 3], cache)
    compiled.hidden(torch.tensor([[4]]), cache)
    assert cache.length == 3


def test_each_result_is_a_tensor_of_its_own(model, compiled):
    cache = KVCache(model.config, 16)
    prefill(model, [1, 2, 3], cache)
    first = compiled.hidden(torch.tensor([[4]]), cache)
    kept = first.clone()
    compiled.hidden(torch.tensor([[5]]), cache)
    assert torch.equal(first, kept), "a later step wrote over the hidden states of an earlier one"


def test_what_was_not_compiled_for_is_left_to_the_eager_way(model, compiled):
    config, one = model.config, torch.tensor([[1]])

    def holding(length, max_seq_len=16, batch=1, **kwargs):
        cache = KVCache(config, max_seq_len, batch, **kwargs)
        cache.advance(length)
        return cache

    class OtherCache(KVCache):
        pass

    assert compiled.hidden(one, holding(3)) is not None
    assert compiled.hidden(torch.tensor([[1, 2]]), holding(3)) is None, "two new tokens"
    assert compiled.hidden(one, holding(0)) is None, "the very first token"
    assert compiled.hidden(one, holding(16)) is None, "a full cache: the eager way says so in a sentence"
    assert compiled.hidden(one.expand(3, 1), holding(3, batch=3)) is None, "a batch size not compiled for"
    assert compiled.hidden(one, holding(3, batch=2)) is None, "fewer ids than sequences"
    assert compiled.hidden(one, holding(3, dtype=torch.bfloat16)) is None, "a cache of another dtype"
    assert compiled.hidden(one, NoCache(config)) is None, "no cache"
    assert compiled.hidden(one, OtherCache(config, 16)) is None, "a cache that may write and attend in its own way"


def test_the_model_hands_its_decode_steps_over(model, compiled):
    ids = random_ids(12)[0].tolist()
    expected = prefill(model, ids, KVCache(model.config, 16))
    calls = []

    class Spy:
        def hidden(self, ids, cache):
            hidden = compiled.hidden(ids, cache)
            if hidden is not None:
                calls.append(cache.length)
            return hidden

        def logits(self, hidden):
            calls.append("logits")
            return compiled.logits(hidden)

    model.decode_pass = Spy()
    try:
        cache = KVCache(model.config, 16)
        prefill(model, ids[:11], cache)
        got = prefill(model, ids[11:], cache)
    finally:
        model.decode_pass = None
    assert calls == ["logits", 11, "logits"], "the prompt goes the eager way, its last row and the step do not"
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "changes", [{"qkv_bias": True, "output_bias": True, "mlp_bias": True}, {"tie_word_embeddings": False}, {}]
)
@pytest.mark.parametrize("masked", [False, True])
def test_the_functions_that_are_compiled_are_right_for_every_kind_of_layer(changes, masked):
    """Run eagerly, for seconds count: biases, and another head."""
    model = random_model(tiny_config(**changes), std=0.1)
    config, layer = model.config, model.layers[0]
    cache = KVCache(config, 12)
    prefill(model, [5, 6, 7, 8], cache)
    keys, values = cache.keys[0].clone(), cache.values[0].clone()
    x = torch.randn(1, 1, config.hidden_size)
    cos, sin = (angle(4.0 * model.inv_freq)[None, None, None] for angle in (torch.cos, torch.sin))
    expected = layer(x, cos, sin, cache)
    got = LayerStep(config, masked=masked)(
        x[0], cos, sin, keys, values, torch.arange(5), torch.tensor([4]), layer_weights(layer)
    )
    torch.testing.assert_close(got, expected[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        HeadStep()(x[0], Matrix(model.lm_head.weight)), model.lm_head(x)[0], atol=1e-5, rtol=1e-5
    )


def test_narrow_weights_meet_float32_activations():
    """A bfloat16 layer, run by the functions, is as near to the same layer in float32 as its weights allow."""
    narrow = random_model(std=0.1).to(torch.bfloat16)
    wide = random_model(std=0.1).to(torch.bfloat16).float()
    config, position = narrow.config, torch.tensor([0])
    x, angles = torch.randn(1, config.hidden_size), torch.randn(1, 1, 1, config.head_dim // 2)
    results = []
    for model in (narrow, wide):
        cache = KVCache(config, 4, dtype=model.dtype)
        step = LayerStep(config, masked=False)
        weights = layer_weights(model.layers[0])
        args = (x, angles, angles, cache.keys[0], cache.values[0], torch.arange(1), position, weights)
        results.append(step(*args))
    assert results[0].dtype == torch.float32
    # Only the key and the value are rounded, to 8 bits, on their way through the cache.
    torch.testing.assert_close(results[0], results[1], atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("rows", [1, 2])
def test_an_int8_matrix_is_scaled_per_output_channel(rows):
    weight = torch.randint(-127, 128, (6, 8), dtype=torch.int8)
    scale, bias, x = torch.rand(6), torch.randn(6), torch.randn(rows, 8)
    expected = x @ (weight.float() * scale[:, None]).T + bias
    torch.testing.assert_close(product(x, Matrix(weight, scale, bias)), expected, atol=1e-3, rtol=1e-5)


def test_several_rows_are_left_to_the_models_own_head(model, compiled):
    assert compiled.logits(torch.zeros(2, 1, model.config.hidden_size)) is None


def test_a_format_that_is_not_compiled_here_is_named():
    codes = quantize(torch.randn(4, 64), "q4_1")
    with pytest.raises(InputError, match="float and int8, not 'q4_1'"):
        matrix_of(QuantizedLinear(codes))


def test_an_int8_projection_is_taken_as_it_is():
    linear, x = QuantizedLinear(quantize(torch.randn(6, 64), "int8")), torch.randn(1, 64)
    torch.testing.assert_close(product(x, matrix_of(linear)), linear(x), atol=1e-4, rtol=1e-4)


def test_layers_that_differ_are_refused():
    model = random_model(tiny_config(intermediate_size=96))
    layer = model.layers[1]
    layer.mlp.down_proj = QuantizedLinear(quantize(layer.mlp.down_proj.weight.data, "int8"))
    with pytest.raises(InputError, match="all layers in the same formats"):
        TorchDecodePass(model)


def test_without_a_compiler_one_sentence_says_so(model):
    nowhere = torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",)})
    with nowhere, pytest.raises(InputError, match=r"needs a C\+\+ compiler, and none was found: install g\+\+"):
        TorchDecodePass(model)


def test_a_compiler_that_fails_is_one_sentence_too(model, monkeypatch):
    from torch._inductor.exc import CppCompileError

    def fail(*_args, **_kwargs):
        raise CppCompileError(["g++", "x.cpp"], "x.cpp:1: fatal error: Python.h: No such file")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)
    with pytest.raises(InputError, match=r"failed in the C\+\+ compiler .*Python\.h.*leave --compile out"):
        TorchDecodePass(model)


@pytest.mark.parametrize("batch_sizes", [(), (0,), (1, -2)])
def test_batch_sizes_that_make_no_sense_are_refused(model, batch_sizes):
    with pytest.raises(InputError, match="batch sizes of at least 1"):
        TorchDecodePass(model, batch_sizes)


def test_on_cuda_one_graph_is_recorded_per_cache_and_block(model, compiled, monkeypatch):
    """The recording is replaced by a list of what it was asked for: which keys, and does the step repeat itself?"""
    asked = []

    class Recorder:
        def run(self, key, step):
            asked.append(key)
            once, twice = step(), step()
            assert torch.equal(once, twice), "a recorded step runs twice, and must do the same both times"
            return twice

    monkeypatch.setattr(compiled, "_graphs", Recorder())
    steps_of_both(model, compiled, random_ids(20), 20)
    assert len(asked) == 17
    assert [key[-1] for key in dict.fromkeys(asked)] == [8, 16, 20], "a graph per block of 8, the last cut to the cache"
    assert torch_pass_module.KV_BLOCK % 8 == 0


@pytest.mark.real_model
def test_50_greedy_tokens_and_their_logits_are_the_eager_ones(llm):
    model, ids = llm.model, llm.tokenizer.encode("Once upon a time, in a village by the sea,")
    decode_pass = TorchDecodePass(model)
    before = compiles()
    eager, ours = llm.new_cache(len(ids) + 50), llm.new_cache(len(ids) + 50)
    expected, got = prefill(model, ids, eager), prefill(model, ids, ours)
    with torch.inference_mode():
        for _ in range(50):
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
            token = expected.argmax(-1, keepdim=True)  # [1, 1]
            assert got.argmax() == token
            expected = model.logits(model(token, eager)[:, 0])
            got = decode_pass.logits(decode_pass.hidden(token, ours)[:, 0])
            eager.advance(1)
            ours.advance(1)
    assert compiles() == before
    torch.testing.assert_close(ours.keys, eager.keys, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ours.values, eager.values, atol=1e-3, rtol=1e-3)
