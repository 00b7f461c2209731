"""The profile of a decode pass: own times, by an oracle that counts ticks and by PyTorch's own."""

import random
from itertools import pairwise

import pytest
import torch
from tiny import random_ids, random_model
from torch.profiler import ProfilerActivity, profile, record_function

from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.machine.profile import BETWEEN, OTHERS, PRODUCTS, PassProfile, Span, enclosing, profile_pass, self_seconds
from minillm.machine.profile import _spans as spans_of
from minillm.machine.profile import _summary as summary
from minillm.prefill import prefill


def spans(*times):
    return [Span(name, float(start), float(end)) for name, start, end in times]


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture
def cache(model):
    cache = KVCache(model.config, 40)
    prefill(model, random_ids(9), cache)
    return cache


def test_the_enclosing_spans_go_from_the_outermost_to_the_nearest():
    nested = spans(("a", 0, 8), ("b", 1, 5), ("c", 1, 3), ("d", 3, 5), ("e", 5, 8), ("f", 9, 10))
    assert list(enclosing(nested)) == [(), (0,), (0, 1), (0, 1), (0,), ()]


@pytest.mark.parametrize("seed", range(5))
def test_own_seconds_are_the_ticks_in_which_a_span_is_the_innermost_one(seed):
    draw, tree = random.Random(seed), []

    def grow(start, end, depth):
        tree.append(Span("span", float(start), float(end)))
        cuts = sorted(draw.sample(range(start, end + 1), k=min(end - start, 3))) if depth < 5 else []
        for left, right in pairwise(cuts):
            grow(left, right, depth + 1)

    grow(0, 60, 0)
    ticks = [0] * len(tree)
    for tick in range(60):
        ticks[max(i for i, span in enumerate(tree) if span.start <= tick < span.end)] += 1
    assert self_seconds(tree) == ticks
    assert sum(self_seconds(tree)) == 60


def test_own_seconds_are_what_pytorch_counts_as_an_operators_own():
    with profile(activities=[ProfilerActivity.CPU]) as recorded, record_function("decode pass"):
        (torch.randn(30, 30) @ torch.randn(30, 30)).transpose(0, 1).softmax(-1)
    ours = {(span.start, span.end, span.name): own for span, own in _own(spans_of(recorded))}
    theirs = {
        (e.time_range.start / 1e6, e.time_range.end / 1e6, e.name): e.self_cpu_time_total / 1e6
        for e in recorded.events()
        if e.name.startswith("aten::")
    }
    assert len(theirs) > 5
    assert {key: ours[key] for key in theirs} == pytest.approx(theirs, abs=1e-9)


def _own(some):
    return zip(some, self_seconds(some), strict=True)


def test_seconds_are_booked_by_part_and_by_what_ran_in_it():
    recorded = spans(
        ("decode pass", 0, 20),
        ("norms", 1, 4),
        ("aten::mul", 2, 3),
        ("projections", 5, 15),
        ("aten::linear", 6, 12),
        ("aten::empty", 7, 9),  # inside a product: its time is the product's
        ("aten::add", 13, 14),
        ("aten::embedding", 16, 18),  # in no part
        ("aten::mm", 30, 40),  # outside of the pass
    )
    result = summary(recorded, passes=2)
    assert result.seconds == {
        ("norms", OTHERS): 0.5,
        ("norms", BETWEEN): 1.0,
        ("projections", PRODUCTS): 3.0,
        ("projections", OTHERS): 0.5,
        ("projections", BETWEEN): 1.5,
        ("the rest", OTHERS): 1.0,
        ("the rest", BETWEEN): 2.5,
    }
    assert result.total_s == sum(result.seconds.values()) == 10
    assert result.calls == 4 / 2
    assert result.parts == ["projections", "the rest", "norms"]
    assert result.by_kind("norms") == {PRODUCTS: 0, OTHERS: 0.5, BETWEEN: 1.0}
    assert result.by_kind() == {PRODUCTS: 3.0, OTHERS: 2.0, BETWEEN: 5.0}


def test_the_parts_of_a_pass_add_up_to_it(model, cache):
    result = profile_pass(model, cache, passes=2)
    assert isinstance(result, PassProfile)
    assert sum(result.seconds.values()) == pytest.approx(result.total_s)
    assert min(result.seconds.values()) >= -1e-9
    expected = {"projections", "attention", "norms", "head", "rotary positions", "residual", "sampler", "activation"}
    assert set(result.parts) == expected | {"the rest"}
    assert result.seconds["head", PRODUCTS] > 0
    assert ("norms", PRODUCTS) not in result.seconds, "a normalisation multiplies no matrices"


def test_the_operators_of_a_pass_are_as_many_in_each_pass(model, cache):
    one, three = profile_pass(model, cache, passes=1), profile_pass(model, cache, passes=3)
    assert one.calls == three.calls > 50


def test_a_profile_leaves_model_and_cache_as_they_were(model, cache):
    held = cache.keys[:, :, :, :9].clone()
    before = prefill(model, [7], cache)
    cache.truncate(9)
    profile_pass(model, cache, passes=1)
    assert cache.length == 9
    assert torch.equal(cache.keys[:, :, :, :9], held)
    assert "attend" not in vars(cache)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(prefill(model, [7], cache), before)


def test_an_interrupted_profile_leaves_them_as_they_were_too(model, cache, monkeypatch):
    monkeypatch.setattr("minillm.machine.profile.sample_one", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        profile_pass(model, cache)
    assert cache.length == 9
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(("length", "passes", "sentence"), [(9, 0, "at least 1"), (0, 4, "a past"), (36, 4, "room")])
def test_what_cannot_be_profiled_is_refused(model, cache, length, passes, sentence):
    cache.truncate(0)
    cache.advance(length)
    with pytest.raises(InputError, match=sentence):
        profile_pass(model, cache, passes)
