"""GGUF files: dequantized as the library does, in Hugging Face's names and row order; and damaged ones."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from checkpoints import (
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    TOKENS,
    empty_slots,
    gguf_metadata,
    gguf_name,
    hf_config,
    hf_tensors,
    permute,
    quantize,
    write_gguf,
)
from gguf import GGMLQuantizationType as QType

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading import DEFAULT_MODEL, fill, open_checkpoint, resolve
from minillm.loading.checkpoint import read
from minillm.loading.gguf import SUPPORTED_TYPES, open_gguf, unpermute
from minillm.loading.gguf_architectures import hf_name
from minillm.loading.registry import ALIASES

TENSORS = hf_tensors()


def refused(path) -> str:
    with pytest.raises(InputError) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", [{}, {"tied": False}, {"biases": True}], ids=["tied", "untied", "biases"])
def test_a_float32_file_holds_the_same_model_as_the_directory_it_came_from(tmp_path, kind):
    tensors = hf_tensors(**kind)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "model.gguf", tensors))
    biases = kind.get("biases", False)
    expected = hf_config(tie_word_embeddings=kind.get("tied", True), attention_bias=biases, mlp_bias=biases)
    assert checkpoint.config == ModelConfig.from_hf(expected)
    slots = empty_slots(tensors)
    fill(slots, checkpoint.tensors)
    for name, slot in slots.items():
        assert torch.equal(slot, tensors[name]), name


@pytest.mark.parametrize("type_name", SUPPORTED_TYPES)
def test_every_supported_type_is_dequantized_as_the_library_does(tmp_path, monkeypatch, type_name):
    monkeypatch.setattr("minillm.loading.checkpoint.PIECE_BYTES", 100_000)  # tensors come in several pieces
    qtype = QType[type_name]
    source = open_checkpoint(write_gguf(tmp_path / "model.gguf", TENSORS, qtype)).tensors
    for name, tensor in TENSORS.items():
        heads = HEADS if ".q_proj." in name else KV_HEADS if ".k_proj." in name else None
        stored = permute(tensor.numpy(), heads) if heads else tensor.numpy()
        if stored.ndim > 1:
            stored = gguf.dequantize(quantize(stored, qtype), qtype)
        ours = read(source, name).numpy()
        back = permute(ours, heads) if heads else ours
        assert np.array_equal(back, stored), name
        assert np.isfinite(ours).all(), name
    assert len(list(source.pieces("model.embed_tokens.weight"))) > 1


def test_unpermuting_undoes_what_llama_cpp_does_to_a_head():
    # One head of eight rows: the halves a and b, interleaved by llama.cpp.
    interleaved = torch.tensor([10.0, 20, 11, 21, 12, 22, 13, 23])
    assert unpermute(interleaved, 8).tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    rows = torch.randn(3 * HEAD_DIM, 5)
    permuted = torch.from_numpy(permute(rows.numpy(), 3))
    assert not torch.equal(permuted, rows)
    assert torch.equal(unpermute(permuted, HEAD_DIM), rows)


def test_names_are_mapped_one_to_one_and_unknown_ones_kept():
    for name in hf_tensors(tied=False, biases=True):
        assert hf_name(gguf_name(name)) == name
    assert hf_name("blk.0.attn_q_norm.weight") == "blk.0.attn_q_norm.weight"
    assert hf_name("blk.x.attn_q.weight") == "blk.x.attn_q.weight"
    assert hf_name("output.scale") == "output.scale"


def test_an_unknown_tensor_is_reported_under_its_own_name(tmp_path):
    extra = {"blk.0.attn_q_norm.weight": np.ones(4, dtype=np.float32)}
    source = open_checkpoint(write_gguf(tmp_path / "model.gguf", TENSORS, extra=extra)).tensors
    with pytest.raises(InputError, match=r"blk\.0\.attn_q_norm\.weight"):
        fill(empty_slots(TENSORS), source)


def test_metadata_are_plain_python_values(tmp_path):
    metadata = open_checkpoint(write_gguf(tmp_path / "model.gguf", TENSORS)).gguf_metadata
    assert metadata is not None
    assert metadata["tokenizer.ggml.tokens"] == TOKENS
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    for key, expected in gguf_metadata().items():
        value = metadata[key]
        assert type(value) is type(expected), key
        if isinstance(value, list):
            assert type(value[0]) is type(expected[0]), key
        assert value == pytest.approx(expected) if isinstance(value, float) else value == expected


def test_llama3_factors_in_a_file_become_rope_scaling_and_are_no_weight(tmp_path):
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    turns = 8192 / (2 * np.pi * 50000.0 ** (np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    smooth = np.clip((turns - 1.0) / 3.0, 0, 1)
    factors = (1 / ((1 - smooth) / 8.0 + smooth)).astype(np.float32)
    assert len(set(factors.tolist())) > 3, "the factors do not have the ramp that this test is about"
    path = write_gguf(tmp_path / "model.gguf", TENSORS, extra={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.rope_scaling == scaling
    fill(empty_slots(TENSORS), checkpoint.tensors)


def test_a_type_that_is_not_supported_is_refused_by_name(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.MXFP4)
    assert "of type MXFP4, which is not supported; supported: F32, F16, BF16, Q8_0" in refused(path)


def test_another_architecture_is_refused_by_name(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS)
    path.write_bytes(path.read_bytes().replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", 1))
    assert "architecture 'gemma' is not supported; supported: llama, qwen2, qwen3, granite" in refused(path)


def test_files_that_are_not_gguf_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    for content in (b"", b"GG", b"GGML" + b"\0" * 100, b"<!DOCTYPE html>"):
        path.write_bytes(content)
        assert "is not a GGUF file" in refused(path), content
    path.write_bytes(b"GGUF")
    assert "truncated" in refused(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 9, 0, 0))
    assert "version 9" in refused(path)


HOSTILE_HEADERS = {
    "2^60 tensors": struct.pack("<IQQ", 3, 2**60, 0),
    "2^60 keys": struct.pack("<IQQ", 3, 0, 2**60),
    "a key of 2^60 bytes": struct.pack("<IQQQ", 3, 0, 1, 2**60),
    "a key that is not UTF-8": struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<IB", 0, 0),
    "an unknown type": struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
    "an array of 2^60 numbers": struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 2**60),
    "an array of 2^60 strings": struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**60),
    "arrays in arrays": struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQIQ", 9, 9, 1, 9, 1),
    "a tensor of 2^31 dimensions": struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 2**31),
    "a tensor of no dimension": struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IIQ", 0, 0, 0),
    "a tensor of 2^63 rows": struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 2**63, 0, 0),
    "a tensor beyond the end": struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 4, 0, 2**40),
    "a tensor of unknown type": struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 4, 99, 0),
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_header_with_impossible_lengths_is_refused_at_once(tmp_path, header):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + header + b"\0" * 64)
    assert "is not a usable GGUF file" in refused(path)


def test_arrays_of_more_elements_than_any_vocabulary_are_refused_although_they_are_there(tmp_path):
    path = tmp_path / "model.gguf"
    one_key = struct.pack("<IQQQ", 3, 0, 1, 1) + b"k"
    path.write_bytes(b"GGUF" + one_key + struct.pack("<IIQ", 9, 0, 4_000_001) + bytes(4_000_001))
    assert "an array of 4000001 elements" in refused(path)


def test_a_truncated_file_is_refused_wherever_it_is_cut(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS)
    content = path.read_bytes()
    cuts = [
        *range(5, 24),
        *random.Random(0).sample(range(24, 16_000), 60),
        len(content) // 2,
        len(content) - 1,
    ]
    for size in cuts:
        path.write_bytes(content[:size])
        assert "is not a usable GGUF file" in refused(path), f"cut to {size} bytes"


def test_turned_bytes_in_the_header_cause_nothing_but_a_refusal_or_a_readable_file(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS)
    content = path.read_bytes()
    start_of_data = min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors)
    choose = random.Random(0)
    refusals = 0
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(choose.choice([1, 1, 3])):
            damaged[choose.randrange(start_of_data)] = choose.choice([0, 1, 255, choose.randrange(256)])
        path.write_bytes(damaged)
        refusals += not _is_readable(path)
    assert refusals > 15, "hardly any damage was found: the bytes turned are not those that matter"


def _is_readable(path) -> bool:
    try:
        fill(empty_slots(TENSORS), open_checkpoint(path).tensors)
    except InputError:
        return False
    return True


@pytest.mark.real_model
def test_the_converted_default_model_is_what_gguf_dequantize_gives():
    directory = resolve(DEFAULT_MODEL)
    converted = open_checkpoint(directory)
    path = directory / Path(ALIASES[DEFAULT_MODEL].member).name
    assert open_checkpoint(path).config == converted.config
    reader = gguf.GGUFReader(path)
    assert {hf_name(tensor.name) for tensor in reader.tensors} == set(converted.tensors.names())
    for tensor in reader.tensors:
        theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
        ours = read(converted.tensors, hf_name(tensor.name)).numpy()
        if ".attn_q." in tensor.name or ".attn_k." in tensor.name:
            ours = permute(ours, len(ours) // converted.config.head_dim)
        assert np.array_equal(ours, theirs), tensor.name


def test_opening_a_gguf_file_keeps_no_handle_to_it(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS)
    source = open_gguf(path)
    moved = path.rename(tmp_path / "moved.gguf")
    with pytest.raises(FileNotFoundError):
        read(source, "model.norm.weight")
    moved.rename(path)
    assert torch.equal(read(source, "model.norm.weight"), TENSORS["model.norm.weight"])
