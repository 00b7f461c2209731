"""`config.json` <-> ModelConfig, in the forms that `transformers` 4 and 5 write.

Every field is used, known to be neutral, listed as ignored with the reason, or refused by name: see
`hf_architectures` for what a `model_type` means, `hf_rope` for the rotary settings.
"""

from collections.abc import Mapping
from typing import Any

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.fields import Fields
from minillm.loading.hf_architectures import ARCHITECTURES, IGNORED, NEUTRAL, Architecture, architecture_of
from minillm.loading.hf_rope import read_rope, write_rope

DEFAULT_WINDOW = 4096
"""Where Mistral's and Qwen's config.json do not speak of one; null is none."""

SAME = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "tie_word_embeddings", "bos_token_id"),
)
"""Fields that are called alike and mean the same in ModelConfig and in every architecture's config.json."""

FULL, SLIDING = "full_attention", "sliding_attention"


def read_hf_config(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> ModelConfig:
    """The body of `ModelConfig.from_hf`."""
    fields = Fields(config, "config.json")
    model_type = fields.text("model_type")
    kind = architecture_of(model_type)
    if config.get("quantization_config") is not None:
        raise InputError(
            "config.json has a quantization_config: checkpoints whose tensors are stored quantized are only "
            "read as GGUF files; use the unquantized checkpoint, or a .gguf of it"
        )
    fields.require_neutral({"quantization_config": (), **NEUTRAL, **kind.neutral})
    generation = Fields(generation_config, "generation_config.json")
    context = fields.integer("max_position_embeddings", kind.max_position_embeddings)
    rope = read_rope(fields, model_type, context, kind.rope_theta)
    num_hidden_layers = fields.integer("num_hidden_layers")
    num_attention_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    head_dim = _head_dim(fields, kind, hidden_size, num_attention_heads)
    bias = _flag_of(fields, "attention_bias", kind.attention_bias)
    nope_layers = _nope_layers(fields, num_hidden_layers) if model_type == "smollm3" else ()
    window, sliding_layers = _window(fields, model_type, num_hidden_layers, nope_layers)
    eos_token_ids = {*fields.token_ids("eos_token_id"), *generation.token_ids("eos_token_id")}
    bos_token_id = fields.token_id("bos_token_id")
    result = ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=_num_key_value_heads(fields, kind, num_attention_heads),
        head_dim=head_dim,
        max_position_embeddings=rope.max_position_embeddings,
        rms_norm_eps=fields.number("rms_norm_eps", kind.rms_norm_eps),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", kind.tie_word_embeddings),
        qkv_bias=bias or kind.qkv_bias,
        output_bias=bias,
        mlp_bias=_flag_of(fields, "mlp_bias", kind.mlp_bias),
        qk_norm=kind.qk_norm,
        sliding_window=window,
        sliding_layers=sliding_layers,
        nope_layers=nope_layers,
        **(_multipliers(fields, head_dim) if model_type == "granite" else {}),
        bos_token_id=generation.token_id("bos_token_id") if bos_token_id is None else bos_token_id,
        eos_token_ids=tuple(sorted(eos_token_ids)),
    )
    fields.refuse_rest(IGNORED | kind.ignored)
    return result


def _flag_of(fields: Fields, name: str, decides: bool) -> bool:
    """A field that some architectures have and the others may only state as false."""
    if decides:
        return fields.flag(name, False)
    if name not in fields.taken:
        fields.require_neutral({name: (False,)})
    return False


def _num_key_value_heads(fields: Fields, kind: Architecture, num_attention_heads: int) -> int:
    """Null means as many as heads, whatever the architecture does where there is no such field."""
    absent = "num_key_value_heads" not in fields.values
    default = kind.num_key_value_heads if absent else None
    return fields.integer("num_key_value_heads", default or num_attention_heads)


def _head_dim(fields: Fields, kind: Architecture, hidden_size: int, num_attention_heads: int) -> int:
    head_dim = fields.integer("head_dim", kind.head_dim)
    if head_dim is not None:
        return head_dim
    if hidden_size % num_attention_heads:
        raise InputError(
            f"config.json: hidden_size ({hidden_size}) is not a multiple of num_attention_heads "
            f"({num_attention_heads}), and head_dim is not stated"
        )
    return hidden_size // num_attention_heads


def _multipliers(fields: Fields, head_dim: int) -> dict[str, Any]:
    """Granite's four. The one of attention may be the usual one, and is then nothing special."""
    names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    values = {name: fields.number(name, 1.0) for name in names}
    usual = values["attention_multiplier"] == head_dim**-0.5
    return {**values, "attention_multiplier": None if usual else values["attention_multiplier"]}


