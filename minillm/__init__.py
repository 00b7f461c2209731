"""minillm: a textbook you can run. A from-scratch LLM inference engine in PyTorch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.llm import LLM, Completion
    from minillm.sampler import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]

_HOMES = {"LLM": "minillm.llm", "Completion": "minillm.llm", "SamplingParams": "minillm.sampler"}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that a verb that needs no torch does not pay for importing it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minillm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
