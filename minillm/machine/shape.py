"""ModelShape: the few numbers of a model that decide its memory and its speed. No torch, nothing to load.

A `ModelConfig` describes a model that this engine runs, down to every epsilon, and refuses what it does not know. To
say whether a model fits on a GPU, and how fast it can be there, less is needed, and more models can be described:
those with a sliding window, with experts, with normalised queries.
"""

from dataclasses import dataclass, fields

from minillm.config import ModelConfig
from minillm.errors import InputError


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a Llama-like decoder. Names are those of Hugging Face's `config.json`.

    `qkv_bias`, `output_bias` and `mlp_bias` say which projections add a vector; `qk_norm` that queries and keys are
    normalised per head (one weight vector of `head_dim` each). `sliding_window` is how many tokens back attention
    looks, None for all of them; it holds in every layer. `num_experts` MLPs lie in each layer, and each token goes
    through `num_experts_per_tok` of them: 1 and 1 in a dense model.

    Raises InputError where a number is not positive, or they contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    num_experts: int = 1
    num_experts_per_tok: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not isinstance(value, bool) and value <= 0:
                raise InputError(f"{field.name} must be positive, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise InputError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads}): they share the key heads evenly"
            )
        if self.num_experts_per_tok > self.num_experts:
            raise InputError(
                f"num_experts_per_tok ({self.num_experts_per_tok}) cannot exceed num_experts ({self.num_experts})"
            )

    @property
    def is_dense(self) -> bool:
        """Whether every token goes through every weight."""
        return self.num_experts == 1


def shape_of(config: ModelConfig) -> ModelShape:
    """The shape of a model that this engine runs."""
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        sliding_window=config.sliding_window if len(config.sliding_layers) == config.num_hidden_layers else None,
    )


def num_params(shape: ModelShape) -> int:
    """Every number that was trained, exactly; a table that embedding and head share is counted once."""
    head = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    return shape.vocab_size * shape.hidden_size + head + _layers_and_norm(shape, shape.num_experts)


def num_active_params(shape: ModelShape) -> int:
    """The weights that one token's pass multiplies by: all of the layers (of the experts, those it is sent to) and
    the head. The embedding is looked up, one row of it, and is no product unless the head is the same table.
    """
    return shape.vocab_size * shape.hidden_size + _layers_and_norm(shape, shape.num_experts_per_tok)


def _layers_and_norm(shape: ModelShape, experts: int) -> int:
    """The layers, with this many of their experts, and the norm before the head."""
    hidden, middle = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    attention = 2 * hidden * q_size + 2 * hidden * kv_size  # q and output, k and v
    if shape.qkv_bias:
        attention += q_size + 2 * kv_size
    if shape.output_bias:
        attention += hidden
    if shape.qk_norm:
        attention += 2 * shape.head_dim
    mlp = 3 * hidden * middle  # gate, up, down
    if shape.mlp_bias:
        mlp += 2 * middle + hidden
    router = 0 if shape.is_dense else hidden * shape.num_experts
    norms = 2 * hidden
    return shape.num_hidden_layers * (attention + experts * mlp + router + norms) + hidden
