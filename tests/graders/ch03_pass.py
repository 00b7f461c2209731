"""The small model of 3.7, with seeded weights, and its hidden states by the formulas in float64."""

import functools

import torch
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_rows import norm_of
from graders.ch03_turns import frequencies_of
from minillm.kv_cache import KVCache
from minillm.model import Llama


@functools.cache
def _made(dtype: torch.dtype) -> Llama:
    return oracle.filled(Llama(oracle.config()), seed=2).to(dtype)


def model_of(dtype: torch.dtype = torch.float32) -> Llama:
    """A model for one run: a copy, which is quicker than making it."""
    return oracle.copied(_made(dtype))


def some_ids(batch: int, new: int) -> Tensor:
    return torch.randint(0, 37, (batch, new), generator=torch.Generator().manual_seed(batch + new))


def angles_at(start: int, batch: int, new: int) -> Tensor:
    """[B, 1, T, D/2]: position times frequency, in Python's float64."""
    frequencies = frequencies_of(8, 100.0)
    rows = [[position * frequency for frequency in frequencies] for position in range(start, start + new)]
    return torch.tensor(rows, dtype=torch.float64).expand(batch, 1, new, len(frequencies))


def hidden_of(model: Llama, ids: Tensor, cache: KVCache) -> Tensor:
    """The oracle's hidden states in float64; K and V of the new tokens go into `cache`."""
    x = torch.stack([model.embed_tokens.weight[row] for row in ids])  # [B, T, E]
    angles = angles_at(cache.length, *ids.shape)
    for layer in model.layers:
        x = oracle.layer(layer, x, angles, cache)
    return norm_of(x, model.norm.weight, model.norm.eps)
