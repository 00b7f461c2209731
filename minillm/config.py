"""ModelConfig: everything that decides a Llama-family model's shape and arithmetic, and nothing else.

A checkpoint's description comes as `config.json` (Hugging Face) or as GGUF metadata. Both are read here into
one frozen dataclass. A field that this engine does not implement raises, naming the field and its value: a
model that loads is a model whose description was understood.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minillm.errors import InputError


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched to reach beyond the context of pre-training (see `rope.py`).

    `kind` is "linear" or "llama3". "linear" uses `factor` alone; "llama3" uses all fields.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-family decoder. Names are those of Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
