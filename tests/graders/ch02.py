"""Graders of chapter 2: bytes, merges, and special tokens."""

from graders.ch02_bpe import MERGE_PAIR
from graders.ch02_bytes import BYTE_LEVEL_ALPHABET
from graders.ch02_count import COUNT_PAIRS
from graders.ch02_special import SPLIT_AT_UNMARKED
from graders.ch02_word import MERGE_WORD

GRADERS = {
    "2.1": BYTE_LEVEL_ALPHABET,
    "2.2": COUNT_PAIRS,
    "2.3": MERGE_PAIR,
    "2.4": MERGE_WORD,
    "2.5": SPLIT_AT_UNMARKED,
}
