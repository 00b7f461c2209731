"""The metadata of a GGUF file <-> ModelConfig.

Source: the GGUF specification (the `gguf` library's `constants.Keys`), and what llama.cpp's converter writes.
"""

import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.fields import Fields, shown

SUPPORTED = ("llama",)

# Keys of features that this engine does not have: only the values that switch them off are accepted.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "llama.expert_count": (0,),
    "llama.expert_used_count": (0,),
    "llama.use_parallel_residual": (False,),
    "llama.attention.causal": (True,),
    "llama.rope.scaling.attn_factor": (1.0,),
    # An early converter's name for the layout that all files of this architecture have: Q and K rows
    # permuted.
    "llama.tensor_data_layout": ("Meta AI original pth",),
}
# These do not change the arithmetic: whether a scaling was there from the start or found by finetuning.
IGNORED = frozenset({"llama.rope.scaling.finetuned"})

# The tensor that says by how much each rotary frequency is divided.
ROPE_FACTORS = "rope_freqs.weight"

# Which tensors carry biases, if any do: each of our switches means all of its own.
QKV_BIASES = ("attn_q", "attn_k", "attn_v")
OUTPUT_BIASES = ("attn_output",)
MLP_BIASES = ("ffn_gate", "ffn_up", "ffn_down")

# The published settings of "llama3" scaling (Llama 3.1, 3.2, 3.3): these three numbers, with a factor of 8 or
# 32.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192


