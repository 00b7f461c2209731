"""ModelConfig: everything that decides a Llama-family model's shape and arithmetic, and nothing else.

A checkpoint's description comes as `config.json` (Hugging Face) or as GGUF metadata. Both are read into one
frozen dataclass, by `loading/hf_config.py` and `loading/gguf_config.py`. A field that this engine does not
implement raises, naming the field and its value: a model that loads is a model whose description was
understood.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
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
    """The shape of a Llama-family decoder. Names are those of Hugging Face's `config.json`.

    Raises InputError where the numbers contradict each other or cannot describe a model at all.
    """

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

    def __post_init__(self) -> None:
        for field in fields(self)[:8]:  # the eight sizes that have no default
            if getattr(self, field.name) <= 0:
                raise InputError(f"{field.name} must be positive, got {getattr(self, field.name)}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads}): they share the key heads evenly"
            )
        if self.head_dim % 2:
            raise InputError(f"head_dim must be even, for rotary embedding turns pairs; got {self.head_dim}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> "ModelConfig":
        """Read a parsed `config.json`, and the end-of-sequence ids of `generation_config.json` with it.

        Raises InputError for a field that is missing, malformed, or asks for what this engine does not do.
        """
        from minillm.loading.hf_config import read_hf_config

        return read_hf_config(config, generation_config or {})

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, Any],
        tensor_names: Collection[str],
        rope_factors: Sequence[float] | None = None,
    ) -> "ModelConfig":
        """Read the metadata of a GGUF file: its keys, and plain Python values.

        `tensor_names` are the file's own ("blk.0.attn_q.weight"): whether embeddings are tied and whether
        there are biases is written nowhere else. `rope_factors` are the values of its tensor
        `rope_freqs.weight`, if it has one. Raises InputError as `from_hf` does.
        """
        from minillm.loading.gguf_config import read_gguf_config

        return read_gguf_config(metadata, tensor_names, rope_factors)
