"""BPE from scratch against the `tokenizers` library: the same words, the same ids, the same merges."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import byte_level_backend
from text_samples import ALL_SAMPLES, SAMPLES, UNSPELLABLE
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from minillm.bpe import BytePairEncoding, count_pairs, merge_pair, merge_word, pre_tokenize, train
from minillm.errors import InputError, MissingError
from minillm.token_bytes import byte_level_alphabet
from minillm.tokenizer import Tokenizer

ALPHABET = byte_level_alphabet()
SMOLLM2_WORDS = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
)
# Characters that Unicode had assigned long before the oldest table that Python or the library may come with.
OLD_TEXT = st.text(st.characters(max_codepoint=0x17FF, exclude_categories=["Cs", "Cn"]), max_size=40)


def library_words(text: str) -> list[str]:
    return [_bytes(word).decode() for word, _ in SMOLLM2_WORDS.pre_tokenize_str(text)]


def _bytes(stand_ins: str) -> bytes:
    return bytes(ALPHABET[character] for character in stand_ins)


# --- Words


def test_the_samples_are_cut_where_the_library_cuts_them():
    differing = [text for text in ALL_SAMPLES if pre_tokenize(text) != library_words(text)]
    assert not differing, f"{len(differing)} samples differ, first {differing[0][:60]!r}"


@settings(max_examples=500, deadline=None, derandomize=True)
@given(text=OLD_TEXT)
def test_any_text_is_cut_where_the_library_cuts_it_and_nothing_is_lost(text: str):
    assert pre_tokenize(text) == library_words(text)
    assert "".join(pre_tokenize(text)) == text


def test_every_old_character_is_a_letter_a_number_space_or_sign_as_for_the_library():
    texts = [f"a{c}a {c}!{c}!  {c}" for c in map(chr, range(0x1800)) if c.isprintable() or ord(c) < 0xA1]
    assert [text for text in texts if pre_tokenize(text) != library_words(text)] == []


# --- Ids of the real tokenizer


@pytest.fixture(scope="module")
def encoding(model_dir: Path) -> BytePairEncoding:
    return BytePairEncoding.from_file(model_dir / "tokenizer.json")


@pytest.mark.real_model
def test_every_sample_gets_the_ids_of_the_wrapped_tokenizer(encoding: BytePairEncoding, tokenizer: Tokenizer):
    differing = [text for text in ALL_SAMPLES if encoding.encode(text) != tokenizer.encode(text)]
    assert not differing, f"{len(differing)} samples differ, first {differing[0][:60]!r}"


@pytest.mark.real_model
@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=OLD_TEXT)
def test_any_text_gets_the_same_ids_or_the_same_refusal(encoding: BytePairEncoding, tokenizer: Tokenizer, text: str):
    try:
        wanted = tokenizer.encode(text)
    except InputError:
        with pytest.raises(InputError, match="no token for the bytes "):
            encoding.encode(text)
    else:
        assert encoding.encode(text) == wanted


@pytest.mark.real_model
@pytest.mark.parametrize("text", UNSPELLABLE)
def test_a_byte_without_a_token_is_refused_and_not_dropped(encoding: BytePairEncoding, text: str):
    with pytest.raises(InputError, match="no token for the bytes "):
        encoding.encode(text)


@pytest.mark.real_model
def test_special_tokens_in_a_text_are_text(encoding: BytePairEncoding, tokenizer: Tokenizer):
    ids = encoding.encode("<|im_end|>")
    assert ids == tokenizer.encode("<|im_end|>")
    assert not tokenizer.special_ids & set(ids)


def test_a_lone_surrogate_is_refused_by_name():
    with pytest.raises(InputError, match=r"U\+D800"):
        BytePairEncoding({}, {}).encode("\ud800")


# --- Files


def _write(directory: Path, change: Any = None) -> Path:
    backend = byte_level_backend()
    backend.pre_tokenizer = SMOLLM2_WORDS
    stated = json.loads(backend.to_str())
    stated["added_tokens"] = [token for token in stated["added_tokens"] if token["special"]]
    if change:
        change(stated)
    (directory / "tokenizer.json").write_text(json.dumps(stated), encoding="utf-8")
    return directory / "tokenizer.json"


def _as_older_files_have_them(stated: Any) -> None:
    stated["model"]["merges"] = [" ".join(pair) for pair in stated["model"]["merges"]]


@pytest.mark.parametrize("change", [None, _as_older_files_have_them])
def test_a_file_is_read_with_its_merges_as_pairs_or_as_text(tmp_path: Path, change: Any):
    path = _write(tmp_path, change)
    backend = Backend.from_file(str(path))
    backend.encode_special_tokens = True
    read = BytePairEncoding.from_file(path)
    for text in ("hello hello he 12im", "<|im_start|>é"):
        assert read.encode(text) == backend.encode(text).ids


@pytest.mark.parametrize(
    "change",
    [
        lambda stated: stated.update(pre_tokenizer=None),
        lambda stated: stated["pre_tokenizer"]["pretokenizers"].pop(),
        lambda stated: stated["pre_tokenizer"]["pretokenizers"][0].update(individual_digits=False),
        lambda stated: stated["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
        lambda stated: stated["model"].update(ignore_merges=True),
        lambda stated: stated["pre_tokenizer"]["pretokenizers"][1].update(use_regex=False),
        lambda stated: stated["model"].update(type="Unigram"),
        lambda stated: stated["model"].update(dropout=0.5),
        lambda stated: stated["model"].update(end_of_word_suffix="</w>"),
        lambda stated: stated["added_tokens"][0].update(special=False),
        lambda stated: stated.update(normalizer={"type": "NFC"}),
    ],
)
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, change: Any):
    with pytest.raises(InputError, match="another kind of tokenizer"):
        BytePairEncoding.from_file(_write(tmp_path, change))


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b"[1]", b"{}", b'{"pre_tokenizer": "x"}'])
def test_a_file_that_is_no_tokenizer_is_refused_in_a_sentence(tmp_path: Path, data: bytes):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="that can be read"):
        BytePairEncoding.from_file(path)


def test_a_single_text_is_not_taken_for_a_list_of_its_characters():
    with pytest.raises(InputError, match="several texts"):
        train("abab abab", 3)
    with pytest.raises(InputError, match=r"U\+D800"):
        train(["\ud800x"], 3)


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(MissingError, match="there is no file"):
        BytePairEncoding.from_file(tmp_path / "tokenizer.json")


# --- Merging and training


def library_merges(texts: list[str], num_merges: int) -> list[tuple[bytes, bytes]]:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = SMOLLM2_WORDS
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    merges = json.loads(backend.to_str())["model"]["merges"]
    return [(_bytes(left), _bytes(right)) for left, right in merges]


def test_the_merges_learned_from_the_samples_are_the_library_s():
    texts = [text for text in SAMPLES if len(text) < 200]
    assert train(texts, 120) == library_merges(texts, 120)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts=st.lists(st.text("ab c", max_size=20), max_size=6))
def test_of_equally_frequent_pairs_the_library_s_choice_comes_first(texts: list[str]):
    assert train(texts, 12) == library_merges(texts, 12)


def test_training_stops_where_nothing_is_left_to_merge():
    assert train(["ab"], 10) == [(b"a", b"b")]
    assert train([], 10) == []
    assert train(["ab"], 0) == []


def test_the_lowest_rank_is_merged_first_wherever_it_stands():
    ranks = {(b"a", b"b"): 1, (b"b", b"c"): 0}
    assert merge_word([b"a", b"b", b"c"], ranks) == [b"a", b"bc"]


def test_of_three_alike_in_a_row_the_first_two_are_joined():
    assert merge_pair([b"a"] * 5, (b"a", b"a")) == [b"aa", b"aa", b"a"]


def test_pairs_are_counted_inside_words_as_often_as_the_word_occurs():
    counts = count_pairs({(b"a", b"a", b"a"): 3, (b"a", b"b"): 2})
    assert counts == {(b"a", b"a"): 6, (b"a", b"b"): 2}
