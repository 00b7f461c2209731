"""`minillm inspect`: what is said of a model, from directories, GGUF files and a hub; and of what it cannot run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from checkpoints import HEAD_DIM, hf_config, hf_shapes, hf_tensors, write_directory, write_gguf, write_shards
from families import FAMILIES
from gguf_families import make_model, write_family
from hub_stand_in import COMMIT, Here, Hub, serve
from in_process import call
from rich.console import Console
from safetensors.torch import save, save_file
from small_tokenizers import byte_level_pipeline
from test_tokenizer_files import RECORDED, write_sentencepiece_model
from tiny import save_tiny_model

from minillm import inspect
from minillm.cli import VERBS
from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.inspection.expected import FUSED, expected_shapes, mismatch
from minillm.inspection.findings import COMMON_GGUF_TYPES, examine
from minillm.inspection.found import find
from minillm.inspection.parts import ATTENTION as ATTENTION_PART
from minillm.inspection.parts import EMBEDDING, HEAD, MLP, NORMS, OTHER, count_config, part_of
from minillm.inspection.report import print_report
from minillm.inspection.stored import StoredTensor
from minillm.inspection.unusual import unusual
from minillm.loading.checkpoint import open_checkpoint
from minillm.loading.gguf import SUPPORTED_TYPES
from minillm.loading.gguf_header import read_header
from minillm.loading.hub import fetch_config_from_hub
from minillm.model import Llama
from minillm.tokenizer import Tokenizer

PIECES = len(RECORDED["sentencepiece"]["tokens"])
CONFIGS = Path(__file__).parent / "recorded" / "configs"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A whole directory, as transformers saves it."""
    return save_tiny_model(tmp_path_factory.mktemp("inspect") / "tiny")


def inspected(capsys, *arguments: str | Path) -> str:
    capsys.readouterr()  # what making the model has said
    code, out, err = call(capsys, "inspect", *map(str, arguments))
    assert (code, err) == (0, "")
    return out


def as_json(capsys, *arguments: str | Path) -> dict:
    return json.loads(inspected(capsys, *arguments, "--json"))


def refusal(capsys, *arguments: str | Path) -> str:
    code, out, err = call(capsys, "inspect", *map(str, arguments))
    assert (code, out) == (2, "")
    assert err.startswith("minillm inspect: error: ")
    assert err.count("\n") == 1
    return err


def config_only(directory: Path, config: object) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


# What is said.


def test_a_directory_is_described_and_said_to_run(model, capsys):
    said = as_json(capsys, model)
    assert (said["runs"], said["refusals"]) == (True, [])
    assert said["architecture"] | {"layers": 3, "heads": 6, "kv_heads": 2, "head_dim": 10} == said["architecture"]
    llama = Llama(ModelConfig.from_hf(json.loads((model / "config.json").read_text(encoding="utf-8"))), device="meta")
    assert said["parameters"] == llama.num_parameters == sum(said["parameters_by_part"].values())
    assert said["stored"] == {"F32": {"tensors": 30, "bytes": 4 * said["parameters"]}}
    assert said["kv_bytes_per_token"] == 2 * 3 * 2 * 10 * 2
    assert said["kv_bytes_at_full_context"] == 96 * said["kv_bytes_per_token"]
    tokenizer = said["tokenizer"]
    assert (tokenizer["kind"], tokenizer["adds_bos"]) == ("byte-level BPE", False)
    assert tokenizer["size"] == said["architecture"]["vocab_size"]
    assert tokenizer["eos"] == {"id": 2, "text": "<|im_end|>", "is_special": True}
    assert "<|im_start|>" in tokenizer["chat_templates"]["default"]


