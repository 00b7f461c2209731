"""ModelConfig: everything that decides a Llama-family model's shape and arithmetic, and nothing else.

A checkpoint's description comes as `config.json` (Hugging Face) or as GGUF metadata. Both are read into one
frozen dataclass, by `loading/hf_config.py` and `loading/gguf_config.py`. A field that this engine does not
implement raises, naming the field and its value: a model that loads is a model whose description was
understood.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from minillm.errors import InputError

ROPE_KINDS = ("linear", "dynamic", "llama3", "yarn", "longrope")


LENGTH_DEPENDENT = ("dynamic", "longrope")
"""The rules under which frequencies depend on how long the sequence is."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched to reach beyond the context of pre-training (see `rope.py`).

    `kind` is one of ROPE_KINDS. `original_max_position_embeddings` is the context of pre-training, in tokens: all but
    "linear" measure by it. `attention_factor` multiplies cosines and sines, and so queries and keys alike.

        linear      factor
        dynamic     factor
        llama3      factor, low_freq_factor, high_freq_factor
        yarn        factor, beta_fast, beta_slow, truncate, attention_factor
        longrope    short_factor, long_factor (one number per pair of dimensions), attention_factor

    Raises InputError for a kind that is not known, and for numbers that its rule cannot use.
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ROPE_KINDS:
            raise InputError(f"rope scaling {self.kind!r} is not supported; supported: {', '.join(ROPE_KINDS)}")
        for name in ("factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow"):
            _require_positive(name, getattr(self, name))
        if self.factor < 1:
            raise InputError(f"rope scaling stretches: its factor must be at least 1, got {self.factor}")
        _require_positive("original_max_position_embeddings", self.original_max_position_embeddings)
        if self.low_freq_factor >= self.high_freq_factor:
            raise InputError(
                f"low_freq_factor ({self.low_freq_factor}) must be below high_freq_factor ({self.high_freq_factor})"
            )
        if self.beta_slow > self.beta_fast:
            raise InputError(f"beta_slow ({self.beta_slow}) must not be above beta_fast ({self.beta_fast})")
        for factor in (*self.short_factor, *self.long_factor):
            _require_positive("short_factor and long_factor", factor)
        if (self.kind == "longrope") != bool(self.short_factor and self.long_factor):
            raise InputError("longrope, and no other rule, needs a short_factor and a long_factor")


