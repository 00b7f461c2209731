"""--quantize: which format each matrix gets, and a GGUF file's blocks in the model as the file has them."""

import gguf
import numpy as np
import pytest
import torch
from checkpoints import HEADS, KV_HEADS, hf_tensors, permute, write_directory, write_gguf
from checkpoints import quantize as in_type
from gguf import GGMLQuantizationType as QType
from tiny import random_ids

from minillm import LLM, SamplingParams
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.model import Llama
from minillm.quantization import QuantizedWeight, from_gguf_blocks, quantize
from minillm.quantized_linear import QuantizedEmbedding, QuantizedLinear

TYPES = {"q8_0": QType.Q8_0, "q4_0": QType.Q4_0, "q4_1": QType.Q4_1}
TENSORS = {name: tensor * 0.1 for name, tensor in hf_tensors(tied=False, biases=True).items()}
TIED = {name: tensor * 0.1 for name, tensor in hf_tensors().items()}


def formats(model: Llama) -> dict[str, str]:
    """The format of each matrix by its module's name."""
    kinds = (QuantizedLinear, QuantizedEmbedding)
    return {name: module.weight.format for name, module in model.named_modules() if isinstance(module, kinds)}


def blocks_of(name: str, tensor: torch.Tensor, format: str) -> QuantizedWeight:
    """What the library writes for a tensor, taken apart; its rows in Hugging Face's order."""
    raw = in_type(tensor.numpy(), TYPES[format])
    return from_gguf_blocks(torch.from_numpy(raw), format)


def assert_bytes_are_the_file_s(model: Llama, tensors, format: str) -> None:
    for name, slot in model.checkpoint_slots().items():
        if tensors[name].dim() == 1:
            assert torch.equal(slot, tensors[name]), name
            continue
        assert isinstance(slot, QuantizedWeight), name
        expected = blocks_of(name, tensors[name], format)
        assert slot.format == format
        assert torch.equal(slot.codes, expected.codes), name
        assert torch.equal(slot.scale.view(torch.int16), expected.scale.view(torch.int16)), name
        if format == "q4_1":
            assert slot.minimum is not None
            assert expected.minimum is not None
            assert torch.equal(slot.minimum.view(torch.int16), expected.minimum.view(torch.int16)), name


@pytest.fixture
def no_detour(monkeypatch):
    """Dequantizing is an error, except for float32 and the like."""

    def refuse(data, kind):
        assert kind.name not in ("Q8_0", "Q4_0", "Q4_1"), "blocks were made into floats on the way"
        return dequantize(data, kind)

    dequantize = gguf.dequantize
    monkeypatch.setattr(gguf, "dequantize", refuse)


@pytest.mark.parametrize("piece_bytes", [100_000, 16 << 20], ids=["in pieces", "at once"])
@pytest.mark.parametrize("tensors", [TENSORS, TIED], ids=["untied with biases", "tied"])
@pytest.mark.parametrize("format", TYPES)
def test_blocks_of_a_file_are_used_as_they_are(tmp_path, monkeypatch, no_detour, format, tensors, piece_bytes):
    """Byte for byte, with nothing in float on the way; rows of q and k are put back into their order."""
    monkeypatch.setattr("minillm.loading.checkpoint.PIECE_BYTES", piece_bytes)
    path = write_gguf(tmp_path / "model.gguf", tensors, TYPES[format])
    model, _ = load(path, quantize="file")
    assert set(formats(model).values()) == {format}
    assert len(formats(model)) == 2 * 4 + 2
    assert_bytes_are_the_file_s(model, tensors, format)


def test_the_oracle_above_would_see_rows_in_the_file_s_order():
    name = "model.layers.0.self_attn.q_proj.weight"
    shuffled = torch.from_numpy(np.ascontiguousarray(permute(TENSORS[name].numpy(), HEADS)))
    assert HEADS != KV_HEADS
    assert not torch.equal(blocks_of(name, shuffled, "q8_0").codes, blocks_of(name, TENSORS[name], "q8_0").codes)


def test_each_matrix_keeps_its_own_type(tmp_path, no_detour):
    others = {
        "down_proj": QType.Q4_1,
        "layers.1.mlp.gate": QType.Q4_0,
        "layers.1.mlp.up": QType.Q4_0,
        "lm_head": QType.Q4_1,
    }
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q8_0, others=others)
    found = formats(load(path, quantize="file")[0])
    expected = dict.fromkeys(found, "q8_0") | dict.fromkeys(
        ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj", "lm_head"), "q4_1"
    )
    assert found == expected | {"layers.1.mlp.gate_up_proj": "q4_0"}


@pytest.mark.parametrize("other", [QType.Q6_K, QType.Q4_K, QType.F16, QType.F32])
def test_matrices_of_a_type_without_a_kernel_become_q8_0(tmp_path, other):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q4_0, others={"down_proj": other, "embed_tokens": other})
    model, _ = load(path, quantize="file")
    found = formats(model)
    assert [name for name, format in found.items() if format != "q4_0"] == [
        "embed_tokens", "layers.0.mlp.down_proj", "layers.1.mlp.down_proj",
    ]  # fmt: skip
    assert found["embed_tokens"] == "q8_0"
    plain, _ = load(path)
    slot = model.checkpoint_slots()["model.layers.1.mlp.down_proj.weight"]
    assert isinstance(slot, QuantizedWeight)
    exact = plain.layers[1].mlp.down_proj.weight
    assert torch.equal(slot.dequantized(), quantize(exact, "q8_0").dequantized())