@pytest.mark.parametrize("columns", ["80", "40", "200"])
def test_the_report_says_the_same_and_keeps_to_the_width(model, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(model.parent)
    lines = inspected(capsys, model.name).splitlines()
    assert max(map(len, lines)) <= int(columns)
    text = " ".join(" ".join(lines).split())
    for words in (
        "llama (LlamaForCausalLM)",
        "6 query heads, 2 key/value heads, each of 10",
        "240 bytes per token in 16 bits",
        "byte-level BPE: 2",
        "BOS <|im_start|> (1), not added to a text EOS <|im_end|> (2) added tokens 3, all of them special",
        "The head size is stated, not derived: 6 heads of 10 are 60 wide, and the hidden size is 48.",
        "minillm runs it.",
    ):
        assert words in text, words


def test_bars_are_as_long_as_the_shares_and_plain_where_there_are_no_blocks(model, monkeypatch):
    findings = examine(find(str(model)))
    assert findings.parts is not None
    for encoding, sign in (("utf-8", "█"), ("ascii", "#")):
        console = Console(width=100, highlight=False, record=True, file=_Nowhere(encoding))
        print_report(findings, console)
        lines = console.export_text().splitlines()
        for part, count in findings.parts.items():
            line = next(line for line in lines if line.startswith(f"  {part} "))
            assert abs(line.count(sign) - 63 * count / findings.parameters) <= 1, line
            assert f"{count:,}" in line


class _Nowhere:
    """A file of an encoding, that keeps nothing."""

    def __init__(self, encoding: str):
        self.encoding = encoding

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def test_a_gguf_file_is_described_from_its_header(tmp_path, capsys):
    tensors = hf_tensors()
    path = write_gguf(tmp_path / "tiny.gguf", tensors, gguf.GGMLQuantizationType.Q8_0)
    said = as_json(capsys, path)
    assert said["runs"], said["refusals"]
    matrices = sum(tensor.numel() for tensor in tensors.values() if tensor.ndim == 2)
    assert said["stored"]["Q8_0"] == {"tensors": 15, "bytes": matrices // 32 * 34}
    assert said["stored"]["F32"]["tensors"] == 5
    assert said["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert said["architecture"]["tie_word_embeddings"]
    assert said["tokenizer"]["pre_tokenizer"] == "smollm"
    assert [token["text"] for token in said["tokenizer"]["added"]] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert said["tokenizer"]["bos"]["id"] == 1
    assert "the embedding's table (tied)" in inspected(capsys, path)


def test_the_config_of_a_gguf_file_is_the_one_that_the_engine_reads(tmp_path):
    """With divisors of rotary frequencies too, which are read from where they lie."""
    from minillm.loading.gguf import open_gguf
    from minillm.loading.gguf_rope import rope_factors

    config = ModelConfig.from_hf(
        hf_config(
            rope_scaling={
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        )
    )
    factors = torch.tensor(rope_factors(config), dtype=torch.float32).numpy()
    path = write_gguf(tmp_path / "tiny.gguf", hf_tensors(), extra={"rope_freqs.weight": factors})
    findings = examine(find(str(path)))
    assert findings.outline.config == open_gguf(path).config
    assert findings.outline.config is not None
    assert findings.outline.config.rope_scaling == config.rope_scaling


def test_divisors_in_half_precision_are_read_as_the_engine_reads_them_and_tables_of_them_refused(tmp_path, capsys):
    divisors = np.linspace(1.0, 8.0, HEAD_DIM // 2).astype(np.float16)
    path = write_gguf(tmp_path / "half.gguf", hf_tensors(), extra={"rope_freqs.weight": divisors})
    expected = open_checkpoint(path).config.rope_scaling
    assert expected is not None
    assert examine(find(str(path))).outline.config == open_checkpoint(path).config
    for shape in ((-1, 1), (1, -1)):
        table = divisors.astype(np.float32).reshape(shape)
        path = write_gguf(tmp_path / "table.gguf", hf_tensors(), extra={"rope_freqs.weight": table})
        assert "must be a vector" in as_json(capsys, path)["refusals"][0]
        with pytest.raises(InputError, match=r"rope_freqs.weight of shape .* must be a vector"):
            open_checkpoint(path)


def test_headers_are_read_as_the_library_reads_them(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", hf_tensors(), llama__feed_forward_list=[1, 2, 3])
    header, reader = read_header(path, keeps_arrays=True), gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata == fields
    assert header.offsets == {tensor.name: tensor.data_offset for tensor in reader.tensors}


def test_shards_and_dtypes_are_counted(tmp_path, capsys):
    tensors = hf_tensors()
    dtypes = dict.fromkeys(tensors, torch.bfloat16) | {"model.norm.weight": torch.float16}
    write_shards(tmp_path, {name: tensor.to(dtypes[name]) for name, tensor in tensors.items()})
    (tmp_path / "consolidated.safetensors").write_bytes(b"not looked at")
    stored = as_json(capsys, tmp_path)["stored"]
    assert {dtype: entry["tensors"] for dtype, entry in stored.items()} == {"BF16": 19, "F16": 1}
    assert stored["F16"]["bytes"] == 2 * 256


def test_the_whole_template_is_printed_on_request(tmp_path, capsys):
    template = "".join(f"{{# line {number} #}}\n" for number in range(9)) + "{{ tools }}"
    save_tiny_model(tmp_path, chat_template=template)
    short, whole = inspected(capsys, tmp_path), inspected(capsys, tmp_path, "--template")
    assert "reads tools" in short
    assert "line 2" in short
    assert "line 3" not in short
    assert "7 more lines: --template shows all" in short
    assert all(f"line {number}" in whole for number in range(9))


def test_nothing_in_a_file_reaches_the_terminal_as_a_command_or_stops_the_report(tmp_path):
    save_tiny_model(tmp_path, chat_template="\x1b[31mred\x07 <｜User｜> \u202e {{ tools }}")
    root = Path(inspect.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "minillm.inspect", str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert r"\x1b[31mred\x07 <\uff5cUser\uff5c> \u202e {{ tools }}" in done.stdout
    assert done.stdout.isascii()


def test_how_its_authors_sample_is_said(tmp_path, capsys):
    save_tiny_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.95, "do_sample": true}')
    assert "temperature 0.6, top_p 0.95" in " ".join(inspected(capsys, tmp_path).split())
    assert as_json(capsys, tmp_path)["sampling"] == {"temperature": 0.6, "top_p": 0.95}


# Counting.


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.names)
def test_the_tensors_that_a_config_asks_for_are_those_of_the_model(family):
    config = ModelConfig.from_hf(family.config().to_dict())
    fused = config_is_fused(family)
    slots = Llama(config, device="meta").checkpoint_slots(fused=fused)
    shapes = expected_shapes(config, fused)
    assert shapes == {name: tuple(slot.shape) for name, slot in slots.items()}
    assert mismatch(config, [StoredTensor(name, shape, "F32", 0) for name, shape in shapes.items()]) is None
    assert sum(count_config(config).values()) == Llama(config, device="meta").num_parameters


def config_is_fused(family) -> bool:
    return family.model_type == "phi3"


def test_tensors_that_do_not_fit_the_config_are_named():
    config = ModelConfig.from_hf(hf_config())
    stored = [StoredTensor(name, shape, "F32", 0) for name, shape in hf_shapes().items()]
    assert mismatch(config, stored) is None
    assert mismatch(config, [*stored, StoredTensor("model.layers.0.rotary_emb.inv_freq", (32,), "F32", 0)]) is None
    assert mismatch(config, [*stored, StoredTensor("lm_head.weight", (1, 1), "F32", 0)]) is None
    assert mismatch(config, stored[1:]) == "the checkpoint lacks the tensor model.embed_tokens.weight"
    extra = [*stored, StoredTensor("model.ghost", (1,), "F32", 0)]
    assert mismatch(config, extra) == "the checkpoint has, beyond what the config asks for, the tensor model.ghost"
    wrong = [StoredTensor("model.norm.weight", (255,), "F32", 0) if "model.norm" in t.name else t for t in stored]
    assert mismatch(config, wrong) == "the tensor model.norm.weight is [255], and the config asks for [256]"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.embed_tokens.weight", EMBEDDING),
        ("token_embd.weight", EMBEDDING),
        ("transformer.wte.weight", EMBEDDING),
        ("lm_head.weight", HEAD),
        ("output.weight", HEAD),
        ("output_norm.weight", NORMS),
        ("model.layers.0.self_attn.q_norm.weight", NORMS),
        ("blk.0.attn_norm.weight", NORMS),
        ("blk.0.attn_output.weight", ATTENTION_PART),
        ("model.layers.0.self_attn.qkv_proj.weight", ATTENTION_PART),
        ("model.layers.0.mlp.gate_up_proj.weight", MLP),
        ("model.layers.0.block_sparse_moe.experts.0.w1.weight", MLP),
        ("blk.0.ffn_gate.weight", MLP),
        ("model.vision_tower.something", OTHER),
    ],
)
def test_a_tensor_belongs_to_a_part_by_its_name(name, part):
    assert part_of(name) == part


PUBLISHED = {  # as their model cards and the counts on the hub say
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b-instruct": 8_030_261_248,
    "mistral-7b-v0.1": 7_241_732_096,
    "phi-3-mini-4k-instruct": 3_821_079_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "tinyllama-1.1b-chat": 1_100_048_384,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_real_models_have_as_many_parameters_as_is_published(name, count):
    config = ModelConfig.from_hf(json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8")))
    assert sum(count_config(config).values()) == count


@pytest.mark.parametrize(
    ("changes", "tokens_kept"),
    [
        ({}, 2 * 128),
        ({"model_type": "mistral", "sliding_window": 32}, 2 * 32),
        ({"model_type": "mistral", "sliding_window": 4096}, 2 * 128),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, 128 + 32),
    ],
)
def test_layers_with_a_window_keep_no_more_than_the_window(tmp_path, changes, tokens_kept):
    outline = examine(find(str(config_only(tmp_path, hf_config(**changes))))).outline
    per_layer = 2 * 2 * 64 * 2  # keys and values of two heads of 64, two bytes each
    assert outline.kv_bytes_per_token == 2 * per_layer
    assert outline.kv_bytes_at_full_context == tokens_kept * per_layer


# What is unusual.


@pytest.mark.parametrize(
    ("name", "sentences"),
    [
        ("llama-2-7b", [r"^Every query head has a key/value head of its own"]),
        ("llama-3-8b", [r"32 query heads share 8 key/value heads, 4 to one, so the KV cache is a quarter"]),
        (
            "llama-3.1-8b-instruct",
            [r"\(llama3\): .* by 8.*8,192 tokens", r"^3 tokens end a text: 128001,"],
        ),
        ("mistral-7b-v0.1", [r"^In every layer a token sees only the newest 4,096 tokens \(sliding window\)\.$"]),
        ("mistral-nemo-instruct-2407", [r"32 heads of 128 are 4,096 wide, and the hidden size is 5,120"]),
        ("qwen2.5-0.5b", [r"biases on queries, keys and values\.", r"table \(tied\): 136,134,656 numbers"]),
        ("qwen2.5-7b-instruct-yarn", [r"scaled \(yarn\): .* by 4, .*32,768 tokens; queries and keys grow by 1\.139"]),
        ("qwen3-0.6b", [r"normalised per head \(RMSNorm over 128\)"]),
        ("smollm3-3b", [r"9 of 36 layers do not rotate .*: 3, 7 and so on to 35\."]),
        ("granite-3.1-2b-instruct", [r"embedding 12, residual 0\.22, attention 0\.015625 and logits .* 8\."]),
        (
            "phi-3-mini-128k-instruct",
            [r"262,144 tokens .*, which is no less", r"\(longrope\): .* 4,096"],
        ),
    ],
)
def test_what_is_unusual_about_real_models_is_said(name, sentences, tmp_path):
    config = json.loads((CONFIGS / f"{name}.json").read_text(encoding="utf-8"))
    said = examine(find(str(config_only(tmp_path / name, config)))).unusual
    for sentence in sentences:
        assert any(re.search(sentence, one) for one in said), said


def test_sentences_about_tensors_and_tokens(tmp_path, capsys):
    tensors = hf_tensors() | {
        "lm_head.weight": hf_tensors()["model.embed_tokens.weight"].clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32),
    }
    write_directory(tmp_path, tensors, vocab_size=hf_config()["vocab_size"], eos_token_id=[0, 2])
    (tmp_path / "tokenizer.json").write_text(byte_level_pipeline(), encoding="utf-8")
    said = as_json(capsys, tmp_path)
    assert "The tied head is stored all the same." in said["unusual"]
    assert any("Rotary frequencies are stored" in sentence for sentence in said["unusual"])
    assert any(sentence.startswith("2 tokens end a text") for sentence in said["unusual"])
    assert said["parameters"] == sum(tensor.numel() for tensor in hf_tensors().values()), "nothing is counted twice"


def test_tokenizer_model_alone_is_described(tmp_path, capsys):
    write_sentencepiece_model(tmp_path)
    write_directory(tmp_path, hf_tensors(), vocab_size=hf_config()["vocab_size"])
    said = as_json(capsys, tmp_path)["tokenizer"]
    own = Tokenizer.from_directory(tmp_path)
    assert said["kind"] == "BPE with byte fallback, as SentencePiece makes it"
    assert (said["size"], said["bos"]["id"], said["eos"]["id"]) == (own.vocab_size, own.bos_token_id, own.eos_token_id)
    assert said["adds_bos"] is True


@pytest.mark.parametrize(("family", "fuse_qkv"), [("phi3 4k", False), ("llama 2", True), ("qwen3", False)])
def test_gguf_files_with_fused_and_other_tensors_run(tmp_path, capsys, family, fuse_qkv):
    said = as_json(capsys, write_family(tmp_path / "a.gguf", family, make_model(family), fuse_qkv=fuse_qkv))
    assert (said["runs"], said["refusals"]) == (True, [])


def test_fused_projections_are_named(tmp_path):
    family = next(family for family in FAMILIES if config_is_fused(family))
    config = ModelConfig.from_hf(family.config().to_dict())
    tensors = [StoredTensor(name, shape, "F32", 0) for name, shape in expected_shapes(config, True).items()]
    assert any(part in tensor.name for tensor in tensors for part in FUSED)
    outline = examine(find(str(config_only(tmp_path, family.config().to_dict())))).outline
    assert any("stored fused" in sentence for sentence in unusual(outline, tensors, None))


# What this engine does not run.

GEMMA = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "vocab_size": 100,
}


def test_a_model_that_is_refused_is_described_as_far_as_possible(tmp_path, capsys):
    config_only(tmp_path, GEMMA)
    save_file({"model.layers.0.mlp.up_proj.weight": torch.ones(128, 64)}, tmp_path / "model.safetensors")
    said = as_json(capsys, tmp_path)
    assert not said["runs"]
    assert "gemma2" in said["refusals"][0]
    assert said["architecture"]["family"].startswith("Gemma 2")
    assert said["architecture"]["head_dim"] == 32
    assert said["kv_bytes_per_token"] == 2 * 4 * 2 * 32 * 2
    assert said["parameters_by_part"]["MLP"] == 128 * 64
    text = inspected(capsys, tmp_path)
    assert "minillm does not run it\n- " in text
    assert "minillm runs it" not in text


def test_packed_weights_are_not_called_parameters(tmp_path, capsys):
    quantized = {"quantization_config": {"quant_method": "awq"}}
    config_only(tmp_path, hf_config(**quantized))
    save_file({"model.layers.0.mlp.up_proj.qweight": torch.ones(4, 4).int()}, tmp_path / "model.safetensors")
    said = as_json(capsys, tmp_path)
    assert said["parameters"] is None
    assert said["stored"] == {"I32": {"tensors": 1, "bytes": 64}}
    assert "quantization_config" in said["refusals"][0]
    assert "packed: not parameters" in inspected(capsys, tmp_path)


def test_of_a_multimodal_model_the_text_part_is_described(tmp_path, capsys):
    config_only(tmp_path, {"model_type": "gemma3", "text_config": GEMMA})
    architecture = as_json(capsys, tmp_path)["architecture"]
    assert (architecture["model_type"], architecture["layers"]) == ("gemma3", 4)


def test_what_is_missing_beside_a_good_config_is_named(model, tmp_path, capsys):
    config_only(tmp_path, json.loads((model / "config.json").read_text(encoding="utf-8")))
    said = as_json(capsys, tmp_path)
    assert [re.sub("the directory .* has", "it has", reason) for reason in said["refusals"]] == [
        "it has no weights: neither model.safetensors nor model.safetensors.index.json",
        "there is neither tokenizer.json nor tokenizer.model, the forms in which a tokenizer is read",
    ]
    assert said["parameters"] == as_json(capsys, model)["parameters"], "by the config alone"
    assert said["stored"] is None
    index = {"weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert (
        "names the file model-00001-of-00001.safetensors, which is not there"
        in as_json(capsys, tmp_path)["refusals"][0]
    )


def test_a_tokenizer_of_sentencepieces_own_file_is_described(tmp_path, capsys):
    write_directory(write_sentencepiece_model(tmp_path), hf_tensors())
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": PIECES}), encoding="utf-8")
    said = as_json(capsys, tmp_path)
    assert said["tokenizer"]["kind"] == "BPE with byte fallback, as SentencePiece makes it"
    assert said["tokenizer"]["size"] == PIECES + 1
    assert said["tokenizer"]["adds_bos"]
    (tmp_path / "tokenizer.model").write_bytes(b"\xff" * 40)
    assert "tokenizer.model is not a SentencePiece model that can be read" in refusal(capsys, tmp_path)


def test_a_tokenizer_that_cannot_be_built_or_is_too_large_is_a_reason(tmp_path, capsys):
    path = write_gguf(tmp_path / "tiny.gguf", hf_tensors(), tokenizer__ggml__pre="of-another-planet")
    assert "of-another-planet" in as_json(capsys, path)["refusals"][0]
    (tmp_path / "small").mkdir()
    tensors = hf_tensors() | {"model.embed_tokens.weight": torch.ones(9, 256)}
    write_directory(tmp_path / "small", tensors, vocab_size=9)
    (tmp_path / "small" / "tokenizer.json").write_text(byte_level_pipeline(), encoding="utf-8")
    assert "and the model 9: they do not belong together" in as_json(capsys, tmp_path / "small")["refusals"][0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"llama__block_count": 3}, "lacks the tensor model.layers.2."),
        ({"llama__block_count": 1}, "has, beyond what the config asks for, the tensor model.layers.1."),
        ({"llama__feed_forward_length": 7}, r"is \[512, 256\], and the config asks for \[7, 256\]"),
        ({"extra": {"blk.0.attn_q_norm.weight": np.ones(64, np.float32)}}, "the tensor blk.0.attn_q_norm.weight"),
    ],
)
def test_a_gguf_file_whose_tensors_do_not_fit_its_metadata_is_not_said_to_run(tmp_path, capsys, changes, reason):
    assert as_json(capsys, write_gguf(tmp_path / "good.gguf", hf_tensors()))["runs"]
    said = as_json(capsys, write_gguf(tmp_path / "wrong.gguf", hf_tensors(), **changes))
    assert re.search(reason, said["refusals"][0]), said["refusals"]
    assert not said["runs"]


