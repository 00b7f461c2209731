"""The metadata of a GGUF file <-> ModelConfig.

Every key is used, known to be neutral, ignored with the reason, or refused by name: see `gguf_architectures` for what
an architecture means, `gguf_rope` for the rotary settings. Source: the GGUF specification (the `gguf` library's
`constants.Keys`), what llama.cpp's converter writes, and what its loader assumes where a file says nothing.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.fields import Fields, decimal, shown
from minillm.loading.gguf_architectures import ARCHITECTURES, NEUTRAL, architecture_of
from minillm.loading.gguf_rope import FactorTensors, read_rope_scaling, with_rope_factors

# Which tensors carry biases, if any do: each of our switches means all of its own.
QKV_BIASES = ("attn_q", "attn_k", "attn_v", "attn_qkv")
OUTPUT_BIASES = ("attn_output",)
MLP_BIASES = ("ffn_gate", "ffn_up", "ffn_down")


def read_gguf_config(
    metadata: Mapping[str, Any], tensor_names: Collection[str], factor_tensors: FactorTensors
) -> ModelConfig:
    """The body of `ModelConfig.from_gguf`."""
    _require_whole_model(metadata)
    name, kind = architecture_of(metadata.get("general.architecture"))
    relevant = {key: value for key, value in metadata.items() if key.startswith((f"{name}.", "tokenizer.ggml."))}
    fields = Fields(relevant, "GGUF metadata")
    fields.require_neutral({f"{name}.{key}": neutral for key, neutral in NEUTRAL.items()})
    heads = fields.integer(f"{name}.attention.head_count")
    hidden_size = fields.integer(f"{name}.embedding_length")
    layers = fields.integer(f"{name}.block_count")
    context = fields.integer(f"{name}.context_length")
    scaling = read_rope_scaling(fields, name, context, factor_tensors)
    head_dim = _head_dim(fields, name, hidden_size, heads)
    if scaling is not None and scaling.kind == "yarn" and context == scaling.original_max_position_embeddings:
        context = int(scaling.factor * context)  # as `hf_rope` has it: the field was left as it had been
    window = _sliding_window(fields, name, context)
    everywhere = tuple(range(layers))
    result = ModelConfig(
        vocab_size=_vocab_size(fields, name, metadata),
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{name}.feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=fields.integer(f"{name}.attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=context,
        rms_norm_eps=decimal(fields.number(f"{name}.attention.layer_norm_rms_epsilon")),
        rope_theta=decimal(fields.number(f"{name}.rope.freq_base", 10000.0)),
        rope_scaling=scaling,
        tie_word_embeddings="output.weight" not in tensor_names,
        qkv_bias=_has_any(tensor_names, QKV_BIASES),
        output_bias=_has_any(tensor_names, OUTPUT_BIASES),
        mlp_bias=_has_any(tensor_names, MLP_BIASES),
        qk_norm=kind.qk_norm,
        sliding_window=window,
        sliding_layers=everywhere if window else (),
        nope_layers=_nope_layers(fields, name, everywhere),
        **(_multipliers(fields, name, head_dim) if kind.multipliers else {}),
        bos_token_id=fields.token_id("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(fields),
    )
    # the tokenizer's own to understand
    fields.refuse_rest({key for key in relevant if key.startswith("tokenizer.")})
    return with_rope_factors(result, factor_tensors)


def write_gguf_config(config: ModelConfig) -> dict[str, int | float | str]:
    """The keys of a plain Llama without a tokenizer: what `read_gguf_config` reads back, and llama.cpp loads.

    Ties and biases are said by the tensors that are there, and "llama3" scaling by one of them (`rope_factors`).
    Raises InputError for a model that is more than a plain Llama.
    """
    head_dim, scaling = config.head_dim, config.rope_scaling
    beyond = [*config.beyond_llama]
    if not beyond and scaling is not None and scaling.kind not in ("linear", "llama3"):
        beyond = [f"{scaling.kind} rope scaling"]
    if beyond:
        raise InputError(
            f"a model with {beyond[0]} cannot be written as a GGUF file here, only a plain Llama can: "
            "leave llama.cpp out of --compare, or give a .gguf file of the model and --quantize file"
        )
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


def _require_whole_model(metadata: Mapping[str, Any]) -> None:
    """GGUF files also hold adapters, projectors of images, importance matrices; and parts of a model."""
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise InputError(f"GGUF metadata: general.type = {shown(kind)} is not supported: the file is not a model")
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise InputError(
            f"GGUF metadata: split.count = {shown(parts)} is not supported: the file is one part of a model; "
            "join them with `llama-gguf-split --merge`, a program of llama.cpp"
        )


def _has_any(tensor_names: Collection[str], stems: Sequence[str]) -> bool:
    return any(f"blk.0.{stem}.bias" in tensor_names for stem in stems)


def _head_dim(fields: Fields, name: str, hidden_size: int, heads: int) -> int:
    """The size of a head: key and value alike, and all of it rotated; anything else is refused."""
    if hidden_size % heads and fields.values.get(f"{name}.attention.key_length") is None:
        raise InputError(
            f"GGUF metadata: {name}.embedding_length ({hidden_size}) is not a multiple of "
            f"{name}.attention.head_count ({heads}), and {name}.attention.key_length is not stated"
        )
    head_dim = fields.integer(f"{name}.attention.key_length", hidden_size // heads)
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        stated = fields.integer(key, head_dim)
        if stated != head_dim:
            raise InputError(f"GGUF metadata: {key} = {stated} is not supported: the head dimension is {head_dim}")
    return head_dim


def _vocab_size(fields: Fields, name: str, metadata: Mapping[str, Any]) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    return fields.integer(f"{name}.vocab_size", *([len(tokens)] if isinstance(tokens, list) else []))


def _sliding_window(fields: Fields, name: str, context: int) -> int | None:
    """The window of all layers, in tokens; 0 is none. llama.cpp looks at the key for Phi-3 alone, and then lets its
    queries see everything all the same; the file of a model that was trained with a window gets one here.
    """
    window = fields.whole_number(f"{name}.attention.sliding_window", 0)
    if ARCHITECTURES[name].windowed:
        return window or None
    if 0 < window < context:
        raise InputError(
            f"GGUF metadata: {name}.attention.sliding_window = {window} is not supported: the file does not say in "
            "which layers"
        )
    return None


def _nope_layers(fields: Fields, name: str, everywhere: tuple[int, ...]) -> tuple[int, ...]:
    """SmolLM3's every fourth. In Granite's files, and nowhere else, the key `rope.scaling.finetuned` is a switch for
    rotary embedding as a whole; to the others it only tells whether a scaling was there from the start.
    """
    kind = ARCHITECTURES[name]
    rotates = fields.flag(f"{name}.rope.scaling.finetuned", True)
    if kind.multipliers and not rotates:
        return everywhere
    interval = kind.nope_interval
    return () if interval is None else tuple(layer for layer in everywhere if (layer + 1) % interval == 0)


def _multipliers(fields: Fields, name: str, head_dim: int) -> dict[str, Any]:
    """Granite's four. The one of attention may be the usual one, and is then nothing special."""
    usual = head_dim**-0.5
    attention = decimal(fields.number(f"{name}.attention.scale", usual))
    return {
        "embedding_multiplier": decimal(fields.number(f"{name}.embedding_scale", 1.0)),
        "residual_multiplier": decimal(fields.number(f"{name}.residual_scale", 1.0)),
        "logits_scaling": decimal(fields.number(f"{name}.logit_scale")),
        "attention_multiplier": None if math.isclose(attention, usual, rel_tol=1e-6) else attention,
    }


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    """End of sequence, end of turn, end of message: whichever comes, the model has finished speaking."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
    return tuple(sorted({token_id for key in keys for token_id in fields.token_ids(key)}))
