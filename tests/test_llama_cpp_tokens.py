"""Tokenizers built from GGUF metadata give llama.cpp's tokens, recorded by `llama_cpp_tokens.py`."""

import json
import re
import unicodedata
from typing import Any

import pytest
from llama_cpp_tokens import BYTE_LEVEL_NAMES, RECORD, metadata_of

from minillm.loading.gguf_words import KNOWN_NAMES
from minillm.tokenizer import Tokenizer

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
TEXTS = RECORDED["texts"]
BYTE_LEVEL, SENTENCEPIECE = RECORDED["byte_level"], RECORDED["sentencepiece"]
KEYS = ("tokens", "merges", "scores", "token_type")


def tokenizer_of(recorded: dict[str, Any], **more: Any) -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of({key: recorded[key] for key in KEYS if key in recorded}, **more))


def differing(tokenizer: Tokenizer, answers: list[list[int]]) -> list[str]:
    given = zip(TEXTS, answers, strict=True)
    return [text for text, answer in given if tokenizer.encode(text, add_special_tokens=False) != answer]


# Where a published tokenizer.json says otherwise than llama.cpp's approximation of it, ours is the published one.
def is_known_to_differ(name: str, text: str) -> bool:
    if name == "qwen2":  # its normalizer; llama.cpp has none
        return unicodedata.normalize("NFC", text) != text
    if name == "tekken":  # a combining mark belongs to its word; llama.cpp takes letters only
        return any(unicodedata.category(character).startswith("M") for character in text)
    if name == "smaug-bpe":  # SmolLM3's "ignore_merges"; llama.cpp merges
        return text.endswith("unreached")
    if name == "deepseek-llm":  # digits one by one; llama.cpp lets its vocabulary see to that
        return re.search(r"\d\d", text) is not None
    return False


def test_every_name_has_its_answers() -> None:
    assert set(KNOWN_NAMES) == set(BYTE_LEVEL_NAMES) == set(BYTE_LEVEL["names"])


def test_the_texts_tell_the_rules_apart() -> None:
    assert len(BYTE_LEVEL["answers"]) == 9
    alike = [{n for n, a in BYTE_LEVEL["names"].items() if a == answer} for answer in range(9)]
    assert {"llama-bpe", "llama3", "llama-v3"} in alike
    assert {"smollm", "refact", "starcoder"} in alike
    assert {"qwen2", "deepseek-r1-qwen"} in alike


@pytest.mark.parametrize("name", BYTE_LEVEL_NAMES)
def test_byte_level_vocabularies_are_cut_as_llama_cpp_cuts_them(name: str) -> None:
    answers = BYTE_LEVEL["answers"][BYTE_LEVEL["names"][name]]
    texts = differing(tokenizer_of(BYTE_LEVEL, pre=name), answers)
    assert [text for text in texts if not is_known_to_differ(name, text)] == []
    assert len(texts) < 13, "nearly all texts are alike"


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_vocabularies_give_llama_cpps_tokens(prefix: bool) -> None:
    answers = SENTENCEPIECE["with_prefix" if prefix else "without_prefix"]
    assert differing(tokenizer_of(SENTENCEPIECE, add_space_prefix=prefix), answers) == []


def test_special_tokens_amid_sentencepiece_text_are_followed_by_a_space_as_in_llama_cpp() -> None:
    encode = tokenizer_of(SENTENCEPIECE)._backend.encode
    ids = [encode(text, add_special_tokens=False).ids for text in SENTENCEPIECE["special_texts"]]
    assert ids == SENTENCEPIECE["special"]
