"""The roofline: how fast a pass through a model can be at most, and which of a machine's two resources stops it.

A machine has two speeds: bytes read from memory per second, and floating-point operations per second. A pass through
a model needs some of both, and is over when the slower of the two is done. The operations per byte of the pass,
its arithmetic intensity, say beforehand which one that will be.

All arithmetic, no torch. Source: Williams, Waterman and Patterson, "Roofline", 2009.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from minillm.errors import InputError
from minillm.machine.shape import ModelShape, num_active_params


@dataclass(frozen=True)
class Machine:
    """Two speeds: bytes per second from memory, and floating-point operations per second in one dtype."""

    bandwidth_bytes_per_s: float
    flops_per_s: float

    def __post_init__(self) -> None:
        if not (0 < self.bandwidth_bytes_per_s < math.inf and 0 < self.flops_per_s < math.inf):
            raise InputError(
                f"a machine reads and computes at speeds above zero, not {self.bandwidth_bytes_per_s} bytes and "
                f"{self.flops_per_s} operations per second"
            )

    @property
    def ridge_point(self) -> float:
        """FLOP per byte at which both speeds are used up at once: below it memory limits, above it arithmetic."""
        return self.flops_per_s / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Work:
    """What a pass needs: floating-point operations, and bytes read from memory."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def attainable_flops(intensity: float, machine: Machine) -> float:
    """FLOP per second that work of this intensity (FLOP per byte) can reach: the roofline itself.

    A slope while memory cannot deliver operands fast enough, a flat roof from the ridge point on.
    """
    return min(intensity * machine.bandwidth_bytes_per_s, machine.flops_per_s)


def shortest_seconds(work: Work, machine: Machine) -> float:
    """The least time: reading and computing go on at the same time, so the longer of the two."""
    return max(work.bytes / machine.bandwidth_bytes_per_s, work.flops / machine.flops_per_s)


def bound_by(work: Work, machine: Machine) -> str:
    """The resource that runs out first: "memory" or "compute"; "compute" at the ridge point itself."""
    computing = Fraction(work.flops) * Fraction(machine.bandwidth_bytes_per_s)  # exact: a quotient of floats is rounded
    reading = Fraction(work.bytes) * Fraction(machine.flops_per_s)
    return "memory" if computing < reading else "compute"


def visible_pairs(new_tokens: int, context: int = 0) -> int:
    """Pairs of a new token and one that it attends to, where `context` tokens were there before: what the causal mask
    leaves. The first new token sees context + 1 (itself included), the next one more, and so on.
    """
    return new_tokens * context + new_tokens * (new_tokens + 1) // 2


def forward_flops(shape: ModelShape, batch: int, new_tokens: int, context: int = 0) -> int:
    """Floating-point operations of one pass: `new_tokens` for each of `batch` sequences that hold `context` tokens.

    Each token is multiplied by each weight of the layers, and added: 2 per weight. (Norms are counted so too, which
    is far below a thousandth.) The head takes only the last token of each sequence. In attention each query head
    compares with each position up to its own and mixes its value: 2 + 2 per number of a head.
    """
    head = shape.vocab_size * shape.hidden_size
    layers = num_active_params(shape) - head
    per_pair = 4 * shape.num_attention_heads * shape.head_dim * shape.num_hidden_layers
    pairs = _pairs(shape, new_tokens, context)
    return batch * (2 * layers * new_tokens + 2 * head + per_pair * pairs)


