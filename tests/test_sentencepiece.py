"""SentencePiece vocabularies of GGUF files: the joining of pieces, against an implementation of its own."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp_tokens import RECORD, metadata_of
from test_tokenizer import ANY_TEXT
from text_samples import SAMPLES

from minillm.detokenizer import StreamDecoder
from minillm.errors import InputError
from minillm.loading.sentencepiece import Kind, Piece, merges_of, sentencepiece_backend
from minillm.tokenizer import Tokenizer

BYTES = [Piece(f"<0x{byte:02X}>", 0.0, Kind.BYTE) for byte in range(256)]
SPECIALS = [Piece("<unk>", 0.0, Kind.UNKNOWN), Piece("<s>", 0.0, Kind.CONTROL), Piece("</s>", 0.0, Kind.CONTROL)]
RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))["sentencepiece"]


def joined(text: str, pieces: list[Piece]) -> list[str]:
    """The definition: of all neighbours whose union is a piece, join the best, the leftmost of equals; till none is."""
    scores = {piece.text: piece.score for piece in pieces if piece.kind == Kind.NORMAL}
    parts = list(text.replace(" ", "▁"))
    while True:
        unions = [(left + right, at) for at, (left, right) in enumerate(pairwise(parts))]
        possible = [(-scores[union], at) for union, at in unions if union in scores]
        if not possible:
            break
        _, at = min(possible)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [spelled for part in parts for spelled in ([part] if part in scores else _in_bytes(part))]


def _in_bytes(part: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in part.encode()]


@st.composite
def vocabularies(draw: st.DrawFn) -> list[Piece]:
    """Letters, and up to 30 unions of what is there already, in any order of scores."""
    letters = list(draw(st.sampled_from(["▁ab", "▁abc", "▁ab<s>/"])))
    texts = letters.copy()
    for _ in range(draw(st.integers(0, 30))):
        union = draw(st.sampled_from(texts)) + draw(st.sampled_from(texts))
        if len(union) < 9 and union not in (*texts, "<s>", "</s>"):
            texts.append(union)
    ranks = draw(st.permutations(range(len(texts))))
    return [*SPECIALS, *BYTES, *(Piece(text, -float(rank), 1) for text, rank in zip(texts, ranks, strict=True))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pieces=vocabularies(), texts=st.lists(st.text("aaabbc <s>/é", max_size=16), min_size=5, max_size=5))
def test_any_vocabulary_joins_as_sentencepiece_does(pieces: list[Piece], texts: list[str]) -> None:
    backend = sentencepiece_backend(pieces, space_prefix=False)
    for text in texts:
        assert backend.encode(text).tokens == joined(text, pieces)


def test_merges_are_listed_by_score_and_the_longer_left_part_first() -> None:
    texts = ["hell", "he", "ll", "hel", *"hel"]
    pieces = [*SPECIALS, *(Piece(text, -float(rank), Kind.NORMAL) for rank, text in enumerate(texts))]
    expected = [("hel", "l"), ("he", "ll"), ("h", "e"), ("l", "l"), ("he", "l")]
    assert list(merges_of(pieces)) == expected


def test_a_text_that_reads_like_a_control_token_is_not_joined_to_one() -> None:
    spelled = [
        Piece(text, -1.0, Kind.NORMAL) for text in ("<", "s", ">", "/", "<s", "s>", "</", "0", "x", "A", "<0x0A")
    ]
    backend = sentencepiece_backend([*SPECIALS, *BYTES, *spelled], space_prefix=False)
    assert backend.encode("<s>").tokens == ["<s", ">"]
    assert backend.encode("</s>").tokens == ["</", "s>"]
    assert backend.encode("<0x0A>").tokens == ["<", "0", "x", "0", "A", ">"]


def test_pieces_of_equal_scores_are_joined_in_the_order_of_their_ids() -> None:
    """Converters without SentencePiece's file gave every piece the same score; ids are the order of the training."""
    pieces = [*SPECIALS, *BYTES, *(Piece(text, -1000.0, 1) for text in ("a", "b", "c", "bc", "ab", "abc"))]
    assert sentencepiece_backend(pieces, space_prefix=False).encode("abc").tokens == ["abc"]
    assert sentencepiece_backend(pieces, space_prefix=False).encode("xabb").tokens[1:] == ["ab", "b"]


# --- As a tokenizer


def tokenizer_with(template: str | None = None, **more: Any) -> Tokenizer:
    """The recorded vocabulary, as a GGUF file holds it."""
    keys = ("tokens", "scores", "token_type")
    metadata = metadata_of({key: RECORDED[key] for key in keys}, **more)
    return Tokenizer.from_gguf(metadata | ({"tokenizer.chat_template": template} if template else {}))


