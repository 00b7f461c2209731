"""The pass of a prompt in C++, in tiles and in floats: the numbers of the model in PyTorch. Where the processor has no
tiles, they are slow, but right.
"""

import itertools
from collections.abc import Sequence

import pytest
import torch
from quantized_models import FORMATS, model_in, native_config, random_cache, widened
from tiny import random_ids

from minillm.compiled import compile_decode
from minillm.config import ModelConfig, RopeScaling
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span
from minillm.errors import InputError
from minillm.kv_cache import Int8KVCache, KVCache, NoCache
from minillm.model import Llama
from minillm.native.build import native_library
from minillm.native.described_model import DescribedModel
from minillm.native.prompt_pass import NativePromptPass, has_tiles
from minillm.prefill import prefill

pytestmark = pytest.mark.usefixtures("two_threads", "way")

CACHES = (torch.bfloat16, torch.int8, torch.float32)
STEP = 2**-8
"""Of bfloat16: half the distance of two neighbours, for numbers near 1."""


@pytest.fixture(params=["tiles", "floats"])
def way(request, monkeypatch) -> str:
    """As if on a processor that has tiles, or none. On one that has, the system must have been asked for them."""
    has_tiles()
    monkeypatch.setattr("minillm.native.prompt_pass.has_tiles", lambda: request.param == "tiles")
    monkeypatch.setattr("minillm.native.prompt_pass.floats_are_fast", lambda _: True)
    return request.param


def prompt_config(**changes) -> ModelConfig:
    """Sizes that the pass takes, multiples of 32. Every size differs from every other."""
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 6, "num_key_value_heads": 2}
    return native_config(**{**sizes, "head_dim": 32, "max_position_embeddings": 2048, **changes})


def prompt_model(format: str | None = None, std: float = 0.1, dtype: torch.dtype = torch.bfloat16, **changes) -> Llama:
    model = model_in(format, prompt_config(**changes), dtype=dtype, std=std)
    model.prompt_pass = NativePromptPass(model)
    return model


def ids_of(num_tokens: int, batch: int = 1, seed: int = 1) -> torch.Tensor:
    return random_ids(num_tokens, batch=batch, seed=seed)


