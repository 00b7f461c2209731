"""Which format each matrix of a model is kept in: what a user asks for, or what the checkpoint's file has."""

from collections.abc import Mapping, Sequence

from minillm.errors import InputError
from minillm.loading.checkpoint import HEAD, Checkpoint
from minillm.model import PARTS
from minillm.quantized_linear import WeightFormats

ENDS = ("embed_tokens", "lm_head")
"""The embedding and the head: in four bits they alone cost a small model more quality than all of its layers."""

QUANTIZE = ("int8", "int4")
"""What users ask for. int8 is int8 throughout; int4 is q4_1 for the layers and q8_0 for the two ends."""


def weight_formats(quantize: str | None, checkpoint: Checkpoint) -> WeightFormats | None:
    """How each matrix is kept: "int8", "int4", or "file": as a GGUF file has it.

    With "file", matrices of a type that has no kernel here become q8_0, whose rounding is small beside their own.
    Raises InputError for another word, and for "file" where the file is not quantized.
    """
    if quantize is None:
        return None
    if quantize == "int8":
        return lambda name: "int8"
    if quantize == "int4":
        return lambda name: "q8_0" if name in ENDS else "q4_1"
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
    parts = (module, *PARTS.get(module, ()))  # Phi-3's checkpoints have them fused already
    if name == "lm_head" and HEAD not in stored:
        parts = ("embed_tokens",)
    found = {format for tensor, format in stored.items() if _is_part(tensor, name, parts)}
    same = found.pop() if len(found) == 1 else None
    return same or "q8_0"


def _is_part(tensor: str, module: str, parts: Sequence[str]) -> bool:
    """Whether a tensor of the checkpoint is one of the parts of a module's matrix, in the same layer."""
    inner, _, kind = tensor.rpartition(".")
    place, _, part = inner.removeprefix("model.").rpartition(".")
    return kind == "weight" and part in parts and (module == "lm_head" or place == module.rpartition(".")[0])