def read_gguf_config(
    metadata: Mapping[str, Any], tensor_names: Collection[str], rope_factors: Sequence[float] | None
) -> ModelConfig:
    """The body of `ModelConfig.from_gguf`."""
    architecture = metadata.get("general.architecture")
    if architecture not in SUPPORTED:
        raise InputError(f"architecture {shown(architecture)} is not supported yet; supported: {', '.join(SUPPORTED)}")
    relevant = {key: value for key, value in metadata.items() if key.startswith(("llama.", "tokenizer.ggml."))}
    fields = Fields(relevant, "GGUF metadata")
    fields.require_neutral(NEUTRAL)
    heads = fields.integer("llama.attention.head_count")
    hidden_size = fields.integer("llama.embedding_length")
    result = ModelConfig(
        vocab_size=_vocab_size(fields, metadata),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("llama.feed_forward_length"),
        num_hidden_layers=fields.integer("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=fields.integer("llama.attention.head_count_kv", heads),
        head_dim=_head_dim(fields, hidden_size, heads),
        max_position_embeddings=fields.integer("llama.context_length"),
        rms_norm_eps=_decimal(fields.number("llama.attention.layer_norm_rms_epsilon")),
        rope_theta=_decimal(fields.number("llama.rope.freq_base", 10000.0)),
        rope_scaling=_read_scaling(fields),
        tie_word_embeddings="output.weight" not in tensor_names,
        qkv_bias=_has_any(tensor_names, QKV_BIASES),
        output_bias=_has_any(tensor_names, OUTPUT_BIASES),
        mlp_bias=_has_any(tensor_names, MLP_BIASES),
        bos_token_id=fields.token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(fields),
    )
    tokenizer_keys = {key for key in relevant if key.startswith("tokenizer.")}  # the tokenizer's own to understand
    fields.refuse_rest(IGNORED | tokenizer_keys)
    if ROPE_FACTORS not in tensor_names:
        return result
    if result.rope_scaling is not None or not rope_factors:
        raise InputError(f"GGUF: {ROPE_FACTORS} without values, or together with linear scaling, is not supported")
    return _recognise_llama3(result, rope_factors)


def write_gguf_config(config: ModelConfig) -> dict[str, int | float | str]:
    """The keys of a model without a tokenizer: what `read_gguf_config` reads back, and llama.cpp loads.

    Ties and biases are said by the tensors that are there, and "llama3" scaling by one of them (`rope_factors`).
    """
    head_dim, scaling = config.head_dim, config.rope_scaling
    keys: dict[str, int | float | str] = {
        "llama.vocab_size": config.vocab_size,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.dimension_count": head_dim,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "none",
    }
    if scaling is not None and scaling.kind == "linear":
        keys |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": scaling.factor}
    return keys


def rope_factors(config: ModelConfig) -> list[float] | None:
    """By how much "llama3" scaling divides each frequency: the values of ROPE_FACTORS. None for other models."""
    from minillm.rope import inverse_frequencies  # imports torch

    if config.rope_scaling is None or config.rope_scaling.kind != "llama3":
        return None
    return (inverse_frequencies(replace(config, rope_scaling=None)) / inverse_frequencies(config)).tolist()


def _has_any(tensor_names: Collection[str], stems: Sequence[str]) -> bool:
    return any(f"blk.0.{stem}.bias" in tensor_names for stem in stems)


def _head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    """The size of a head: key and value alike, and all of it rotated; anything else is refused."""
    if hidden_size % heads and fields.values.get("llama.attention.key_length") is None:
        raise InputError(
            f"GGUF metadata: llama.embedding_length ({hidden_size}) is not a multiple of "
            f"llama.attention.head_count ({heads}), and llama.attention.key_length is not stated"
        )
    head_dim = fields.integer("llama.attention.key_length", hidden_size // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        stated = fields.integer(key, head_dim)
        if stated != head_dim:
            raise InputError(f"GGUF metadata: {key} = {stated} is not supported: the head dimension is {head_dim}")
    return head_dim


def _vocab_size(fields: Fields, metadata: Mapping[str, Any]) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return fields.integer("llama.vocab_size", *([len(tokens)] if isinstance(tokens, list) else []))


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """End of sequence, end of turn, end of message: whichever comes, the model has finished speaking."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return tuple(sorted({token_id for key in keys for token_id in fields.token_ids(key)}))


def _read_scaling(fields: Fields) -> RopeScaling | None:
    kind = fields.text("llama.rope.scaling.type", "none")
    factor = fields.number("llama.rope.scaling.factor", None) or fields.number("llama.rope.scale_linear", None)
    fields.integer("llama.rope.scaling.original_context_length", None)  # "linear" has no use for it
    if kind == "none":
        if factor not in (None, 1.0):
            raise InputError(f"GGUF metadata: llama.rope.scaling.factor = {factor} without llama.rope.scaling.type")
        return None
    if kind != "linear":
        raise InputError(f"GGUF metadata: rope scaling {kind!r} is not supported; supported: none, linear")
    if factor is None:
        raise InputError("GGUF metadata: linear rope scaling does not state llama.rope.scaling.factor")
    return RopeScaling("linear", _decimal(factor))


def _recognise_llama3(config: ModelConfig, rope_factors: Sequence[float]) -> ModelConfig:
    """The config with the "llama3" scaling whose frequency factors are these.

    GGUF stores by how much each frequency is divided, not the rule. The published models share all settings
    of the rule but its factor, and that is the largest value; so the rule is applied with it, and has to give
    the same.
    """
    from minillm.rope import inverse_frequencies  # imports torch

    factor = _decimal(max(rope_factors))
    scaling = RopeScaling("llama3", factor, LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL)
    scaled = replace(config, rope_scaling=scaling)
    expected = (inverse_frequencies(config) / inverse_frequencies(scaled)).tolist()
    if len(expected) != len(rope_factors) or not all(map(_is_close, expected, rope_factors)):
        raise InputError("GGUF: the factors in rope_freqs.weight are not those of llama3 scaling: not supported")
    return scaled


def _is_close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)


def _decimal(value: float) -> float:
    """The decimal number that was meant: 1e-5, where a float32 holds 9.999999747378752e-06."""
    short = float(f"{value:.7g}")  # a float32 keeps 7 digits
    return short if struct.pack("<f", short) == struct.pack("<f", value) else value
