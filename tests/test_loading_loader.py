"""load: a name in, a filled model and its tokenizer out, whatever form the checkpoint has."""

import pytest
import torch
from checkpoints import hf_tensors, write_gguf
from transformers import AutoModelForCausalLM

from minillm.kv_cache import KVCache
from minillm.loading import DEFAULT_MODEL, load
from minillm.loading.convert import convert_gguf
from minillm.prefill import prefill

IDS = [5, 200, 17, 31, 250, 99, 3, 41]


def last_logits(model, ids) -> torch.Tensor:
    return prefill(model, torch.tensor([ids]), KVCache(model.config, len(ids)))[0]


@pytest.fixture
def gguf_file(tmp_path):
    # Small weights, so that the softmax is not saturated and every tensor counts.
    tensors = {name: tensor * 0.1 for name, tensor in hf_tensors(tied=False, biases=True).items()}
    return write_gguf(tmp_path / "model.gguf", tensors)


def test_a_gguf_file_its_conversion_and_transformers_give_the_same_logits(tmp_path, gguf_file):
    convert_gguf(gguf_file, tmp_path / "model")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        expected = theirs(torch.tensor([IDS])).logits[0, -1]
    assert expected.std() > 0.01, "the logits are all alike, so that they would agree whatever was loaded"
    for path in (gguf_file, tmp_path / "model"):
        logits = last_logits(load(path)[0], IDS)
        assert torch.allclose(logits, expected, atol=1e-5), path


def test_the_tokenizer_comes_with_the_model_from_either_form(tmp_path, gguf_file):
    convert_gguf(gguf_file, tmp_path / "model")
    text = "the hat, 12 Ünïcödé 🙂"
    first, second = (load(path)[1].encode(text) for path in (gguf_file, tmp_path / "model"))
    assert first == second
    assert load(gguf_file)[1].decode(first) == text


def test_dtype_is_that_which_is_asked_for(gguf_file):
    model, _ = load(gguf_file, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.real_model
def test_the_default_model_knows_the_capital_of_france():
    model, tokenizer = load(DEFAULT_MODEL)
    ids = tokenizer.encode("The capital of France is")
    assert tokenizer.decode([int(last_logits(model, ids).argmax())]) == " Paris"
