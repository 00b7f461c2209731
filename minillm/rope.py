"""Rotary position embedding: a token's position becomes an angle, and its queries and keys are turned by it.

Dimension i of a head is paired with dimension i + head_dim/2, and the pair is rotated by position * inv_freq[i].
The dot product of a query and a key then depends on how far apart they are, not on where they stand.

Source: RoFormer (Su et al. 2021, section 3.4), in the half-split layout of Hugging Face's Llama. Angles are
computed in float32 whatever the model's dtype: bfloat16 cannot tell position 256 from 257.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError


def plain_frequencies(head_dim: int, rope_theta: float) -> Float[Tensor, " half_dim"]:
    """The angle, in radians per position, by which each pair of dimensions turns; float32, on the CPU.

    Pair 0 turns by one radian per token; the last pair needs about 2 pi * rope_theta tokens for one turn.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim  # [D/2]
    return 1.0 / rope_theta**exponents  # [D/2]


def inverse_frequencies(config: ModelConfig) -> Float[Tensor, " half_dim"]:
    """`plain_frequencies`, stretched by the config's scaling rule if it has one.

    Raises InputError for a scaling rule that is not implemented.
    """
    inv_freq = plain_frequencies(config.head_dim, config.rope_theta)  # [D/2]
    scaling = config.rope_scaling
    if scaling is None:
        return inv_freq
    if scaling.kind == "linear":
        return inv_freq / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_scaled(inv_freq, scaling)
    raise InputError(f"rope scaling {scaling.kind!r} is not supported; supported: linear, llama3")


def _llama3_scaled(inv_freq: Float[Tensor, " half_dim"], scaling: RopeScaling) -> Float[Tensor, " half_dim"]:
    """Llama 3.1's rule: slow pairs are stretched by `factor`, fast pairs are left alone, between them a ramp.

    Fast and slow are measured in turns over the original context: a pair that made many turns in pre-training
    has seen every angle and needs no stretching. Checked against transformers' `llama3` rope type.
    """
    turns = scaling.original_max_position_embeddings * inv_freq / (2 * math.pi)  # [D/2]
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)  # [D/2]
    keep = ramp.clamp(0.0, 1.0)  # 1: left alone, 0: stretched in full
    return keep * inv_freq + (1 - keep) * inv_freq / scaling.factor  # [D/2]


def rope_tables(
    positions: Int[Tensor, "batch q_len"], inv_freq: Float[Tensor, " half_dim"]
) -> tuple[Float[Tensor, "batch 1 q_len half_dim"], Float[Tensor, "batch 1 q_len half_dim"]]:
    """Cosine and sine of every (position, pair) angle in float32; the axis of size 1 is for the heads.

    They are made for the positions at hand, so there is no table that a long context could outrun.
    """
    angles = positions[:, None, :, None].float() * inv_freq  # [B, 1, T, D/2]
    return angles.cos(), angles.sin()


def apply_rope(
    x: Float[Tensor, "batch heads q_len head_dim"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Rotate each pair (x[i], x[i + D/2]) by its angle. `cos` and `sin` come in the dtype of `x`."""
    first, second = x.chunk(2, dim=-1)  # 2 x [B, H, T, D/2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)  # [B, H, T, D]
