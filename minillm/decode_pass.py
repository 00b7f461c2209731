"""What a faster way to compute one decode step has to offer, so that `Llama` can hand the step over to it."""

from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from minillm.kv_cache import Cache


@runtime_checkable
class DecodePass(Protocol):
    """One new token per sequence through all layers, by other means than the eager modules."""

    def takes(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> bool:
        """Whether this step is one that the pass can compute; every other one goes the eager way."""
        ...

    def __call__(self, ids: Int[Tensor, "batch 1"], cache: Cache) -> Float[Tensor, "batch 1 hidden"]:
        """Hidden states after the final norm. Writes k and v into the cache; the caller then calls `advance`."""
        ...

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        """The float32 scores of a single row."""
        ...
