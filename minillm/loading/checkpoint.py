"""A checkpoint on disk, opened; and the one way by which its tensors get into a model.

The model knows nothing of files: it declares *slots*, the checkpoint's name of each tensor and the view into
its own parameters where that tensor belongs (a slice of a fused weight, for instance). `fill` copies, and is
strict: what is missing, left over or of another shape is an error, for a model filled halfway still talks,
only worse.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from minillm.config import ModelConfig
from minillm.errors import InputError, MissingError
from minillm.loading.files import read_description
from minillm.quantization import QuantizedWeight

# A tensor is copied in pieces of this size, so that filling a model takes little memory beyond the model's
# own: small beside any checkpoint, large enough that opening the file anew for each piece costs
# nothing.
PIECE_BYTES = 16 << 20

# Old checkpoints also store what is computed from the configuration: these are not weights.
COMPUTED_SUFFIXES = (".rotary_emb.inv_freq",)

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

# A checkpoint with such a tensor has its projections fused as our model has them: Phi-3's are.
FUSED_SUFFIX = ".self_attn.qkv_proj.weight"


@runtime_checkable
class TensorSource(Protocol):
    """Named tensors on disk, under Hugging Face's names (`model.layers.0.self_attn.q_proj.weight`)."""

    @property
    def path(self) -> Path:
        """The directory or file that they come from, for messages."""
        ...

    def names(self) -> list[str]:
        """Every name, in the order of the file."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        ...

    def pieces(self, name: str) -> Iterator[Tensor]:
        """A tensor as consecutive blocks of rows, about PIECE_BYTES each; a piece is valid until the next is
        taken.
        """
        ...

    def format(self, name: str) -> str | None:
        """The quantized format in which a matrix is stored, if it is one of ours (see `quantization`)."""
        ...

    def quantized_pieces(self, name: str) -> Iterator[QuantizedWeight]:
        """The pieces of a matrix that has a format, in codes and scales as they are stored."""
        ...


def has_fused_projections(source: TensorSource) -> bool:
    """Whether query, key and value are one matrix in the checkpoint, and gate and up another."""
    return any(name.endswith(FUSED_SUFFIX) for name in source.names())


def rows_per_piece(bytes_per_row: int) -> int:
    """How many rows make a piece: at least one."""
    return max(1, PIECE_BYTES // bytes_per_row)


def read(source: TensorSource, name: str) -> Tensor:
    """One whole tensor, in its own dtype and memory."""
    return torch.cat(list(source.pieces(name)))


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: its description, its tensors, and where its tokenizer is found.

    The tokenizer is in the directory `path`, or, if `path` is a GGUF file, in its metadata.
    """

    config: ModelConfig
    tensors: TensorSource
    path: Path
    gguf_metadata: dict[str, Any] | None = None


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a safetensors directory or a GGUF file: the description is read, the tensors are not yet.

    Raises MissingError where there is nothing, InputError where it cannot be understood.
    """
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise MissingError(f"there is no model at {path}")
    if path.suffix != ".gguf":
        raise InputError(f"{path} is not a model: a model is a directory with config.json, or a .gguf file")
    from minillm.loading.gguf import open_gguf  # imports the `gguf` library, which directories do not need

    file = open_gguf(path)
    return Checkpoint(file.config, file, path, file.metadata)


def _open_directory(path: Path) -> Checkpoint:
    from minillm.loading.safetensors import SafetensorsSource

    config = ModelConfig.from_hf(*read_description(path))
    return Checkpoint(config, SafetensorsSource(path), path)


def fill(slots: Mapping[str, Tensor | QuantizedWeight], source: TensorSource) -> None:
    """Copy every tensor of `source` into its slot, converted to the slot's dtype, device or quantized format.

    Raises InputError, before anything is copied, if a slot has no tensor, a tensor has no slot, or shapes
    differ. Memory beyond the slots stays at about PIECE_BYTES.
    """
    names = {name for name in source.names() if not name.endswith(COMPUTED_SUFFIXES)}
    if HEAD in names and HEAD not in slots and EMBEDDING in slots:
        _check_tied_head(source)
        names.remove(HEAD)
    _refuse_any(source, "lacks", slots.keys() - names)
    _refuse_any(source, "has, beyond what the model wants,", names - slots.keys())
    misshapen = [
        f"{name} (it is {list(source.shape(name))}, the model wants {list(slot.shape)})"
        for name, slot in slots.items()
        if source.shape(name) != tuple(slot.shape)
    ]
    _refuse_any(source, "has the wrong shape for", misshapen)
    with torch.no_grad():
        for name, slot in slots.items():
            _copy(source, name, slot)


def _copy(source: TensorSource, name: str, slot: Tensor | QuantizedWeight) -> None:
    row = 0
    if isinstance(slot, QuantizedWeight):
        stored = source.format(name) == slot.format
        for piece in source.quantized_pieces(name) if stored else source.pieces(name):
            slot.write(row, piece)
            row += piece.shape[0]
        return
    for piece in source.pieces(name):
        slot[row : row + len(piece)].copy_(piece)
        row += len(piece)


def _refuse_any(source: TensorSource, problem: str, names: Iterable[str]) -> None:
    names = sorted(names)
    if names:
        more = f", and {len(names) - 3} more" if len(names) > 3 else ""
        count = f"{len(names)} tensor{'s' if len(names) > 1 else ''}"
        raise InputError(f"the checkpoint {source.path} {problem} {count}: {', '.join(names[:3])}{more}")


def _check_tied_head(source: TensorSource) -> None:
    """Some writers store a tied head too. If it is not the embedding, one of the two would be lost."""
    if source.shape(HEAD) == source.shape(EMBEDDING):
        pairs = zip(source.pieces(HEAD), source.pieces(EMBEDDING), strict=True)
        if all(torch.equal(head, embedding) for head, embedding in pairs):
            return
    raise InputError(
        f"the checkpoint {source.path} says tie_word_embeddings, but its {HEAD} differs from {EMBEDDING}: "
        "set tie_word_embeddings to false in config.json if the head is meant to be used"
    )
