"""The rotary settings of a `config.json` <-> RopeScaling.

They come as `rope_theta` and `rope_scaling` (transformers 4; the rule's name under "type" in the oldest files), or
together as `rope_parameters` (transformers 5). Source: `modeling_rope_utils` of `transformers`.
"""

import math
from dataclasses import dataclass
from typing import Any

from minillm.config import ROPE_KINDS, ModelConfig, RopeScaling
from minillm.errors import InputError
from minillm.loading.fields import Fields


@dataclass(frozen=True)
class RopeSettings:
    """`theta` is the rotary base; `max_position_embeddings` what the scaling makes of the field of that name."""

    theta: float
    scaling: RopeScaling | None
    max_position_embeddings: int


def read_rope(fields: Fields, model_type: str, context: int, default_theta: float) -> RopeSettings:
    """The settings, for a file that states `context` as its max_position_embeddings.

    Under dynamic scaling that field is the context of pre-training, and the model reaches `factor` times as far. The
    same holds under yarn where the field equals the original context: whoever turns yarn on by the model card of
    Qwen2.5 adds the rule and leaves the field.
    """
    theta = fields.number("rope_theta", None)
    old, new = fields.table("rope_scaling"), fields.table("rope_parameters")
    if old is not None and new is not None and old != new:
        raise InputError("config.json states both rope_scaling and rope_parameters, and they differ: keep one")
    name = "rope_parameters" if new is not None else "rope_scaling"
    rope = Fields(new if new is not None else old or {}, f"config.json: {name}")
    nested_theta = rope.number("rope_theta", None)
    if theta is not None and nested_theta is not None and theta != nested_theta:
        raise InputError(f"config.json states rope_theta twice: {theta} and, in {name}, {nested_theta}")
    scaling = _read_scaling(rope, _kind(rope, model_type), fields, context)
    rope.require_neutral({"partial_rotary_factor": (1.0, 1)})
    rope.refuse_rest()
    stretched = context
    if scaling is not None and scaling.kind in ("dynamic", "yarn"):
        unscaled = context == scaling.original_max_position_embeddings
        stretched = int(scaling.factor * context) if unscaled else context
    return RopeSettings(theta or nested_theta or default_theta, scaling, stretched)


def _kind(rope: Fields, model_type: str) -> str:
    """The rule's name. Phi-3's files of before the rule had its name call it "su" or "yarn"."""
    kind = rope.text("rope_type", rope.text("type", "default"))
    if model_type != "phi3":
        return kind
    kind = "longrope" if kind in ("su", "yarn") else kind
    if kind not in ("default", "none", "longrope"):
        raise InputError(
            f"{rope.where}: rope type {kind!r} is not supported for phi3, which knows default and longrope"
        )
    return kind


def _read_scaling(rope: Fields, kind: str, fields: Fields, context: int) -> RopeScaling | None:
    stated = fields.integer("original_max_position_embeddings", None)  # Phi-3 has it beside the rule, not in it
    if kind in ("default", "none"):
        rope.require_neutral({"factor": (1.0, 1)})
        return None
    if kind not in ROPE_KINDS:
        raise InputError(
            f"{rope.where}: rope type {kind!r} is not supported; supported: default, {', '.join(ROPE_KINDS)}"
        )
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "dynamic":
        return RopeScaling("dynamic", rope.number("factor"), original_max_position_embeddings=context)
    nested = rope.integer("original_max_position_embeddings", None)
    original = stated or nested or context
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=original,
        )
    return (_read_yarn if kind == "yarn" else _read_longrope)(rope, original, context)


def _read_yarn(rope: Fields, original: int, context: int) -> RopeScaling:
    factor = rope.number("factor", None) or context / original
    mscale, mscale_all_dim = rope.number("mscale", None), rope.number("mscale_all_dim", None)
    usual = yarn_magnitude(factor, 1.0)
    if mscale is not None and mscale_all_dim is not None:
        usual = yarn_magnitude(factor, mscale) / yarn_magnitude(factor, mscale_all_dim)
    rope.flag("finetuned", True)  # whether the model was trained on under the rule: the same arithmetic
    return RopeScaling(
        kind="yarn",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", usual),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def yarn_magnitude(factor: float, mscale: float) -> float:
    """What YaRN multiplies queries and keys by: longer contexts have more keys, over which the softmax flattens."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _read_longrope(rope: Fields, original: int, context: int) -> RopeScaling:
    """The rule's own `factor` says how far the context is stretched, and decides about the attention factor alone."""
    if original < 2:
        raise InputError(f"{rope.where}: longrope needs an original_max_position_embeddings above 1, got {original}")
    factor = rope.number("factor", None) or context / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeScaling(
        kind="longrope",
        original_max_position_embeddings=original,
        attention_factor=rope.number("attention_factor", usual),
        short_factor=rope.numbers("short_factor"),
        long_factor=rope.numbers("long_factor"),
    )


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """The fields that `read_rope` reads back, in the old form, which transformers 4 and 5 both understand."""
    scaling, fields = config.rope_scaling, {"rope_theta": config.rope_theta}
    fields["max_position_embeddings"] = config.max_position_embeddings
    if scaling is None:
        return {**fields, "rope_scaling": None}
    written: dict[str, Any] = {"rope_type": scaling.kind}
    if scaling.kind != "longrope":
        written["factor"] = scaling.factor
    if scaling.kind == "dynamic":
        fields["max_position_embeddings"] = scaling.original_max_position_embeddings
    if scaling.kind in ("llama3", "yarn", "longrope"):
        written["original_max_position_embeddings"] = scaling.original_max_position_embeddings
    if scaling.kind == "llama3":
        written |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        written |= {name: getattr(scaling, name) for name in ("beta_fast", "beta_slow", "truncate")}
    if scaling.kind in ("yarn", "longrope"):
        written["attention_factor"] = scaling.attention_factor
    if scaling.kind == "longrope":
        written |= {"short_factor": list(scaling.short_factor), "long_factor": list(scaling.long_factor)}
    return {**fields, "rope_scaling": written}
