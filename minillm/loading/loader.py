"""load("smollm2-135m") -> (model, tokenizer): the whole of loading, in the order in which it happens."""

from dataclasses import replace
from pathlib import Path

import torch

from minillm.device import keep_freed_memory
from minillm.loading.checkpoint import Checkpoint, fill, has_fused_projections, open_checkpoint
from minillm.loading.progress import Progress, tell_on_stderr
from minillm.loading.reconcile import reconcile
from minillm.loading.registry import resolve
from minillm.loading.weight_formats import weight_formats
from minillm.model import Llama
from minillm.quantized_linear import WeightFormats
from minillm.tokenizer import Tokenizer


def load(
    model: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    quantize: str | None = None,
    progress: Progress = tell_on_stderr,
) -> tuple[Llama, Tokenizer]:
    """A model, filled, and its tokenizer; an alias or hub id is fetched at first use.

    quantize: None, or how the matrices are kept: see `weight_formats`.
    Raises MissingError where there is no such model, InputError where it cannot be used.
    """
    checkpoint = open_checkpoint(resolve(model, progress=progress))
    formats = weight_formats(quantize, checkpoint)  # a wrong word is refused before anything large is read
    tokenizer = load_tokenizer(checkpoint)
    checkpoint = replace(checkpoint, config=reconcile(checkpoint.config, tokenizer))
    tokenizer.pad_vocabulary(checkpoint.config.vocab_size)
    return load_model(checkpoint, device=device, dtype=dtype, formats=formats), tokenizer


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    formats: WeightFormats | None = None,
) -> Llama:
    """The model alone, filled, for whoever feeds it ids. Raises InputError where its tensors are not as described."""
    llama = Llama(checkpoint.config, device=device, dtype=dtype, formats=formats)
    fill(llama.checkpoint_slots(fused=has_fused_projections(checkpoint.tensors)), checkpoint.tensors)
    if llama.device.type == "cpu":
        keep_freed_memory()  # after the weights: those have blocks of their own, and go back when they are dropped
    return llama


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint: from its directory, or from the metadata of its GGUF file."""
    if checkpoint.gguf_metadata is not None:
        return Tokenizer.from_gguf(checkpoint.gguf_metadata)
    return Tokenizer.from_directory(checkpoint.path)
