"""What each `model_type` of a `config.json` means: its defaults, its fixed features, the fields it has no use for.

A model of any of these is the same `Llama` with some features on. Source: the configuration and modeling classes of
`transformers`, whose defaults hold where a file leaves a field out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minillm.errors import InputError
from minillm.loading.fields import shown


@dataclass(frozen=True)
class Architecture:
    """One `model_type`.

    `num_key_value_heads`, `head_dim`: where the file has none; None for as many as heads, and for their share of
    `hidden_size`. `attention_bias`: whether a field of that name decides about the biases of all four projections of
    attention; `mlp_bias` likewise. `ignored`: more fields of no consequence.
    """

    class_name: str
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()


NO_WINDOW: Mapping[str, tuple[Any, ...]] = {"sliding_window": (), "use_sliding_window": (False,)}

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", 2048, attention_bias=True, mlp_bias=True, neutral=NO_WINDOW),
    "mistral": Architecture("MistralForCausalLM", 131072, num_key_value_heads=8),
    "qwen2": Architecture(
        "Qwen2ForCausalLM", 32768, num_key_value_heads=32, qkv_bias=True, neutral={"attention_bias": (True,)}
    ),
    "qwen3": Architecture(
        "Qwen3ForCausalLM", 32768, num_key_value_heads=32, head_dim=128, attention_bias=True, qk_norm=True
    ),
    "granite": Architecture("GraniteForCausalLM", 2048, attention_bias=True, mlp_bias=True, neutral=NO_WINDOW),
    "smollm3": Architecture(
        "SmolLM3ForCausalLM",
        32768,
        num_key_value_heads=4,
        rope_theta=2000000.0,
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        ignored=frozenset({"max_window_layers"}),  # Qwen's; here the layers are named one by one
    ),
    # the dropouts are for training
    "phi3": Architecture("Phi3ForCausalLM", 4096, rms_norm_eps=1e-5, ignored=frozenset({"resid_pdrop", "embd_pdrop"})),
}

# Fields of features that no model here has: only these values, which switch the feature off, are accepted.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1.0, 1),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "chunk_size_feed_forward": (0,),
    "pruned_heads": ({},),
    "tie_encoder_decoder": (False,),
}

# Fields that do not change what a model computes at inference.
IGNORED = frozenset(
    # bookkeeping: who wrote the file, and for which software; Python code beside the weights, which is never run
    "_name_or_path _commit_hash architectures transformers_version is_llama_config transformers.js_config "  # noqa: SIM905
    "unsloth_version unsloth_fixed torch_dtype dtype torchscript use_bfloat16 tf_legacy_loss auto_map "
    "_attn_implementation _attn_implementation_autoset attn_implementation _flash_attn_2_enabled "
    "tokenizer_class prefix is_decoder "
    # training only
    "attention_dropout hidden_dropout initializer_range "
    # how a projection is cut in pieces for tensor-parallel training: the same sums
    "pretraining_tp "
    # an older name of the context, which transformers does not read either
    "max_sequence_length "
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


def architecture_of(model_type: Any) -> Architecture:
    """The architecture of a `model_type`. Raises InputError for one that this engine does not run."""
    if model_type not in ARCHITECTURES:
        raise InputError(
            f"architecture {shown(model_type)} is not supported; supported: {', '.join(ARCHITECTURES)}"
            " (dense text models of the Llama family)"
        )
    return ARCHITECTURES[model_type]
