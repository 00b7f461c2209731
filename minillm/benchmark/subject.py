"""The model that is measured: one that is on disk or fetched, or random weights that are written for the occasion."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from minillm.benchmark.engine import TRANSFORMERS
from minillm.benchmark.plan import Mode
from minillm.benchmark.random_model import random_config, write_random_model
from minillm.errors import InputError
from minillm.loading import DEFAULT_MODEL, Checkpoint, open_checkpoint, resolve
from minillm.loading.scratch import scratch_directory
from minillm.loading.weight_formats import weight_formats
from minillm.user_cache import user_cache

Tell = Callable[[str], None]


@runtime_checkable
class Lengths(Protocol):
    """What is going to be computed: a `Plan`, say."""

    def check_context(self, longest: int) -> None:
        """Raises InputError where a sequence would grow beyond the model's context of `longest` tokens."""
        ...


@dataclass(frozen=True)
class Subject:
    """A model by the name that is printed, opened, and a directory for files that are gone afterwards."""

    name: str
    checkpoint: Checkpoint
    scratch: Path


@contextmanager
def random_subject(shape: str, plan: Lengths, modes: Collection[Mode], tell: Tell) -> Iterator[Subject]:
    """Random weights of a well-known shape. Raises InputError where they cannot be what is asked for."""
    if _reads_file(modes):
        raise InputError("--quantize file takes the weights as a .gguf file stores them: give one with --model")
    config = random_config(shape)
    plan.check_context(config.max_position_embeddings)
    with _scratch() as scratch:
        tell(f"writing random weights of the shape of {shape}")
        write_random_model(config, scratch / "random")
        yield Subject(f"random weights, {shape}", open_checkpoint(scratch / "random"), scratch)


@contextmanager
def subject(
    model: str | None, plan: Lengths, modes: Collection[Mode], peers: Collection[str], tell: Tell
) -> Iterator[Subject]:
    """The model that is named, or the default one. Raises InputError or MissingError where it cannot be used."""
    name = DEFAULT_MODEL if model is None else model
    path = resolve(name, progress=tell)
    if TRANSFORMERS in peers and path.is_file():
        raise InputError(f"--compare transformers needs a directory with safetensors, not {path}")
    if _reads_file(modes) and not path.is_file():
        raise InputError(f"--quantize file takes the weights as a .gguf file stores them, and {path} is a directory")
    checkpoint = open_checkpoint(path)
    if _reads_file(modes):
        weight_formats("file", checkpoint)  # refuses a file that is not quantized
    plan.check_context(checkpoint.config.max_position_embeddings)
    with _scratch() as scratch:
        yield Subject(name, checkpoint, scratch)


def _scratch() -> AbstractContextManager[Path]:
    """Beside the remembered limits: files of gigabytes do not belong in /tmp, which may be memory."""
    return scratch_directory(user_cache())


def _reads_file(modes: Collection[Mode]) -> bool:
    return any(mode.quantize == "file" for mode in modes)
