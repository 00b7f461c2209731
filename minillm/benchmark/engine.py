"""What the benchmark asks of an engine, the same of ours and of every peer. No torch here: llama.cpp needs none."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

MINILLM, TRANSFORMERS, LLAMA_CPP = "minillm", "transformers", "llama.cpp"
PEERS = (TRANSFORMERS, LLAMA_CPP)
FLASH_OFF = "-fa off"
"""How llama.cpp's own command line says that flash attention is turned off."""


@dataclass(frozen=True)
class EngineSpec:
    """Which engine to load, and how: plain values, which cross a pipe as JSON.

    `path` is a safetensors directory or a .gguf file; `threads` is the number that every engine computes with.
    `quantize`, `kv_dtype` and `compile` are for `minillm` alone. `flash_off` is for llama.cpp alone: it is to do
    without flash attention.
    """

    engine: str
    path: str
    device: str
    dtype: str
    threads: int
    quantize: str | None = None
    kv_dtype: str | None = None
    compile: bool | None = None
    flash_off: bool = False


@runtime_checkable
class Engine(Protocol):
    """A loaded engine. Ids are chosen greedily; tokenizing, sampling and text are no part of what is timed."""

    vocab_size: int
    weight_bytes: int  # of all weights, as they are stored in memory
    pass_bytes: int  # of those, what one pass reads: not an embedding table that is looked up only
    kv_bytes_per_token: int
    compiled: bool  # whether decode passes are computed by code compiled for this machine (ours only)

    def prefill(self, ids: Sequence[int], room: int) -> float:
        """Seconds from the ids of one sequence to the first token chosen, on a new cache for `room` tokens."""
        ...

    def decode(self, batch: int, passes: int) -> float:
        """Seconds for `passes` decode passes of `batch` sequences, each a copy of the one that was prefilled.

        Afterwards the engine holds the prefilled sequence again, and nothing else.
        """
        ...

    def next_logits(self, ids: Sequence[int]) -> Float[np.ndarray, " vocab"]:
        """The logits of what follows these ids, in float32. Not timed: it is for comparing engines."""
        ...


def engine_class(engine: str) -> Any:
    """The class of that name, with all that it needs imported, and nothing loaded yet.

    `engine_class(spec.engine).warm_up(spec)` sets up what is set up once, and `engine_class(spec.engine)(spec)`
    loads: it is an `Engine`.
    """
    if engine == TRANSFORMERS:
        from minillm.benchmark.transformers_peer import TransformersEngine

        return TransformersEngine
    if engine == LLAMA_CPP:
        from minillm.benchmark.llama_cpp_peer import LlamaCppEngine

        return LlamaCppEngine
    from minillm.benchmark.ours import MinillmEngine

    return MinillmEngine