def test_a_gguf_file_of_another_architecture_or_type_is_described_and_refused(tmp_path, capsys):
    path = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(path, "gemma2")
    for key, value in (("block_count", 4), ("attention.head_count", 4), ("embedding_length", 64)):
        writer.add_uint32(f"gemma2.{key}", value)
    writer.add_tensor("blk.0.ffn_up.weight", torch.ones(2, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = as_json(capsys, path)
    assert "gemma2" in said["refusals"][0]
    assert said["architecture"]["layers"] == 4
    assert said["architecture"]["head_dim"] == 16
    assert said["stored"] == {"F32": {"tensors": 1, "bytes": 256}}


def test_the_common_types_of_gguf_are_types_that_are_read():
    assert set(SUPPORTED_TYPES) >= COMMON_GGUF_TYPES


# Wrong input.


def test_wrong_names_and_damaged_files_get_one_sentence(model, tmp_path, capsys):
    assert "there is no model 'no-such-model'" in refusal(capsys, "no-such-model")
    assert "there is no model ''" in refusal(capsys, "")
    (tmp_path / "empty").mkdir()
    assert "has no config.json, so it is not a model" in refusal(capsys, tmp_path / "empty")
    (tmp_path / "empty" / "a.gguf").write_bytes(b"")
    assert "did you mean the file" in refusal(capsys, tmp_path / "empty")
    assert "is not a GGUF file" in refusal(capsys, tmp_path / "empty" / "a.gguf")
    assert "must hold a JSON object, not a list" in refusal(capsys, config_only(tmp_path / "list", []))
    assert "is not a model" in refusal(capsys, model / "config.json")
    damaged = config_only(tmp_path / "damaged", hf_config())
    (damaged / "model.safetensors").write_bytes(b"\1" * 100)
    assert "is truncated or not a safetensors file" in refusal(capsys, damaged)
    (damaged / "model.safetensors").unlink()
    (damaged / "tokenizer.json").write_text("[]", encoding="utf-8")
    assert "tokenizer.json must hold a JSON object" in refusal(capsys, damaged)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", 5),
        ("model", {"type": "BPE", "vocab": True}),
        ("post_processor", {"single": 2**63}),
        ("added_tokens", 3),
    ],
)
def test_a_tokenizer_json_of_another_make_gets_one_sentence(model, tmp_path, capsys, key, value):
    copied = shutil.copytree(model, tmp_path / "copied")
    content = json.loads((copied / "tokenizer.json").read_text(encoding="utf-8"))
    (copied / "tokenizer.json").write_text(json.dumps({**content, key: value}), encoding="utf-8")
    assert "tokenizer.json is not a tokenizer that can be read" in refusal(capsys, copied)


