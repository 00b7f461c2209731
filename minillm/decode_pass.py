"""What may stand in for the model: the same numbers, by code made for decode steps, or for prompts on one processor."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.kv_cache import Cache


@runtime_checkable
class PromptPass(Protocol):
    """The layers for many tokens of each sequence."""

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"] | None:
        """Hidden states after the final norm. Keys and values are written behind what `cache` holds, not counted in.

        None where it cannot compute these tokens on this cache, or not sooner than `Llama`, which then does it itself.
        """
        ...


@runtime_checkable
class DecodePass(Protocol):
    """The layers and the head for the newest token of each sequence."""

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"] | None:
        """As in `PromptPass`. None for all but one token per sequence, and for a kind of cache that it doesn't know."""
        ...

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"] | None:
        """The scores of a few rows, in float32; None for so many that the model's own way is faster."""
        ...


def require_plain_llama(config: ModelConfig) -> None:
    """Raise InputError for a model that has more than the compiled passes know: `Llama` computes such a one itself."""
    if config.beyond_llama:
        raise InputError(
            f"compiled decode is made for a plain Llama, and this model has {', '.join(config.beyond_llama)}"
        )
