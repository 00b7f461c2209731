"""A model's description on disk -> ModelShape: `config.json`, or the header of a GGUF file. No torch.

Lenient where `ModelConfig` is strict: rope, activations and special tokens do not change how many bytes a model
takes, so they are not looked at, and architectures are read that this engine does not run.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.loading.fields import Fields, shown
from minillm.loading.gguf_header import Array, Header, read_header
from minillm.machine.shape import ModelShape

MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3")
DEFAULT_KV_HEADS = {"mistral": 8, "mixtral": 8}  # where config.json does not state them; elsewhere: as many as heads
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # "llama" is also Mistral and Mixtral

# GGUF tensor types: values per block, bytes per block. Source: `GGML_QUANT_SIZES` of the `gguf` library.
GGUF_TYPES: Mapping[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    20: (32, 18),  # IQ4_NL
    23: (256, 136),  # IQ4_XS
    30: (1, 2),  # BF16
}


def read_config(config: Mapping[str, Any], where: str = "config.json") -> ModelShape:
    """The shape that a parsed `config.json` describes.

    Raises InputError for an architecture that is not known, and for a field that is missing or no number.
    """
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise InputError(
            f"{where}: the shape of model_type {shown(kind)} is not known; known: {', '.join(MODEL_TYPES)}"
        )
    fields = Fields(config, where)
    hidden_size, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    bias = fields.flag("attention_bias", False)
    return ModelShape(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("num_key_value_heads", DEFAULT_KV_HEADS.get(kind, heads)),
        head_dim=fields.integer("head_dim", 128 if kind == "qwen3" else _head_dim(where, hidden_size, heads)),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=bias or kind == "qwen2",  # Qwen2's own biases, of which its config says nothing
        output_bias=bias and kind != "qwen2",
        mlp_bias=fields.flag("mlp_bias", False),
        qk_norm=kind == "qwen3",
        sliding_window=_window(fields, kind),
        num_experts=fields.integer("num_local_experts", 8) if kind == "mixtral" else 1,
        num_experts_per_tok=fields.integer("num_experts_per_tok", 2) if kind == "mixtral" else 1,
    )


def _head_dim(where: str, hidden_size: int, heads: int) -> int:
    if hidden_size % heads:
        raise InputError(
            f"{where}: hidden_size ({hidden_size}) is not a multiple of num_attention_heads ({heads}), "
            "and head_dim is not stated"
        )
    return hidden_size // heads


def _window(fields: Fields, kind: str) -> int | None:
    """The window that holds in every layer. Qwen may use one in its upper layers only: then none, which is the most
    that its cache can take.
    """
    window = fields.integer("sliding_window", None)
    if not kind.startswith("qwen"):
        return window if kind != "llama" else None
    everywhere = fields.flag("use_sliding_window", False) and fields.values.get("max_window_layers") == 0
    return window if everywhere else None


def read_gguf(path: Path) -> tuple[ModelShape, int]:
    """The shape of a GGUF file, and the bytes of its tensors as they are stored.

    Raises InputError for a file that is damaged, or of an architecture that is not known.
    """
    header = read_header(path)
    shape = _gguf_shape(header, path)
    stored = sum(_stored_bytes(path, name, *tensor) for name, tensor in header.tensors.items())
    if stored > path.stat().st_size:
        raise InputError(f"{path} is truncated: its tensors take {stored:,} bytes, more than it has; fetch it again")
    return shape, stored


def _gguf_shape(header: Header, path: Path) -> ModelShape:
    kind = header.metadata.get("general.architecture")
    if kind not in GGUF_ARCHITECTURES:
        raise InputError(
            f"{path}: the shape of architecture {shown(kind)} is not known; known: {', '.join(GGUF_ARCHITECTURES)}"
        )
    prefix = f"{kind}."
    mine = {key.removeprefix(prefix): value for key, value in header.metadata.items() if key.startswith(prefix)}
    fields = Fields({key: value or None for key, value in mine.items()}, f"the metadata of {path}")  # 0: not used
    hidden_size, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    key_length = fields.integer("attention.key_length", None)
    vocabulary = header.metadata.get("tokenizer.ggml.tokens")
    return ModelShape(
        vocab_size=fields.integer("vocab_size", *([vocabulary.length] if isinstance(vocabulary, Array) else [])),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("feed_forward_length"),
        num_hidden_layers=fields.integer("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=key_length or _head_dim(str(path), hidden_size, heads),
        max_position_embeddings=fields.integer("context_length"),
        tie_word_embeddings="output.weight" not in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_window=fields.integer("attention.sliding_window", None),
        num_experts=fields.integer("expert_count", 1),
        num_experts_per_tok=fields.integer("expert_used_count", 1),
    )


def _stored_bytes(path: Path, name: str, shape: tuple[int, ...], kind: int) -> int:
    if kind not in GGUF_TYPES:
        raise InputError(f"{path}: tensor {name} is of type {kind}, whose size is not known")
    block_values, block_bytes = GGUF_TYPES[kind]
    return math.prod(shape) // block_values * block_bytes