def test_an_alignment_that_the_engine_does_not_read_is_refused(tmp_path, capsys):
    path = write_gguf(tmp_path / "odd.gguf", hf_tensors(), general__alignment=24)
    assert "an alignment of 24" in refusal(capsys, path)
    with pytest.raises(InputError, match="an alignment of 24"):
        open_checkpoint(path)


def test_a_truncated_gguf_file_gets_one_sentence_wherever_it_ends(tmp_path, capsys):
    content = write_gguf(tmp_path / "tiny.gguf", hf_tensors()).read_bytes()
    for size in (4, 20, 3000, len(content) // 2, len(content) - 1):
        (tmp_path / "tiny.gguf").write_bytes(content[:size])
        assert "fetch it again" in refusal(capsys, tmp_path / "tiny.gguf"), f"cut to {size} bytes"


@pytest.mark.parametrize("name", ["eos_token_id", "num_hidden_layers", "head_dim", "vocab_size", "architectures"])
@pytest.mark.parametrize("value", [None, "x", [], {}, -1, 0, True, 1e9, 2**70])
def test_no_value_of_a_config_causes_more_than_a_refusal(tmp_path, capsys, name, value):
    inspected(capsys, config_only(tmp_path, hf_config(**{name: value})))


@pytest.mark.parametrize("value", [None, 5, "x", [5], {"type": "Sequence", "pretokenizers": 5}, {"single": ["x"]}])
@pytest.mark.parametrize("name", ["model", "added_tokens", "pre_tokenizer", "post_processor", "decoder"])
def test_no_value_of_a_tokenizer_causes_more_than_a_refusal(tmp_path, capsys, name, value):
    config_only(tmp_path, hf_config())
    content = json.loads(byte_level_pipeline()) | {name: value}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    code, _, err = call(capsys, "inspect", str(tmp_path))
    assert code in (0, 2)
    assert err.count("\n") == code // 2


# A hub's model.


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    return Here(monkeypatch, capsys, tmp_path)


HUB_CONFIG = {**hf_config(), "vocab_size": 400}
HUB_TENSORS = {
    name: torch.zeros(400, *shape[1:]) if "embed" in name else torch.zeros(shape) for name, shape in hf_shapes().items()
}


def hub_with(**files: bytes) -> Hub:
    named = {name.replace("__", "."): content for name, content in files.items()}
    return Hub(
        files={
            "config.json": json.dumps(HUB_CONFIG).encode(),
            "tokenizer.json": byte_level_pipeline().encode(),
            "model.safetensors": save(HUB_TENSORS),
            **named,
        }
    )


def test_of_a_hub_model_the_weights_are_not_fetched_but_their_headers_are(here, capsys):
    with serve(hub_with()) as hub:
        here.fetch(hub, "org/another-one")  # sets who is asked
        hub.requests.clear()
        said = as_json(capsys, "org/tiny")
        ranges = [line for line in hub.requests if "model.safetensors" in line]
    assert said["runs"], said["refusals"]
    assert said["stored"]["F32"]["tensors"] == len(HUB_TENSORS)
    assert said["parameters"] == sum(tensor.numel() for tensor in HUB_TENSORS.values())
    assert len(ranges) == 1
    assert "bytes=0-" in ranges[0]
    assert not list(here.home.rglob("model.safetensors"))


def test_a_hub_model_without_safetensors_is_described_by_its_config(here, capsys):
    hub = hub_with(pytorch_model__bin=b"pickled")
    del hub.files["model.safetensors"]
    with serve(hub):
        here.fetch(hub, "org/another-one")
        said = as_json(capsys, "org/tiny")
    assert "only as pytorch_model.bin, a pickle" in said["refusals"][0]
    assert said["parameters"] == sum(tensor.numel() for tensor in HUB_TENSORS.values())


def test_a_hub_model_that_is_in_the_cache_is_described_from_there(here, capsys):
    with serve(hub_with()) as hub:
        assert here.fetch(hub).returncode == 0
    here.fetch(None)  # nobody answers from here on
    said = as_json(capsys, "org/tiny")
    assert said["runs"]
    assert COMMIT in said["path"]


def test_of_a_hub_model_of_which_a_part_is_in_the_cache_that_part_is_described_without_a_network(here, capsys):
    with serve(hub_with()) as hub:
        here.fetch(hub, "org/another-one")
        fetch_config_from_hub("org/tiny")
    here.fetch(None, "org/another-one")
    said = as_json(capsys, "org/tiny")
    assert said["parameters"] == sum(tensor.numel() for tensor in HUB_TENSORS.values())
    assert "has no weights" in said["refusals"][0]


def test_a_hub_that_cannot_be_asked_gets_one_sentence(here, capsys):
    here.fetch(None, "org/another-one")
    assert "could not be asked for it" in refusal(capsys, "org/tiny")
    assert "`minillm fetch org/tiny:Q8_0` fetches it" in refusal(capsys, "org/tiny:Q8_0")


# The command.


@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_it_is_a_verb_and_imports_no_torch(model, tmp_path, kind):
    assert "inspect" in VERBS
    model = model if kind == "directory" else write_gguf(tmp_path / "tiny.gguf", hf_tensors())
    code = "import sys; from minillm import inspect; inspect.main(sys.argv[1:]); assert 'torch' not in sys.modules"
    root = Path(inspect.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "minillm runs it." in done.stdout


@pytest.mark.real_model
def test_the_default_model_is_described_as_it_is(model_dir, capsys):
    said = as_json(capsys, model_dir)
    assert said["parameters"] == 134_515_008
    assert said["runs"]
    (file,) = model_dir.glob("*.gguf")
    of_gguf = as_json(capsys, file)
    for key in ("parameters", "parameters_by_part", "kv_bytes_per_token", "unusual", "config"):
        assert of_gguf[key] == said[key], key


@pytest.mark.real_model
def test_the_report_in_the_readme_is_what_is_printed(model_dir, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    readme = (Path(inspect.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```text\n(model          smollm2-135m.*?)```", readme, re.DOTALL)
    printed = [line.rstrip() for line in inspected(capsys, "smollm2-135m").splitlines()]
    where = {line for line in (*block.splitlines(), *printed) if line.startswith("files")}
    assert [line for line in printed if line not in where] == [line for line in block.splitlines() if line not in where]
