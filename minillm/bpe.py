"""Byte-level BPE from scratch: how the ids of a text come about. Slow, and exact.

The request path does not run this file: `tokenizer.py` wraps the `tokenizers` library, which does the same in Rust,
several times faster (the notebook of chapter 2 measures by how much). Here is what it does, in the order of reading:

    text --pre_tokenize--> words --bytes--> single bytes --merge_word--> tokens --vocabulary--> ids

and `train`, which found out, once and for all, what may be merged. Sources: Sennrich et al. 2016 (merging pairs),
Radford et al. 2019 (bytes in the place of characters). Checked against the `tokenizers` library, ids and merges.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from minillm.errors import InputError, MissingError
from minillm.special_text import check_text
from minillm.token_bytes import ByteLevelCodec, byte_level_alphabet

Pair = tuple[bytes, bytes]

# What Unicode calls White_Space. Python's own \s has four controls more (U+001C to U+001F).
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"

# How SmolLM2's tokenizer.json says that text is cut: the two steps of `pre_tokenize`.
_SMOLLM2_STEPS = [("Digits", "individual_digits", True), ("ByteLevel", "add_prefix_space", False)]


@dataclass(frozen=True)
class BytePairEncoding:
    """A trained encoding: the id of each token, and the rank of each merge (0 was learned first)."""

    vocabulary: Mapping[bytes, int]
    ranks: Mapping[Pair, int]

    @classmethod
    def from_file(cls, path: Path) -> "BytePairEncoding":
        """Read a tokenizer.json whose words are cut as SmolLM2's are.

        Raises:
            MissingError: there is no such file.
            InputError: it describes another kind of tokenizer.
        """
        stated = _read_checked(Path(path))
        codec = ByteLevelCodec(byte_level_alphabet())

        def bytes_of(token: str) -> bytes:
            return codec.to_bytes(token, is_added=False)

        added = {token["content"] for token in stated["added_tokens"]}
        vocabulary = stated["model"]["vocab"].items()
        merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in stated["model"]["merges"])
        return cls(
            vocabulary={bytes_of(token): token_id for token, token_id in vocabulary if token not in added},
            ranks={(bytes_of(left), bytes_of(right)): rank for rank, (left, right) in enumerate(merges)},
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`. Special tokens in it are text.

        Raises:
            InputError: `text` is not valid Unicode, or holds a byte that the vocabulary lacks.
        """
        check_text(text, "the text")
        return [self._id_of(token) for word in pre_tokenize(text) for token in self._tokens_of(word)]

    def _tokens_of(self, word: str) -> list[bytes]:
        return merge_word(_single_bytes(word), self.ranks)

    def _id_of(self, token: bytes) -> int:
        if token not in self.vocabulary:
            raise InputError(f"the vocabulary has no token for the bytes {token.hex(' ').upper()}; leave them out")
        return self.vocabulary[token]


def pre_tokenize(text: str) -> list[str]:
    """Cut `text` into words, the borders that no merge will cross; joined again, they are the text.

    Each digit is a word. What lies between digits is cut by GPT-2's pattern: English contractions; letters, numbers
    or other signs, each with one space before; white space, of which the last leaves to the word that follows.
    What is a letter, this Python's Unicode tables say: a character that is younger may be cut otherwise by the library.
    """
    parts = re.split(f"([{_category('N')}])", text)
    return [word for part in parts for word in _gpt2_pattern().findall(part)]


@cache
def _gpt2_pattern() -> re.Pattern[str]:
    letter, number = _category("L"), _category("N")
    return re.compile(
        "'(?:[stmd]|re|ve|ll)"
        rf"| ?[{letter}]+| ?[{number}]+| ?[^{_SPACE}{letter}{number}]+"
        rf"|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
    )


@cache
def _category(major: str) -> str:
    r"""All characters of a Unicode category ("L" letters, "N" numbers), to be put between [ and ]: Python's `re` has
    no \p{L}.
    """
    codes = [code for code in range(0x110000) if unicodedata.category(chr(code))[0] == major]
    starts = [code for before, code in pairwise([-2, *codes]) if code != before + 1]
    ends = [code for code, after in pairwise([*codes, 0x110001]) if after != code + 1]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


