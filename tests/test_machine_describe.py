"""A model's name becomes its shape: from the table, a directory, a GGUF file or a hub, never from its weights."""

import dataclasses
import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import transformers
from checkpoints import gguf_metadata, hf_tensors, write_gguf
from test_loading_hub import CHILD, fetch_in_child

from minillm.errors import InputError, MissingError
from minillm.loading.checkpoint import open_checkpoint
from minillm.loading.gguf_header import Array, read_header
from minillm.loading.registry import ALIASES
from minillm.machine.describe import describe
from minillm.machine.formats import FORMATS
from minillm.machine.memory import weight_bytes
from minillm.machine.shape import ModelShape, num_params, shape_of
from minillm.machine.shape_files import GGUF_TYPES, read_config
from minillm.machine.well_known import BY_NAME

SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
SHAPE = ModelShape(**SIZES, head_dim=4)
STATED = {"model_type": "llama", **SIZES}

# What transformers writes into config.json for each architecture -> what differs from SHAPE.
CONFIGS = {
    "llama": (transformers.LlamaConfig(**SIZES), {}),
    "llama, biases": (
        transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
        {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    ),
    "mistral": (transformers.MistralConfig(**SIZES), {"sliding_window": 4096}),
    "mistral, no window": (transformers.MistralConfig(**SIZES, sliding_window=None), {}),
    "mixtral": (transformers.MixtralConfig(**SIZES), {"num_experts": 8, "num_experts_per_tok": 2}),
    "qwen2": (transformers.Qwen2Config(**SIZES), {"qkv_bias": True}),
    "qwen2, window in upper layers": (
        transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=32, max_window_layers=2),
        {"qkv_bias": True},
    ),
    "qwen2, window everywhere": (
        transformers.Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=32, max_window_layers=0),
        {"qkv_bias": True, "sliding_window": 32},
    ),
    "qwen3": (transformers.Qwen3Config(**SIZES), {"qk_norm": True, "head_dim": 128}),
    "granite": (transformers.GraniteConfig(**SIZES), {}),
    "smollm3": (
        transformers.SmolLM3Config(**SIZES, use_sliding_window=True, sliding_window=32),
        {"tie_word_embeddings": True},
    ),
    "phi3": (transformers.Phi3Config(**SIZES), {}),
    "phi3, a window": (transformers.Phi3Config(**SIZES, sliding_window=32), {"sliding_window": 32}),
    "tied": (transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), {"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_shape_is_read_from_what_transformers_writes(kind: str, tmp_path: Path) -> None:
    config, changes = CONFIGS[kind]
    config.save_pretrained(tmp_path)
    assert describe(str(tmp_path)).shape == dataclasses.replace(SHAPE, **changes)


def test_a_config_with_no_more_than_the_sizes_is_enough_and_what_shapes_nothing_is_not_looked_at() -> None:
    assert read_config(STATED) == SHAPE
    assert (
        read_config(
            {**STATED, "hidden_act": "gelu", "rope_scaling": {"type": "yarn"}, "sliding_window": 8, "unheard_of": 1}
        )
        == SHAPE
    )


DEFAULTS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "mixtral": transformers.MixtralConfig,
    "granite": transformers.GraniteConfig,
    "smollm3": transformers.SmolLM3Config,
    "phi3": transformers.Phi3Config,
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_a_config_does_not_state_is_what_transformers_takes_it_to_be(kind: str, tmp_path: Path) -> None:
    DEFAULTS[kind](**SIZES).save_pretrained(tmp_path)
    assert read_config({**STATED, "model_type": kind}) == describe(str(tmp_path)).shape


def test_a_mistral_that_states_a_window_of_null_has_none() -> None:
    assert read_config({**STATED, "model_type": "mistral", "sliding_window": None}).sliding_window is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' is not known; known: llama, mistral, mixtral, qwen2, qwen3"),
        ({"model_type": None}, "model_type None is not known"),
        ({"model_type": ["llama"]}, "is not known"),
        ({"hidden_size": None}, "does not state 'hidden_size'"),
        ({"num_hidden_layers": "thirty"}, "num_hidden_layers must be a positive integer, got 'thirty'"),
        ({"vocab_size": 10**30}, "vocab_size must be a positive integer"),
        ({"hidden_size": 25}, "is not a multiple of num_attention_heads"),
        ({"num_key_value_heads": 4}, "share the key heads evenly"),
    ],
)
def test_a_config_that_describes_no_known_model_is_refused_in_one_sentence(change: dict, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        read_config({**STATED, **change})
    assert "\n" not in str(caught.value)


def test_a_directory_without_config_and_a_broken_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=r"has no config\.json"):
        describe(str(tmp_path))
    (tmp_path / "config.json").write_text("{broken", encoding="utf-8")
    with pytest.raises(InputError, match="is not valid JSON"):
        describe(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(STATED), encoding="utf-8")
    assert describe(str(tmp_path)).shape == describe(str(tmp_path / "config.json")).shape == SHAPE


