"""Will it fit? What a model asks of memory: weights + KV cache + activations + overhead. No torch, nothing to load.

    weights       every parameter, in the format in which it is stored            exact
    KV cache      2 x layers x kv heads x head_dim x bytes, per token             exact
    activations   what lives at the peak of one forward pass                      an estimate, checked by `footprint.py`
    overhead      what the GPU's driver and libraries take before any tensor      a stated number

All figures are bytes. GB is 10^9 bytes, GiB is 2^30 bytes: 7 % apart, and datasheets and tools mix them.
"""

from dataclasses import dataclass, replace

from minillm.errors import InputError
from minillm.machine.formats import FORMATS, WeightFormat, dtype_bytes
from minillm.machine.shape import ModelShape

CUDA_CONTEXT_BYTES = 512 * 2**20
"""What a CUDA process takes of each GPU before its first tensor: the driver's context and the kernels loaded so far.

A round figure above two reports: 287,047,680 bytes after the first tensor, with kernels loaded as they are needed
(pytorch pull request 86509, 2022), and 426 MiB with CUDA 13 (unsloth-zoo pull request 1053, 2026).
"""

MOST_GPUS = 64

RULE_OF_THUMB = 1.2
"""The quick estimate, (weights + KV cache) x 1.2, shown beside the count."""


def weight_bytes(shape: ModelShape, format: WeightFormat) -> int:
    """Bytes of all weights in this format; a table that embedding and head share is counted once."""
    return (
        _table_bytes(shape, format) + shape.num_hidden_layers * _layer_bytes(shape, format) + _norm_bytes(shape, format)
    )


def _table_bytes(shape: ModelShape, format: WeightFormat) -> int:
    """Embedding and head: the two matrices that grow with the vocabulary."""
    tables = 1 if shape.tie_word_embeddings else 2
    if format.everywhere:
        return tables * format.matrix_bytes(shape.vocab_size, shape.hidden_size)
    return tables * shape.vocab_size * shape.hidden_size * format.rest_bytes


def _layer_bytes(shape: ModelShape, format: WeightFormat) -> int:
    """One layer: the projections in the format, the rest beside them."""
    hidden, middle = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    attention = format.matrix_bytes(q_size, hidden) + 2 * format.matrix_bytes(kv_size, hidden)  # q, k, v
    attention += format.matrix_bytes(hidden, q_size)  # output
    mlp = 2 * format.matrix_bytes(middle, hidden) + format.matrix_bytes(hidden, middle)  # gate, up, down
    rest = 2 * hidden  # two norms
    rest += (q_size + 2 * kv_size) * shape.qkv_bias + hidden * shape.output_bias
    rest += 2 * shape.head_dim * shape.qk_norm
    rest += shape.num_experts * (2 * middle + hidden) * shape.mlp_bias
    rest += 0 if shape.is_dense else hidden * shape.num_experts  # the router
    return attention + shape.num_experts * mlp + rest * format.rest_bytes


def _norm_bytes(shape: ModelShape, format: WeightFormat) -> int:
    return shape.hidden_size * format.rest_bytes


def kv_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """Bytes that one token of one sequence leaves behind: 2 (K and V) x layers x kv heads x head_dim x bytes."""
    return 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim * dtype_bytes(dtype)


