"""`config.json` <-> ModelConfig, in the forms that `transformers` 4 and 5 write.

Every field is used, known to be neutral, listed as ignored with the reason, or refused by name.
Source: `LlamaConfig` and `modeling_rope_utils` of `transformers`.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.fields import Fields

SUPPORTED = ("llama",)

# Fields of features that this engine does not have: only these values, which switch the feature off, are
# accepted.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_interleaved": (False,),
    "sliding_window": (),
    "use_sliding_window": (False,),
    "partial_rotary_factor": (1.0, 1),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({},),
    "tie_encoder_decoder": (False,),
}

# Fields that do not change what the model computes at inference.
IGNORED = frozenset(
    # bookkeeping: who wrote the file, and for which software
    "_name_or_path _commit_hash architectures transformers_version is_llama_config transformers.js_config "  # noqa: SIM905
    "unsloth_version unsloth_fixed torch_dtype dtype torchscript use_bfloat16 tf_legacy_loss "
    "_attn_implementation _attn_implementation_autoset attn_implementation tokenizer_class prefix is_decoder "
    # training only
    "attention_dropout hidden_dropout initializer_range "
    # how a projection is cut in pieces for tensor-parallel training: the same sums
    "pretraining_tp "
    # what a forward call returns, and how; classification heads
    "use_cache output_attentions output_hidden_states return_dict return_dict_in_generate output_scores "
    "id2label label2id problem_type finetuning_task task_specific_params "
    # tokens that decoding one sequence never meets
    "pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id "
    # sampling defaults that old files keep here: SamplingParams says how to sample
    "do_sample temperature top_k top_p typical_p num_beams num_beam_groups num_return_sequences max_length "
    "min_length early_stopping repetition_penalty length_penalty diversity_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size bad_words_ids exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens remove_invalid_values".split()
)


def read_hf_config(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> ModelConfig:
    """The body of `ModelConfig.from_hf`."""
    fields = Fields(config, "config.json")
    architecture = fields.text("model_type")
    if architecture not in SUPPORTED:
        raise InputError(f"architecture {architecture!r} is not supported yet; supported: {', '.join(SUPPORTED)}")
    if config.get("quantization_config") is not None:
        raise InputError(
            "config.json has a quantization_config: checkpoints whose tensors are stored quantized are only "
            "read as GGUF files; use the unquantized checkpoint, or a .gguf of it"
        )
    fields.require_neutral({"quantization_config": (), **NEUTRAL})
    generation = Fields(generation_config, "generation_config.json")
    rope_theta, rope_scaling = _read_rope(fields)
    num_attention_heads = fields.integer("num_attention_heads")
    hidden_size = fields.integer("hidden_size")
    eos_token_ids = {*fields.token_ids("eos_token_id"), *generation.token_ids("eos_token_id")}
    bos_token_id = fields.token_id("bos_token_id")
    result = ModelConfig(
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_hidden_layers=fields.integer("num_hidden_layers"),
        num_attention_heads=num_attention_heads,
        num_key_value_heads=fields.integer("num_key_value_heads", num_attention_heads),
        head_dim=_head_dim(fields, hidden_size, num_attention_heads),
        max_position_embeddings=fields.integer("max_position_embeddings"),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        bos_token_id=generation.token_id("bos_token_id") if bos_token_id is None else bos_token_id,
        eos_token_ids=tuple(sorted(eos_token_ids)),
    )
    fields.refuse_rest(IGNORED)
    return result


def _head_dim(fields: Fields, hidden_size: int, num_attention_heads: int) -> int:
    head_dim = fields.integer("head_dim", None)
    if head_dim is not None:
        return head_dim
    if hidden_size % num_attention_heads:
        raise InputError(
            f"config.json: hidden_size ({hidden_size}) is not a multiple of num_attention_heads "
            f"({num_attention_heads}), and head_dim is not stated"
        )
    return hidden_size // num_attention_heads


def _read_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """The rotary base, and the scaling: from `rope_parameters` (new) or `rope_theta` with `rope_scaling`
    (old).
    """
    theta = fields.number("rope_theta", None)
    old, new = fields.table("rope_scaling"), fields.table("rope_parameters")
    if old is not None and new is not None and old != new:
        raise InputError("config.json states both rope_scaling and rope_parameters, and they differ: keep one")
    name = "rope_parameters" if new is not None else "rope_scaling"
    rope = Fields(new if new is not None else old or {}, f"config.json: {name}")
    nested_theta = rope.number("rope_theta", None)
    if theta is not None and nested_theta is not None and theta != nested_theta:
        raise InputError(f"config.json states rope_theta twice: {theta} and, in {name}, {nested_theta}")
    scaling = _read_scaling(rope)
    rope.require_neutral({"partial_rotary_factor": (1.0, 1)})
    rope.refuse_rest()
    return theta or nested_theta or 10000.0, scaling


def _read_scaling(rope: Fields) -> RopeScaling | None:
    kind = rope.text("type", "default")
    kind = rope.text("rope_type", kind)
    if kind in ("default", "none"):
        rope.require_neutral({"factor": (1.0, 1)})
        return None
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        scaling = RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
        )
        if scaling.low_freq_factor >= scaling.high_freq_factor:
            raise InputError(
                f"{rope.where}: low_freq_factor ({scaling.low_freq_factor}) must be below "
                f"high_freq_factor ({scaling.high_freq_factor})"
            )
        return scaling
    raise InputError(f"{rope.where}: rope type {kind!r} is not supported; supported: default, linear, llama3")


def write_hf_config(config: ModelConfig) -> dict[str, Any]:
    """The `config.json` of a model: what `read_hf_config` reads back, and `transformers` (4 and 5) loads.

    Rotary settings are written in the old form, which both of its generations understand.
    """
    values = asdict(config)
    eos_token_ids, scaling = list(values.pop("eos_token_ids")), values.pop("rope_scaling")
    if scaling is not None:
        scaling = {"rope_type": scaling.pop("kind"), **scaling}
        if scaling["rope_type"] == "linear":
            scaling = {"rope_type": "linear", "factor": scaling["factor"]}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": eos_token_ids[0] if len(eos_token_ids) == 1 else eos_token_ids or None,
        "rope_scaling": scaling,
        **values,
    }
