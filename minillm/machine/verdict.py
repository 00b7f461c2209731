"""Does it fit, and what would make it fit: more or fewer tokens, sequences, bits, GPUs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from minillm.machine.formats import FORMATS, QUANTIZATIONS
from minillm.machine.memory import (
    CUDA_CONTEXT_BYTES,
    Demand,
    Workload,
    demand,
    possible_gpus,
    shard_of_format,
    weight_bytes,
)
from minillm.machine.shape import ModelShape

COMFORTABLE_SHARE = 0.9
"""Up to this share of the memory it fits; above, it is tight: what the allocator cannot reuse, a longer prompt or
another process decide. 0.9 is also what vLLM takes of a GPU unless told otherwise (`gpu_memory_utilization`).
"""

MOST_SEQUENCES = 2**20

FITS, TIGHT, DOES_NOT_FIT = "fits", "tight", "does not fit"


def judge(total: int, memory: int) -> str:
    """FITS, TIGHT or DOES_NOT_FIT: `total` bytes in `memory` bytes."""
    if total <= COMFORTABLE_SHARE * memory:
        return FITS
    return TIGHT if total <= memory else DOES_NOT_FIT


@dataclass(frozen=True)
class Question:
    """A model, what it is to run, and the memory of one GPU (or of the machine) in bytes.

    `overhead` is what is taken before the first tensor; `stored_bytes` see `memory.demand`. `vendor` is that of the GPU
    (as in `specs`), None for a CPU; `note` says what else a reader must know of the memory. Raises InputError where the
    model cannot be shared out over so many GPUs.
    """

    shape: ModelShape
    load: Workload
    memory: int
    overhead: int = CUDA_CONTEXT_BYTES
    stored_bytes: int | None = None
    vendor: str | None = "NVIDIA"
    note: str = ""

    def __post_init__(self) -> None:
        shard_of_format(
            self.shape, self.load.gpus, self.load.weights
        )  # raises InputError where so many GPUs cannot share the model

    @property
    def several(self) -> bool:
        """Whether there can be several of it in one machine, to share a model: of GPUs, not of CPUs and Macs."""
        return self.vendor in ("NVIDIA", "AMD")

    def demand(self, load: Workload | None = None) -> Demand:
        """What this workload (default: the one asked about) needs."""
        return demand(self.shape, load or self.load, overhead=self.overhead, stored_bytes=self.stored_bytes)

    def fits(self, load: Workload) -> bool:
        """Whether this workload fits with room to spare."""
        return judge(self.demand(load).total, self.memory) == FITS


def largest_context(question: Question) -> int:
    """The most tokens per sequence that fit at this batch, up to the model's context; 0 where not even one does."""
    longest = question.shape.max_position_embeddings
    return _largest(longest, lambda context: question.fits(replace(question.load, context=context)))


def largest_batch(question: Question) -> int:
    """The most sequences that fit at this context; 0 where not even one does."""
    return _largest(MOST_SEQUENCES, lambda batch: question.fits(replace(question.load, batch=batch)))


def _largest(most: int, works: Callable[[int], bool]) -> int:
    """The largest number up to `most` that works; works for a number, works for every smaller one."""
    good, bad = 0, most + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    return good


def smaller_formats(question: Question) -> tuple[str, ...]:
    """The quantizations that take less than the present weights and with which it fits, the largest first."""
    present = question.stored_bytes or weight_bytes(question.shape, question.load.weights)
    sizes = {name: weight_bytes(question.shape, FORMATS[name]) for name in QUANTIZATIONS}
    counted = replace(question, stored_bytes=None)
    enough = [
        name
        for name, size in sizes.items()
        if size < present
        and question.load.gpus in possible_gpus(question.shape, FORMATS[name])
        and counted.fits(replace(question.load, weights=FORMATS[name]))
    ]
    return tuple(sorted(enough, key=lambda name: -sizes[name]))


def gpus_needed(question: Question) -> int | None:
    """The fewest GPUs over which tensor parallelism makes it fit; None where none of `possible_gpus` does, or where
    it is a CPU or a Mac that was asked about.
    """
    numbers = possible_gpus(question.shape, question.load.weights) if question.several else ()
    return next((n for n in numbers if question.fits(replace(question.load, gpus=n))), None)
