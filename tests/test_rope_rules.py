"""Every rule of rotary scaling against transformers' own functions, in all its settings and at several lengths."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from minillm.config import ModelConfig
from minillm.rope import inverse_frequencies, rope_tables

PAIRS = 32
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 256,
    "short_factor": [1.0 + 0.01 * pair for pair in range(PAIRS)],
    "long_factor": [1.5 + pair for pair in range(PAIRS)],
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
RULES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": YARN,
    "yarn, a factor of 1": {**YARN, "factor": 1.0},
    "yarn, its ramp not cut to whole pairs": {**YARN, "truncate": False},
    "yarn, other betas": {**YARN, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn, a ramp of no width": {**YARN, "beta_fast": 5.0, "beta_slow": 5.0, "truncate": False},
    "yarn, a ramp that begins before the first pair": {**YARN, "beta_fast": 300.0},
    "yarn, an original context of a few turns": {**YARN, "original_max_position_embeddings": 3},
    "yarn, attention_factor": {**YARN, "attention_factor": 0.75},
    "yarn, mscale alone": {**YARN, "mscale": 0.7},
    "yarn, mscale and mscale_all_dim": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "longrope": LONG,
    "longrope, attention_factor": {**LONG, "attention_factor": 1.5},
    "longrope, factor": {**LONG, "factor": 16.0},
}


@pytest.mark.parametrize("length", [1, 256, 257, 1000])
@pytest.mark.parametrize("theta", [1e4, 5e6])
@pytest.mark.parametrize("name", RULES)
def test_frequencies_and_attention_factor_are_those_of_transformers(name: str, theta: float, length: int):
    rope = {**RULES[name], "rope_theta": theta}
    context = 256 if rope["rope_type"] == "dynamic" else 1024
    sizes = {"hidden_size": 256, "num_attention_heads": 4, "max_position_embeddings": context}
    theirs = LlamaConfig(**sizes, rope_parameters=dict(rope))
    frequencies, attention_factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, "cpu", seq_len=length)
    rest = {"vocab_size": 11, "intermediate_size": 12, "num_hidden_layers": 1}
    ours = ModelConfig.from_hf({"model_type": "llama", **sizes, **rest, "rope_parameters": rope})
    torch.testing.assert_close(inverse_frequencies(ours, length), frequencies, rtol=1e-5, atol=0.0)
    assert ours.rope_scaling is not None
    assert ours.rope_scaling.attention_factor == pytest.approx(attention_factor)


def test_an_attention_factor_lengthens_what_is_turned_and_one_of_1_costs_nothing():
    positions, frequencies = torch.arange(5)[None], torch.ones(3)
    plain, twice = rope_tables(positions, frequencies), rope_tables(positions, frequencies, 2.0)
    for one, other in zip(plain, twice, strict=True):
        torch.testing.assert_close(other, 2 * one)
