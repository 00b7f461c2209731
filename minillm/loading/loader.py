"""load("smollm2-135m") -> (model, tokenizer): the whole of loading, in the order in which it happens."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.checkpoint import HEAD, Checkpoint, fill, open_checkpoint
from minillm.loading.registry import Progress, resolve
from minillm.model import PARTS, Llama
from minillm.quantized_linear import WeightFormats
from minillm.tokenizer import Tokenizer


def tell_on_stderr(line: str) -> None:
    """What takes time at first use is said where it does not mix with a completion on stdout."""
    print(line, file=sys.stderr, flush=True)


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
    tokenizer = load_tokenizer(checkpoint)
    checkpoint = replace(checkpoint, config=reconcile(checkpoint.config, tokenizer))
    tokenizer.pad_vocabulary(checkpoint.config.vocab_size)
    return load_model(checkpoint, device=device, dtype=dtype, quantize=quantize), tokenizer


def load_model(
    checkpoint: Checkpoint,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    quantize: str | None = None,
) -> Llama:
    """The model alone, filled, for whoever feeds it ids. Raises InputError where its tensors are not as described."""
    formats = weight_formats(quantize, checkpoint)
    llama = Llama(checkpoint.config, device=device, dtype=dtype, formats=formats)
    fill(llama.checkpoint_slots(), checkpoint.tensors)
    return llama


QUANTIZE = {"int8": "int8", "int4": "q4_1"}
"""What users ask for, and the format that it means (see `quantization`)."""


def weight_formats(quantize: str | None, checkpoint: Checkpoint) -> WeightFormats | None:
    """How each matrix is kept: "int8", "int4", or "file": as a GGUF file has it.

    With "file", matrices of a type that has no kernel here become q8_0, whose rounding is small beside their own.
    Raises InputError for another word, and for "file" where the file is not quantized.
    """
    if quantize is None:
        return None
    if quantize in QUANTIZE:
        return lambda name: QUANTIZE[quantize]
    if quantize != "file":
        raise InputError(f"unknown quantization {quantize!r}: use {', '.join(QUANTIZE)}, or file for a GGUF file's own")
    source = checkpoint.tensors
    stored = {name: source.format(name) for name in source.names()}
    if not any(stored.values()):
        raise InputError(f"{checkpoint.path} is not quantized (to q8_0, q4_1 or q4_0): use {' or '.join(QUANTIZE)}")
    return lambda name: _stored_format(name, stored)


def _stored_format(name: str, stored: Mapping[str, str | None]) -> str:
    """The format of a module's matrix, from those of the checkpoint's tensors that it is made of."""
    module = name.rpartition(".")[2]
    parts = PARTS.get(module, (module,))
    if name == "lm_head" and HEAD not in stored:
        parts = ("embed_tokens",)
    found = {format for tensor, format in stored.items() if _is_part(tensor, name, parts)}
    same = found.pop() if len(found) == 1 else None
    return same or "q8_0"


def _is_part(tensor: str, module: str, parts: Sequence[str]) -> bool:
    """Whether a tensor of the checkpoint is one of the parts of a module's matrix, in the same layer."""
    *place, part, kind = tensor.split(".")
    same_place = module == "lm_head" or module.split(".")[:-1] == place[1:]
    return kind == "weight" and part in parts and same_place


def reconcile(config: ModelConfig, tokenizer: Tokenizer) -> ModelConfig:
    """The config, with the tokenizer's end-of-sequence id among its own: any of them may be the one that is stated.

    Raises InputError if the tokenizer makes ids for which the model has no embedding.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens and the model {config.vocab_size:,}:"
            " they do not belong together"
        )
    stated = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return replace(config, eos_token_ids=tuple(sorted({*config.eos_token_ids, *stated})))


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint: from its directory, or from the metadata of its GGUF file."""
    if checkpoint.gguf_metadata is not None:
        return Tokenizer.from_gguf(checkpoint.gguf_metadata)
    return Tokenizer.from_directory(checkpoint.path)
