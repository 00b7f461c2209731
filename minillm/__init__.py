"""minillm: a textbook you can run. A from-scratch LLM inference engine in PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.generation import Completion
    from minillm.llm import LLM
    from minillm.sampling_params import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]

_HOMES = {
    "LLM": "minillm.llm",
    "Completion": "minillm.generation",
    "SamplingParams": "minillm.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that a verb that needs no torch does not pay for importing it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