@pytest.mark.parametrize("prefix", [True, False])
def test_every_sample_comes_back_and_streams_as_it_decodes(prefix: bool) -> None:
    tokenizer = tokenizer_with(add_space_prefix=prefix)
    for text in [text for text in SAMPLES if len(text) < 90]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == tokenizer._backend.decode(ids) == text.replace("▁", " ")
        stream = StreamDecoder(tokenizer)
        assert "".join(map(stream.add, ids)) + stream.flush() == tokenizer.decode(ids)


UNPREFIXED = tokenizer_with(add_space_prefix=False)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=ANY_TEXT)
def test_any_text_comes_back(text: str) -> None:
    assert UNPREFIXED.decode(UNPREFIXED.encode(text)) == text.replace("▁", " ")


def test_a_text_begins_with_the_bos_token_unless_the_file_says_otherwise() -> None:
    assert tokenizer_with().encode("hi")[0] == 1
    assert tokenizer_with(add_bos_token=False).encode("hi") == tokenizer_with().encode("hi")[1:]
    assert tokenizer_with(add_eos_token=True).encode("hi") == [*tokenizer_with().encode("hi"), 2]
    assert tokenizer_with().encode("") == [1]


def test_ids_that_a_file_does_not_state_are_llamas() -> None:
    tokenizer = tokenizer_with(bos_token_id=0, eos_token_id=0)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 0)
    keys = ("tokens", "scores", "token_type")
    silent = {f"tokenizer.ggml.{key}": RECORDED[key] for key in keys} | {"tokenizer.ggml.model": "llama"}
    assert Tokenizer.from_gguf(silent).special_tokens == {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def test_special_text_stays_text_and_user_defined_tokens_are_found() -> None:
    tokenizer = tokenizer_with()
    for text in ("<s>", "a</s>b", "<unk> <0x0A>"):
        ids = tokenizer.encode(text)
        assert not {0, 2} & set(ids)
        assert ids.count(1) == 1, "the one at the beginning"
        assert tokenizer.decode(ids) == text
    tool = tokenizer.token_to_id("<tool>")
    assert tool in tokenizer.encode("a<tool>b")
    assert tokenizer.decode(tokenizer.encode("a <tool>"), skip_special_tokens=True).endswith("<tool>")


def test_a_chat_begins_with_bos_once_and_a_user_ends_no_turn() -> None:
    turn = "[INST] {{ messages[0].content }} [/INST]"
    for template in (turn, "{{ bos_token }}" + turn):
        tokenizer = tokenizer_with(template)
        ids = tokenizer.encode_chat([{"role": "user", "content": "hi</s><s>"}])
        assert [i for i in ids if i in tokenizer.special_ids] == [1]
        assert ids[0] == 1
        assert "</s><s>" in tokenizer.decode(ids)
    assert tokenizer_with(turn, add_bos_token=False).encode_chat([{"role": "user", "content": "hi"}])[0] != 1


def test_phi3s_special_tokens_swallow_the_white_space_behind_them() -> None:
    keys = ("tokens", "scores", "token_type")
    metadata = metadata_of({key: RECORDED[key] for key in keys}) | {"general.architecture": "phi3"}
    plain, phi3 = tokenizer_with(), Tokenizer.from_gguf(metadata)
    for text, same_as in (("</s>\n a", "</s>a"), ("<tool>  b</s>", "<tool>b</s>")):
        assert phi3._backend.encode(text).ids == plain._backend.encode(same_as).ids
    assert phi3._backend.encode("<s>\na").ids == plain._backend.encode("<s>\na").ids


def test_what_no_piece_spells_is_the_unknown_token_where_there_are_no_bytes() -> None:
    pieces = [SPECIALS[0], Piece("a", -1.0, Kind.NORMAL)]
    assert sentencepiece_backend(pieces, space_prefix=False).encode("aé").tokens == ["a", "<unk>"]


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([*SPECIALS, *BYTES, Piece("a", 0.0, 1), Piece("a", 0.0, 1)], "twice"),
        ([Piece("a", 0.0, 1), *BYTES[1:]], "neither an unknown token nor all 256"),
    ],
)
def test_vocabularies_that_cannot_spell_are_refused(pieces: list[Piece], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        sentencepiece_backend(pieces, space_prefix=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"scores": None}, "tokenizer.ggml.scores"),
        ({"scores": [1.0]}, "1 scores"),
        ({"scores": [float("nan")] * len(RECORDED["tokens"])}, "not a number"),
        ({"add_space_prefix": "yes"}, "add_space_prefix"),
        ({"tokens": [1] * len(RECORDED["tokens"])}, "not text"),
        ({"bos_token_id": 10**7}, "bos_token_id"),
    ],
)
def test_metadata_that_cannot_be_used_is_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        tokenizer_with(**changes)
