"""The small model of chapter 4's graders, and what it is filled with: whole numbers, so that float32 is exact."""

import torch
from torch import Tensor

from minillm.config import ModelConfig

CONFIG = ModelConfig(
    vocab_size=11,
    hidden_size=6,
    intermediate_size=8,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=10,
    max_position_embeddings=64,
)


def whole(*shape: int, seed: int, most: int = 3) -> Tensor:
    """Whole numbers from -most to most, as float32."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).to(torch.float32)
