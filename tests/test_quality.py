"""`minillm quality`: the table, the JSON, and what it refuses."""

import json

import pytest
from in_process import call
from tiny import save_tiny_model

from minillm.llm import LLM
from minillm.perplexity import perplexity, text_logprobs
from minillm.quality import held_text


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    """Rows of 64 and 96 numbers: groups of 32 fill them."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=64, **sizes))


def measured(capsys, *args):
    """The JSON of a run that succeeds."""
    code, out, err = call(capsys, "quality", *args, "--json")
    assert code == 0, err
    return json.loads(out)


def test_the_text_in_the_package_is_plain_and_long_enough():
    text = held_text()
    assert 1_500 < len(text.split()) < 2_500
    assert text.isascii(), "the same bytes in every encoding"


def test_the_reference_s_perplexity_is_that_of_the_model_in_float32(tiny_dir, capsys):
    llm = LLM(tiny_dir, device="cpu", dtype="float32")
    ids = llm.tokenizer.encode(held_text())[:40]
    (row,) = measured(capsys, "--model", tiny_dir, "--tokens", "40", "--quantize", "int8")["rows"]
    assert row["result"]["reference_perplexity"] == pytest.approx(perplexity(text_logprobs(llm.model, ids)), rel=1e-4)


def test_each_way_of_keeping_the_model_is_a_row(tiny_dir, capsys):
    args = ("--model", tiny_dir, "--tokens", "40", "--quantize", "none", "int8", "int4", "--kv-dtype", "auto", "int8")
    result = measured(capsys, *args)
    assert [(row["weights"], row["kv"]) for row in result["rows"]] == [
        (weights, kv) for weights in ("float32", "int8", "int4") for kv in ("float32", "int8")
    ]
    exact, rounded_cache, *quantized = [row["result"]["kl"] for row in result["rows"]]
    assert exact == pytest.approx(0, abs=1e-9)
    assert rounded_cache > 1e-7
    assert quantized[2] > quantized[0] > 1e-7, "four bits lose more than eight"
    sizes = [row["weight_bytes"] for row in result["rows"]]
    assert result["float32_bytes"] == sizes[0] > sizes[2] > sizes[4]


def test_bits_per_weight_count_scales(tiny_dir, capsys):
    (row,) = measured(capsys, "--model", tiny_dir, "--tokens", "9", "--quantize", "int4")["rows"]
    llm = LLM(tiny_dir, device="cpu", dtype="float32")
    norms = sum(p.numel() for p in llm.model.parameters() if p.dim() == 1)
    matrices = llm.model.num_parameters - norms
    ends = llm.config.vocab_size * llm.config.hidden_size * (1 if llm.config.tie_word_embeddings else 2)
    assert row["weight_bytes"] == (matrices - ends) * 20 // 32 + ends * 34 // 32 + norms * 4
    assert row["bits_per_weight"] == pytest.approx(8 * row["weight_bytes"] / (matrices + norms))


def test_the_table_has_a_line_for_the_reference_and_one_for_each_row(tiny_dir, capsys):
    code, out, _ = call(capsys, "quality", "--model", tiny_dir, "--tokens", "30")
    assert code == 0
    assert "on 30 tokens, many rows at a time" in out
    starts = [line.split()[0] for line in out.splitlines() if line.strip()]
    assert [start for start in starts if start in ("float32", "int8", "int4")] == ["float32", "int8", "int4"]


def test_a_text_of_the_reader_s_own_is_read_and_cut_at_the_context(tiny_dir, tmp_path, capsys):
    text = tmp_path / "own.txt"
    text.write_text("the cat sat on the mat. " * 40, encoding="utf-8")
    result = measured(capsys, "--model", tiny_dir, "--file", str(text), "--quantize", "int8")
    assert result["tokens"] == 65, "the context holds 64, and one more is predicted"
    assert result["rows"][0]["result"]["tokens"] == 64


def test_decode_without_a_decode_pass_is_refused(tiny_dir, monkeypatch, capsys):
    monkeypatch.setattr("minillm.llm.compile_decode", lambda model, say: False)
    code, _, err = call(capsys, "quality", "--model", tiny_dir, "--tokens", "9", "--decode")
    assert code == 2
    assert "--decode measures the compiled decode pass, and there is none here: leave it out" in err


def test_decode_goes_through_the_decode_pass(tiny_dir, monkeypatch, capsys):
    asked = []

    class Pass:
        def hidden(self, ids, cache):
            asked.append(tuple(ids.shape))

        def logits(self, hidden):
            return None

    monkeypatch.setattr("minillm.llm.compile_decode", lambda model, say: setattr(model, "decode_pass", Pass()) or True)
    code, _, err = call(capsys, "quality", "--model", tiny_dir, "--tokens", "9", "--quantize", "int8", "--decode")
    assert code == 0, err
    assert asked == [(1, 1)] * 8


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--tokens", "1"), "--tokens must be at least 2, not 1"),
        (("--file", "no-such.txt"), "there is no text file 'no-such.txt'"),
        (("--quantize", "int3"), "unknown quantization 'int3'"),
        (("--kv-dtype", "int4"), "unknown kv_dtype 'int4'"),
    ],
)
def test_what_cannot_be_measured_is_answered_with_a_sentence(tiny_dir, args, told, capsys):
    code, _, err = call(capsys, "quality", "--model", tiny_dir, *args)
    assert code == 2
    assert told in err


def test_a_file_that_is_no_text_is_refused(tiny_dir, tmp_path, capsys):
    path = tmp_path / "noise.bin"
    path.write_bytes(b"\xff\xfe\x00")
    code, _, err = call(capsys, "quality", "--model", tiny_dir, "--file", str(path))
    assert code == 2
    assert "is not UTF-8 text" in err


@pytest.mark.real_model
def test_int8_stays_within_half_a_percent_of_float32_on_the_text_in_the_package(capsys):
    (row,) = measured(capsys, "--quantize", "int8")["rows"]
    assert abs(row["change"]) < 0.005
    assert row["result"]["kl"] < 0.01