def _nope_layers(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """The layers whose entry in `no_rope_layers` is 0 (so it is 1 where there *is* a rotation); without the list,
    every `no_rope_layer_interval`-th one.
    """
    interval = fields.integer("no_rope_layer_interval", 4)
    default = [int((layer + 1) % interval != 0) for layer in range(num_layers)]
    rotates = fields.entries("no_rope_layers", default)
    if len(rotates) < num_layers or not all(type(entry) is int and entry in (0, 1) for entry in rotates):
        raise InputError(f"config.json: no_rope_layers must have a 0 or a 1 for each of the {num_layers} layers")
    return tuple(layer for layer in range(num_layers) if not rotates[layer])


def _window(
    fields: Fields, model_type: str, num_layers: int, nope_layers: tuple[int, ...]
) -> tuple[int | None, tuple[int, ...]]:
    """The sliding window, and the layers that have it: all of Mistral's and Phi-3's; in Qwen and SmolLM3, which have
    a switch for it, those that `layer_types` names.
    """
    everywhere = tuple(range(num_layers))
    if model_type in ("mistral", "phi3"):
        absent = model_type == "mistral" and "sliding_window" not in fields.values
        window = fields.integer("sliding_window", DEFAULT_WINDOW if absent else None)
        return (window, everywhere) if window else (None, ())
    if model_type not in ("qwen2", "qwen3", "smollm3"):
        return None, ()
    absent = model_type != "smollm3" and "sliding_window" not in fields.values
    window = fields.integer("sliding_window", DEFAULT_WINDOW if absent else None)
    window = window if fields.flag("use_sliding_window", False) else None
    first = num_layers if model_type == "smollm3" else fields.whole_number("max_window_layers", 28)
    usual = nope_layers if model_type == "smollm3" else everywhere[first:]
    layers = _named_layers(fields, num_layers, usual if window else ())
    if layers and window is None:
        raise InputError(
            "config.json: layer_types names layers of sliding_attention, and there is no window: "
            "state use_sliding_window and sliding_window, or full_attention"
        )
    return (window, layers) if layers else (None, ())


def _named_layers(fields: Fields, num_layers: int, usual: tuple[int, ...]) -> tuple[int, ...]:
    """The layers that `layer_types` calls sliding; `usual` where the file has no such list."""
    default = [SLIDING if layer in usual else FULL for layer in range(num_layers)]
    types = fields.entries("layer_types", default)
    if len(types) != num_layers or not all(entry in (FULL, SLIDING) for entry in types):
        raise InputError(
            f"config.json: layer_types must have {FULL!r} or {SLIDING!r} for each of the {num_layers} layers"
        )
    return tuple(layer for layer, entry in enumerate(types) if entry == SLIDING)


def write_hf_config(config: ModelConfig, *, fused: bool = False) -> dict[str, Any]:
    """The `config.json` of a model: what `read_hf_config` reads back, and `transformers` (4 and 5) loads.

    Its `model_type` is the first in whose terms the model can be said, plain Llama before the others. `fused`: the
    checkpoint has its projections fused (`self_attn.qkv_proj`, `mlp.gate_up_proj`), as Phi-3 alone has them.
    Raises InputError for features that no architecture has together.
    """
    for model_type, kind in ARCHITECTURES.items():
        if fused != (model_type == "phi3"):
            continue
        written = _written(config, model_type, kind)
        try:
            if read_hf_config(written, {}) == config:
                return written
        except InputError:  # not in the terms of this one
            continue
    raise InputError(f"no architecture of transformers has what this model has: {config}")


def _written(config: ModelConfig, model_type: str, kind: Architecture) -> dict[str, Any]:
    """The config in the terms of one architecture, as far as it has any: what it cannot say is left out."""
    eos_token_ids, layers = list(config.eos_token_ids), range(config.num_hidden_layers)
    written = {
        "architectures": [kind.class_name],
        "model_type": model_type,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "pad_token_id": None,  # or transformers takes the architecture's own, which may lie outside the vocabulary
        "eos_token_id": eos_token_ids[0] if len(eos_token_ids) == 1 else eos_token_ids or None,
        **{name: getattr(config, name) for name in SAME},
        **write_rope(config),
    }
    if kind.attention_bias:
        written["attention_bias"] = config.output_bias
    if kind.mlp_bias:
        written["mlp_bias"] = config.mlp_bias
    if model_type in ("mistral", "phi3"):
        written["sliding_window"] = config.sliding_window
    if model_type == "phi3" and config.rope_scaling is not None:
        written["original_max_position_embeddings"] = config.rope_scaling.original_max_position_embeddings
    if model_type in ("qwen2", "qwen3", "smollm3"):
        written["use_sliding_window"] = config.sliding_window is not None
        written["sliding_window"] = config.sliding_window
        written["layer_types"] = [SLIDING if layer in config.sliding_layers else FULL for layer in layers]
    if model_type == "smollm3":
        written["no_rope_layers"] = [int(layer not in config.nope_layers) for layer in layers]
    if model_type == "granite":
        usual = config.head_dim**-0.5
        multiplier = config.attention_multiplier
        written |= {name: getattr(config, name) for name in ("embedding_multiplier", "residual_multiplier")}
        written["attention_multiplier"] = usual if multiplier is None else multiplier
        written["logits_scaling"] = config.logits_scaling
    return written
