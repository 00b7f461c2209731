"""GGUF files of every architecture: against transformers, from whose models they were written, and against llama.cpp,
whose answers to the same files are recorded (`record_llama_cpp`).
"""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as QType
from gguf_families import (
    FAMILIES,
    content_of,
    factor_tensors_of,
    make_model,
    metadata_of,
    random_ids,
    wide,
    write_family,
)
from record_llama_cpp import CASES, RECORDED, TYPES, WATCHED, Case
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from minillm.benchmark.gguf_file import gguf_weight_bytes
from minillm.config import ModelConfig, RopeScaling
from minillm.kv_cache import KVCache
from minillm.loading import open_checkpoint
from minillm.loading.checkpoint import has_fused_projections, read
from minillm.loading.convert import convert_gguf
from minillm.loading.gguf import SUPPORTED_TYPES
from minillm.loading.loader import load_model
from minillm.loading.weight_formats import weight_formats
from minillm.machine.shape import num_params, shape_of
from minillm.machine.shape_files import GGUF_TYPES, read_gguf
from minillm.model import Llama
from minillm.quantization import QuantizedWeight
from minillm.quantized_linear import QuantizedEmbedding, QuantizedLinear

README = Path(__file__).parents[1] / "README.md"
CONFIGS = Path(__file__).parent / "recorded" / "configs"
ANSWERS: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))


def token_ids(family: str) -> torch.Tensor:
    return torch.tensor([random_ids(FAMILIES[family].positions[-1] + 1)])  # [1, T]


def pieces_of(ids: torch.Tensor) -> list[torch.Tensor]:
    """Most of a prompt, a chunk of it that crosses its windows or its original context, and three tokens one by one."""
    return list(ids.split([ids.shape[1] - 11, 8, 1, 1, 1], dim=1))


def our_logits(model: Llama, pieces: list[torch.Tensor]) -> torch.Tensor:
    """[T, V] after passes over these pieces."""
    cache, found = KVCache(model.config, sum(piece.shape[1] for piece in pieces)), []
    for piece in pieces:
        found.append(model.logits(model(piece, cache)))
        cache.advance(piece.shape[1])
    return torch.cat(found, dim=1)[0]


@torch.no_grad()
def their_logits(model: Any, pieces: list[torch.Tensor]) -> torch.Tensor:
    cache = DynamicCache(config=model.config)
    return torch.cat([model(piece, past_key_values=cache).logits for piece in pieces], dim=1)[0]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: make_model(name) for name in FAMILIES}


