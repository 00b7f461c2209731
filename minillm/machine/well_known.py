"""The shapes of well-known models, so that a question about one of them needs no file and no network.

From each model's `config.json`; the parameter counts that follow from them are the published ones, to the last
parameter. Mixtral is no dense model: all its experts must be held, though a token goes through two of eight.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from minillm.machine.shape import ModelShape


@dataclass(frozen=True)
class WellKnown:
    """A model's short name, the hub's id of its base version, and its shape."""

    name: str
    hub_id: str
    shape: ModelShape


def _model(
    name: str,
    hub_id: str,
    sizes: tuple[int, int, int, int, int, int],
    vocab_size: int,
    longest: int,
    *,
    tied: bool = False,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    sliding_window: int | None = None,
    experts: tuple[int, int] = (1, 1),
) -> WellKnown:
    """`sizes`: hidden, intermediate, layers, heads, KV heads, head_dim; `experts`: how many, and how many per token."""
    hidden, intermediate, layers, heads, kv_heads, head_dim = sizes
    shape = ModelShape(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=longest,
        tie_word_embeddings=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
        num_experts=experts[0],
        num_experts_per_tok=experts[1],
    )
    return WellKnown(name, hub_id, shape)


_SIZES_8B = (4096, 14336, 32, 32, 8, 128)  # Llama 3 8B, Mistral 7B, and one expert of Mixtral
_SIZES_70B = (8192, 28672, 80, 64, 8, 128)  # Llama 2 and 3 70B

WELL_KNOWN: tuple[WellKnown, ...] = (
    _model("llama-2-7b", "meta-llama/Llama-2-7b-hf", (4096, 11008, 32, 32, 32, 128), 32_000, 4_096),
    _model("llama-2-13b", "meta-llama/Llama-2-13b-hf", (5120, 13824, 40, 40, 40, 128), 32_000, 4_096),
    _model("llama-2-70b", "meta-llama/Llama-2-70b-hf", _SIZES_70B, 32_000, 4_096),
    _model("llama-3-8b", "meta-llama/Meta-Llama-3-8B", _SIZES_8B, 128_256, 8_192),
    _model("llama-3-70b", "meta-llama/Meta-Llama-3-70B", _SIZES_70B, 128_256, 8_192),
    _model("llama-3.1-8b", "meta-llama/Llama-3.1-8B", _SIZES_8B, 128_256, 131_072),
    _model("llama-3.1-70b", "meta-llama/Llama-3.1-70B", _SIZES_70B, 128_256, 131_072),
    _model("llama-3.1-405b", "meta-llama/Llama-3.1-405B", (16384, 53248, 126, 128, 8, 128), 128_256, 131_072),
    _model("llama-3.2-1b", "meta-llama/Llama-3.2-1B", (2048, 8192, 16, 32, 8, 64), 128_256, 131_072, tied=True),
    _model("llama-3.2-3b", "meta-llama/Llama-3.2-3B", (3072, 8192, 28, 24, 8, 128), 128_256, 131_072, tied=True),
    _model("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", _SIZES_70B, 128_256, 131_072),
    _model("mistral-7b-v0.1", "mistralai/Mistral-7B-v0.1", _SIZES_8B, 32_000, 32_768, sliding_window=4_096),
    _model("mistral-7b-v0.3", "mistralai/Mistral-7B-v0.3", _SIZES_8B, 32_768, 32_768),
    _model("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", _SIZES_8B, 32_000, 32_768, experts=(8, 2)),
    _model("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", (896, 4864, 24, 14, 2, 64), 151_936, 32_768, tied=True, qkv_bias=True),
    _model(
        "qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", (1536, 8960, 28, 12, 2, 128), 151_936, 131_072, tied=True, qkv_bias=True
    ),
    _model("qwen2.5-3b", "Qwen/Qwen2.5-3B", (2048, 11008, 36, 16, 2, 128), 151_936, 32_768, tied=True, qkv_bias=True),
    _model("qwen2.5-7b", "Qwen/Qwen2.5-7B", (3584, 18944, 28, 28, 4, 128), 152_064, 131_072, qkv_bias=True),
    _model("qwen2.5-14b", "Qwen/Qwen2.5-14B", (5120, 13824, 48, 40, 8, 128), 152_064, 131_072, qkv_bias=True),
    _model("qwen2.5-32b", "Qwen/Qwen2.5-32B", (5120, 27648, 64, 40, 8, 128), 152_064, 131_072, qkv_bias=True),
    _model("qwen2.5-72b", "Qwen/Qwen2.5-72B", (8192, 29568, 80, 64, 8, 128), 152_064, 131_072, qkv_bias=True),
    _model("qwen3-0.6b", "Qwen/Qwen3-0.6B", (1024, 3072, 28, 16, 8, 128), 151_936, 40_960, tied=True, qk_norm=True),
    _model("qwen3-1.7b", "Qwen/Qwen3-1.7B", (2048, 6144, 28, 16, 8, 128), 151_936, 40_960, tied=True, qk_norm=True),
    _model("qwen3-4b", "Qwen/Qwen3-4B", (2560, 9728, 36, 32, 8, 128), 151_936, 40_960, tied=True, qk_norm=True),
    _model("qwen3-8b", "Qwen/Qwen3-8B", (4096, 12288, 36, 32, 8, 128), 151_936, 40_960, qk_norm=True),
    _model("qwen3-14b", "Qwen/Qwen3-14B", (5120, 17408, 40, 40, 8, 128), 151_936, 40_960, qk_norm=True),
    _model("qwen3-32b", "Qwen/Qwen3-32B", (5120, 25600, 64, 64, 8, 128), 151_936, 40_960, qk_norm=True),
    _model("smollm2-135m", "HuggingFaceTB/SmolLM2-135M", (576, 1536, 30, 9, 3, 64), 49_152, 8_192, tied=True),
    _model("smollm2-360m", "HuggingFaceTB/SmolLM2-360M", (960, 2560, 32, 15, 5, 64), 49_152, 8_192, tied=True),
    _model("smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B", (2048, 8192, 24, 32, 32, 64), 49_152, 8_192, tied=True),
)

BY_NAME: Mapping[str, WellKnown] = {name.lower(): model for model in WELL_KNOWN for name in (model.name, model.hub_id)}
"""Short names and hub ids, in lower case."""