def test_a_fused_matrix_whose_parts_differ_is_q8_0_and_its_parts_of_that_type_untouched(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q8_0, others={"v_proj": QType.Q4_1, "up_proj": QType.F32})
    model, _ = load(path, quantize="file")
    assert set(formats(model).values()) == {"q8_0"}
    slots = model.checkpoint_slots()
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj"):
        name = f"model.layers.1.{part}.weight"
        assert torch.equal(slots[name].codes, blocks_of(name, TENSORS[name], "q8_0").codes), name
    name = "model.layers.1.self_attn.v_proj.weight"
    given = blocks_of(name, TENSORS[name], "q4_1").dequantized()
    assert torch.equal(slots[name].dequantized(), quantize(given, "q8_0").dequantized())


@pytest.mark.parametrize("word", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["directory", "gguf"])
def test_a_word_of_ours_quantizes_any_checkpoint(tmp_path, kind, word):
    if kind == "directory":
        from tiny import save_tiny_model

        path = save_tiny_model(tmp_path, hidden_size=96, intermediate_size=64, head_dim=16)
    else:
        path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q8_0)
    model, plain = load(path, quantize=word)[0], load(path)[0]
    ends = {"embed_tokens", "lm_head"}
    expected_formats = {name: "q8_0" if name in ends else "q4_1" for name in formats(model)}
    assert formats(model) == (expected_formats if word == "int4" else dict.fromkeys(formats(model), "int8"))
    exact = plain.checkpoint_slots()
    for name, slot in model.checkpoint_slots().items():
        if isinstance(slot, QuantizedWeight):
            assert torch.equal(slot.dequantized(), quantize(exact[name], slot.format).dequantized()), name
        else:
            assert torch.equal(slot, exact[name]), name
    ids = random_ids(9)
    got, expected = (m.logits(m(ids, KVCache(m.config, 9))) for m in (model, plain))
    assert float((got - expected).abs().mean()) < float(expected.std()) * (0.05 if word == "int8" else 0.6)


def test_a_file_s_own_blocks_give_the_logits_of_the_dequantized_file(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q4_0)
    model, plain = load(path, quantize="file")[0], load(path)[0]
    ids = random_ids(9)
    got, expected = (m.logits(m(ids, KVCache(m.config, 9))) for m in (model, plain))
    assert expected.std() > 0.01
    assert torch.allclose(got, expected, atol=1e-5)


def test_it_generates_with_the_compiled_pass_on_the_file_s_blocks(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q4_1)
    llm = LLM(path, device="cpu", dtype="float32", quantize="file", kv_dtype="int8")
    assert llm.model.decode_pass is not None
    assert len(llm.generate("the hat", SamplingParams(max_tokens=8, ignore_eos=True)).token_ids) == 8


class TestWhatIsRefused:
    def test_file_for_safetensors(self, tmp_path):
        write_directory(tmp_path, TENSORS, tie_word_embeddings=False, attention_bias=True, mlp_bias=True)
        with pytest.raises(InputError, match=r"is not quantized \(to q8_0, q4_1 or q4_0\): use int8 or int4"):
            load(tmp_path, quantize="file")

    @pytest.mark.parametrize("kind", [QType.F16, QType.Q6_K])
    def test_file_for_a_gguf_file_without_such_matrices(self, tmp_path, kind):
        path = write_gguf(tmp_path / "model.gguf", TENSORS, kind)
        with pytest.raises(InputError, match=r"model.gguf is not quantized"):
            load(path, quantize="file")

    @pytest.mark.parametrize("word", ["int3", "INT8", "q4_1", "", "fp8"])
    def test_unknown_words_before_anything_large_is_read(self, tmp_path, monkeypatch, word):
        path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q8_0)
        monkeypatch.setattr("minillm.loading.loader.fill", lambda *args: pytest.fail("weights were read"))
        monkeypatch.setattr("minillm.loading.loader.load_tokenizer", lambda *args: pytest.fail("a tokenizer was read"))
        with pytest.raises(
            InputError, match=f"unknown quantization '{word}': use int8, int4, or file for a GGUF file's"
        ):
            load(path, quantize=word)

    def test_tensors_that_no_llama_has_are_named_also_with_file(self, tmp_path):
        extra = {"leftover": np.zeros((2, 32), dtype=np.float32)}
        path = write_gguf(tmp_path / "model.gguf", TENSORS, QType.Q8_0, extra)
        with pytest.raises(InputError, match=r"has, beyond what the model wants, 1 tensor: leftover"):
            load(path, quantize="file")

    def test_rows_that_groups_do_not_fill(self, tmp_path):
        from tiny import save_tiny_model

        path = save_tiny_model(tmp_path)  # hidden_size 48
        with pytest.raises(
            InputError, match="int8 needs matrices whose rows are multiples of 32 long, not of 48 numbers"
        ):
            load(path, quantize="int8")
