"""Read SentencePiece's own file, tokenizer.model: what Llama 1 and 2 and their heirs were published with.

It is a protocol buffer: a row of fields, each a number (which field, and how it is written) and a value. A message
within a message is a field of bytes. Only these fields matter here; all others are neutral to what a text becomes:

    ModelProto        1 pieces (SentencePiece, repeated)   2 trainer_spec   3 normalizer_spec
    SentencePiece     1 piece (text)   2 score (float32)   3 type (see `sentencepiece.Kind`; 1 if absent)
    TrainerSpec       3 model_type (1 unigram, 2 BPE, ...)   40 to 42 the ids of <unk>, <s> and </s> (-1: there is none)
    NormalizerSpec    2 precompiled_charsmap (bytes)   3 add_dummy_prefix   4 remove_extra_whitespaces
                      5 escape_whitespaces               (all three true if absent)

Sources: protobuf.dev, "Encoding"; google/sentencepiece, src/sentencepiece_model.proto.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.loading.sentencepiece import Kind, Piece

_BPE = 2
_NAMED_IDS = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2)}  # field numbers and defaults
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class SentencePieceModel:
    """The vocabulary of a tokenizer.model, its named special tokens, and whether a space goes before each text."""

    pieces: list[Piece]
    named: dict[str, str]  # {"unk_token": "<unk>", ...}
    space_prefix: bool


def read_sentencepiece_model(file: Path) -> SentencePieceModel:
    """Read a tokenizer.model.

    Raises:
        InputError: the file is damaged, or another kind of model than Llama's: not BPE, or with a normalization of
            its own.
    """
    try:
        fields = list(_fields(file.read_bytes()))
        pieces = [_piece(value) for number, value in fields if number == 1]
        trainer = dict(_fields(b"".join(value for number, value in fields if number == 2)))
        normalizer = dict(_fields(b"".join(value for number, value in fields if number == 3)))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise InputError(f"{file} is not a SentencePiece model that can be read: {error}") from error
    if not pieces:
        raise InputError(f"{file} is not a SentencePiece model that can be read: it holds no pieces")
    if trainer.get(3, 1) != _BPE:
        raise InputError(f"{file} is a SentencePiece model of another kind than BPE; use the model's tokenizer.json")
    unlike = {"precompiled_charsmap": normalizer.get(2), "remove_extra_whitespaces": normalizer.get(4, 1)}
    unlike["escape_whitespaces = false"] = not normalizer.get(5, 1)
    for name, value in unlike.items():
        if value:
            raise InputError(
                f"{file} changes texts ({name}) in a way that minillm does not know; use the model's tokenizer.json"
            )
    return SentencePieceModel(pieces, _named(pieces, trainer), space_prefix=bool(normalizer.get(3, 1)))


def _named(pieces: list[Piece], trainer: dict[int, Any]) -> dict[str, str]:
    ids = {name: trainer.get(number, default) for name, (number, default) in _NAMED_IDS.items()}
    return {name: pieces[i].text for name, i in ids.items() if isinstance(i, int) and i < len(pieces)}


def _piece(message: bytes) -> Piece:
    values = dict(_fields(message))
    (score,) = struct.unpack("<f", values.get(2, bytes(4)))
    return Piece(values[1].decode(), score, values.get(3, Kind.NORMAL))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field: an int for a varint, else the bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                size, at = _varint(message, at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise ValueError(f"a field of the unknown kind {kind} at byte {at:,}")
            if at + size > len(message):
                raise ValueError(f"it ends inside a field, at byte {at:,}")
            value, at = message[at : at + size], at + size
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, seven bits a byte, the lowest first; and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError(f"a number of more than ten bytes at byte {at:,}")