def hidden(model: Llama, ids: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """By the pass, which must take it."""
    assert model.prompt_pass is not None
    with torch.inference_mode():
        got = model(ids, cache)
    assert model.prompt_pass.hidden(ids, cache) is not None, "the model computed it itself"
    return got


def off(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The root of the mean square of a difference, as a part of what is expected."""
    return float((got.float() - expected.float()).square().mean().sqrt() / expected.float().square().mean().sqrt())


def assert_nearly(got: torch.Tensor, expected: torch.Tensor) -> None:
    """A number rounded to bfloat16 is off by up to 2^-9 of it; some ten roundings follow each other."""
    assert got.shape == expected.shape
    assert got.isfinite().all()
    assert off(got, expected) < 4 * STEP


def wide_cache(cache: KVCache, config: ModelConfig) -> KVCache:
    """Room for as many tokens, for a model in float32."""
    sizes = (config, cache.max_seq_len, cache.batch_size)
    return Int8KVCache(*sizes) if cache.scales else KVCache(*sizes)


def kept(cache: KVCache, length: int) -> list[torch.Tensor]:
    """Keys and values of the first tokens, as numbers."""
    scales = cache.scales or (None, None)
    return [
        (codes[:, :, :, :length].float() * (1.0 if scale is None else scale[:, :, :, :length, None]))
        for codes, scale in zip((cache.keys, cache.values), scales, strict=True)
    ]


class TestTheNumbersOfTheModel:
    @pytest.mark.parametrize("cache_dtype", CACHES)
    @pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 32, 33, 48, 65, 512, 513, 600, 1100])
    def test_a_prompt(self, cache_dtype, num_tokens):
        model = prompt_model()
        cache = random_cache(model.config, cache_dtype, 0, room=num_tokens + 3)
        got = hidden(model, ids_of(num_tokens), cache)
        assert got.dtype == torch.bfloat16
        assert cache.length == 0, "a pass does not count its tokens in"
        oracle, other = widened(model), wide_cache(cache, model.config)
        assert_nearly(got, oracle(ids_of(num_tokens), other))
        for mine, theirs in zip(kept(cache, num_tokens), kept(other, num_tokens), strict=True):
            assert_nearly(mine, theirs)
        behind = cache.scales[0] if cache.scales else cache.keys
        assert behind[:, :, :, num_tokens:].isnan().all(), "nothing is written behind the prompt"

    @pytest.mark.parametrize("format", FORMATS)
    def test_quantized_weights(self, format):
        model = prompt_model(format)
        cache = KVCache(model.config, 100, dtype=torch.bfloat16)
        got = hidden(model, ids_of(90), cache)
        assert_nearly(got, widened(model)(ids_of(90), KVCache(model.config, 100)))

    @pytest.mark.parametrize("changes", [
        {"head_dim": 64}, {"head_dim": 96}, {"head_dim": 128}, {"num_key_value_heads": 6}, {"num_key_value_heads": 1},
        {"qkv_bias": True}, {"output_bias": True}, {"mlp_bias": True}, {"hidden_size": 1056, "intermediate_size": 32},
        {"num_hidden_layers": 1}, {"rope_theta": 100.0},
        {"rope_scaling": RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                     original_max_position_embeddings=64)},
    ])  # fmt: skip
    def test_other_models(self, changes):
        model = prompt_model(**changes)
        cache = KVCache(model.config, 200, dtype=torch.bfloat16)
        got = hidden(model, ids_of(180), cache)
        assert_nearly(got, widened(model)(ids_of(180), KVCache(model.config, 200)))

    @pytest.mark.parametrize("num_tokens", [1, 3, 45])
    @pytest.mark.parametrize("context", [1, 31, 32, 100, 700])
    @pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8])
    def test_behind_what_is_cached(self, context, cache_dtype, num_tokens):
        model = prompt_model()
        cache = random_cache(model.config, cache_dtype, context, room=context + 50)
        before = [numbers.clone() for numbers in kept(cache, context)]
        other = wide_cache(cache, model.config)
        for to, given in zip((other.keys, other.values, *other.scales), (cache.keys, cache.values, *cache.scales),
                             strict=True):  # fmt: skip
            to.copy_(given)
        other.advance(context)
        got = hidden(model, ids_of(num_tokens), cache)
        assert_nearly(got, widened(model)(ids_of(num_tokens), other))
        for numbers, was in zip(kept(cache, context), before, strict=True):
            assert torch.equal(numbers, was), "what was there is changed"

    @pytest.mark.parametrize("format", [None, *FORMATS])
    @pytest.mark.parametrize("num_tokens", [1, 33, 200])
    def test_a_model_in_float32(self, format, num_tokens):
        """Nothing is rounded to bfloat16, whatever the processor has."""
        model = prompt_model(format, dtype=torch.float32)
        cache, other = KVCache(model.config, 200), KVCache(model.config, 200)
        got = hidden(model, ids_of(num_tokens), cache)
        assert got.dtype == torch.float32
        assert off(got, widened(model)(ids_of(num_tokens), other)) < 1e-5
        for mine, theirs in zip(kept(cache, num_tokens), kept(other, num_tokens), strict=True):
            assert off(mine, theirs) < 1e-5

    def test_scores_far_apart(self):
        """Weights of attention that come to nothing, and others that are nearly 1."""
        model = prompt_model(std=0.5)
        got = hidden(model, ids_of(200), KVCache(model.config, 200, dtype=torch.bfloat16))
        plain = Llama.forward
        model.prompt_pass = None
        by_pytorch = plain(model, ids_of(200), KVCache(model.config, 200, dtype=torch.bfloat16))
        expected = widened(model)(ids_of(200), KVCache(model.config, 200))
        assert off(got, expected) < 1.2 * off(by_pytorch, expected)

    def test_gates_far_from_zero(self):
        """What a closed gate lets through is nothing, however large."""
        model = prompt_model(mlp_bias=True)
        bias, up = model.get_parameter("layers.0.mlp.gate_up_proj.bias"), model.config.intermediate_size
        bias[:2], bias[up : up + 2] = torch.tensor([-1e30, -1e3]), 1e30
        model.prompt_pass = NativePromptPass(model)  # which copies biases
        got = hidden(model, ids_of(40), KVCache(model.config, 40, dtype=torch.bfloat16))
        assert_nearly(got, widened(model)(ids_of(40), KVCache(model.config, 40)))


class TestInAnyCompany:
    def test_chunks_give_the_numbers_of_the_whole(self):
        model = prompt_model()
        whole = KVCache(model.config, 300, dtype=torch.bfloat16)
        parts = KVCache(model.config, 300, dtype=torch.bfloat16)
        last = prefill(model, ids_of(300), whole)
        assert torch.equal(last, prefill(model, ids_of(300), parts, chunk_size=64))
        assert torch.equal(whole.keys, parts.keys)
        assert torch.equal(whole.values, parts.values)

    def test_a_sequence_in_a_batch_gets_the_numbers_that_it_gets_alone(self):
        model, ids = prompt_model(), ids_of(70, batch=9)
        together = hidden(model, ids, KVCache(model.config, 80, 9, dtype=torch.bfloat16))
        for one, row in zip(ids, together, strict=True):
            alone = hidden(model, one[None], KVCache(model.config, 80, dtype=torch.bfloat16))
            assert torch.equal(alone[0], row)

    def test_sequences_with_more_keys_than_one_pass_sees(self):
        """Of 17 sequences with 64 blocks of keys each, the last one is left for another pass."""
        model, ids = prompt_model(num_hidden_layers=1), ids_of(32, batch=17)
        cache = random_cache(model.config, torch.bfloat16, 2010, batch=17, room=2042)
        alone = KVCache(model.config, 2042, dtype=torch.bfloat16)
        for to, given in zip((alone.keys, alone.values), (cache.keys, cache.values), strict=True):
            to.copy_(given[:, 16:])
        alone.advance(2010)
        together = hidden(model, ids[:, :16], cache)
        assert together.isfinite().all()
        assert torch.equal(hidden(model, ids[16:], alone)[:, :16], together[16:])

    @pytest.mark.parametrize("threads", [1, 3, 5])
    def test_any_number_of_threads_gives_the_same_numbers(self, threads):
        model, ids = prompt_model(), ids_of(700)
        with_two = hidden(model, ids, KVCache(model.config, 700, dtype=torch.bfloat16))
        torch.set_num_threads(threads)
        assert torch.equal(hidden(model, ids, KVCache(model.config, 700, dtype=torch.bfloat16)), with_two)

    @pytest.mark.parametrize("cache_dtype", [torch.bfloat16, torch.int8])
    def test_requests_in_blocks(self, cache_dtype):
        """Prompts and single tokens in one pass, their blocks anywhere."""
        model = prompt_model()
        pool = PagedKVCache(model.config, 40, 16, dtype=cache_dtype)
        blocks = iter(torch.randperm(40, generator=torch.Generator().manual_seed(3)).tolist())
        lengths = [(0, 70), (33, 1), (0, 17), (20, 40), (50, 1)]
        tables = [list(itertools.islice(blocks, -(-(start + count) // 16))) for start, count in lengths]
        prompts = [ids_of(start + count, seed=9 + i) for i, (start, count) in enumerate(lengths)]
        model_without = prompt_model()
        model_without.prompt_pass = None
        for (start, _), table, ids in zip(lengths, tables, prompts, strict=True):
            if start:
                model_without(ids[:, :start], PagedBatch(pool, [Span(table, 0, start)]))
        spans = [Span(table, start, count) for (start, count), table in zip(lengths, tables, strict=True)]
        new = torch.cat([ids[:, start:] for (start, _), ids in zip(lengths, prompts, strict=True)], dim=1)
        got = hidden(model, new, PagedBatch(pool, spans))  # type: ignore[arg-type]
        expected = [self.alone(model_without, ids, cache_dtype)[:, start:]
                    for (start, _), ids in zip(lengths, prompts, strict=True)]  # fmt: skip
        # Both are in bfloat16, and may be wrong on different sides.
        assert off(got, torch.cat(expected, dim=1)) < 6 * STEP

    def alone(self, model: Llama, ids: torch.Tensor, cache_dtype: torch.dtype) -> torch.Tensor:
        sizes = (model.config, ids.shape[1])
        return model(ids, Int8KVCache(*sizes) if cache_dtype == torch.int8 else KVCache(*sizes, dtype=torch.bfloat16))


class TestWhatItTakes:
    @pytest.mark.parametrize(("counts", "ways"), [
        ([1], ["tiles", "floats"]), ([2], ["tiles", "floats"]), ([1, 1], ["tiles", "floats"]),
        ([100], ["tiles", "floats"]), ([40, 1, 1], ["tiles", "floats"]), ([12] * 8, ["tiles", "floats"]),
        ([100] + [1] * 3, ["tiles", "floats"]), ([100] + [1] * 4, ["tiles"]), ([8] * 8, ["tiles"]),
        ([100] + [1] * 8, ["tiles"]), ([100] + [1] * 9, []), ([2] * 8, []), ([32] + [1] * 60, []), ([1] * 64, []),
    ])  # fmt: skip
    def test_not_where_most_of_what_is_computed_is_for_nobody(self, way: str, counts: Sequence[int], ways: list[str]):
        model = prompt_model()
        pool = PagedKVCache(model.config, 100, 16, dtype=torch.bfloat16)
        batch = PagedBatch(pool, [Span(list(range(10)), 0, count) for count in counts])
        assert model.prompt_pass is not None
        assert (model.prompt_pass.hidden(ids_of(sum(counts)), batch) is not None) is (way in ways)

    def test_not_without_a_place_for_keys_and_values(self):
        model = prompt_model()
        assert model.prompt_pass is not None
        assert model.prompt_pass.hidden(ids_of(64), NoCache(model.config)) is None
        other = KVCache(prompt_config(num_hidden_layers=1), 100, dtype=torch.bfloat16)
        assert model.prompt_pass.hidden(ids_of(64), other) is None
        for_two = KVCache(model.config, 100, 2, dtype=torch.bfloat16)
        assert model.prompt_pass.hidden(ids_of(64), for_two) is None

    def test_more_than_fits_is_refused_and_nothing_is_written(self):
        model = prompt_model()
        cache = random_cache(model.config, torch.bfloat16, 10, room=50)
        with pytest.raises(InputError, match="do not fit"):
            model(ids_of(64), cache)
        assert cache.keys[:, :, :, 10:].isnan().all()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_in_tiles_only_where_the_model_is_in_bfloat16(self, way, dtype, monkeypatch):
        called = []
        monkeypatch.setattr(DescribedModel, "run", lambda _, layers, *__: called.append(layers))
        model = prompt_model(dtype=dtype)
        hidden(model, ids_of(20), KVCache(model.config, 20, dtype=dtype))
        by_tiles = way == "tiles" and dtype == torch.bfloat16
        name = "prompt_in_tiles" if by_tiles else "prompt_in_floats"
        assert called == [getattr(native_library(), name)] * 2

    @pytest.mark.parametrize("changes", [{"hidden_size": 48}, {"intermediate_size": 80}, {"head_dim": 16}])
    def test_sizes_that_tiles_do_not_divide_are_refused(self, changes):
        with pytest.raises(InputError, match="multiples of 32"):
            NativePromptPass(model_in(None, prompt_config(**changes), dtype=torch.bfloat16))

    def test_weights_that_lie_column_by_column_are_refused(self):
        model = model_in(None, prompt_config(), dtype=torch.bfloat16)
        turned = model.get_parameter("layers.0.mlp.down_proj.weight").t().contiguous().t()
        model.get_submodule("layers.0.mlp.down_proj").weight = torch.nn.Parameter(turned, requires_grad=False)
        with pytest.raises(InputError, match="in one piece"):
            NativePromptPass(model)

    def test_where_the_library_is_faster_it_is_refused_and_decode_is_compiled_all_the_same(self, monkeypatch):
        monkeypatch.setattr("minillm.native.prompt_pass.has_tiles", lambda: False)
        monkeypatch.setattr("minillm.native.prompt_pass.floats_are_fast", lambda dtype: dtype != torch.bfloat16)
        model = model_in(None, prompt_config(), dtype=torch.bfloat16)
        with pytest.raises(InputError, match="PyTorch is faster"):
            NativePromptPass(model)
        said: list[str] = []
        assert compile_decode(model, said.append)
        assert model.decode_pass is not None
        assert model.prompt_pass is None
        assert said == []

    def test_compile_takes_one_away_that_was_for_another_precision(self, monkeypatch):
        model = prompt_model().to(torch.float32)
        monkeypatch.setattr("minillm.native.prompt_pass.floats_are_fast", lambda _: False)
        assert compile_decode(model, lambda _: None)
        assert model.prompt_pass is None

    def test_compile_brings_it_along(self):
        model = model_in(None, prompt_config(), dtype=torch.bfloat16)
        assert compile_decode(model, lambda _: None)
        assert isinstance(model.prompt_pass, NativePromptPass)


class TestBadNumbers:
    def test_what_is_not_a_number_stays_in_its_sequence(self):
        model = prompt_model()
        ids = ids_of(40, batch=2)
        ids[0] = 5
        ids[1][ids[1] == 5] = 6
        clean = hidden(model, ids, KVCache(model.config, 40, 2, dtype=torch.bfloat16))
        model.get_parameter("embed_tokens.weight")[5] = torch.nan
        got = hidden(model, ids, KVCache(model.config, 40, 2, dtype=torch.bfloat16))
        assert got[0].isnan().all()
        assert torch.equal(got[1], clean[1])

    def test_a_bad_token_does_not_reach_blocks_of_keys_before_its_own(self):
        model = prompt_model()
        ids = ids_of(100)
        ids[ids == 5] = 6
        clean = hidden(model, ids, KVCache(model.config, 100, dtype=torch.bfloat16))
        ids[0, 75] = 5
        model.get_parameter("embed_tokens.weight")[5] = torch.nan
        got = hidden(model, ids, KVCache(model.config, 100, dtype=torch.bfloat16))
        assert torch.equal(got[:, :64], clean[:, :64])
        assert got[:, 75:].isnan().any(dim=-1).all()
