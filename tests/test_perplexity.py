"""Log-probabilities of a text, and perplexity: against the loss that transformers computes for the same text."""

import math

import pytest
import torch
from tiny import oracle_pair, random_ids, random_model, tiny_config
from transformers import AutoModelForCausalLM

from minillm.errors import InputError, NumbersError
from minillm.kv_cache import KVCache
from minillm.perplexity import perplexity, text_logprobs
from minillm.prefill import prefill

TEXT = "The tide went out before dawn and left the boats leaning on the sand."


@pytest.mark.parametrize("chunk_size", [1, 5, 19, 20, 128])
def test_perplexity_is_exp_of_the_loss_of_transformers_in_chunks_of_any_size(chunk_size):
    theirs, ours = oracle_pair(tiny_config())
    ids = random_ids(20)
    with torch.no_grad():
        loss = theirs(ids, labels=ids).loss.item()
    logprobs = text_logprobs(ours, ids[0].tolist(), chunk_size)
    assert len(logprobs) == 19, "nothing predicts the first token"
    assert perplexity(logprobs) == pytest.approx(math.exp(loss), rel=1e-5)


def test_each_token_s_log_probability_is_that_of_the_logits_before_it():
    model, ids = random_model(), random_ids(9)[0].tolist()
    expected = [
        prefill(model, ids[:n], KVCache(model.config, 9)).double().log_softmax(-1)[0, ids[n]].item()
        for n in range(1, len(ids))
    ]
    assert text_logprobs(model, ids, chunk_size=3) == pytest.approx(expected, abs=1e-5)


def test_no_more_than_a_chunk_of_rows_goes_through_the_head_at_once(monkeypatch):
    model, rows = random_model(), []
    whole_head = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: (rows.append(hidden.shape[0]), whole_head(hidden))[1])
    text_logprobs(model, random_ids(20)[0].tolist(), chunk_size=8)
    assert rows == [8, 8, 3]


def test_a_text_may_be_one_token_longer_than_the_context_because_the_last_is_only_predicted():
    context = tiny_config().max_position_embeddings
    model = random_model()
    assert len(text_logprobs(model, random_ids(context + 1)[0].tolist())) == context
    with pytest.raises(InputError, match=f"{context + 2} tokens do not fit into the model's context of {context}"):
        text_logprobs(model, random_ids(context + 2)[0].tolist())


@pytest.mark.parametrize(
    ("ids", "chunk_size", "told"),
    [
        ([], 128, "no tokens"),
        ([3], 128, "a text of 1 tokens"),
        ([3, 4], 0, "chunk_size must be at least 1, not 0"),
        ([3, 107], 128, "token id 107 is outside the vocabulary of 107"),
        ([-1, 3], 128, "token id -1 is outside the vocabulary"),
        ([1.5, 2.5], 128, "whole numbers"),
        ("ab c", 128, "ids must be a list of token ids"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(ids, chunk_size, told):
    with pytest.raises(InputError, match=told):
        text_logprobs(random_model(), ids, chunk_size)


def test_ids_may_be_a_tensor():
    ids = random_ids(9)
    assert text_logprobs(random_model(), ids) == text_logprobs(random_model(), ids[0].tolist())


def test_a_model_in_bfloat16_gets_a_cache_of_its_own_dtype():
    model, ids = random_model(), random_ids(9)[0].tolist()
    wide = text_logprobs(model, ids)
    assert text_logprobs(model.to(torch.bfloat16), ids) == pytest.approx(wide, abs=0.1)


def test_a_token_that_the_model_holds_impossible_is_no_failure_of_the_model(monkeypatch):
    model = random_model()
    head = model.logits

    def without_token_7(hidden):
        logits = head(hidden)
        logits[:, 7] = -math.inf
        return logits

    monkeypatch.setattr(model, "logits", without_token_7)
    first, second = text_logprobs(model, [1, 7, 2])
    assert (first, math.isfinite(second)) == (-math.inf, True)


def test_a_logit_of_infinity_is_reported_wherever_it_stands(monkeypatch):
    model = random_model()
    head = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: head(hidden).index_fill(1, torch.tensor([5]), math.inf))
    with pytest.raises(NumbersError, match="infinity"):
        text_logprobs(model, [1, 2, 3])


def test_a_model_that_computes_nan_is_reported():
    model = random_model()
    model.norm.weight[0] = math.nan
    with pytest.raises(NumbersError, match="NaN"):
        text_logprobs(model, [1, 2, 3])


def test_a_model_that_knows_nothing_is_as_unsure_as_its_vocabulary_is_large():
    assert perplexity([math.log(1 / 107)] * 5) == pytest.approx(107)


def test_perplexity_is_the_geometric_mean_of_one_over_the_probability():
    assert perplexity([math.log(0.5), math.log(0.125)]) == pytest.approx(4)


def test_a_long_text_neither_underflows_nor_overflows():
    assert perplexity([-3.0] * 100_000) == pytest.approx(math.exp(3))


@pytest.mark.parametrize("logprobs", [[-1.0, -math.inf], [-2000.0]])
def test_an_impossible_token_makes_the_perplexity_infinite(logprobs):
    assert perplexity(logprobs) == math.inf


def test_no_log_probability_has_no_perplexity():
    with pytest.raises(InputError, match="two tokens or more"):
        perplexity([])


@pytest.mark.real_model
def test_the_perplexity_of_a_sentence_is_that_of_transformers(llm, model_dir):
    oracle = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    ids = llm.tokenizer.encode(TEXT)
    with torch.no_grad():
        loss = oracle(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
    assert perplexity(text_logprobs(llm.model, ids, chunk_size=7)) == pytest.approx(math.exp(loss), rel=1e-4)
