"""GGUF -> safetensors directory: whole or not at all, and loadable by transformers as it is."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
from checkpoints import CHAT_TEMPLATE, empty_slots, hf_tensors, write_gguf
from gguf import GGMLQuantizationType as QType
from transformers import AutoModelForCausalLM, AutoTokenizer

from minillm.bpe import BytePairEncoding
from minillm.errors import InputError
from minillm.loading import fill, load, open_checkpoint
from minillm.loading.convert import convert_gguf
from minillm.loading.files import sha256_of
from minillm.loading.record import RECORD
from minillm.loading.scratch import LOCK, PREFIX, scratch_directory

TENSORS = hf_tensors()


@pytest.fixture
def gguf_file(tmp_path):
    (tmp_path / "source").mkdir()
    return write_gguf(tmp_path / "source" / "model.gguf", TENSORS)


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_converted_directory_is_the_same_model_to_this_package(tmp_path, gguf_file):
    convert_gguf(gguf_file, tmp_path / "out" / "model")
    before, after = open_checkpoint(gguf_file), open_checkpoint(tmp_path / "out" / "model")
    assert after.config == before.config
    slots = empty_slots(TENSORS)
    fill(slots, after.tensors)
    assert all(torch.equal(slot, TENSORS[name]) for name, slot in slots.items())


def test_the_converted_tokenizer_is_written_in_the_words_of_published_files(tmp_path, gguf_file):
    """In those of SmolLM2, which bpe.py reads: a regular expression in their place would cut alike, unrecognised."""
    convert_gguf(gguf_file, tmp_path / "model")
    written = json.loads((tmp_path / "model" / "tokenizer.json").read_text(encoding="utf-8"))["pre_tokenizer"]
    assert [step["type"] for step in written["pretokenizers"]] == ["Digits", "ByteLevel"]
    assert BytePairEncoding.from_file(tmp_path / "model" / "tokenizer.json").encode("the 12") != []


@pytest.mark.parametrize("kind", [{"tied": True}, {"tied": False, "biases": True}], ids=["tied", "untied, biases"])
def test_transformers_loads_the_converted_directory_as_it_is(tmp_path, kind):
    tensors = hf_tensors(**kind)
    convert_gguf(write_gguf(tmp_path / "model.gguf", tensors), tmp_path / "model")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.dtype == torch.float32
    state = model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in tensors.items())
    assert model.generation_config.eos_token_id == 2
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.bos_token == "<|im_start|>"
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.decode(tokenizer.encode("the hat")) == "the hat"


def test_tokens_that_only_their_spelling_tells_to_end_a_turn_end_it_in_both_forms(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, tokenizer__ggml__eos_token_id=0)
    convert_gguf(path, tmp_path / "model")
    for form in (path, tmp_path / "model"):
        model, _ = load(form)
        assert model.config.eos_token_ids == (0, 2), "<|endoftext|>, which is stated, and <|im_end|>"


def test_quantized_weights_become_the_float32_that_they_stand_for(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q4_1)
    convert_gguf(path, tmp_path / "model")
    quantized, converted = empty_slots(TENSORS), empty_slots(TENSORS)
    fill(quantized, open_checkpoint(path).tensors)
    fill(converted, open_checkpoint(tmp_path / "model").tensors)
    assert all(torch.equal(quantized[name], converted[name]) for name in TENSORS)


def test_the_origin_is_recorded(tmp_path, gguf_file):
    convert_gguf(gguf_file, tmp_path / "model", {"source": "a wheel"})
    record = json.loads((tmp_path / "model" / RECORD).read_text(encoding="utf-8"))
    assert record["gguf"] == "model.gguf"
    assert record["gguf_sha256"] == sha256_of(gguf_file)
    assert record["licence"] == "apache-2.0"
    assert record["source"] == "a wheel"


def test_a_file_that_is_refused_leaves_nothing_behind(tmp_path, gguf_file):
    gguf_file.write_bytes(gguf_file.read_bytes()[:-1])
    with pytest.raises(InputError):
        convert_gguf(gguf_file, tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")], ids=["Ctrl-C", "disk full"])
@pytest.mark.parametrize("step", ["write_float32", "write_hf_config", "_write_tokenizer", "publish"])
def test_an_interrupted_conversion_leaves_what_was_there(tmp_path, gguf_file, monkeypatch, error, step):
    out = tmp_path / "out"
    (out / "model").mkdir(parents=True)
    (out / "model" / "older").write_text("the older model", encoding="utf-8")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(f"minillm.loading.convert.{step}", fail)
    with pytest.raises((KeyboardInterrupt, OSError)):
        convert_gguf(gguf_file, out / "model")
    assert entries(out) == ["model"], "a temporary directory was left"
    assert entries(out / "model") == ["older"]


def test_an_older_directory_is_replaced_whole(tmp_path, gguf_file):
    out = tmp_path / "out" / "model"
    out.mkdir(parents=True)
    (out / "stale.json").write_text("{}", encoding="utf-8")
    convert_gguf(gguf_file, out)
    assert "stale.json" not in entries(out)
    assert entries(out.parent) == ["model"]


def _convert(gguf_file: Path, directory: Path) -> None:
    for _ in range(3):
        convert_gguf(gguf_file, directory)


def test_processes_that_convert_at_once_all_succeed(tmp_path, gguf_file):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_convert, args=(gguf_file, tmp_path / "out" / "model")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert entries(tmp_path / "out") == ["model"]
    fill(empty_slots(TENSORS), open_checkpoint(tmp_path / "out" / "model").tensors)


def test_a_scratch_directory_in_use_survives_others_and_an_abandoned_one_does_not(tmp_path):
    with scratch_directory(tmp_path) as mine:
        (mine / "half").write_text("x", encoding="utf-8")
        with scratch_directory(tmp_path):
            assert (mine / "half").exists(), "the scratch directory of a living owner was removed"
        assert (mine / "half").exists()
    assert entries(tmp_path) == []

    abandoned = tmp_path / f"{PREFIX}abandoned"
    (abandoned / "content").mkdir(parents=True)
    (abandoned / LOCK).touch()  # its lock is not held
    young = tmp_path / f"{PREFIX}young"
    young.mkdir()  # made this moment: its owner is about to lock it
    with scratch_directory(tmp_path):
        assert not abandoned.exists()
        assert young.exists()
    os.utime(young, (1, 1))
    with scratch_directory(tmp_path):
        assert not young.exists()