def merge_word(tokens: Sequence[bytes], ranks: Mapping[Pair, int]) -> list[bytes]:
    """Merge neighbours until no pair of them has a rank: of all pairs, always the one with the lowest.

    tokens: a word's single bytes. ranks: what may be merged, and how early it was learned.
    """
    merged = list(tokens)
    while known := [pair for pair in pairwise(merged) if pair in ranks]:
        merged = merge_pair(merged, min(known, key=ranks.__getitem__))
    return merged


def merge_pair(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Join the two tokens of `pair` wherever they stand side by side, from left to right; a token that has been joined
    is not joined again: of three in a row, the first two.
    """
    merged: list[bytes] = []
    position = 0
    while position < len(tokens):
        found = tuple(tokens[position : position + 2]) == pair
        merged.append(pair[0] + pair[1] if found else tokens[position])
        position += 2 if found else 1
    return merged


def count_pairs(words: Mapping[tuple[bytes, ...], int]) -> Counter[Pair]:
    """How often does each pair of neighbours occur in a text?

    words: the text's words, each as its tokens, and how often the word occurs. Pairs lie inside a word; one that
    occurs twice in it counts twice.
    """
    counts: Counter[Pair] = Counter()
    for tokens, occurrences in words.items():
        for pair in pairwise(tokens):
            counts[pair] += occurrences
    return counts


def train(texts: Iterable[str], num_merges: int) -> list[Pair]:
    """Learn merges: count pairs, merge the most frequent one everywhere, and again. Fewer where nothing is left.

    Of pairs that are equally frequent, the one whose parts are older comes first, as in the `tokenizers` library: the
    bytes in the order of their stand-in characters (see `token_bytes.py`), then the merged ones in theirs.

    Raises:
        InputError: `texts` is a single text, or one of them is not valid Unicode.
    """
    if isinstance(texts, str):
        raise InputError("train takes several texts: [text], where there is only one")
    alphabet = byte_level_alphabet()
    age = {bytes([alphabet[character]]): number for number, character in enumerate(sorted(alphabet))}
    occurrences = Counter(word for text in texts for word in _checked_words(text))
    words = {tuple(_single_bytes(word)): count for word, count in occurrences.items()}
    merges: list[Pair] = []
    while len(merges) < num_merges and (counts := count_pairs(words)):
        best = min(counts, key=lambda pair: (-counts[pair], age[pair[0]], age[pair[1]]))
        merges.append(best)
        age.setdefault(best[0] + best[1], len(age))
        words = {tuple(merge_pair(tokens, best)): count for tokens, count in words.items()}
    return merges


def _single_bytes(word: str) -> list[bytes]:
    return [bytes([byte]) for byte in word.encode()]


def _checked_words(text: str) -> list[str]:
    check_text(text, "a text to learn from")
    return pre_tokenize(text)


def _read_checked(path: Path) -> dict[str, Any]:
    """Read a tokenizer.json; refuse one whose ids would come out otherwise here."""
    if not path.is_file():
        raise MissingError(f"there is no file {path}; give the path of a tokenizer.json")
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        alike = _is_like_smollm2s(stated)
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not JSON, or not of a tokenizer
        raise InputError(f"{path} is not a tokenizer.json that can be read: {error!r}") from error
    if not alike:
        raise InputError(
            f"{path} describes another kind of tokenizer than SmolLM2's (digits one by one, GPT-2's words, byte-level"
            " BPE), which is all that bpe.py knows; minillm.tokenizer reads the others"
        )
    return stated


def _is_like_smollm2s(stated: Mapping[str, Any]) -> bool:
    """Whether words are cut and merged as SmolLM2's tokenizer does, with nothing before, between or added to it."""
    steps = (stated["pre_tokenizer"] or {}).get("pretokenizers", [])
    cut_alike = len(steps) == len(_SMOLLM2_STEPS) and all(
        step["type"] == kind and step.get(setting) == value and step.get("use_regex", True)
        for step, (kind, setting, value) in zip(steps, _SMOLLM2_STEPS, strict=True)
    )
    model = stated["model"]
    unknown = ("ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix")
    merged_alike = model["type"] == "BPE" and not any(model.get(setting) for setting in unknown)
    only_special = all(token["special"] for token in stated["added_tokens"])
    return cut_alike and merged_alike and only_special and stated["normalizer"] is None
