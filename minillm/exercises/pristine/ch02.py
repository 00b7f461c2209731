"""Exercises of chapter 2, *Text becomes tokens*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 2           grades this file and shows where you are
    pytest --ch 2.3         grades one exercise
    pytest --hint 2.3       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

In 2.2 to 2.4 a token is a `bytes` object (b"th"), a word is a sequence of tokens, and a `Pair` is a tuple of two
tokens: (b"t", b"h").
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise  # noqa: F401 - here for you

from minillm.bpe import Pair
from minillm.exercises import todo
from minillm.special_text import without_mark  # noqa: F401 - here for you


# --- 2.1 -------------------------------------------------------------------------------------------------------------
def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: 256 characters that can be seen, and the byte that each stands for.

    Return a dict from character to byte: {"A": 0x41, ..., "Ġ": 0x20, ...}, 256 entries.

    Bytes that are a visible character of Latin-1 stand for themselves: 0x21 to 0x7E, 0xA1 to 0xAC, and 0xAE to 0xFF
    (`chr(byte)`, both ends included). The 68 others (controls, the space, the no-break space 0xA0, the soft hyphen
    0xAD) take the characters from U+0100 on, one after the other: byte 0x00 is U+0100, byte 0x01 is U+0101, ..., and
    the space, the 33rd of them, is U+0120, which is "Ġ".

    About 5 lines.
    """
    todo("2.1")


# --- 2.2 -------------------------------------------------------------------------------------------------------------
def count_pairs(words: Mapping[tuple[bytes, ...], int]) -> Counter[Pair]:
    """How often does each pair of neighbouring tokens occur in a text? Training merges the most frequent one.

    words: the text, cut into words: each word's tokens, and how often the word occurs in the text. {(b"l", b"o"): 5,
    (b"l", b"o", b"w"): 2} holds (b"l", b"o") seven times and (b"o", b"w") twice.

    Return a Counter (or a dict) from pair to count, only of pairs that occur. A pair lies inside one word: the last
    token of a word and the first of the next are none. A pair that occurs twice in a word counts twice, also where
    the two overlap, as in b"a", b"a", b"a".

    About 5 lines.
    """
    todo("2.2")


# --- 2.3 -------------------------------------------------------------------------------------------------------------
def merge_pair(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Join the two tokens of `pair` wherever they stand side by side.

    tokens: the tokens of one word; a list or a tuple, possibly empty. It is not yours: leave it as it is. pair: the
    two tokens to be joined, in this order.

    Return a new list, in which each such pair of neighbours is one token, left + right, and all else is as before. It
    is a new one also where nothing was to be joined. Go from left to right, and use no token twice: [b"a", b"a", b"a"]
    with the pair (b"a", b"a") is [b"aa", b"a"].

    About 8 lines.
    """
    todo("2.3")


# --- 2.4 -------------------------------------------------------------------------------------------------------------
def merge_word(tokens: Sequence[bytes], ranks: Mapping[Pair, int]) -> list[bytes]:
    """Encode a word: merge its bytes into tokens, in the order in which the merges were learned.

    tokens: the word's single bytes; a list or a tuple, possibly empty. Leave it as it is. ranks: for each pair that
    may be merged, when it was learned: 0 first. A pair that is not in it is never merged. A part that is no single byte
    was learned before the pair: where (b"ab", b"c") has a rank, (b"a", b"b") has a lower one.

    Of all pairs of neighbours that have a rank, merge the one with the lowest, wherever in the word it stands; look at
    the neighbours again, for there are new pairs now; and so on, until none of them has a rank. With the ranks
    {(b"a", b"b"): 1, (b"b", b"c"): 0}, the word a, b, c becomes [b"a", b"bc"]. Return a new list of what is left, also
    where nothing was merged.

    About 4 lines. You may call your 2.3.
    """
    todo("2.4")


# --- 2.5 -------------------------------------------------------------------------------------------------------------
def split_at_unmarked(text: str, special: re.Pattern[str], mark: str) -> list[str]:
    """Which special tokens in a rendered conversation are the template's? Cut the text at those, and at no others.

    text: what a chat template has rendered. Before that, the engine put the character `mark`, which occurs nowhere
    else, into whatever read like a special token in a *user's* words: behind its first character ("<" + mark +
    "|im_end|>"). Special tokens that are still whole were written by the template. One exception: a token of a single
    character has no inside, so a user's has the mark right behind it. A token with the mark right behind it is text.

    special: a compiled pattern that matches any special token; it has no groups. Its source is `special.pattern`.

    Return the list [text, token, text, token, ..., text]: texts at even positions, also where they are empty, and the
    template's tokens at odd ones. The marks have done their work: take them out of every text, with the function
    `without_mark(text, mark)`, which also knows what a template's `tojson` makes of a mark.

    About 2 lines; `re.split` keeps what a group in its pattern matches.
    """
    todo("2.5")
