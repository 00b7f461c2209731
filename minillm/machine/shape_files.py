"""A model's description on disk -> ModelShape: `config.json`, or the header of a GGUF file. No torch.

Lenient where `ModelConfig` is strict: rope, activations and special tokens do not change how many bytes a model
takes, so they are not looked at, and architectures are read that this engine does not run.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.loading.fields import Fields, shown
from minillm.loading.gguf_header import Array, Header, read_header
from minillm.machine.shape import ModelShape

MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "granite", "smollm3", "phi3")
# where config.json does not state them; elsewhere: as many as heads
DEFAULT_KV_HEADS = {"mistral": 8, "mixtral": 8, "smollm3": 4}
MISTRAL_WINDOW = (
    4096  # where its config.json does not speak of one; null is none. Default of transformers' MistralConfig
)
GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3", "granite", "smollm3", "phi3")  # "llama" is also Mistral and Mixtral

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
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
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
        tie_word_embeddings=fields.flag("tie_word_embeddings", kind == "smollm3"),
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
    """The window that holds in every layer. Qwen and SmolLM3 may use one in some layers only: then none, which is the
    most that their cache can take.
    """
    if kind == "mistral" and "sliding_window" not in fields.values:
        return MISTRAL_WINDOW
    window = fields.integer("sliding_window", None)
    if not kind.startswith("qwen"):
        return window if kind in ("mistral", "mixtral", "phi3") else None
    everywhere = fields.flag("use_sliding_window", False) and fields.values.get("max_window_layers") == 0
    return window if everywhere else None


def read_gguf(path: Path) -> tuple[ModelShape, int]:
    """The shape of a GGUF file, and the bytes of its tensors as they are stored; of a split one, of all its parts.

    Raises InputError for a file that is damaged or of an architecture that is not known, and where a part is missing.
    """
    parts = _parts(path)
    stored = sum(_tensor_bytes(part, header) for part, header in parts.items())
    first = next(iter(parts.values()))
    tensors = {name: tensor for header in parts.values() for name, tensor in header.tensors.items()}
    promised = first.metadata.get("split.tensors.count")
    if len(parts) > 1 and promised is not None and promised != len(tensors):
        raise InputError(
            f"{path}: its {len(parts)} parts hold {len(tensors)} tensors, not {promised}: fetch them again"
        )
    return _gguf_shape(Header(first.metadata, tensors), path), stored


def _parts(path: Path) -> dict[Path, Header]:
    """A file and its header; of a model that llama.cpp's `gguf-split` spread over several files, all of them in their
    order, whichever is named. The first one has the model's keys; each says how many there are.
    """
    header = read_header(path)
    count = header.metadata.get("split.count")
    if count is None or count == 1:
        return {path: header}
    named = re.fullmatch(r"(.+-)(\d{5})(-of-(\d{5})\.gguf)", path.name, re.ASCII)
    if named is None or int(named[4]) != count:
        raise InputError(
            f"{path} is one of {shown(count)} parts of a model, and the others are not found by its name: "
            "name the parts as they were, NAME-00001-of-00002.gguf"
        )
    paths = [path.with_name(f"{named[1]}{number:05}{named[3]}") for number in range(1, int(named[4]) + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise InputError(f"{path} is one of {count} parts of a model, and {missing[0]} is not beside it: fetch it too")
    return {part: header if part == path else read_header(part) for part in paths}


def _tensor_bytes(path: Path, header: Header) -> int:
    stored = sum(_stored_bytes(path, name, *tensor) for name, tensor in header.tensors.items())
    if stored > path.stat().st_size:
        raise InputError(f"{path} is truncated: its tensors take {stored:,} bytes, more than it has; fetch it again")
    return stored


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
        qkv_bias=any(f"blk.0.{stem}.bias" in header.tensors for stem in ("attn_q", "attn_qkv")),
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