def forward_bytes(
    shape: ModelShape,
    batch: int,
    new_tokens: int,
    context: int = 0,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> float:
    """Bytes that one pass reads from memory, at the least.

    The weights, once for the whole batch; and for each sequence the keys and values of every token that is visible to
    the last one. Left out, because they are small or stay in fast memory: activations, one row of the embedding per
    token, and what is written. With experts, those that the batch's tokens are sent to, taken as spread evenly.
    """
    weights = _weights_read(shape, batch * new_tokens) * bytes_per_weight
    return weights + batch * _visible(shape, context + new_tokens) * kv_numbers(shape) * bytes_per_kv


def prefill_work(
    shape: ModelShape, prompt_tokens: int, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> Work:
    """A whole prompt of one sequence, in one pass on an empty cache."""
    return Work(
        float(forward_flops(shape, 1, prompt_tokens)),
        forward_bytes(shape, 1, prompt_tokens, 0, bytes_per_weight, bytes_per_kv),
    )


def smallest_compute_bound_prompt(
    shape: ModelShape, machine: Machine, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> int:
    """The tokens of a prompt from which on its prefill, in one pass, is limited by arithmetic.

    There is always one: the operations grow with each token, and the weights, which are most of the bytes, are read
    once.
    """

    def is_compute_bound(prompt_tokens: int) -> bool:
        return bound_by(prefill_work(shape, prompt_tokens, bytes_per_weight, bytes_per_kv), machine) == "compute"

    enough = 1
    while not is_compute_bound(enough):
        enough *= 2
    return bisect_left(range(enough + 1), True, lo=1, key=is_compute_bound)


def decode_work(
    shape: ModelShape, batch: int, context: int, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> Work:
    """One decode step: a token for each of `batch` sequences, each then `context` tokens long, the new one included."""
    before = context - 1
    return Work(
        float(forward_flops(shape, batch, 1, before)),
        forward_bytes(shape, batch, 1, before, bytes_per_weight, bytes_per_kv),
    )


def step_work(
    shape: ModelShape,
    spans: Sequence[tuple[int, int]],
    sampled: int,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> Work:
    """One pass over a mix of requests, of which some decode and some read a chunk of their prompts.

    spans: for each request (tokens that its cache holds, new tokens of it in this pass). sampled: how many of the
    requests come to the end of their tokens, and so have a row that the head is applied to.
    """
    head = shape.vocab_size * shape.hidden_size
    flops = sum(forward_flops(shape, 1, new, context) for context, new in spans) - 2 * head * (len(spans) - sampled)
    weights = _weights_read(shape, sum(new for _, new in spans)) * bytes_per_weight
    visible = sum(_visible(shape, context + new) for context, new in spans)
    return Work(float(flops), weights + visible * kv_numbers(shape) * bytes_per_kv)


def decode_limit(work: Work, batch: int, machine: Machine) -> float:
    """Tokens per second of a whole batch, at most, where `work` is one decode step of it."""
    return batch / shortest_seconds(work, machine)


def smallest_compute_bound_batch(
    shape: ModelShape, context: int, machine: Machine, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> int | None:
    """The batch from which on a decode step is limited by arithmetic; None where no batch is large enough.

    Weights are read once, however many sequences share them; keys and values once per sequence. If one sequence's
    own operations per byte of keys and values stay below the ridge point, more sequences never get there.
    For dense shapes (each expert more is read only when a token goes there, which is no straight line).
    """
    if not shape.is_dense:
        raise InputError("the batch at the ridge is worked out for dense models: this one has experts")
    one, two = (decode_work(shape, batch, context, bytes_per_weight, bytes_per_kv) for batch in (1, 2))
    kv_bytes = two.bytes - one.bytes
    weights = one.bytes - kv_bytes
    # compute-bound: batch x flops >= ridge x (weights + batch x kv); in fractions, for a batch exactly at the ridge
    ridge = Fraction(machine.flops_per_s) / Fraction(machine.bandwidth_bytes_per_s)
    gain = Fraction(one.flops) - ridge * Fraction(kv_bytes)
    if gain <= 0:
        return None
    return max(1, math.ceil(ridge * Fraction(weights) / gain))


def mbu(bytes_per_pass: float, seconds_per_pass: float, bandwidth_bytes_per_s: float) -> float:
    """Model bandwidth utilization: of the memory's speed, the share that went into bytes that the pass had to read."""
    return bytes_per_pass / seconds_per_pass / bandwidth_bytes_per_s


def mfu(flops_per_pass: float, seconds_per_pass: float, flops_per_s: float) -> float:
    """Model FLOPs utilization: of the arithmetic's speed, the share that went into operations that the pass needed."""
    return flops_per_pass / seconds_per_pass / flops_per_s


def kv_numbers(shape: ModelShape) -> int:
    """Numbers that one token leaves in the cache: a key and a value in each layer and key/value head."""
    return 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim


def _visible(shape: ModelShape, position: int) -> int:
    """How many tokens the `position`-th one (counted from 1) attends to, itself included."""
    return position if shape.sliding_window is None else min(position, shape.sliding_window)


def _pairs(shape: ModelShape, new_tokens: int, context: int) -> int:
    """As `visible_pairs`, until the window is full; from there on, each token sees as many as the window holds."""
    window = shape.sliding_window
    if window is None:
        return visible_pairs(new_tokens, context)
    growing = min(new_tokens, max(0, window - context))
    return visible_pairs(growing, context) + (new_tokens - growing) * window


def _weights_read(shape: ModelShape, tokens: int) -> float:
    """How many weights a pass of so many tokens reads: of the experts, those that at least one token is sent to."""
    active = num_active_params(shape)
    if shape.is_dense:
        return float(active)
    expert = 3 * shape.hidden_size * shape.intermediate_size
    missed = (1 - shape.num_experts_per_tok / shape.num_experts) ** tokens
    touched = shape.num_experts * (1 - missed)
    return active + shape.num_hidden_layers * (touched - shape.num_experts_per_tok) * expert
