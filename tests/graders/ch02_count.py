"""2.2: counting pairs. Wanted values are worked by hand."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

from graders.ch02_bpe import NOTHING, Pair, pair_of, split
from graders.common import CHANGED, UNTOUCHED
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

Words = Mapping[tuple[bytes, ...], int]


def _counting(given: str, words: dict[str, int], want: dict[str, int]) -> Case:
    def observe(f: Function) -> Observation:
        mine = {split(word): count for word, count in words.items()}
        before = dict(mine)
        counts = f(mine)
        return {
            "the counts": _counts_in_words(counts),
            "the words afterwards": UNTOUCHED if mine == before else CHANGED,
        }

    wanted = _counts_in_words({pair_of(pair): count for pair, count in want.items()})
    return Case(given, observe, lambda: {"the counts": wanted, "the words afterwards": UNTOUCHED})


def _counts_in_words(counts: Any) -> str:
    """Counts compare and are read as a text, in one order."""
    if not isinstance(counts, Mapping):
        return NOTHING if counts is None else f"no dict, but {in_words(counts)}"
    told = [f"{_key_in_words(key)}: {_count_in_words(count)}" for key, count in counts.items()]
    return ", ".join(sorted(told)) or "no pairs"


def _key_in_words(key: Any) -> str:
    pair = isinstance(key, tuple) and len(key) == 2 and all(isinstance(token, bytes) for token in key)
    return f"({key[0].decode()}, {key[1].decode()})" if pair else repr(key)


def _count_in_words(count: Any) -> str:
    """Of a dict in the dict, whatever its kind, what it holds."""
    return f"{{{_counts_in_words(count)}}}" if isinstance(count, Mapping) else repr(count)


def _pairs_counted(pairs_of_word: Callable[[tuple[bytes, ...]], Iterable[Any]]) -> Function:
    def count(words: Words) -> Counter[Any]:
        counts: Counter[Any] = Counter()
        for tokens, occurrences in words.items():
            for pair in pairs_of_word(tokens):
                counts[pair] += occurrences
        return counts

    return count


def _overwriting(words: Words) -> dict[Pair, int]:
    return {pair: occurrences for tokens, occurrences in words.items() for pair in pairwise(tokens)}


def _across_words(words: Words) -> Counter[Pair]:
    return Counter(pairwise([token for tokens, count in words.items() for _ in range(count) for token in tokens]))


def _across_words_unweighted(words: Words) -> Counter[Pair]:
    return Counter(pairwise([token for tokens in words for token in tokens]))


def _not_overlapping(tokens: tuple[bytes, ...]) -> Iterable[Pair]:
    last: tuple[Pair, int] | None = None
    for position, pair in enumerate(pairwise(tokens)):
        if last != (pair, position - 1):
            last = (pair, position)
            yield pair


def _looking_back(tokens: tuple[bytes, ...]) -> Iterable[Pair]:
    return [(tokens[i - 1], tokens[i]) for i in range(len(tokens))]


def _emptying(words: Any) -> Counter[Pair]:
    counts: Counter[Pair] = Counter()
    while words:
        tokens, occurrences = words.popitem()
        for pair in pairwise(tokens):
            counts[pair] += occurrences
    return counts


def _nested(words: Words) -> dict[bytes, Counter[bytes]]:
    counts: dict[bytes, Counter[bytes]] = defaultdict(Counter)
    for (left, right), count in _flattened(words).items():
        counts[left][right] += count
    return counts


def _also_what_never_occurs(words: Words) -> dict[Pair, int]:
    tokens = sorted({token for word in words for token in word})
    return dict.fromkeys(itertools.product(tokens, repeat=2), 0) | _flattened(words)


def _flattened(words: Words) -> Counter[Pair]:
    return Counter(pair for tokens, count in words.items() for pair in [*pairwise(tokens)] * count)


def _with_a_defaultdict(words: Words) -> dict[Pair, int]:
    counts: dict[Pair, int] = defaultdict(int)
    for tokens in words:
        for i in range(len(tokens) - 1):
            counts[tokens[i], tokens[i + 1]] += words[tokens]
    return counts


COUNT_PAIRS = Grader(
    cases=[
        _counting("l o (5 times), l o w (2 times)", {"l o": 5, "l o w": 2}, {"l o": 7, "o w": 2}),
        _counting("a a a (3 times), b (4 times)", {"a a a": 3, "b": 4}, {"a a": 6}),
        _counting(
            "b a n a n a (2 times)",
            {"b a n a n a": 2},
            {"b a": 2, "a n": 4, "n a": 4},
        ),
        _counting("ab c (2 times), a bc (3 times)", {"ab c": 2, "a bc": 3}, {"ab c": 2, "a bc": 3}),
        _counting("x y (1 time), y x (2 times)", {"x y": 1, "y x": 2}, {"x y": 1, "y x": 2}),
        _counting("no words at all", {}, {}),
    ],
    mutants=[
        Mutant(
            lambda words: Counter(pair for tokens in words for pair in pairwise(tokens)),
            "You count each word once. A word that occurs five times in the text holds its pairs five times: add the"
            " word's count, and not 1.",
        ),
        Mutant(
            _overwriting,
            "A later word overwrites what an earlier one has counted for the same pair: add, with +=.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: set(pairwise(tokens))),
            "You count a pair once per word, however often the word holds it: banana has (a, n) twice.",
        ),
        Mutant(
            _across_words,
            "You count across the borders of words: the last token of one and the first of the next make a pair. Words"
            " are merged each for itself, so such a pair could never be merged.",
        ),
        Mutant(
            _across_words_unweighted,
            "You string all words together, so that pairs arise across their borders; and each word is in it only once,"
            " however often it occurs.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: [tuple(sorted(pair)) for pair in pairwise(tokens)]),
            "You count (x, y) and (y, x) as one. A pair has an order: a merge joins left to right.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: [left + right for left, right in pairwise(tokens)]),
            "You count the joined text, b'ab' + b'c'. The key is the pair, a tuple of two: (ab, c) and (a, bc) join to"
            " the same text, and are two merges.",
        ),
        Mutant(
            _pairs_counted(_not_overlapping),
            "You leave out pairs that overlap: in a, a, a there are two pairs of neighbours. (That only one of them can"
            " be merged is the next exercise's affair.)",
        ),
        Mutant(
            _pairs_counted(lambda tokens: pairwise(bytes([byte]) for byte in b"".join(tokens))),
            "You go back to single bytes. Neighbours are tokens, which after some merges are longer than a byte: what"
            " has been merged is not taken apart again.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: itertools.combinations(tokens, 2)),
            "You pair each token with every later one. Only neighbours can be merged.",
        ),
        Mutant(
            _pairs_counted(_looking_back),
            "tokens[i - 1] with i = 0 is the word's *last* token, so each word gets a pair that goes round its end:"
            " begin with i = 1.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: [(tokens[i], tokens[i + 1]) for i in range(len(tokens) - 2)]),
            "The last pair of each word is missing: n tokens have n - 1 pairs.",
        ),
        Mutant(
            _pairs_counted(lambda tokens: [(tokens[i], tokens[i + 1]) for i in range(len(tokens))]),
            "tokens[i + 1] goes past the word's end: n tokens have n - 1 pairs.",
            begins="IndexError",
        ),
        Mutant(
            _pairs_counted(lambda tokens: zip(tokens[::2], tokens[1::2], strict=False)),
            "You step by two, so that each token is in one pair only. Neighbouring pairs share a token: b, a, n has"
            " (b, a) and (a, n).",
        ),
        Mutant(
            _also_what_never_occurs,
            "You list pairs that do not occur, with a count of 0. `train` takes the best pair there is: where nothing"
            " is left to merge, it would go on and learn one that no text holds.",
        ),
        Mutant(
            _emptying,
            "The counts are right, but the words that you were given are changed. They are needed: the pair that comes"
            " out best is merged in them next. Go over words.items(), and leave them.",
        ),
        Mutant(
            _nested,
            "That is a dict of dicts, by the left token and then by the right one. One dict is wanted, whose keys are"
            " pairs: counts[left, right].",
        ),
        Mutant(lambda words: None, "Nothing comes back: the function ends without `return counts`."),
        Mutant(
            lambda words: max(_flattened(words), key=_flattened(words).__getitem__, default=None),
            "That is the most frequent pair. All of them are wanted here, each with its count; `train` chooses.",
            begins="ValueError: max()",
        ),
        Mutant(
            lambda words: _flattened(words).most_common(),
            "That is a list. A Counter (or a dict) is wanted, from pair to count.",
        ),
    ],
    alternatives=[_flattened, _with_a_defaultdict],
)