@pytest.fixture(scope="module")
def files(models, tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("families")
    return {name: write_family(directory / f"{name}.gguf", name, models[name]) for name in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_each_family_gives_the_logits_of_transformers(models, files, family):
    """In one pass, in chunks and token by token; beyond windows and original contexts."""
    ours, ids = load_model(open_checkpoint(files[family])), token_ids(family)
    for pieces in ([ids], pieces_of(ids)):
        expected, found = their_logits(models[family], pieces), our_logits(ours, pieces)
        assert expected.std() > 0.5
        assert (found - expected).abs().max() < 1e-4, f"in {len(pieces)} passes"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_converted_directory_gives_transformers_the_same_logits(models, files, family, tmp_path):
    convert_gguf(files[family], tmp_path / "model")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert theirs.config.eos_token_id == 2
    ids = token_ids(family)
    assert (their_logits(theirs, [ids]) - their_logits(models[family], [ids])).abs().max() < 1e-4
    assert open_checkpoint(tmp_path / "model").config == open_checkpoint(files[family]).config


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_file_gives_the_logits_that_llama_cpp_computed_from_it(case: Case, tmp_path):
    """To the rounding of float32. Where llama.cpp rounds activations too, to less than a sixteenth of the logits: it is
    a thirtieth, and three tenths or more with rows in a wrong order.
    """
    answer = ANSWERS[case.name]
    path = case.write(tmp_path / "model.gguf")
    assert content_of(path) == answer["content"], "the file is not the recorded one: python tests/record_llama_cpp.py"
    found = our_logits(load_model(open_checkpoint(path)), [torch.tensor([case.ids])])[list(case.positions)].numpy()
    expected = np.array(answer["logits"])
    difference = found[:, WATCHED] - expected
    if case.exact:
        assert np.abs(difference).max() < 1e-4
        assert found.argmax(axis=1).tolist() == answer["top"]
    assert np.square(difference).mean() ** 0.5 < np.square(expected).mean() ** 0.5 / 16


def test_each_type_that_is_read_was_given_to_llama_cpp():
    assert set(TYPES) == set(SUPPORTED_TYPES)
    assert f"each of the {len(TYPES)} tensor types" in README.read_text(encoding="utf-8")
    assert set(ANSWERS) - {"by"} == {case.name for case in CASES}


@pytest.mark.parametrize(
    ("family", "kind"),
    [("granite", "Q4_1"), ("qwen2", "Q8_0"), ("qwen3", "Q4_0"), ("smollm3", "Q8_0"), ("phi3 4k", "Q4_1")],
)
def test_blocks_of_a_file_are_used_as_they_are_in_every_layout(family, kind, tmp_path):
    path = write_family(tmp_path / "model.gguf", family, make_model(family, **wide(family)), QType[kind])
    checkpoint = open_checkpoint(path)
    model = load_model(checkpoint, formats=weight_formats("file", checkpoint))
    modules = [each for each in model.modules() if isinstance(each, QuantizedLinear | QuantizedEmbedding)]
    assert {each.weight.format for each in modules} == {kind.lower()}
    slots = model.checkpoint_slots(fused=has_fused_projections(checkpoint.tensors))
    for name, slot in slots.items():
        if isinstance(slot, QuantizedWeight):
            assert torch.equal(slot.dequantized(), read(checkpoint.tensors, name)), name
    ids = token_ids(family)
    assert torch.allclose(our_logits(model, [ids]), our_logits(load_model(checkpoint), [ids]), atol=2e-4)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_the_keys_of_a_real_model_s_file_say_what_its_config_json_says(file):
    """All but the window of Mistral v0.1, which the converter drops, and tokens, which are the tokenizer's."""
    config_json = json.loads(file.read_text(encoding="utf-8"))
    theirs, expected = AutoConfig.for_model(**config_json), ModelConfig.from_hf(config_json)
    names = [f"blk.0.attn_{part}.bias" for part in "qkv" if expected.qkv_bias]
    names += [] if expected.tie_word_embeddings else ["output.weight"]
    config = ModelConfig.from_gguf(metadata_of(theirs), names, factor_tensors_of(theirs))
    changes: dict[str, Any] = {"bos_token_id": None, "eos_token_ids": (), "rope_scaling": None}
    if theirs.model_type == "mistral":
        changes |= {"sliding_window": None, "sliding_layers": ()}
    assert replace(config, **changes) == replace(expected, **changes)
    scaling, stated = config.rope_scaling, expected.rope_scaling
    assert (scaling is None) == (stated is None)
    if scaling is not None and stated is not None:
        assert scaling.kind == stated.kind
        for field in fields(RopeScaling)[1:]:  # numbers, and tuples of them
            assert getattr(scaling, field.name) == pytest.approx(getattr(stated, field.name), rel=1e-6), field.name


@pytest.mark.parametrize("family", ["llama with biases", "qwen2", "qwen3"])
def test_projections_that_only_the_file_has_fused_are_taken_apart(models, family, tmp_path, monkeypatch):
    monkeypatch.setattr("minillm.loading.checkpoint.PIECE_BYTES", 2000)  # a few rows at a time
    path = write_family(tmp_path / "model.gguf", family, models[family], fuse_qkv=True)
    checkpoint, expected = open_checkpoint(path), models[family].state_dict()
    assert not has_fused_projections(checkpoint.tensors)
    for name in checkpoint.tensors.names():
        assert torch.equal(read(checkpoint.tensors, name), expected[name]), name
    load_model(checkpoint)
    assert read_gguf(path)[0] == shape_of(checkpoint.config)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_s_header_says_how_large_the_model_is(models, files, family):
    shape, stored = read_gguf(files[family])
    config = open_checkpoint(files[family]).config
    assert shape == shape_of(config)
    count = sum(parameter.numel() for parameter in models[family].parameters())
    assert num_params(shape) == count
    extra = sum(values.size for values in FAMILIES[family].tensors(models[family].config).values())
    assert stored == 4 * (count + extra)
    counted = gguf_weight_bytes(files[family])
    assert (counted.all, counted.head_dim) == (stored, config.head_dim)


def test_the_sizes_of_all_types_are_known_without_the_library():
    from gguf import GGML_QUANT_SIZES

    for name in SUPPORTED_TYPES:
        assert GGUF_TYPES[QType[name].value] == GGML_QUANT_SIZES[QType[name]], name
