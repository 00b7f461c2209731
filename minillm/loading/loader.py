"""load("smollm2-135m") -> (model, tokenizer): the whole of loading, in the order in which it happens."""

import sys
from pathlib import Path

import torch

from minillm.loading.checkpoint import Checkpoint, fill, open_checkpoint
from minillm.loading.registry import Progress, resolve
from minillm.model import Llama
from minillm.tokenizer import Tokenizer


def tell_on_stderr(line: str) -> None:
    """What takes time at first use is said where it does not mix with a completion on stdout."""
    print(line, file=sys.stderr, flush=True)


def load(
    model: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Progress = tell_on_stderr,
) -> tuple[Llama, Tokenizer]:
    """A model, filled, and its tokenizer; an alias or hub id is fetched at first use.

    Raises MissingError where there is no such model, InputError where it cannot be used.
    """
    checkpoint = open_checkpoint(resolve(model, progress=progress))
    llama = Llama(checkpoint.config, device=device, dtype=dtype)
    fill(llama.checkpoint_slots(), checkpoint.tensors)
    return llama, load_tokenizer(checkpoint)


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint: from its directory, or from the metadata of its GGUF file."""
    if checkpoint.gguf_metadata is not None:
        return Tokenizer.from_gguf(checkpoint.gguf_metadata)
    return Tokenizer.from_directory(checkpoint.path)
