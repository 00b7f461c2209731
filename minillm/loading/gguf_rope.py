"""The rotary settings of a GGUF file <-> RopeScaling.

A file says them in two ways: keys under `rope.scaling.`, and tensors that hold by how much each frequency is divided.
"llama3" is never named: its rule is worked out by the converter and only the divisors are stored. "dynamic" leaves no
trace at all. Source: llama.cpp (`load_hparams` in `src/llama-model.cpp`, `src/llama-context.cpp`) and its converter.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from minillm.config import ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.fields import Fields, decimal
from minillm.loading.hf_rope import yarn_magnitude

# The tensors of divisors: the same at every length; or two sets, within the original context and beyond it.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)

KINDS = ("none", "linear", "yarn", "longrope")

# The published settings of "llama3" scaling (Llama 3.1, 3.2, 3.3): these three numbers, with a factor of 8 or 32.
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192

FactorTensors = Mapping[str, Sequence[float]]
"""Those of FACTOR_TENSORS that a file has, with their values."""


def read_rope_scaling(fields: Fields, architecture: str, context: int, tensors: FactorTensors) -> RopeScaling | None:
    """The scaling that keys and tensors state; with ROPE_FACTORS, `with_rope_factors` comes afterwards."""
    key = f"{architecture}.rope.scaling"
    stated = fields.text(f"{key}.type", None)
    factor = decimal(fields.number(f"{key}.factor", fields.number(f"{architecture}.rope.scale_linear", 1.0)))
    original = fields.integer(f"{key}.original_context_length", context)
    magnitude = decimal(fields.number(f"{key}.attn_factor", 1.0))
    # Phi-3's files have the factors of longrope and do not name it; a factor alone has always meant linear scaling.
    kind = stated or ("longrope" if LONG_FACTORS in tensors else "linear" if factor != 1.0 else "none")
    if kind not in KINDS:
        raise InputError(f"GGUF metadata: rope scaling {kind!r} is not supported; supported: {', '.join(KINDS)}")
    if kind in ("none", "longrope") and factor != 1.0:
        raise InputError(f"GGUF metadata: {key}.factor = {factor} is not supported with rope scaling {kind!r}")
    if kind in ("none", "linear") and magnitude != 1.0:
        raise InputError(f"GGUF metadata: {key}.attn_factor = {magnitude} is not supported with rope scaling {kind!r}")
    if kind == "none":
        return None
    if kind == "longrope":
        return _longrope(tensors, original, magnitude)
    if fields.values.keys().isdisjoint({f"{key}.factor", f"{architecture}.rope.scale_linear"}):
        raise InputError(f"GGUF metadata: {kind} rope scaling does not state {key}.factor")
    return RopeScaling("linear", factor) if kind == "linear" else _read_yarn(fields, key, factor, original, magnitude)


def _read_yarn(fields: Fields, key: str, factor: float, original: int, magnitude: float) -> RopeScaling:
    """`yarn_attn_factor` is the attention factor itself, where a `config.json` stated one; `attn_factor` one more."""
    fields.require_neutral({f"{key}.yarn_ext_factor": (1.0,), f"{key}.yarn_log_multiplier": (0.0,)})
    usual = yarn_magnitude(factor, 1.0)
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=magnitude * decimal(fields.number(f"{key}.yarn_attn_factor", usual)),
        beta_fast=decimal(fields.number(f"{key}.yarn_beta_fast", 32.0)),
        beta_slow=decimal(fields.number(f"{key}.yarn_beta_slow", 1.0)),
    )


def _longrope(tensors: FactorTensors, original: int, magnitude: float) -> RopeScaling:
    long, short = tensors.get(LONG_FACTORS), tensors.get(SHORT_FACTORS)
    if not long or not short:
        raise InputError(f"GGUF: longrope scaling needs the tensors {LONG_FACTORS} and {SHORT_FACTORS}")
    return RopeScaling(
        kind="longrope",
        original_max_position_embeddings=original,
        attention_factor=magnitude,
        short_factor=tuple(map(decimal, short)),
        long_factor=tuple(map(decimal, long)),
    )


def with_rope_factors(config: ModelConfig, tensors: FactorTensors) -> ModelConfig:
    """The config, with the scaling whose divisors are those of ROPE_FACTORS, if the file has them.

    The published models share all settings of "llama3" but its factor, and that is the largest divisor; so the rule is
    applied with it, and if it gives the same, it is the rule. Other divisors are kept as they are: as longrope, which
    has divisors too, the same within the original context and beyond it.
    """
    if ROPE_FACTORS not in tensors:
        return config
    from minillm.rope import inverse_frequencies  # imports torch

    factors = tensors[ROPE_FACTORS]
    if config.rope_scaling is not None:
        raise InputError(f"GGUF: {ROPE_FACTORS} together with {config.rope_scaling.kind} scaling is not supported")
    if len(factors) != config.head_dim // 2 or not all(1 <= each < math.inf for each in factors):
        raise InputError(
            f"GGUF: {ROPE_FACTORS} does not hold {config.head_dim // 2} divisors of at least 1, one per rotated pair"
        )
    llama3 = RopeScaling("llama3", decimal(max(factors)), LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL)
    scaled = replace(config, rope_scaling=llama3)
    expected = (inverse_frequencies(config) / inverse_frequencies(scaled)).tolist()
    if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(expected, factors, strict=True)):
        return scaled
    kept = tuple(map(decimal, factors))
    never = config.max_position_embeddings
    return replace(
        config,
        rope_scaling=RopeScaling(
            "longrope", original_max_position_embeddings=never, short_factor=kept, long_factor=kept
        ),
    )


def rope_factors(config: ModelConfig) -> list[float] | None:
    """By how much "llama3" scaling divides each frequency: the values of ROPE_FACTORS. None for other models."""
    from minillm.rope import inverse_frequencies  # imports torch

    if config.rope_scaling is None or config.rope_scaling.kind != "llama3":
        return None
    return (inverse_frequencies(replace(config, rope_scaling=None)) / inverse_frequencies(config)).tolist()
