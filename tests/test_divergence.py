"""KL divergence against PyTorch's own, and two models side by side against what each says by itself."""

import math

import pytest
import torch
from tiny import random_ids, random_model, tiny_config

from minillm.divergence import compare, kl_divergence
from minillm.errors import InputError, NumbersError
from minillm.kv_cache import Int8KVCache, KVCache
from minillm.perplexity import perplexity, text_logprobs
from minillm.prefill import prefill


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nearly(model, seed=9):
    """The same model with a little noise on its weights."""
    other = random_model()
    for own, parameter in zip(model.parameters(), other.parameters(), strict=True):
        parameter.copy_(own + 0.02 * noise(*own.shape, seed=seed))
    return other


def test_it_is_the_divergence_that_pytorch_computes():
    one, other = 4 * noise(5, 107, seed=1), 4 * noise(5, 107, seed=2)
    theirs = torch.nn.functional.kl_div(
        other.log_softmax(-1), one.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(kl_divergence(one, other), theirs, rtol=1e-5)


def test_it_is_zero_of_a_row_with_itself_and_of_one_that_is_higher_throughout():
    rows = noise(3, 50, seed=3)
    assert kl_divergence(rows, rows).tolist() == [0, 0, 0]
    assert kl_divergence(rows, rows + 30).abs().max() < 1e-5


def test_it_weighs_by_the_first_of_the_two():
    sure, unsure = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    p = 1 / (1 + math.exp(-5))
    assert kl_divergence(sure, unsure).item() == pytest.approx(p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p)))
    assert kl_divergence(unsure, sure).item() == pytest.approx(-0.5 * math.log(2 * p) - 0.5 * math.log(2 * (1 - p)))


def test_a_token_that_both_hold_impossible_costs_nothing():
    one, other = noise(2, 6, seed=4), noise(2, 6, seed=5)
    expected = kl_divergence(one, other)
    column = torch.full((2, 1), -math.inf)
    assert torch.allclose(kl_divergence(torch.cat((one, column), 1), torch.cat((other, column), 1)), expected)


def test_a_token_that_only_the_other_holds_impossible_costs_everything():
    assert kl_divergence(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -math.inf]])).item() == math.inf


@pytest.mark.parametrize("chunk_size", [1, 7, 40])
def test_two_models_side_by_side_are_what_they_are_alone(chunk_size):
    model, ids = random_model(), random_ids(30)[0].tolist()
    other = nearly(model)
    result = compare(model, other, ids, chunk_size=chunk_size)
    assert result.tokens == 29
    assert result.perplexity == pytest.approx(perplexity(text_logprobs(other, ids)), rel=1e-4)
    assert result.reference_perplexity == pytest.approx(perplexity(text_logprobs(model, ids)), rel=1e-4)
    rows = [[prefill(m, ids[:n], KVCache(m.config, 30)).double() for m in (model, other)] for n in range(1, len(ids))]
    divergences = [(one.softmax(-1) * (one.log_softmax(-1) - two.log_softmax(-1))).sum().item() for one, two in rows]
    assert result.kl == pytest.approx(sum(divergences) / 29, rel=1e-3)
    assert result.same_top == pytest.approx(sum(int(one.argmax() == two.argmax()) for one, two in rows) / 29)
    assert 0 < result.same_top < 1, "both kinds of places occur, or this shows nothing"


def test_a_model_beside_itself_differs_in_nothing():
    result = compare(random_model(), random_model(), random_ids(12))
    assert (result.kl, result.same_top, result.change) == (0, 1, 0)


def test_decode_sends_one_token_at_a_time_through_the_model_and_chunks_through_the_reference(monkeypatch):
    reference, model = random_model(), random_model()
    widths = {"reference": [], "model": []}
    for name, each in (("reference", reference), ("model", model)):
        own = each.forward
        monkeypatch.setattr(each, "forward", lambda i, c, own=own, n=name: (widths[n].append(i.shape[1]), own(i, c))[1])
    result = compare(reference, model, random_ids(12), decode=True, chunk_size=8)
    assert widths == {"reference": [8, 3], "model": [1] * 11}
    assert result.kl < 1e-5


def test_no_more_than_a_chunk_of_rows_is_compared_at_once(monkeypatch):
    rows, whole = [], kl_divergence
    monkeypatch.setattr("minillm.divergence.kl_divergence", lambda a, b: (rows.append(len(a)), whole(a, b))[1])
    compare(random_model(), random_model(), random_ids(20), chunk_size=8)
    assert rows == [8, 8, 3]


def test_the_cache_may_be_given_and_what_it_rounds_is_seen():
    model = random_model()
    result = compare(model, model, random_ids(20), cache=Int8KVCache(model.config, 20))
    assert 0 < result.kl < 0.1


def test_models_of_different_vocabularies_are_refused():
    with pytest.raises(InputError, match="a vocabulary of 90 tokens cannot be set against one of 107"):
        compare(random_model(), random_model(tiny_config(vocab_size=90)), [1, 2, 3])


def test_a_text_of_one_token_predicts_nothing():
    with pytest.raises(InputError, match="a text of 1 token"):
        compare(random_model(), random_model(), [4])


def test_a_model_that_computes_nan_is_reported():
    broken = random_model()
    broken.norm.weight[0] = math.nan
    with pytest.raises(NumbersError, match="NaN"):
        compare(random_model(), broken, [1, 2, 3])
