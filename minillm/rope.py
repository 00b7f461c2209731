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


def plain_frequencies(head_dim: int, rope_theta: float) -> Float[Tensor, " half_dim"]:
    """The angle, in radians per position, by which each pair of dimensions turns; float32, on the CPU.

    Pair 0 turns by one radian per token; the last pair needs about 2 pi * rope_theta tokens for one turn.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim  # [D/2]
    return 1.0 / rope_theta**exponents  # [D/2]


def inverse_frequencies(config: ModelConfig, length: int = 1) -> Float[Tensor, " half_dim"]:
    """`plain_frequencies`, stretched by the config's scaling rule if it has one.

    length: of the sequence so far, in tokens, the new ones included. Two rules look at it. "dynamic" raises the base
    as the sequence outgrows the original context; "longrope" has one set of factors within it and another beyond.
    Under both a key is turned by the frequencies of the pass that computed it, and stays so in the cache: a pass takes
    the frequencies of its own end, as transformers' forward pass does, and meets keys that were turned by others
    if they are older. With "dynamic" the difference from one token to the next is small. "longrope" has a step, so
    whoever knows all token ids computes the cache anew where it is crossed (see `is_turned_alike`).

    Source of the rules, and what they are checked against: `modeling_rope_utils` of transformers.
    """
    inv_freq, scaling = plain_frequencies(config.head_dim, config.rope_theta), config.rope_scaling  # [D/2]
    if scaling is None:
        return inv_freq
    match scaling.kind:
        case "linear":
            return inv_freq / scaling.factor
        case "dynamic":
            return plain_frequencies(config.head_dim, _dynamic_theta(config, scaling, length))
        case "llama3":
            return _llama3_scaled(inv_freq, scaling)
        case "yarn":
            return _yarn_scaled(inv_freq, scaling, config.rope_theta)
        case "longrope":
            beyond = length > scaling.original_max_position_embeddings
            factors = scaling.long_factor if beyond else scaling.short_factor
            return inv_freq / torch.tensor(factors, dtype=torch.float32)
    raise AssertionError(f"RopeScaling lets no {scaling.kind!r} through")


def is_turned_alike(config: ModelConfig, length: int, other: int) -> bool:
    """Whether keys of a sequence of `length` tokens can serve one of `other` tokens that begins with them.

    Not across the original context under longrope: all keys beyond it are turned by other factors. (transformers'
    `generate` computes Phi-3's cache anew there too.)
    """
    scaling = config.rope_scaling
    if scaling is None or scaling.kind != "longrope":
        return True
    return (length > scaling.original_max_position_embeddings) == (other > scaling.original_max_position_embeddings)


def _dynamic_theta(config: ModelConfig, scaling: RopeScaling, length: int) -> float:
    """The base at which the slowest pair, at the last of `length` tokens, stands where it stood at the last token of
    the original context. Source: NTK-aware scaling, as in transformers' `dynamic` rope type.
    """
    stretch = max(1.0, length / scaling.original_max_position_embeddings)
    power = config.head_dim / (config.head_dim - 2)
    return config.rope_theta * (scaling.factor * stretch - (scaling.factor - 1)) ** power


def _yarn_scaled(
    inv_freq: Float[Tensor, " half_dim"], scaling: RopeScaling, rope_theta: float
) -> Float[Tensor, " half_dim"]:
    """YaRN's rule: like llama3's, with a ramp that is straight in the pair's number instead of its turns.

    Pairs that make more than `beta_fast` turns over the original context are left alone, those that make less than
    `beta_slow` are stretched in full. Source: Peng et al. 2023, section 3.2.
    """
    half_dim, original = len(inv_freq), scaling.original_max_position_embeddings

    def pair_of(turns: float) -> float:
        """The number, with a fraction, of the pair that makes so many turns over the original context."""
        return half_dim * math.log(original / (turns * 2 * math.pi)) / math.log(rope_theta)

    first, last = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half_dim - 1)
    width = last - first or 0.001  # transformers' own way round a ramp of no width
    stretched = ((torch.arange(half_dim) - first) / width).clamp(0.0, 1.0)  # [D/2]
    return stretched * inv_freq / scaling.factor + (1 - stretched) * inv_freq  # [D/2]


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
    positions: Int[Tensor, "batch q_len"], inv_freq: Float[Tensor, " half_dim"], attention_factor: float = 1.0
) -> tuple[Float[Tensor, "batch 1 q_len half_dim"], Float[Tensor, "batch 1 q_len half_dim"]]:
    """Cosine and sine of every (position, pair) angle in float32; the axis of size 1 is for the heads.

    They are made for the positions at hand, so there is no table that a long context could outrun. Some scaling rules
    also lengthen what they turn: by `attention_factor`, queries and keys alike.
    """
    angles = positions[:, None, :, None].float() * inv_freq  # [B, 1, T, D/2]
    if attention_factor == 1.0:
        return angles.cos(), angles.sin()
    return angles.cos() * attention_factor, angles.sin() * attention_factor


def apply_rope(
    x: Float[Tensor, "batch heads q_len head_dim"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Rotate each pair (x[i], x[i + D/2]) by its angle. `cos` and `sin` come in the dtype of `x`."""
    first, second = x.chunk(2, dim=-1)  # 2 x [B, H, T, D/2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)  # [B, H, T, D]
