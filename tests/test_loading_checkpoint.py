"""fill: every tensor into its slot, strictly; open_checkpoint: what a path may be."""

import json

import pytest
import torch
from checkpoints import empty_slots, hf_config, hf_tensors, write_directory, write_gguf

from minillm.config import ModelConfig
from minillm.errors import InputError, MissingError
from minillm.loading import fill, open_checkpoint
from minillm.loading.checkpoint import read

TENSORS = hf_tensors()
SOME = "model.layers.1.mlp.up_proj.weight"


def source_of(directory, tensors=TENSORS):
    return open_checkpoint(write_directory(directory, tensors)).tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_tensor_arrives_in_its_slot_in_the_dtype_of_the_slot(tmp_path, dtype, stored):
    tensors = {name: tensor.to(stored) for name, tensor in TENSORS.items()}
    slots = empty_slots(tensors, dtype)
    fill(slots, source_of(tmp_path, tensors))
    for name, slot in slots.items():
        assert slot.dtype == dtype
        assert torch.equal(slot, tensors[name].to(dtype)), name


def test_a_slot_may_be_a_view_into_a_fused_weight(tmp_path):
    q, k, v = (f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv")
    fused = torch.full((512, 256), torch.nan)
    slots = empty_slots(TENSORS) | dict(zip((q, k, v), fused.split([256, 128, 128]), strict=True))
    fill(slots, source_of(tmp_path))
    assert torch.equal(fused, torch.cat([TENSORS[q], TENSORS[k], TENSORS[v]]))


def test_a_tensor_larger_than_a_piece_arrives_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("minillm.loading.checkpoint.PIECE_BYTES", 3000)  # two rows of most tensors, and odd ends
    slots = empty_slots(TENSORS)
    source = source_of(tmp_path)
    fill(slots, source)
    assert len(list(source.pieces(SOME))) > 100, "the pieces were not made smaller, so this test shows nothing"
    assert all(torch.equal(slot, TENSORS[name]) for name, slot in slots.items())
    assert torch.equal(read(source, SOME), TENSORS[SOME])


def test_a_read_tensor_stays_valid_after_the_checkpoint_is_gone(tmp_path):
    source = source_of(tmp_path)
    tensor = read(source, SOME)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * (tmp_path / "model.safetensors").stat().st_size)
    assert torch.equal(tensor, TENSORS[SOME]), "the tensor is still a view into the file"


def refusal(slots, source) -> str:
    with pytest.raises(InputError) as caught:
        fill(slots, source)
    assert "\n" not in str(caught.value)
    assert all(slot.isnan().all() for slot in slots.values()), "something was copied before the error"
    return str(caught.value)


def test_missing_tensors_are_named_and_counted(tmp_path):
    few = {name: tensor for name, tensor in TENSORS.items() if "layers.1" not in name}
    message = refusal(empty_slots(TENSORS), source_of(tmp_path, few))
    assert "lacks 9 tensors: model.layers.1.input_layernorm.weight, " in message
    assert message.endswith(", and 6 more")


def test_unexpected_tensors_are_named_and_counted(tmp_path):
    message = refusal(empty_slots(TENSORS), source_of(tmp_path, TENSORS | {"model.extra.weight": torch.ones(1)}))
    assert "has, beyond what the model wants, 1 tensor: model.extra.weight" in message


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    slots = empty_slots(TENSORS | {SOME: torch.ones(256, 512)})
    message = refusal(slots, source_of(tmp_path))
    assert f"{SOME} (it is [512, 256], the model wants [256, 512])" in message


def test_stored_rotary_frequencies_are_not_weights_and_are_passed_over(tmp_path):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32)}
    slots = empty_slots(TENSORS)
    fill(slots, source_of(tmp_path, TENSORS | extra))
    assert not any(slot.isnan().any() for slot in slots.values())


def test_a_stored_head_of_a_tied_model_is_accepted_if_it_is_the_embedding(tmp_path, monkeypatch):
    monkeypatch.setattr("minillm.loading.checkpoint.PIECE_BYTES", 10_000)
    head = {"lm_head.weight": TENSORS["model.embed_tokens.weight"].clone()}
    slots = empty_slots(TENSORS)
    fill(slots, source_of(tmp_path / "same", TENSORS | head))
    assert torch.equal(slots["model.embed_tokens.weight"], head["lm_head.weight"])

    head["lm_head.weight"][-1, -1] += 1
    message = refusal(empty_slots(TENSORS), source_of(tmp_path / "other", TENSORS | head))
    assert "lm_head.weight differs from model.embed_tokens.weight" in message
    message = refusal(
        empty_slots(TENSORS), source_of(tmp_path / "short", TENSORS | {"lm_head.weight": torch.ones(2, 2)})
    )
    assert "lm_head.weight differs" in message


def test_an_untied_model_without_its_head_is_refused(tmp_path):
    message = refusal(empty_slots(hf_tensors(tied=False)), source_of(tmp_path))
    assert "lacks 1 tensor: lm_head.weight" in message


def test_opening_a_directory_reads_its_description_from_both_files(tmp_path):
    write_directory(tmp_path, TENSORS)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4]}), encoding="utf-8")
    (tmp_path / "README.md").write_text("a stray file", encoding="utf-8")
    (tmp_path / "optimizer.safetensors").write_bytes(b"another one, which is not even safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == ModelConfig.from_hf(hf_config(), {"eos_token_id": 4})
    assert checkpoint.path == tmp_path
    assert checkpoint.gguf_metadata is None
    assert sorted(checkpoint.tensors.names()) == sorted(TENSORS)


def test_a_path_that_is_no_model_gets_one_sentence(tmp_path):
    with pytest.raises(MissingError, match="there is no model at"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"a model is a directory with config.json, or a .gguf file"):
        open_checkpoint(tmp_path / "model.bin")
    with pytest.raises(MissingError, match=r"has no config\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "directory.gguf").mkdir()
    with pytest.raises(MissingError, match=r"has no config\.json"):
        open_checkpoint(tmp_path / "directory.gguf")


def test_a_directory_that_only_holds_a_gguf_file_points_to_it(tmp_path):
    write_gguf(tmp_path / "model.gguf", TENSORS)
    with pytest.raises(MissingError, match=r"did you mean the file .*model\.gguf"):
        open_checkpoint(tmp_path)


HOSTILE_JSON = {
    "an empty file": b"",
    "a list": b"[1, 2]",
    "invalid UTF-8": b'{"model_type": "\xff\xfe"}',
    "UTF-16": '{"model_type": "llama"}'.encode("utf-16"),
    "half of an object": b'{"model_type": "llama", ',
    "deep nesting": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a number of many digits": b'{"vocab_size": ' + b"1" * 10_000 + b"}",
    "NaN where a number is needed": json.dumps(hf_config(rms_norm_eps=float("nan"))).encode(),
    "nothing but null": b"null",
}


@pytest.mark.parametrize("content", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_a_config_json_that_is_no_description_gets_one_sentence(tmp_path, content):
    write_directory(tmp_path, TENSORS)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.json") as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_byte_order_mark_before_config_json_does_no_harm(tmp_path):
    write_directory(tmp_path, TENSORS)
    content = (tmp_path / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + content)
    assert open_checkpoint(tmp_path).config == ModelConfig.from_hf(hf_config())
