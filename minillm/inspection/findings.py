"""All that is found about a model, and whether this engine runs it."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.inspection.expected import mismatch
from minillm.inspection.found import Found
from minillm.inspection.outline import Outline, outline_of, outline_of_gguf, outline_of_hf
from minillm.inspection.parts import OTHER, count_config, count_tensors
from minillm.inspection.stored import FLOATING, StoredTensor
from minillm.inspection.unusual import unusual
from minillm.loading.gguf_architectures import architecture_of, parts_of
from minillm.loading.gguf_header import Header
from minillm.loading.gguf_rope import FACTOR_TENSORS

# Of the types that `loading/gguf.py` reads, those of nearly all files: for these it need not be asked.
COMMON_GGUF_TYPES = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K"}
# How `struct` reads the types that a vector has in a GGUF file: F32 and F16.
FLOAT_FORMATS = {0: "f", 1: "e"}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class Findings:
    """`parts` are numbers by part, None where nothing tells them; `packed` says that stored numbers are not
    parameters. `refusals` are the reasons why this engine does not run it, none if it does. `sampling` is how its
    authors sample.
    """

    found: Found
    outline: Outline
    parts: Mapping[str, int] | None
    packed: bool
    unusual: list[str]
    refusals: list[str]
    sampling: Mapping[str, float]

    @property
    def parameters(self) -> int | None:
        """All parts together, if they are known and are what they seem."""
        return None if self.parts is None or self.packed else sum(self.parts.values())


def examine(found: Found) -> Findings:
    """Read what was found."""
    config, refusal = _read_config(found)
    outline = _outline(found, config)
    tensors = found.stored.tensors
    parts = None
    if tensors is not None:
        parts = count_tensors(tensors, outline.tied)
    elif config is not None:
        parts = count_config(config)
    if parts is not None and not parts[OTHER]:
        parts.pop(OTHER)
    packed = found.hf_config is not None and any(tensor.dtype not in FLOATING for tensor in tensors or ())
    return Findings(
        found,
        outline,
        parts,
        packed,
        unusual(outline, tensors, found.vocabulary),
        [refusal] if refusal else list(_other_refusals(found, config)),
        _sampling(found.generation_config),
    )


def _read_config(found: Found) -> tuple[ModelConfig | None, str | None]:
    """The config as the engine reads it; or why it does not."""
    try:
        if found.hf_config is not None:
            return ModelConfig.from_hf(found.hf_config, found.generation_config), None
        assert found.gguf_header is not None, "it is the one or the other"
        return _read_gguf_config(found.path, found.gguf_header), None
    except InputError as error:
        return None, str(error)


def _read_gguf_config(path: Path, header: Header) -> ModelConfig:
    """As `open_gguf` reads it, without the `gguf` library's reader, which takes seconds for a large vocabulary."""
    factors = {name: _vector(path, header, name) for name in FACTOR_TENSORS if name in header.tensors}
    return ModelConfig.from_gguf(header.metadata, list(header.tensors), factors)


def _vector(path: Path, header: Header, name: str) -> list[float]:
    """The numbers of a small tensor. Raises InputError unless it is a vector, in a type that is as wide as it says."""
    shape, kind = header.tensors[name]
    if len(shape) != 1 or kind not in FLOAT_FORMATS:
        raise InputError(f"{path}: tensor {name} of shape {list(reversed(shape))} must be a vector of floating point")
    layout = f"<{shape[0]}{FLOAT_FORMATS[kind]}"
    with path.open("rb") as file:
        file.seek(header.offsets[name])
        return list(struct.unpack(layout, file.read(struct.calcsize(layout))))


def _outline(found: Found, config: ModelConfig | None) -> Outline:
    if found.hf_config is not None:
        stated = outline_of_hf(found.hf_config)
    else:
        names = [tensor.name for tensor in found.stored.tensors or ()]
        metadata = {} if found.gguf_header is None else found.gguf_header.metadata
        stated = outline_of_gguf(metadata, tied="output.weight" not in names)
    return stated if config is None else outline_of(config, stated.architecture, stated.class_name)


def _other_refusals(found: Found, config: ModelConfig | None) -> Iterator[str]:
    """What the engine would not get along with, beyond the description."""
    tensors, words = found.stored.tensors, found.vocabulary
    if found.stored.problem:
        yield found.stored.problem
    elif tensors is not None and found.gguf_header is not None:
        if unread := {tensor.dtype for tensor in tensors} - COMMON_GGUF_TYPES:
            from minillm.loading.gguf import SUPPORTED_TYPES  # imports torch

            for dtype in sorted(unread - set(SUPPORTED_TYPES)):
                yield f"its tensors of type {dtype} are not read"
        if config is not None and (problem := mismatch(config, _under_hf_names(found.gguf_header, tensors, config))):
            yield problem
    elif tensors is not None and config is not None and found.hf_config is not None:
        quantized = next((tensor for tensor in tensors if tensor.dtype not in FLOATING), None)
        if quantized is not None:
            yield f"the tensor {quantized.name} is stored as {quantized.dtype}; {', '.join(FLOATING)} are read"
        elif problem := mismatch(config, tensors):
            yield problem
    if words is None:
        yield (
            "there is neither tokenizer.json nor tokenizer.model, the forms in which a tokenizer is read"
            if found.hf_config is not None
            else "there is no tokenizer in its metadata"
        )
    else:
        yield from _tokenizer_refusals(found, config)


def _under_hf_names(header: Header, tensors: Sequence[StoredTensor], config: ModelConfig) -> list[StoredTensor]:
    """The weights of a GGUF file of a known architecture, as the engine names them and takes them apart."""
    _, kind = architecture_of(header.metadata.get("general.architecture"))
    return [
        replace(each, name=part.name, shape=(part.rows, *each.shape[1:]))
        for each in tensors
        if each.name not in FACTOR_TENSORS
        for part in parts_of(each.name, each.shape[0], config, kind)
    ]


def _tokenizer_refusals(found: Found, config: ModelConfig | None) -> Iterator[str]:
    """Build the tokenizer, as loading does: only that tells whether it can be built, and fits the model."""
    from minillm.loading.reconcile import reconcile
    from minillm.tokenizer import Tokenizer

    try:
        if found.gguf_header is None:
            tokenizer = Tokenizer.from_directory(found.path)
        else:
            tokenizer = Tokenizer.from_gguf(found.gguf_header.metadata)
        if config is not None:
            reconcile(config, tokenizer)
    except InputError as error:
        yield str(error)


def _sampling(generation_config: Mapping[str, Any]) -> dict[str, float]:
    values = {name: generation_config.get(name) for name in SAMPLING}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and value is not True}