@dataclass(frozen=True)
class ModelConfig:
    """The shape and the arithmetic of a Llama-family decoder. Names are those of Hugging Face's `config.json`.

    What is not plain Llama is off by default: biases on the query, key and value projections (Qwen2) or on the output
    too; `qk_norm`, an RMSNorm over each head of queries and keys before they are turned (Qwen3); `sliding_window`, how
    many of the newest keys, its own among them, a token sees in the `sliding_layers` (Mistral v0.1, Phi-3);
    `nope_layers` without rotary embedding (SmolLM3); and Granite's four multipliers. `attention_multiplier` is what
    scores are multiplied by before the softmax, None for 1 / sqrt(head_dim); `logits_scaling` divides the logits.

    `max_position_embeddings` is the longest sequence that the model is meant for, in tokens: under dynamic and yarn
    scaling that is more than the file's field of this name may say (see `loading/hf_rope.py`).

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
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    nope_layers: tuple[int, ...] = ()
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float | None = None
    logits_scaling: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self)[:8]:  # the eight sizes that have no default
            _require_positive(field.name, getattr(self, field.name))
        for name in ("rms_norm_eps", "rope_theta", "embedding_multiplier", "residual_multiplier", "logits_scaling"):
            _require_positive(name, getattr(self, name))
        if self.attention_multiplier is not None:
            _require_positive("attention_multiplier", self.attention_multiplier)
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads}): they share the key heads evenly"
            )
        if self.head_dim % 2:
            raise InputError(f"head_dim must be even, for rotary embedding turns pairs; got {self.head_dim}")
        self._check_layers()
        if self.rope_scaling is not None:
            self._check_scaling(self.rope_scaling)

    def __repr__(self) -> str:
        """The sizes, and of the rest what is not at its default."""
        shown = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return f"ModelConfig({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _check_layers(self) -> None:
        """Which layers have a window, and which no rotation: layers that there are, in their order."""
        for name in ("sliding_layers", "nope_layers"):
            layers = getattr(self, name)
            if list(layers) != sorted(set(layers) & set(range(self.num_hidden_layers))):
                raise InputError(
                    f"{name} must be layers of 0 to {self.num_hidden_layers - 1}, each once and in order; got {layers}"
                )
        if self.sliding_window is not None:
            _require_positive("sliding_window", self.sliding_window)
        if (self.sliding_window is None) != (not self.sliding_layers):
            raise InputError(
                f"sliding_window ({self.sliding_window}) and sliding_layers ({self.sliding_layers}) go together"
            )

    def _check_scaling(self, scaling: RopeScaling) -> None:
        for name in ("short_factor", "long_factor"):
            factors = getattr(scaling, name)
            if factors and len(factors) != self.head_dim // 2:
                raise InputError(
                    f"{name} has {len(factors)} numbers, and a head of {self.head_dim} has {self.head_dim // 2} pairs"
                )
        if scaling.kind == "dynamic" and self.head_dim == 2:
            raise InputError("dynamic rope scaling needs a head_dim of at least 4, got 2")
        if scaling.kind == "yarn" and self.rope_theta <= 1:
            raise InputError(f"yarn rope scaling needs a rope_theta above 1, got {self.rope_theta}")
        longest = int(scaling.factor * scaling.original_max_position_embeddings)
        if scaling.kind == "dynamic" and longest != self.max_position_embeddings:
            raise InputError(
                f"under dynamic rope scaling, max_position_embeddings ({self.max_position_embeddings}) is factor x "
                f"original_max_position_embeddings, {longest}"
            )

    @property
    def turns_by_length(self) -> bool:
        """Whether rotary frequencies depend on how long the sequence is: not every key then serves every sequence."""
        return self.rope_scaling is not None and self.rope_scaling.kind in LENGTH_DEPENDENT

    @property
    def beyond_llama(self) -> tuple[str, ...]:
        """What the arithmetic of this model has that a plain Llama's has not, in words. Code that is made for a plain
        Llama (a compiled decode pass, a reader's own forward pass) has to say no to a model with any of these.

        Not among them: biases, and rotary scaling that is the same at every length.
        """
        multipliers = (self.embedding_multiplier, self.residual_multiplier, self.logits_scaling)
        features = {
            "norms of queries and keys": self.qk_norm,
            f"a sliding window of {self.sliding_window} tokens": self.sliding_window is not None,
            "layers without rotary embedding": bool(self.nope_layers),
            "multipliers": any(each != 1 for each in multipliers) or self.attention_multiplier is not None,
            "rotary angles that depend on the length": self.turns_by_length,
        }
        return tuple(name for name, there in features.items() if there)

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
        rope_factors: Mapping[str, Sequence[float]] | None = None,
    ) -> "ModelConfig":
        """Read the metadata of a GGUF file: its keys, and plain Python values.

        `tensor_names` are the file's own ("blk.0.attn_q.weight"): whether embeddings are tied and whether
        there are biases is written nowhere else. `rope_factors` are the values of those of its tensors that hold
        divisors of frequencies (`gguf_rope.FACTOR_TENSORS`). Raises InputError as `from_hf` does.
        """
        from minillm.loading.gguf_config import read_gguf_config

        return read_gguf_config(metadata, tensor_names, rope_factors or {})


def _require_positive(name: str, value: float | int) -> None:
    if not 0 < value < math.inf:  # the comparison keeps out NaN
        raise InputError(f"{name} must be positive, got {value}")
