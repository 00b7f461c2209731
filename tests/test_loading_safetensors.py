"""Safetensors directories: shards and their index, and every way in which they can be wrong."""

import json
import re
import struct

import pytest
import torch
from checkpoints import empty_slots, hf_tensors, write_directory, write_index, write_shards
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from minillm.errors import InputError, MissingError
from minillm.loading import fill
from minillm.loading.checkpoint import read
from minillm.loading.safetensors import SafetensorsSource

TENSORS = hf_tensors()
FIRST = "model-00001-of-00003.safetensors"


@pytest.fixture
def shards(tmp_path):
    return write_shards(tmp_path, TENSORS)


def weight_map_of(directory) -> dict[str, str]:
    return json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]


def refused(directory, error: type[Exception] = InputError) -> str:
    with pytest.raises(error) as caught:
        SafetensorsSource(directory)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shards_hold_the_same_tensors_as_one_file(shards):
    source = SafetensorsSource(shards)
    slots = empty_slots(TENSORS)
    fill(slots, source)
    assert all(torch.equal(slot, TENSORS[name]) for name, slot in slots.items())


def test_a_missing_shard_is_named(shards):
    (shards / FIRST).unlink()
    assert FIRST in refused(shards, MissingError)


def test_a_truncated_file_is_named(shards):
    content = (shards / FIRST).read_bytes()
    for size in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        (shards / FIRST).write_bytes(content[:size])
        assert f"{FIRST} is truncated or not a safetensors file" in refused(shards), f"cut to {size} bytes"


def test_a_tensor_that_the_index_puts_elsewhere_is_named(shards):
    weight_map = weight_map_of(shards)
    name = next(name for name, file in weight_map.items() if file == FIRST)
    write_index(shards, weight_map | {name: FIRST.replace("00001", "00002", 1)})
    assert name in refused(shards)


def test_a_tensor_that_the_index_does_not_know_is_named(shards):
    weight_map = weight_map_of(shards)
    name = next(iter(weight_map))
    del weight_map[name]
    write_index(shards, weight_map)
    assert f"holds the tensor {name}" in refused(shards)


def test_a_tensor_that_its_shard_does_not_hold_is_named(shards):
    write_index(shards, weight_map_of(shards) | {"model.ghost.weight": FIRST})
    assert f"puts the tensor model.ghost.weight in {FIRST}, which does not hold it" in refused(shards)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x.safetensors", "a\\x", "C:x", "..", "", "a\0b", 3, None])
def test_a_shard_name_that_leads_out_of_the_directory_is_refused(shards, name):
    write_index(shards, weight_map_of(shards) | {"model.ghost.weight": name})
    assert "not the plain name of a file beside it" in refused(shards)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_weight_map_is_refused(shards, weight_map):
    write_index(shards, weight_map)
    assert "has no weight_map" in refused(shards)


STRAY = ("consolidated.safetensors", "adapter_model.safetensors", "model-00009-of-00009.safetensors", "optimizer.pt")


def test_stray_files_beside_the_weights_are_not_looked_at(tmp_path):
    for directory in (write_shards(tmp_path / "shards", TENSORS), write_directory(tmp_path / "single", TENSORS)):
        for name in (*STRAY, "pytorch_model.bin", "training_args.bin", "model.safetensors.bak"):
            (directory / name).write_bytes(b"never read")
        assert sorted(SafetensorsSource(directory).names()) == sorted(TENSORS)


def test_one_file_of_weights_goes_before_an_index_that_was_left_beside_it(shards):
    """As in `transformers`."""
    save_file({"a.weight": torch.ones(2, 2)}, shards / "model.safetensors")
    (shards / FIRST).unlink()
    assert SafetensorsSource(shards).names() == ["a.weight"]


def test_shards_of_different_dtypes_are_read_each_as_it_is(tmp_path):
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    tensors = {f"{i}.weight": torch.full((2, 3), 0.5 + i, dtype=dtype) for i, dtype in enumerate(dtypes)}
    source = SafetensorsSource(write_shards(tmp_path, tensors, count=2))
    assert {name: read(source, name).dtype for name in tensors} == {f"{i}.weight": d for i, d in enumerate(dtypes)}
    slots = empty_slots(tensors)
    fill(slots, source)
    assert [slots[f"{i}.weight"][1, 2].item() for i in range(4)] == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    ("names", "error", "words"),
    [
        (["pytorch_model.bin"], InputError, "only as pytorch_model.bin, a pickle, which can run code when it is read"),
        (["consolidated.00.pth", "params.json"], InputError, "only as consolidated.00.pth, a pickle"),
        (["adapter_model.safetensors", "optimizer.pt"], InputError, "is an adapter"),
        (["consolidated.safetensors"], InputError, r"only under another name \(consolidated.safetensors\)"),
        (["a.gguf", "mmproj-a.gguf"], InputError, r"name the file itself, .*/a.gguf$"),
        ([FIRST], MissingError, f"has the shard {FIRST}, but not their list, model.safetensors.index.json"),
        (["config.json"], MissingError, "neither model.safetensors nor model.safetensors.index.json"),
        ([], MissingError, "has no weights"),
    ],
)
def test_a_directory_without_weights_that_can_be_read_says_what_it_has_instead(tmp_path, names, error, words):
    for name in names:
        (tmp_path / name).write_bytes(b"never read")
    assert re.search(words, refused(tmp_path, error))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.int8, "I8"),
        (torch.uint8, "U8"),
        (torch.int32, "I32"),
        (torch.float8_e4m3fn, "F8_E4M3"),
        (torch.bool, "BOOL"),
    ],
)
def test_quantized_and_other_tensors_are_refused_by_name(tmp_path, dtype, name):
    save_file({"a.weight": torch.ones(2, 2).to(dtype)}, tmp_path / "model.safetensors")
    assert f"a.weight is stored as {name}, and only F64, F32, F16, BF16 are read" in refused(tmp_path)


def test_tensors_without_rows_are_refused_by_name(tmp_path):
    save_file({"a.weight": torch.tensor(1.0)}, tmp_path / "model.safetensors")
    assert "a.weight of shape [] holds no rows" in refused(tmp_path)
    save_file({"a.weight": torch.ones(0, 3)}, tmp_path / "model.safetensors")
    assert "a.weight of shape [0, 3] holds no rows" in refused(tmp_path)


def test_a_directory_in_the_place_of_the_weights_is_refused(tmp_path):
    (tmp_path / "model.safetensors").mkdir()
    assert "has no weights" in refused(tmp_path, MissingError)


HEADERS = {
    "a list": b"[]",
    "not JSON": b"{{{{",
    "deep nesting": b'{"a":' * 20_000,
    "offsets beyond the file": b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
    "negative size": b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}',
    "a shape that overflows": b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}',
    "an unknown dtype": b'{"a":{"dtype":"F99","shape":[1],"data_offsets":[0,4]}}',
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_a_garbage_header_gets_one_sentence(tmp_path, header):
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 4)
    assert "not a safetensors file" in refused(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 3000), value=st.integers(0, 255))
def test_no_byte_turned_in_a_header_causes_anything_but_a_refusal_or_a_readable_file(tmp_path, position, value):
    write_directory(tmp_path, {"a.weight": torch.ones(4, 4), "b.weight": torch.ones(8)})
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[position % len(content)] = value
    (tmp_path / "model.safetensors").write_bytes(content)
    try:
        source = SafetensorsSource(tmp_path)
    except InputError:
        return
    for name in source.names():
        assert tuple(read(source, name).shape) == source.shape(name)
