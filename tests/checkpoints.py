"""Makers of checkpoints on disk for the loading tests: tiny, seeded, made without the code under test."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QType
from safetensors.torch import save_file
from torch import Tensor

# The dimensions are multiples of 256, the largest block of the quantized formats, where a tensor is
# quantized.
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM, CONTEXT = 256, 512, 2, 4, 2, 64, 128


def hf_config(**changes: Any) -> dict[str, Any]:
    """A small Llama's config.json."""
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }


def hf_shapes(tied: bool = True, biases: bool = False) -> dict[str, tuple[int, ...]]:
    """Hugging Face's name and shape of every tensor of that Llama."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN)}
    for layer in range(LAYERS):
        linear = {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
            "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
            "mlp.up_proj": (FEED_FORWARD, HIDDEN),
            "mlp.down_proj": (HIDDEN, FEED_FORWARD),
        }
        for name, shape in linear.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
            if biases:
                shapes[f"model.layers.{layer}.{name}.bias"] = shape[:1]
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = (HIDDEN,)
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB_SIZE, HIDDEN)
    return shapes


def hf_tensors(seed: int = 0, **kind: bool) -> dict[str, Tensor]:
    """Random values for `hf_shapes(**kind)`, in float32."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in hf_shapes(**kind).items()}


def empty_slots(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Slots for tensors of these shapes, filled with NaN: what was not written shows."""
    return {name: torch.full(tensor.shape, torch.nan, dtype=dtype) for name, tensor in tensors.items()}


def write_directory(directory: Path, tensors: Mapping[str, Tensor], **changes: Any) -> Path:
    """A safetensors directory of one file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config(**changes)), encoding="utf-8")
    save_file(dict(tensors), directory / "model.safetensors")
    return directory


def write_shards(directory: Path, tensors: Mapping[str, Tensor], count: int = 3) -> Path:
    """The same in shards with an index: the tensors are dealt like cards."""
    write_directory(directory, tensors)
    (directory / "model.safetensors").unlink()
    weight_map = {}
    for shard in range(count):
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % count == shard}
        save_file(part, directory / file)
        weight_map |= dict.fromkeys(part, file)
    write_index(directory, weight_map)
    return directory


def write_index(directory: Path, weight_map: Any) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _bytes_as_characters() -> list[str]:
    """GPT-2's alphabet: a printable character for each of the 256 bytes, in the order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [names[byte] for byte in range(256)]


SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he"]
TOKENS = [*SPECIAL, *_bytes_as_characters(), *(merge.replace(" ", "") for merge in MERGES)]
VOCAB_SIZE = len(TOKENS)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def gguf_metadata(**changes: Any) -> dict[str, Any]:
    """The metadata of that Llama as a GGUF file has it; a key that is changed to None is left out.

    Keys are given with "__" for "."; "llama__vocab_size=3", say.
    """
    metadata = {
        "general.architecture": "llama",
        "general.license": "apache-2.0",
        "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 50000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": VOCAB_SIZE,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (VOCAB_SIZE - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_name(name: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        layer, inner = stem.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{GGUF_NAMES[inner]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of Q or K as llama.cpp's converter orders them: within a head, the two halves interleaved.

    Written by index, not by reshaping: row 2i of a head is row i of its first half, 2i + 1 that of its
    second.
    """
    head_dim = len(values) // heads
    order = []
    for head in range(heads):
        for i in range(head_dim // 2):
            order += [head * head_dim + i, head * head_dim + head_dim // 2 + i]
    return values[order]


def write_gguf(
    path: Path,
    tensors: Mapping[str, Tensor],
    qtype: QType = QType.F32,
    extra: Mapping[str, np.ndarray] | None = None,
    others: Mapping[str, QType] | None = None,
    **changes: Any,
) -> Path:
    """A GGUF file of these tensors (Hugging Face's names and row order): matrices as `qtype`, vectors as
    float32. others: the types of matrices whose names have this in them.
    """
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in gguf_metadata(**changes).items():
        if key != "general.architecture":  # the writer has written it
            _add(writer, key, value)
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        if ".q_proj." in name or ".k_proj." in name:
            values = permute(values, HEADS if ".q_proj." in name else KV_HEADS)
        kind = next((other for part, other in (others or {}).items() if part in name), qtype)
        kind = kind if values.ndim > 1 else QType.F32
        writer.add_tensor(gguf_name(name), quantize(values, kind), raw_dtype=kind)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantize(values: np.ndarray, qtype: QType) -> np.ndarray:
    """Values in a GGUF format. Those that the library cannot write are random but valid blocks: others for others."""
    if qtype in SCALES:
        return random_blocks(*values.shape, qtype, seed=zlib.crc32(values.tobytes()))
    return gguf.quantize(np.ascontiguousarray(values), qtype)


# The types that the library reads and does not write: a scale with which random blocks are numbers of about 0.05, and
# at which bytes of the block it stands, as float16. Where a second one is subtracted, it is so many times the first
# that the numbers are around 0.
SCALES: dict[QType, tuple[float, dict[int, float]]] = {
    QType.Q2_K: (0.0038, {80: 1.0, 82: 1.5}),
    QType.Q3_K: (0.0011, {108: 1.0}),
    QType.Q4_K: (0.0002, {0: 1.0, 2: 7.5}),
    QType.Q5_K: (0.0001, {0: 1.0, 2: 15.5}),
    QType.Q6_K: (0.000037, {208: 1.0}),
    QType.IQ1_S: (0.0068, {0: 1.0}),
    QType.IQ2_XXS: (0.0009, {0: 1.0}),
    QType.IQ2_XS: (0.0009, {0: 1.0}),
    QType.IQ2_S: (0.0009, {0: 1.0}),
    QType.IQ3_XXS: (0.00035, {0: 1.0}),
    QType.IQ3_S: (0.00033, {0: 1.0}),
    QType.IQ4_NL: (0.00075, {0: 1.0}),
    QType.IQ4_XS: (0.000041, {0: 1.0}),
    QType.IQ1_M: (0.0068, {}),
}


def random_blocks(rows: int, columns: int, qtype: QType, seed: int) -> np.ndarray:
    """[rows, bytes of a row]; the same with every version of numpy."""
    values, size = gguf.GGML_QUANT_SIZES[qtype]
    count = rows * columns // values
    drawn = np.random.RandomState(seed).bytes(count * size)
    blocks = np.frombuffer(drawn, dtype=np.uint8).reshape(count, size).copy()
    scale, places = SCALES[qtype]
    for at, times in places.items():
        blocks[:, at : at + 2] = np.array([scale * times], dtype=np.float16).view(np.uint8)
    if qtype is QType.IQ1_M:  # its scale is spread over the highest four bits of each of its last four numbers
        bits = int(np.array([scale], dtype=np.float16).view(np.uint16)[0])
        for part in range(4):
            high = blocks[:, 49 + 2 * part]
            high[:] = (high & 0x0F) | ((bits >> (4 * part) & 0x0F) << 4)
    return blocks.reshape(rows, -1)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