@pytest.mark.parametrize("name", ["llama-2-13b", "Llama-2-13B", "meta-llama/Llama-2-13b-hf"])
def test_well_known_names_and_hub_ids_need_no_file(name: str) -> None:
    assert describe(name).shape == BY_NAME["llama-2-13b"].shape


@pytest.mark.parametrize("alias", ALIASES)
def test_every_alias_of_the_engine_is_built_in_so_that_nothing_is_fetched(alias: str) -> None:
    assert describe(alias).origin.startswith("built in")


@pytest.mark.parametrize(
    "name",
    [
        "no such model",
        "",
        "\0",
        "x" * 5000,
        "there-is-none.gguf",
        "org/there-is-none.gguf",
        "~nosuchuser/x",
        "~nosuchuser",
    ],
)
def test_a_name_that_is_nothing_is_refused_with_the_ways(name: str) -> None:
    with pytest.raises(MissingError, match="give a well-known name"):
        describe(name)


@pytest.mark.parametrize("name", ["config.json", "model.gguf"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="neither a directory nor a regular file"):
        describe(str(tmp_path / name))


def test_a_name_spelled_nearly_right_is_told_what_is_near() -> None:
    with pytest.raises(MissingError, match="near: llama-2-13b"):
        describe("lama-2-13b")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_a_gguf_file_has_the_shape_that_loading_it_has_and_its_stored_bytes(tied, biases, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", hf_tensors(tied=tied, biases=biases))
    described = describe(str(path))
    assert described.shape == shape_of(open_checkpoint(path).config)
    assert described.stored_bytes == 4 * num_params(described.shape), "the file holds float32"


def test_a_gguf_file_with_norms_of_queries_and_keys_says_so(tmp_path: Path) -> None:
    norms = {f"blk.0.attn_{part}_norm.weight": np.ones(4, np.float32) for part in "qk"}
    plain = describe(str(write_gguf(tmp_path / "plain.gguf", hf_tensors())))
    normed = describe(str(write_gguf(tmp_path / "normed.gguf", hf_tensors(), extra=norms)))
    assert normed.shape == dataclasses.replace(plain.shape, qk_norm=True)


def test_quantized_tensors_are_counted_as_they_are_stored(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", hf_tensors(), gguf.GGMLQuantizationType.Q8_0)
    described = describe(str(path))
    reader = gguf.GGUFReader(path)
    assert described.stored_bytes == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert described.stored_bytes == weight_bytes(described.shape, FORMATS["q8_0"])


def test_the_sizes_of_tensor_types_are_those_of_the_gguf_library() -> None:
    theirs = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {kind: theirs[kind] for kind in GGUF_TYPES} == dict(GGUF_TYPES)


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "model.gguf", hf_tensors()).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in (0, 3, 4, 30, 1000, len(whole) // 2):
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"cut\.gguf"):
            describe(str(cut))


def write_split(directory: Path, counts: tuple[int, ...], stated: int | None = None) -> list[Path]:
    """The model of `hf_tensors` in several files, as llama.cpp's `gguf-split` makes them; `counts`: tensors in each."""
    tensors = list(hf_tensors(tied=False).items())
    paths = []
    for number, count in enumerate(counts):
        mine, tensors = dict(tensors[:count]), tensors[count:]
        split = {"split__no": number, "split__count": len(counts), "split__tensors__count": stated or sum(counts)}
        others = {} if number == 0 else dict.fromkeys(gguf_metadata())  # the model's keys are in the first file alone
        path = directory / f"model-{number + 1:05}-of-{len(counts):05}.gguf"
        paths.append(write_gguf(path, mine, **split, **others))
    assert not tensors
    return paths


ALL = len(hf_tensors(tied=False))


@pytest.mark.parametrize("counts", [(5, ALL - 5), (0, 3, ALL - 3)], ids=["two", "a first one without tensors"])
def test_a_split_gguf_file_is_the_sum_of_its_parts_whichever_is_named(counts, tmp_path: Path) -> None:
    whole = describe(str(write_gguf(tmp_path / "whole.gguf", hf_tensors(tied=False))))
    for part in write_split(tmp_path, counts):
        described = describe(str(part))
        assert (described.shape, described.stored_bytes) == (whole.shape, whole.stored_bytes), part.name


def test_a_split_gguf_file_without_one_of_its_parts_is_refused(tmp_path: Path) -> None:
    first, second = write_split(tmp_path, (5, ALL - 5))
    renamed = first.rename(tmp_path / "mine.gguf")
    with pytest.raises(InputError, match=r"one of 2 parts of a model, and the others are not found by its name"):
        describe(str(renamed))
    with pytest.raises(InputError, match=r"model-00001-of-00002\.gguf is not beside it"):
        describe(str(second))
    write_split(tmp_path, (5, ALL - 5), stated=ALL + 1)
    with pytest.raises(InputError, match=f"its 2 parts hold {ALL} tensors, not {ALL + 1}"):
        describe(str(second))


def test_a_gguf_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(InputError, match="architecture 'mamba' is not known"):
        describe(str(path))


def test_numbers_and_texts_of_a_header_are_read_and_arrays_are_their_length(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("u", 7)
    writer.add_int8("i", -7)
    writer.add_float32("f", 0.5)
    writer.add_bool("b", True)
    writer.add_uint64("big", 2**40)
    writer.add_array("a", ["x", "y", "z"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = read_header(path).metadata
    assert metadata.pop("a") == Array(3)
    assert metadata == {"general.architecture": "llama", "u": 7, "i": -7, "f": 0.5, "b": True, "big": 2**40}


CONFIG_CHILD = CHILD.replace("fetch_from_hub", "fetch_config_from_hub")


def test_of_a_hub_model_the_config_alone_is_fetched(tmp_path: Path) -> None:
    file = Path(fetch_in_child(tmp_path, child=CONFIG_CHILD))
    assert [path.name for path in file.parent.iterdir()] == ["config.json"]
    without_network = fetch_in_child(tmp_path, child=CONFIG_CHILD, HF_ENDPOINT="http://127.0.0.1:9")
    assert without_network == str(file), "once fetched, it is in the cache"


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((404, "RepoNotFound"), "no hub model of this name"),
        ((403, "GatedRepo"), "is gated"),
        ((404, "EntryNotFound"), "has no config.json"),
    ],
)
def test_what_the_hub_refuses_has_its_sentence(tmp_path: Path, refusal, words: str) -> None:
    answer = fetch_in_child(tmp_path, refusal, CONFIG_CHILD)
    assert answer.startswith("refused: ")
    assert words in answer


def test_a_hub_id_that_is_not_built_in_is_looked_up_there(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STATED), encoding="utf-8")
    asked = []
    monkeypatch.setattr(
        "minillm.machine.describe.fetch_config_from_hub", lambda name: asked.append(name) or tmp_path / "config.json"
    )
    assert describe("org/tiny").shape == SHAPE
    assert asked == ["org/tiny"]
