"""What bytes a token stands for: the two spellings that Llama-family vocabularies use.

*Byte level* (GPT-2 and its heirs): each of the 256 bytes has a printable stand-in character, and a token is a
string of stand-ins: the token "Ġthe" is the bytes of " the". A token may hold half a character.

*Byte fallback* (SentencePiece): a token is text in which "▁" (U+2581) stands for a space, or one raw byte
written as "<0xE2>" for characters that the vocabulary lacks.

Once every token is bytes, turning ids into text is joining bytes and decoding UTF-8; nothing else is needed
to stream it (see `detokenizer.py`). Checked against the decoders of the `tokenizers` library.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minillm.errors import InputError

SPACE_MARK = "▁"
_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_alphabet() -> dict[str, int]:
    """Map each of GPT-2's 256 stand-in characters to its byte.

    Bytes that Latin-1 prints stand for themselves. The 68 others (controls, space, soft hyphen) take the
    characters from U+0100 on, in order: so byte 0x20, the 33rd of them, is "Ġ" (U+0120).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(hidden)})
    return alphabet


@dataclass(frozen=True)
class ByteLevelCodec:
    """Tokens spelled in GPT-2's stand-in characters."""

    alphabet: Mapping[str, int]
    leading_spaces_dropped: int = 0

    def to_bytes(self, token: str, *, is_added: bool) -> bytes:
        """Return the bytes of `token`. Added tokens are literal text, as is a token with a character
        outside the alphabet.
        """
        if is_added or not self.alphabet.keys() >= set(token):
            return token.encode()
        return bytes(self.alphabet[character] for character in token)


@dataclass(frozen=True)
class ByteFallbackCodec:
    """Tokens spelled as SentencePiece does. Text begins with up to `leading_spaces_dropped` spaces too
    many.
    """

    leading_spaces_dropped: int = 0

    def to_bytes(self, token: str, *, is_added: bool) -> bytes:
        """Return the bytes of `token`: one byte for "<0xE2>", otherwise its text with spaces for "▁"."""
        raw = None if is_added else _FALLBACK_BYTE.fullmatch(token)
        return bytes([int(raw[1], 16)]) if raw else token.replace(SPACE_MARK, " ").encode()


def count_leading_spaces(data: bytes, at_most: int) -> int:
    """Count the spaces that `data` begins with, up to `at_most`."""
    return min(len(data) - len(data.lstrip(b" ")), at_most)


TokenCodec = ByteLevelCodec | ByteFallbackCodec


def codec_for(decoder: Any) -> TokenCodec:
    """Choose the codec that does what `decoder`, of a `tokenizers.Tokenizer`, describes.

    Raises:
        InputError: for a kind of decoder that is neither of the two, by its name.
    """
    if decoder is None:
        raise InputError("the tokenizer states no decoder; minillm reads the kinds ByteLevel and ByteFallback")
    steps = list(_flatten(json.loads(decoder.__getstate__())))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelCodec(byte_level_alphabet())
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return _byte_fallback_codec(*steps)
    raise InputError(
        f"the tokenizer's decoder is of the kind {' + '.join(kinds)}; "
        "minillm reads ByteLevel, and Replace + ByteFallback + Fuse (+ Strip)"
    )


def _flatten(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a decoder in order, whatever the nesting of Sequences."""
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _flatten(step)


def _byte_fallback_codec(replace: Mapping[str, Any], *others: Mapping[str, Any]) -> ByteFallbackCodec:
    """Read the steps' settings; refuse those that the codec would not follow."""
    if replace["pattern"] != {"String": SPACE_MARK} or replace["content"] != " ":
        raise InputError(
            f"the tokenizer's decoder replaces {replace['pattern']} by {replace['content']!r}; "
            "minillm knows only '▁' by ' '"
        )
    strip = next((step for step in others if step["type"] == "Strip"), None)
    if strip is None:
        return ByteFallbackCodec()
    if strip["content"] != " " or strip["stop"] != 0:
        raise InputError(
            f"the tokenizer's decoder strips {strip['content']!r}, {strip['stop']} from the end; "
            "minillm knows only spaces at the start"
        )
    return ByteFallbackCodec(leading_spaces_dropped=strip["start"])