def kept_tokens(shape: ModelShape, context: int, block_size: int = 1) -> int:
    """How many tokens' keys and values are kept of a sequence of `context`: whole blocks, no more than the window."""
    kept = context if shape.sliding_window is None else min(context, shape.sliding_window)
    return -(-kept // block_size) * block_size  # rounded up


def kv_cache_bytes(shape: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
    """Bytes of keys and values of `batch` sequences of `context` tokens each."""
    return kv_bytes_per_token(shape, dtype) * kept_tokens(shape, context, block_size) * batch


def activation_bytes(shape: ModelShape, tokens: int, batch: int, dtype: str, vocab_size: int | None = None) -> int:
    """What lives at the peak of a forward pass over `tokens` tokens in all, of `batch` sequences; an estimate.

    Layers come one after the other and give their memory back, so it is the peak of one layer, and the peak is in
    the MLP, or in attention, or in the logits of the last row of each sequence. `vocab_size` is the width of the
    logits (default: the shape's own).

    What is left out: scores of attention, which fused kernels never write down (unfused, they are heads x context
    numbers per token, twice); and what is copied on a CPU alone: weights into float32 where it cannot multiply `dtype`,
    the logits of 2 to 8 rows in float32.
    """
    size = dtype_bytes(dtype)
    layer = tokens * size * max(_mlp_numbers(shape), _attention_numbers(shape))
    width = vocab_size or shape.vocab_size
    converted = 0 if dtype == "float32" else size  # the head answers in the model's dtype, then float32 is made of it
    logits = tokens * size * shape.hidden_size + batch * width * (4 + converted)
    return max(layer, logits)


def _mlp_numbers(shape: ModelShape) -> int:
    """Numbers per token while the MLP multiplies: gate and up in one, silu(gate), their product; around them the
    layer's input, the residual after attention, its norm, and the cosines and sines of rotary embedding.
    """
    inside = 4 * shape.intermediate_size * shape.num_experts_per_tok
    return inside + 3 * shape.hidden_size + shape.head_dim


def _attention_numbers(shape: ModelShape) -> int:
    """Numbers per token at the output projection: the queries, keys and values as projected, the queries and keys
    turned by rotary embedding, the mixed values and a copy of them with heads side by side, the output; around them
    the layer's input, its norm, and the cosines and sines.
    """
    q_size, kv_size = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    inside = (q_size + 2 * kv_size) + (q_size + kv_size) + 2 * q_size
    return inside + 3 * shape.hidden_size + shape.head_dim


def shard(shape: ModelShape, gpus: int) -> ModelShape:
    """What one of `gpus` GPUs holds under tensor parallelism, as a shape of its own: its heads, its slice of the MLPs
    and of the vocabulary. The hidden size is whole on every GPU. Fewer KV heads than GPUs: each is held by several.

    Raises InputError where the heads or the MLP cannot be shared out evenly.
    """
    if not _divides(shape, gpus):
        raise _cannot_share(shape, gpus, "evenly", FORMATS["bfloat16"])
    return replace(
        shape,
        vocab_size=-(-shape.vocab_size // gpus),
        intermediate_size=shape.intermediate_size // gpus,
        num_attention_heads=shape.num_attention_heads // gpus,
        num_key_value_heads=max(1, shape.num_key_value_heads // gpus),
    )


def shard_of_format(shape: ModelShape, gpus: int, format: WeightFormat) -> ModelShape:
    """The same, for weights in `format`. Raises InputError also where a block of weights that share a scale is cut."""
    part = shard(shape, gpus)
    if gpus not in possible_gpus(shape, format):
        raise _cannot_share(shape, gpus, f"in whole blocks of {format.block} weights in {format.name}", format)
    return part


def possible_gpus(shape: ModelShape, format: WeightFormat = FORMATS["bfloat16"]) -> tuple[int, ...]:
    """The numbers of GPUs, up to MOST_GPUS, over which tensor parallelism can spread the model in this format."""
    numbers = range(1, min(shape.num_attention_heads, MOST_GPUS) + 1)
    return tuple(n for n in numbers if _divides(shape, n) and (n == 1 or not _cuts_blocks(shape, n, format)))


def _divides(shape: ModelShape, gpus: int) -> bool:
    """Whether every GPU gets as many heads and as wide a slice of the MLP as every other."""
    kv_heads = shape.num_key_value_heads
    even = shape.num_attention_heads % gpus == 0 and shape.intermediate_size % gpus == 0
    return even and (kv_heads % gpus == 0 or gpus % kv_heads == 0)


def _cuts_blocks(shape: ModelShape, gpus: int, format: WeightFormat) -> bool:
    """Whether sharing out cuts blocks: the rows of the down and of the output projection are those that are shared out
    along their length, which is where blocks lie.
    """
    sizes = (shape.intermediate_size, shape.num_attention_heads * shape.head_dim)
    return any(size // gpus % format.block_of(size) for size in sizes)


def _cannot_share(shape: ModelShape, gpus: int, how: str, format: WeightFormat) -> InputError:
    possible = ", ".join(str(n) for n in possible_gpus(shape, format))
    return InputError(
        f"{gpus} GPUs cannot share {shape.num_attention_heads} attention heads, {shape.num_key_value_heads} KV "
        f"heads and an MLP of {shape.intermediate_size} {how}: take {possible}"
    )


@dataclass(frozen=True)
class Workload:
    """What is to be run: `batch` sequences of up to `context` tokens (prompt and answer), and how.

    `dtype` is that of activations, `kv_dtype` that of keys and values. `block_size` is the number of tokens in a
    block of a paged cache (1: no rounding), `tokens_per_pass` how many prompt tokens one forward pass takes at most.

    Raises InputError where a number is not possible.
    """

    context: int
    batch: int = 1
    weights: WeightFormat = FORMATS["bfloat16"]
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    block_size: int = 16
    tokens_per_pass: int = 2048
    gpus: int = 1

    def __post_init__(self) -> None:
        for name in ("context", "batch", "block_size", "tokens_per_pass", "gpus"):
            if not 1 <= getattr(self, name) < 2**31:
                raise InputError(f"{name} must be at least 1 and below 2^31, not {getattr(self, name)}")
        dtype_bytes(self.dtype)
        dtype_bytes(self.kv_dtype)

    @property
    def tokens_at_peak(self) -> int:
        """Tokens of the largest pass: a full chunk of prompts if they are that long, and at least a decode step."""
        return max(self.batch, min(self.tokens_per_pass, self.batch * self.context))


@dataclass(frozen=True)
class Demand:
    """What one GPU must hold, in bytes."""

    weights: int
    kv_cache: int
    activations: int
    overhead: int

    @property
    def total(self) -> int:
        """All four."""
        return self.weights + self.kv_cache + self.activations + self.overhead

    @property
    def rule_of_thumb(self) -> int:
        """(weights + KV cache) x 1.2: the quick estimate of the total."""
        return round(RULE_OF_THUMB * (self.weights + self.kv_cache))


def demand(
    shape: ModelShape, load: Workload, *, overhead: int = CUDA_CONTEXT_BYTES, stored_bytes: int | None = None
) -> Demand:
    """What one of `load.gpus` GPUs must hold. `overhead` is 0 on a CPU.

    `stored_bytes` replaces the count of the weights: those of a file that mixes formats, shared out evenly.
    """
    part = shard_of_format(shape, load.gpus, load.weights)
    stored = weight_bytes(part, load.weights) if stored_bytes is None else -(-stored_bytes // load.gpus)
    return Demand(
        weights=stored,
        kv_cache=kv_cache_bytes(part, load.context, load.batch, load.kv_dtype, load.block_size),
        activations=activation_bytes(part, load.tokens_at_peak, load.batch, load.dtype, shape.vocab_size),
        overhead=overhead,
    )
