"""The decode pass in C++: the numbers of the model in PyTorch, for every shape, format and cache that it takes."""

import threading

import pytest
import torch
from quantized_models import (
    FORMATS,
    changed,
    copied,
    model_in,
    native_config,
    paged,
    random_cache,
    step,
    widened,
    with_rounded_inputs,
)
from tiny import random_ids, save_tiny_model, tiny_config

from minillm import LLM, SamplingParams
from minillm.config import RopeScaling
from minillm.decode import decode
from minillm.engine import Engine
from minillm.errors import InputError, NumbersError
from minillm.kv_cache import Int8KVCache, KVCache, NoCache
from minillm.model import Llama
from minillm.native.build import native_library
from minillm.native.decode_pass import NativeDecodePass
from minillm.prefill import prefill
from minillm.quantization import QuantizedWeight

pytestmark = pytest.mark.usefixtures("two_threads")

CACHES = (torch.float32, torch.bfloat16, torch.int8)
LLAMA3 = RopeScaling(
    kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)


def compiled(model: Llama) -> Llama:
    model.decode_pass = NativeDecodePass(model)
    return model


def both(
    model: Llama, oracle: Llama, cache: KVCache, seed: int = 1, slack: float = 1e-4
) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of one step of the decode pass, and of `oracle` in PyTorch on a copy of the cache.

    What is in the caches then must agree too: to `slack`, and to what a cache in fewer bits rounds away.
    """
    ids = random_ids(1, batch=cache.batch_size, seed=seed)
    other = copied(cache, model.config)
    expected = step(oracle, ids, other)
    length = cache.length
    native = model.decode_pass
    assert native is not None
    got = step(model, ids, cache)
    assert native.hidden(ids, cache) is not None, "the model computed it itself"
    assert cache.length == length, "a pass does not count its token in"
    assert got.dtype == torch.float32
    for mine, theirs in zip(
        (cache.keys, cache.values, *cache.scales), (other.keys, other.values, *other.scales), strict=True
    ):
        # A number that lies between two codes, or two bfloat16 numbers, may fall to either side.
        atol = 1.0 if mine.dtype == torch.int8 else slack
        rtol = 2**-7 if mine.dtype == torch.bfloat16 else slack
        mine, theirs = mine[:, :, :, : length + 1].float(), theirs[:, :, :, : length + 1].float()
        assert torch.allclose(mine, theirs, atol=atol, rtol=rtol)
        assert torch.equal(mine[:, :, :, :length], theirs[:, :, :, :length]), "what was there is changed"
    return got, expected


def assert_same(got: torch.Tensor, expected: torch.Tensor, bound: float = 1e-4) -> None:
    """Equal to `bound` of their spread."""
    spread = float(expected.std())
    assert spread > 0.05, "the logits are all alike, so that they would agree whatever was computed"
    worst = float((got - expected).abs().max())
    assert worst < bound * max(1.0, spread), f"logits of spread {spread:.2f} differ by {worst:.2g}"


SHAPES = {
    "one query per key head": {"num_key_value_heads": 6},
    "groups of 3": {},
    "groups of 2": {"num_attention_heads": 4},
    "groups of 4": {"num_attention_heads": 8},
    "groups of 5": {"num_attention_heads": 5, "num_key_value_heads": 1},
    "groups of 8": {"num_attention_heads": 8, "num_key_value_heads": 1},
    "biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "biases of queries, keys and values": {"qkv_bias": True},
    "untied": {"tie_word_embeddings": False},
    "llama3 rope": {"rope_scaling": LLAMA3},
    "yarn rope": {"rope_scaling": RopeScaling("yarn", 4.0, original_max_position_embeddings=24, attention_factor=1.3)},
    "head_dim 32": {"head_dim": 32},
    "head_dim 48, queries of 4": {"head_dim": 48, "num_attention_heads": 4, "num_key_value_heads": 1},
    "head_dim 80": {"head_dim": 80},
    "one layer": {"num_hidden_layers": 1},
    "few rows": {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 3, "vocab_size": 107},
    "columns not of 32": {"hidden_size": 52, "intermediate_size": 75},
    "fewer columns than 16": {"hidden_size": 7, "intermediate_size": 9},
}


@pytest.mark.parametrize("name", SHAPES)
def test_in_float32_every_shape_gives_the_logits_of_the_model(name):
    model = compiled(model_in(None, native_config(**SHAPES[name])))
    assert_same(*both(model, widened(model), random_cache(model.config, torch.float32, 40)))


@pytest.mark.parametrize("name", SHAPES)
def test_in_bfloat16_only_weights_and_cache_are_rounded(name):
    """What is computed stays in float32: the logits are those of a float32 model with the rounded weights."""
    model = compiled(model_in(None, native_config(**SHAPES[name]), dtype=torch.bfloat16))
    got, expected = both(model, widened(model), random_cache(model.config, torch.bfloat16, 40))
    assert_same(got, expected, 5e-3)  # a new key between two bfloat16 numbers may fall to either side


# A number between two codes may fall to either side. In 8 bits that is rare; in 16 it is not, but costs little.
ONE_CODE = {"int8": 1e-4, "q8_0": 1e-4}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("columns", [32, 64, 96, 160, 224, 256, 288, 576])
def test_every_number_of_groups_gives_the_product_with_the_rounded_vector(format, columns, monkeypatch):
    """The head alone, whose logits are one product: 1 to 18 groups of 32 in a row."""
    config = native_config(hidden_size=columns, tie_word_embeddings=False)
    model = compiled(model_in(format, config))
    hidden = torch.randn(3, columns, generator=torch.Generator().manual_seed(columns))
    hidden[1, : columns // 2 // 32 * 32] = 0.0  # groups that have no scale
    hidden[2] *= 1e4
    got = model.logits(hidden)
    expected = with_rounded_inputs(monkeypatch, model).lm_head(hidden)
    for mine, theirs in zip(got, expected, strict=True):
        assert_same(mine, theirs, ONE_CODE.get(format, 1e-5))


@pytest.mark.parametrize("format", ["int8", "q8_0"])
@pytest.mark.parametrize("vectors", [1, 9])
def test_with_weights_of_8_bits_next_to_nothing_of_the_vector_is_lost(format, vectors):
    """Against float64, with vectors alone and by tiles. Activations in 8 bits would be off by 50 times the bound."""
    model = compiled(model_in(format, native_config(hidden_size=576, tie_word_embeddings=False)))
    hidden = torch.randn(vectors, 576, generator=torch.Generator().manual_seed(1))
    hidden[:, 300] *= 30  # what is far from an outlier keeps its digits
    weight = model.lm_head.weight
    assert isinstance(weight, QuantizedWeight)
    expected = hidden.double() @ weight.dequantized().double().T
    for mine, theirs in zip(model.logits(hidden), expected, strict=True):
        assert_same(mine, theirs, 5e-4)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("columns", [32, 160, 576])
def test_a_vector_has_the_same_product_in_any_company(format, columns):
    """Alone it is multiplied in codes, by tiles in float32: rounded alike, so that sums differ in their last digits."""
    model = compiled(model_in(format, native_config(hidden_size=columns, tie_word_embeddings=False)))
    hidden = torch.randn(9, columns, generator=torch.Generator().manual_seed(columns))
    for vector, mine in zip(hidden, model.logits(hidden), strict=True):
        assert_same(mine, model.logits(vector[None])[0], 2e-6)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["groups of 3", "biases", "untied", "head_dim 32", "head_dim 48, queries of 4"])
def test_quantized_weights_give_the_logits_of_their_numbers_with_rounded_inputs(format, name, monkeypatch):
    config = native_config(**SHAPES[name])
    model, plain = compiled(model_in(format, config)), model_in(format, config)
    cache = random_cache(config, torch.float32, 40)
    exact = step(plain, random_ids(1), copied(cache, config))
    got, expected = both(model, with_rounded_inputs(monkeypatch, plain), cache, slack=2e-2)
    assert_same(got, expected, 5e-2)  # an input between two codes may fall to either side
    assert_same(got, exact, 0.2)  # without any rounding of inputs: the same to what 7 bits carry


@pytest.mark.parametrize("format", FORMATS)
def test_odd_groups_in_every_matrix(format, monkeypatch):
    """Rows of 1, 3 and 5 groups, all in one model."""
    config = native_config(hidden_size=160, intermediate_size=96, num_attention_heads=2, num_key_value_heads=1)
    model = compiled(model_in(format, config))
    cache = random_cache(config, torch.float32, 20)
    got = step(model, random_ids(1), copied(cache, config))
    expected = step(with_rounded_inputs(monkeypatch, model_in(format, config)), random_ids(1), cache)
    assert_same(got, expected, 2e-2)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("context", [0, 1, 2, 3, 4, 15, 31, 32, 33, 63, 64, 65, 128, 190, 191, 192, 193, 300, 383, 500])
@pytest.mark.parametrize("batch", [1, 9])
def test_every_length_of_context_is_attended_over_as_a_whole(cache_dtype, context, batch):
    """Spans have at least 32 positions; scores are computed four at a time, and held for 192: the edges of all.

    Nine sequences are not divided into spans, where they are short of 384.
    """
    model = compiled(model_in(None, native_config()))
    cache = random_cache(model.config, cache_dtype, context, batch)
    assert_same(*both(model, widened(model), cache), 1e-4 if cache_dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("batch", [*range(1, 10), 16, 31, 64])
def test_up_to_64_sequences_are_computed_side_by_side(cache_dtype, batch):
    model = compiled(model_in(None, native_config()))
    got, expected = both(model, widened(model), random_cache(model.config, cache_dtype, 45, batch))
    assert got.shape == (batch, model.config.vocab_size)
    assert_same(got, expected, 1e-4 if cache_dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("batch", [5, 11])
def test_a_batch_of_quantized_rows_is_each_row_on_its_own(format, batch):
    """Few are computed row by row, many by tiles of widened weights: both with inputs that are rounded alike."""
    model = compiled(model_in(format, native_config()))
    cache = random_cache(model.config, torch.int8, 70, batch)
    ids = random_ids(1, batch=batch)
    together = step(model, ids, cache)
    for row in range(batch):
        alone = Int8KVCache(model.config, cache.max_seq_len)
        for to, given in zip(
            (alone.keys, alone.values, *alone.scales), (cache.keys, cache.values, *cache.scales), strict=True
        ):
            to.copy_(given[:, row : row + 1])
        alone.advance(cache.length)
        got = step(model, ids[row : row + 1], alone)[0]
        assert torch.allclose(got, together[row], atol=5 * ONE_CODE.get(format, 2e-5)), row


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_shape_in_a_batch(name, dtype):
    """Rows and columns that fill no tile, biases, an odd number of sequences."""
    model = compiled(model_in(None, native_config(**SHAPES[name]), dtype=dtype))
    got, expected = both(model, widened(model), random_cache(model.config, dtype, 40, batch=7))
    assert_same(got, expected, 1e-4 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("format", [None, *FORMATS])
@pytest.mark.parametrize("columns", [32, 576, 608, 1184])
def test_rows_longer_than_a_panel_are_summed_to_their_end(format, columns, monkeypatch):
    """The head alone, for 9 vectors; a panel is 576 columns."""
    config = native_config(hidden_size=columns, tie_word_embeddings=False)
    model = compiled(model_in(format, config))
    hidden = torch.randn(9, columns, generator=torch.Generator().manual_seed(columns))
    got = model.logits(hidden)
    for mine, theirs in zip(got, with_rounded_inputs(monkeypatch, model).lm_head(hidden), strict=True):
        assert_same(mine, theirs, ONE_CODE.get(format, 1e-5))


@pytest.mark.parametrize("dtype", CACHES)
@pytest.mark.parametrize("block_size", [1, 5, 16, 400])
@pytest.mark.parametrize("lengths", [[0], [300], [0, 1, 15, 16, 17, 64, 65, 128, 33, 200, 7], [40] * 3])
def test_requests_of_any_length_in_blocks_in_any_order(dtype, block_size, lengths):
    model = compiled(model_in(None, native_config()))
    native = model.decode_pass
    ids = random_ids(len(lengths), seed=4)
    cache, batch = paged(model, lengths, dtype, block_size)
    assert native is not None
    got = model.logits(model(ids, batch))[0]  # [N, V]
    assert native.hidden(ids, batch) is not None, "the model computed it itself"
    other, same_batch = paged(model, lengths, dtype, block_size)
    model.decode_pass = None
    expected = model.logits(model(ids, same_batch))[0]
    for mine, theirs in zip(got, expected, strict=True):
        assert_same(mine, theirs, 1e-4 if dtype == torch.float32 else 1e-2)
    changed_rows = (cache.keys[-1] != paged(model, lengths, dtype, block_size)[0].keys[-1]).flatten(2).any(-1)
    assert int(changed_rows.sum()) == len(lengths), "one slot of each request is written, and no other"
    atol, rtol = (1.0, 0.0) if dtype == torch.int8 else (1e-4, 2**-5 if dtype == torch.bfloat16 else 1e-4)
    assert torch.allclose(cache.keys.float(), other.keys.float(), atol=atol, rtol=rtol)


@pytest.mark.parametrize("kv_dtype", CACHES)
def test_an_engine_on_compiled_code_gives_each_request_what_it_gets_alone(kv_dtype):
    """Pools that are too small, prompts that are read in chunks: the passes for decoding are the compiled ones."""
    weights = torch.bfloat16 if kv_dtype == torch.bfloat16 else torch.float32
    model = compiled(model_in(None, native_config(), dtype=weights))
    native, taken = model.decode_pass, []
    assert isinstance(native, NativeDecodePass)
    params = SamplingParams(max_tokens=25, ignore_eos=True)
    engine = Engine(model, num_blocks=14, block_size=8, kv_dtype=kv_dtype, max_batch_size=6, token_budget=20)
    prompts = [random_ids(length, seed=length)[0].tolist() for length in (1, 3, 9, 30, 17, 5, 12, 40, 2)]
    requests = [engine.add(prompt, params) for prompt in prompts]
    hidden = native.hidden
    native.hidden = lambda ids, cache: taken.append(ids.shape[1]) or hidden(ids, cache)  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
    assert sum(r.num_preemptions for r in requests) > 0
    assert max(taken) > 2, "no pass over several requests was compiled"
    if kv_dtype == torch.float32:  # elsewhere, chunks round keys differently, and near ties fall otherwise
        for request, prompt in zip(requests, prompts, strict=True):
            cache = KVCache(model.config, len(prompt) + 25)
            steps = decode(model, prefill(model, prompt, cache), cache, params, prompt_ids=prompt)
            assert request.generated_ids == [step.token_id for step in steps]
    assert all(len(request.generated_ids) == 25 for request in requests)


def test_threads_of_the_library_are_torch_s_own():
    """One libgomp for both: with two, `torch.set_num_threads` would not reach the kernels, and both sets would spin."""
    library = native_library()
    for threads in (1, 3, 2):
        torch.set_num_threads(threads)
        assert library.omp_get_max_threads() == threads


@pytest.mark.parametrize("format", [None, "int8", "q4_1"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_threads_gives_the_same(format, threads):
    """Three on two processors: threads that are taken off theirs in the middle of a phase."""
    torch.set_num_threads(threads)
    model = compiled(model_in(format, native_config()))
    cache = random_cache(model.config, torch.float32, 200, 2)
    first = step(model, random_ids(1, batch=2), cache)
    for _ in range(20):
        assert torch.equal(step(model, random_ids(1, batch=2), cache), first), "a thread read what was not yet there"
    torch.set_num_threads(1)
    assert torch.allclose(step(model, random_ids(1, batch=2), cache), first, atol=1e-3 if format else 1e-5)


def test_a_pass_from_another_thread_of_python_gives_the_same():
    model = compiled(model_in(None, native_config()))
    cache = random_cache(model.config, torch.float32, 100)
    expected, found = step(model, random_ids(1), cache), []
    thread = threading.Thread(target=lambda: found.append(step(model, random_ids(1), cache)))
    thread.start()
    thread.join()
    assert torch.allclose(found[0], expected, atol=1e-5)


def test_a_full_cache_refuses_the_next_token_and_loses_nothing():
    model = compiled(model_in(None, native_config()))
    cache = random_cache(model.config, torch.float32, 12, room=12)
    before = cache.keys.clone(), cache.values.clone()
    with pytest.raises(InputError, match="13 tokens do not fit into a cache of 12"):
        model(random_ids(1), cache)
    assert cache.length == 12
    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])


def test_a_released_cache_is_refused():
    model = compiled(model_in(None, native_config()))
    cache = random_cache(model.config, torch.float32, 12)
    step(model, random_ids(1), cache)
    cache.release()
    with pytest.raises(InputError, match="1 tokens do not fit into a cache of 0"):
        model(random_ids(1), cache)


def test_caches_may_take_turns():
    """Of other lengths, dtypes and numbers of sequences, some of them gone in between: their memory is used again."""
    model = compiled(model_in(None, native_config()))
    oracle = widened(model)
    kept = random_cache(model.config, torch.float32, 20)
    for turn in range(30):
        dtype = CACHES[turn % 3]
        cache = random_cache(model.config, dtype, 20 + turn % 5 * 9, 1 + turn % 2, room=70)
        assert_same(*both(model, oracle, cache, turn), 1e-4 if dtype == torch.float32 else 1e-2)
        cache.truncate(cache.length // 2)
        assert_same(*both(model, oracle, cache, turn + 1), 1e-4 if dtype == torch.float32 else 1e-2)
        assert_same(*both(model, oracle, kept, turn + 2))


def test_a_cache_of_another_dtype_in_the_same_memory_is_seen_as_what_it_is():
    """Memory is used again: the address alone does not say what lies there."""
    model = compiled(model_in(None, native_config()))
    room = random_cache(model.config, torch.float32, 20)
    step(model, random_ids(1), room)
    halves = random_cache(model.config, torch.bfloat16, 20)
    for name in ("keys", "values"):
        inside = getattr(room, name).view(torch.bfloat16).flatten()[: halves.keys.numel()].view(halves.keys.shape)
        inside.copy_(getattr(halves, name))
        setattr(halves, name, inside)
    assert_same(*both(model, widened(model), halves), 1e-2)


@pytest.mark.parametrize("cache_dtype", CACHES)
def test_many_steps_in_a_row_are_the_pass_over_the_whole(cache_dtype):
    config = native_config()
    model, oracle = compiled(model_in(None, config)), model_in(None, config)
    ids = random_ids(70)
    cache = random_cache(config, cache_dtype, 0, room=70)
    whole = copied(cache, config)
    expected = oracle.logits(oracle(ids, whole))[0]
    for position in range(70):
        got = step(model, ids[:, position : position + 1], cache)[0]
        cache.advance(1)
        assert_same(got, expected[position], 1e-3 if cache_dtype == torch.float32 else 5e-2)


class TestWhatItDoesNotTake:
    """The model in PyTorch computes it."""

    @pytest.fixture(scope="class")
    def model(self):
        return compiled(model_in(None, native_config()))

    def test_several_tokens_at_a_time(self, model):
        cache = random_cache(model.config, torch.float32, 5)
        ids = random_ids(2)
        assert model.decode_pass.hidden(ids, cache) is None
        expected = widened(model)(ids, copied(cache, model.config))
        assert torch.equal(model(ids, cache), expected)

    def test_no_cache(self, model):
        cache = NoCache(model.config)
        assert model.decode_pass.hidden(random_ids(1), cache) is None
        assert torch.equal(model(random_ids(1), cache), widened(model)(random_ids(1), NoCache(model.config)))

    def test_more_than_64_sequences(self, model):
        cache = random_cache(model.config, torch.float32, 5, 65)
        ids = random_ids(1, batch=65)
        assert model.decode_pass.hidden(ids, cache) is None
        oracle = widened(model)
        hidden = model(ids, cache)
        assert torch.equal(hidden, oracle(ids, copied(cache, model.config)))
        assert torch.equal(model.logits(hidden), oracle.logits(hidden))

    def test_a_cache_of_another_dtype(self, model):
        cache = KVCache(model.config, 9, dtype=torch.float16)
        assert model.decode_pass.hidden(random_ids(1), cache) is None
        with pytest.raises(InputError, match=r"this cache holds torch.float16"):
            model(random_ids(1), cache)

    @pytest.mark.parametrize("other", [{"num_hidden_layers": 1}, {"num_key_value_heads": 1}, {"head_dim": 32}])
    def test_a_cache_of_another_model_is_refused_and_not_written_into(self, model, other):
        cache = KVCache(native_config(**other), 9)
        cache.keys.fill_(7.0)
        with pytest.raises((InputError, IndexError)):
            model(random_ids(1), cache)
        assert bool((cache.keys[1:] == 7.0).all())

    def test_more_sequences_than_the_cache_has(self, model):
        assert model.decode_pass.hidden(random_ids(1, batch=2), KVCache(model.config, 9)) is None

    def test_ids_on_another_device(self, model):
        """There is nothing at their address."""
        assert model.decode_pass.hidden(random_ids(1).to("meta"), KVCache(model.config, 9)) is None

    def test_ids_that_pytorch_would_refuse(self, model):
        assert model.decode_pass.hidden(random_ids(1).short(), KVCache(model.config, 9)) is None


@pytest.mark.parametrize("format", [None, *FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_are_rows_of_the_table(format, dtype, tied):
    model = model_in(format, native_config(tie_word_embeddings=tied), dtype=dtype)
    native, last = NativeDecodePass(model), model.config.vocab_size - 1
    for ids in (torch.tensor([[0], [last], [7], [7]]), torch.tensor([[3, 9], [last, 4]]).T, torch.tensor([[5]]).int()):
        got, expected = native._embedded(ids), model.embed_tokens(ids).float()
        assert got.shape == expected.shape
        assert torch.allclose(got, expected, rtol=2**-8 if dtype == torch.bfloat16 else 1e-6, atol=1e-7)


@pytest.mark.parametrize("wrong", [-1, "vocab_size", 2**40])
def test_an_id_that_the_table_has_not_is_refused(wrong):
    model = compiled(model_in(None, native_config()))
    cache = random_cache(model.config, torch.float32, 5)
    before = cache.keys.clone()
    with pytest.raises(InputError, match=f"outside the vocabulary of {model.config.vocab_size} tokens"):
        model(torch.tensor([[getattr(model.config, str(wrong), wrong)]]), cache)
    assert torch.equal(cache.keys.nan_to_num(), before.nan_to_num())


def test_logits_of_rows_in_any_shape():
    model = compiled(model_in(None, native_config()))
    oracle = widened(model)
    generator = torch.Generator().manual_seed(3)
    for shape in ((64,), (1, 64), (3, 64), (2, 4, 64), (2, 5, 64), (0, 64)):
        hidden = torch.randn(shape, generator=generator)
        assert torch.allclose(model.logits(hidden), oracle.logits(hidden), atol=1e-4)
    spread_out = torch.randn(4, 128, generator=generator)[:, ::2]
    assert torch.allclose(model.logits(spread_out), oracle.logits(spread_out.contiguous()), atol=1e-4)
    with pytest.raises(RuntimeError, match="shape"):  # of another width: PyTorch's sentence, and nothing is read
        model.logits(torch.randn(1, 32))


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: model_in(None, native_config(), dtype=torch.float16), "know float32 and bfloat16, not torch.float16"),
        (lambda: model_in(None, tiny_config()), "need a head_dim that is a multiple of 16, at most 1,024, not 10"),
        (lambda: Llama(native_config(), device="meta"), "are for the CPU, not for meta"),
        (
            lambda: Llama(native_config(head_dim=1040, num_attention_heads=1, num_key_value_heads=1), device="cpu"),
            "a multiple of 16, at most 1,024, not 1040",
        ),
    ],
    ids=["float16", "head_dim", "device", "wide heads"],
)
def test_models_that_it_is_not_made_for_are_refused_in_one_sentence(model, sentence):
    with pytest.raises(InputError, match=sentence):
        NativeDecodePass(model())


NAMES = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.1.input_layernorm.weight",
    "model.layers.1.post_attention_layernorm.weight",
    *(f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkvo"),
    *(f"model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    "lm_head.weight",
)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("format", [None, *FORMATS])
def test_numbers_that_are_none_are_not_made_into_some(format, value):
    """A broken weight must come out as logits that are no numbers: the engine then stops, instead of talking on."""
    model = model_in(format, native_config(tie_word_embeddings=False))
    cache, hidden = random_cache(model.config, torch.float32, 40), []
    for name in NAMES:
        broken = changed(model.checkpoint_slots(), name)
        before = broken.clone()
        broken.fill_(value)
        model.decode_pass = None
        assert not step(model, random_ids(1), cache).isfinite().any(), "the model in PyTorch shows it"
        compiled(model)
        if step(model, random_ids(1), cache).isfinite().any():
            hidden.append(name)
        broken.copy_(before)
    assert not hidden


@pytest.mark.parametrize("cache_dtype", CACHES)
@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_broken_queries_keys_and_values_are_not_made_into_numbers(cache_dtype, part):
    model = compiled(model_in(None, native_config()))
    changed(model.checkpoint_slots(), f"model.layers.0.self_attn.{part}_proj.weight").fill_(torch.nan)
    cache = random_cache(model.config, cache_dtype, 40)
    assert not step(model, random_ids(1), cache).isfinite().any()


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    sizes = {"hidden_size": 96, "intermediate_size": 64, "head_dim": 16, "max_position_embeddings": 256}
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), **sizes)


PARAMS = SamplingParams(max_tokens=60, ignore_eos=True)


def test_in_float32_a_compiled_model_says_the_same(tiny_dir):
    eager, native = (LLM(tiny_dir, device="cpu", dtype="float32", compile=on) for on in (False, True))
    assert eager.model.decode_pass is None
    assert isinstance(native.model.decode_pass, NativeDecodePass)
    for prompt in ("the cat", "a", "x" * 40):
        assert native.generate(prompt, PARAMS).token_ids == eager.generate(prompt, PARAMS).token_ids
    sampled = SamplingParams(max_tokens=30, temperature=1.0, seed=3)
    assert native.generate("the cat", sampled).token_ids == eager.generate("the cat", sampled).token_ids


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_quantized_models_are_compiled_unless_told_otherwise_and_generate(tiny_dir, quantize, kv_dtype):
    native = LLM(tiny_dir, device="cpu", dtype="float32", quantize=quantize, kv_dtype=kv_dtype)
    eager = LLM(tiny_dir, device="cpu", dtype="float32", quantize=quantize, kv_dtype=kv_dtype, compile=False)
    assert isinstance(native.model.decode_pass, NativeDecodePass)
    assert eager.model.decode_pass is None
    assert native.generate("the cat", PARAMS).token_ids == native.generate("the cat", PARAMS).token_ids
    assert len(eager.generate("the cat", PARAMS).token_ids) == 60


def test_a_compiled_model_with_a_broken_weight_ends_the_request(tiny_dir):
    llm = LLM(tiny_dir, device="cpu", dtype="float32", compile=True)
    llm.model.checkpoint_slots()["model.layers.1.mlp.down_proj.weight"].fill_(torch.nan)
    with pytest.raises(NumbersError):
        llm.generate("the cat", PARAMS)


@pytest.mark.real_model
def test_the_real_model_says_the_same_compiled(model_dir, llm):
    native = LLM(model_dir, device="cpu", dtype="float32", compile=True)
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    params = SamplingParams(max_tokens=60)
    assert native.chat(messages, params).token_ids == llm.chat(messages, params).token_ids
