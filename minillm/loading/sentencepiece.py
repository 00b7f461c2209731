"""SentencePiece vocabularies (Llama 1 and 2, Mistral, TinyLlama, Phi-3, Yi): pieces with scores, made a pipeline.

SentencePiece's BPE has no list of merges. It begins with single characters, and joins, again and again, the two
neighbours whose union is the piece with the highest score, the leftmost of equals. A `tokenizers` pipeline does the
same from a list of merges: every way to cut a piece in two pieces is a merge, and those of a higher score come first.

    score  piece        merges, in their order
      -1   "he"         h e
      -2   "hell"       hel l, he ll        (the longer left part first: where both could be, it begins further left)

Sources: Sennrich et al. 2016 (BPE); google/sentencepiece, src/bpe_model.cc; llama.cpp, src/llama-vocab.cpp
(`llm_tokenizer_spm`). Checked against an independent implementation of the joining, and against llama.cpp's answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from minillm.errors import InputError
from minillm.token_bytes import SPACE_MARK


class Kind(IntEnum):
    """What a piece is: SentencePiece's numbers, which GGUF has taken over (tokenizer.ggml.token_type)."""

    NORMAL = 1
    UNKNOWN = 2  # stands for what the vocabulary cannot spell
    CONTROL = 3  # "<s>": never found in a text
    USER_DEFINED = 4  # found in a text before anything is joined
    UNUSED = 5
    BYTE = 6  # "<0xE2>": one byte of a character that is no piece


@dataclass(frozen=True)
class Piece:
    """One entry of the vocabulary; its place in the list is its id."""

    text: str
    score: float
    kind: int


def sentencepiece_backend(pieces: Sequence[Piece], *, space_prefix: bool) -> Backend:
    """Return the pipeline of this vocabulary, without any added tokens or BOS.

    Args:
        pieces: the vocabulary, by id.
        space_prefix: a space goes before each text, so that its first word is spelled as any other ("▁The").

    Raises:
        InputError: a piece occurs twice, or a text can hold characters that no piece, byte or unknown token spells.
    """
    vocabulary = {piece.text: token_id for token_id, piece in enumerate(pieces)}
    if len(vocabulary) != len(pieces):
        raise InputError("the SentencePiece vocabulary holds the same piece twice; the file is damaged")
    unknown = next((piece.text for piece in pieces if piece.kind == Kind.UNKNOWN), None)
    if unknown is None and not all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)):
        raise InputError(
            "the SentencePiece vocabulary has neither an unknown token nor all 256 byte tokens, so there are texts "
            "that it cannot spell; use the model's tokenizer.json"
        )
    merges = list(merges_of(pieces))
    backend = Backend(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces_marked = normalizers.Replace(" ", SPACE_MARK)
    marks_as_spaces = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces_marked])
        backend.decoder = decoders.Sequence([*marks_as_spaces, decoders.Strip(" ", 1, 0)])
    else:
        backend.normalizer = spaces_marked
        backend.decoder = decoders.Sequence(marks_as_spaces)
    return backend


def merges_of(pieces: Sequence[Piece]) -> Iterator[tuple[str, str]]:
    """Yield every way to join two pieces to a third, in the order in which SentencePiece prefers them.

    Control, unknown and byte pieces are neither joined nor the outcome: "<s>" in a text stays letters.
    """
    joinable = {piece.text: piece.score for piece in pieces if piece.kind in _JOINABLE}
    by_score = sorted(joinable, key=lambda text: -joinable[text])  # equal scores stay in the order of their ids
    for text in by_score:
        for cut in range(len(text) - 1, 0, -1):
            if text[:cut] in joinable and text[cut:] in joinable:
                yield text[:cut], text[cut:]


_JOINABLE = (Kind.NORMAL, Kind.USER_DEFINED, Kind.UNUSED)


def add_tokens(
    backend: Backend, kinds: Mapping[str, int], named: Sequence[str], *, rstrip: frozenset[str] = frozenset()
) -> None:
    """Tell `backend` which tokens are matched whole in a text: control and unknown tokens (special), the `named`
    ones (special too) and user-defined ones. Those in `rstrip` swallow the white space behind them.
    """
    for special in (True, False):
        chosen = [
            token
            for token, kind in kinds.items()
            if special == (kind in (Kind.CONTROL, Kind.UNKNOWN) or token in named)
            and (special or kind == Kind.USER_DEFINED)
        ]
        tokens = [AddedToken(t, special=special, normalized=False, rstrip=t in rstrip) for t in chosen if t]
        (backend.add_special_tokens if special else backend.add_tokens)(tokens)
