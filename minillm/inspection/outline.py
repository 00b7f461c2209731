"""The numbers of an architecture: of a model that this engine runs, from its ModelConfig; of another, as far as its
file states them under the usual names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minillm.config import ModelConfig
from minillm.loading.fields import is_integer

# What the families' architectures are, in words; the first seven are those that this engine runs.
FAMILIES = {
    "llama": "Llama, and what is built like it: SmolLM 1 and 2, TinyLlama, Yi, R1-Distill-Llama",
    "mistral": "Mistral: Llama with a head size of its own or a sliding window",
    "qwen2": "Qwen2 and 2.5, R1-Distill-Qwen: Llama with biases on queries, keys and values",
    "qwen3": "Qwen3: Llama with norms on queries and keys",
    "granite": "Granite 3: Llama with four multipliers",
    "smollm3": "SmolLM3: Llama with layers that do not rotate",
    "phi3": "Phi-3 mini: Llama with fused projections and longrope",
    "gemma": "Gemma: other norms, GELU",
    "gemma2": "Gemma 2: four norms a layer, GELU, soft-capped logits",
    "gemma3": "Gemma 3, text and images",
    "gemma3_text": "Gemma 3: four norms a layer, GELU, local and global layers",
    "mixtral": "Mixtral: Mistral with a mixture of experts",
    "qwen2_moe": "Qwen2 with a mixture of experts",
    "qwen3_moe": "Qwen3 with a mixture of experts",
    "deepseek_v2": "DeepSeek V2: latent attention, a mixture of experts",
    "deepseek_v3": "DeepSeek V3 and R1: latent attention, a mixture of experts",
    "deepseek2": "DeepSeek V2, V3 and R1: latent attention, a mixture of experts",
}

BYTES_OF_A_KEY = 2  # keys and values are usually kept in 16 bits

_HF = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "context": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
_GGUF = {
    "layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "context": "context_length",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class Outline:
    """None where a number is not stated. `config` is there if this engine understands the description."""

    architecture: str
    class_name: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    context: int | None = None
    vocab_size: int | None = None
    tied: bool = False
    usual_cache: bool = True
    config: ModelConfig | None = None

    @property
    def family(self) -> str | None:
        """What the architecture is, in words."""
        return FAMILIES.get(self.architecture)

    @property
    def kv_bytes_per_token(self) -> int | None:
        """Keys and values of one token in all layers, in 16 bits."""
        if not self.usual_cache or not (self.layers and self.kv_heads and self.head_dim):
            return None
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES_OF_A_KEY

    @property
    def kv_bytes_at_full_context(self) -> int | None:
        """Of the longest sequence. Layers with a sliding window need to keep no more than the window."""
        per_token = self.kv_bytes_per_token
        if per_token is None or self.layers is None or self.context is None:
            return None
        window = self.config.sliding_window if self.config else None
        if self.config is None or window is None:
            return per_token * self.context
        sliding = len(self.config.sliding_layers)
        kept = (self.layers - sliding) * self.context + sliding * min(window, self.context)
        return per_token // self.layers * kept


def outline_of(config: ModelConfig, architecture: str, class_name: str | None) -> Outline:
    """The outline of a model that this engine runs."""
    return Outline(
        architecture,
        class_name,
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.max_position_embeddings,
        config.vocab_size,
        config.tie_word_embeddings,
        config=config,
    )


def outline_of_hf(values: Mapping[str, Any]) -> Outline:
    """What a parsed config.json states under the usual names; a multimodal model's text part has them apart."""
    text = values.get("text_config")
    stated = {**values, **text} if isinstance(text, dict) else values
    return _outline(
        str(values.get("model_type")),
        _first_text(values.get("architectures")),
        {name: stated.get(key) for name, key in _HF.items()},
        tied=stated.get("tie_word_embeddings") is True,
        usual_cache="kv_lora_rank" not in stated,
    )


def outline_of_gguf(metadata: Mapping[str, Any], tied: bool) -> Outline:
    """What the keys of a GGUF file state."""
    kind = str(metadata.get("general.architecture"))
    values = {name: metadata.get(f"{kind}.{key}") for name, key in _GGUF.items()}
    tokens = metadata.get("tokenizer.ggml.tokens")
    if values["vocab_size"] is None and isinstance(tokens, list):
        values["vocab_size"] = len(tokens)
    return _outline(kind, None, values, tied, usual_cache=f"{kind}.attention.kv_lora_rank" not in metadata)


def _outline(
    architecture: str, class_name: str | None, values: Mapping[str, Any], tied: bool, usual_cache: bool
) -> Outline:
    known = {name: value if is_integer(value) and value > 0 else None for name, value in values.items()}
    heads, hidden = known["heads"], known["hidden_size"]
    if known["kv_heads"] is None and values["kv_heads"] is None:
        known["kv_heads"] = heads
    if known["head_dim"] is None and heads and hidden and hidden % heads == 0:
        known["head_dim"] = hidden // heads
    return Outline(architecture, class_name, **known, tied=tied, usual_cache=usual_cache)


def _first_text(value: Any) -> str | None:
    return value[0] if isinstance(value, list) and value and isinstance(value[0], str) else None
