"""Attention by tiles in a decode step: the numbers of attention in float32, up to what 16 bits of a factor lose."""

from collections.abc import Callable

import pytest
import torch
from quantized_models import copied, model_in, native_config, paged, random_cache, step, widened
from tiny import random_ids

from minillm.engine.paged_kv_cache import PagedBatch
from minillm.kv_cache import KVCache
from minillm.model import Llama
from minillm.native.decode_pass import NativeDecodePass
from minillm.native.described_model import has_tiles

pytestmark = pytest.mark.usefixtures("two_threads")


def one_layer(**changes) -> Llama:
    """In float32: only what is in the cache is rounded. One layer writes the same keys in both ways."""
    return model_in(None, native_config(**{"num_hidden_layers": 1, "head_dim": 32, **changes}))


def hidden(model: Llama, cache: KVCache | PagedBatch, by_tiles: bool, monkeypatch, rows: int = 1) -> torch.Tensor:
    """By a pass that has tiles, or none; where the processor has none, those of plain C++."""
    has_tiles()  # the system must have been asked for them, where there are any
    monkeypatch.setattr("minillm.native.described_model.has_tiles", lambda: by_tiles)
    decode_pass = NativeDecodePass(model)
    ids = random_ids(1, batch=rows) if isinstance(cache, KVCache) else random_ids(rows)
    computed = decode_pass.hidden(ids, cache)
    assert computed is not None
    return computed


def difference(model: Llama, make: Callable[[], KVCache | PagedBatch], monkeypatch, rows: int = 1) -> float:
    """Of the two ways, as a part of what comes out; that of factors of 16 bits. With 8, it is 2^-9 and more."""
    tiles, vectors = (hidden(model, make(), by_tiles, monkeypatch, rows) for by_tiles in (True, False))
    assert tiles.isfinite().all()
    off = float((tiles - vectors).square().mean().sqrt() / vectors.square().mean().sqrt())
    assert off < 2**-15
    return off


@pytest.mark.parametrize("head_dim", [32, 64, 96, 128, 160, 256])
@pytest.mark.parametrize("queries", [1, 2, 3, 4, 5, 7, 8, 9, 17])
def test_every_size_of_head_and_any_number_of_queries(head_dim, queries, monkeypatch):
    model = one_layer(head_dim=head_dim, num_attention_heads=2 * queries, num_key_value_heads=2)
    assert difference(model, lambda: random_cache(model.config, torch.bfloat16, 75), monkeypatch) > 0


@pytest.mark.parametrize("context", [0, 1, 14, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 200, 255, 256, 257, 384, 500])
@pytest.mark.parametrize("batch", [1, 9])
def test_every_length_of_context(context, batch, monkeypatch):
    """A tile is 16 positions, four are multiplied together, and scores are held for 256: the edges of all.

    Nine sequences are not divided into spans, where they are short of 384; what is behind their tokens is NaN.
    """
    model = one_layer()
    difference(model, lambda: random_cache(model.config, torch.bfloat16, context, batch), monkeypatch, batch)


@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 48, 400])
@pytest.mark.parametrize("lengths", [[0], [300], [0, 1, 15, 16, 17, 64, 65, 128, 33, 200, 7], [40] * 3])
def test_blocks_in_any_order(block_size, lengths, monkeypatch):
    """Tiles are read in place where a block holds all of their positions, else from a copy."""
    model = one_layer(head_dim=64)
    difference(model, lambda: paged(model, lengths, torch.bfloat16, block_size)[1], monkeypatch, len(lengths))


@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("place", [0, 299])
def test_scores_far_apart(place, batch, monkeypatch):
    """Some weights are nearly 1, others nothing. What the first 256 scores made must shrink for the last."""
    model = one_layer(num_key_value_heads=6)

    def cache() -> KVCache:
        made = random_cache(model.config, torch.bfloat16, 300, batch)
        made.keys[:, :, :, :300] *= 0.1
        made.keys[:, :, :, place] *= 30
        return made

    difference(model, cache, monkeypatch, batch)


def test_two_layers_give_the_logits_of_the_model_in_pytorch(monkeypatch):
    monkeypatch.setattr("minillm.native.described_model.has_tiles", lambda: has_tiles() or True)
    model = model_in(None, native_config(head_dim=64), dtype=torch.bfloat16)
    cache = random_cache(model.config, torch.bfloat16, 300, 3)
    expected = step(widened(model), random_ids(1, batch=3), copied(cache, model.config))
    model.decode_pass = NativeDecodePass(model)
    got = step(model, random_ids(1, batch=3), cache)
    assert float((got - expected).abs().max()) < 5e-3 * float(expected.std())


@pytest.mark.parametrize("part", ["keys", "values"])
def test_a_broken_number_in_the_cache_reaches_only_its_own_sequence(part, monkeypatch):
    model = one_layer()
    cache = random_cache(model.config, torch.bfloat16, 40, 3)
    getattr(cache, part)[:, 1, :, 20] = torch.nan
    got = hidden(model, cache, True, monkeypatch, 3).isfinite()
    assert got[0].all()
    assert not got[1].any()
    assert got[2].all()


@pytest.mark.parametrize("batch", [1, 5])
def test_the_same_bits_every_time(batch, monkeypatch):
    """Which thread takes which span is left to chance; what comes out is not."""
    model = one_layer(head_dim=64)
    first = hidden(model, random_cache(model.config, torch.bfloat16, 400, batch), True, monkeypatch, batch)
    for _ in range(10):
        again = hidden(model, random_cache(model.config, torch.bfloat16, 400, batch), True, monkeypatch, batch)
        assert torch.equal(again, first)
