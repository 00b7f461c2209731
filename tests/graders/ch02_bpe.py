"""2.2 and 2.3: counting pairs, and merging one of them. Wanted values are worked by hand."""

import copy
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from graders.common import CHANGED, UNTOUCHED
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

Words = Mapping[tuple[bytes, ...], int]
Pair = tuple[bytes, bytes]


def split(text: str) -> tuple[bytes, ...]:
    """A word's tokens, from text with spaces between them; "_" is a space in a token."""
    return tuple(token.replace("_", " ").encode() for token in text.split())


def pair_of(text: str) -> Pair:
    """The same, for two tokens."""
    left, right = split(text)
    return left, right


# --- 2.2


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
    """Counts compare and are read as a text, in one order. A count of 0 is as good as none."""
    if not isinstance(counts, Mapping):
        return f"no dict, but {in_words(counts)}"
    told = [f"{_key_in_words(key)}: {count!r}" for key, count in counts.items() if count != 0]
    return ", ".join(sorted(told)) or "no pairs"


def _key_in_words(key: Any) -> str:
    pair = isinstance(key, tuple) and len(key) == 2 and all(isinstance(token, bytes) for token in key)
    return f"({key[0].decode()}, {key[1].decode()})" if pair else repr(key)


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


# --- 2.3


def merging(given: str, arguments: Callable[[], list[Any]], want: str) -> Case:
    """A case of a function whose first argument is a word's tokens, and which gives tokens back."""

    def observe(f: Function) -> Observation:
        mine = arguments()
        before = copy.deepcopy(mine)
        result = f(*mine)
        return {
            "the tokens": _tokens_in_words(result),
            "what was given, afterwards": UNTOUCHED if mine == before else CHANGED,
        }

    wanted = _tokens_in_words(split(want))
    return Case(given, observe, lambda: {"the tokens": wanted, "what was given, afterwards": UNTOUCHED})


def _tokens_in_words(tokens: Any) -> str:
    """Tokens compare and are read as a text. A tuple is as good as a list."""
    if not (isinstance(tokens, list | tuple) and all(isinstance(token, bytes) for token in tokens)):
        return f"no list of tokens, but {in_words(tokens)}"
    return " | ".join(token.decode().replace(" ", "_") for token in tokens) or "none"


def _joining(tokens: str, pair: str, want: str, kind: type = list) -> Case:
    given = f"the {kind.__name__} of tokens {tokens or '(none)'}; the pair ({', '.join(pair.split())})"
    return merging(given, lambda: [kind(split(tokens)), pair_of(pair)], want)


def _first_only(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    for i, found in enumerate(pairwise(tokens)):
        if found == pair:
            return [*tokens[:i], pair[0] + pair[1], *tokens[i + 2 :]]
    return list(tokens)


def _keeping_the_right_part(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    return [pair[0] + pair[1] if tuple(tokens[i : i + 2]) == pair else tokens[i] for i in range(len(tokens))]


def _from_the_right(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    return [token[::-1] for token in _right([t[::-1] for t in tokens[::-1]], (pair[1][::-1], pair[0][::-1]))][::-1]


def _right(tokens: Sequence[bytes], pair: Pair, alike: Callable[[Any, Any], bool] = lambda a, b: a == b) -> list[bytes]:
    """The right answer, but for what it takes for the pair."""
    merged, i = [], 0
    while i < len(tokens):
        found = alike(tuple(tokens[i : i + 2]), pair)
        merged.append(pair[0] + pair[1] if found else tokens[i])
        i += 2 if found else 1
    return merged


def _in_place(tokens: Any, pair: Pair) -> list[bytes]:
    if isinstance(tokens, tuple):
        return _right(tokens, pair)
    tokens[:] = _right(tokens, pair)
    return tokens


def _as_replaced_text(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    joined = b"|".join(tokens).replace(b"|".join(pair), b"".join(pair))
    return joined.split(b"|") if joined else []


def _without_the_last(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged, i = [], 0
    while i < len(tokens) - 1:
        found = tuple(tokens[i : i + 2]) == pair
        merged.append(pair[0] + pair[1] if found else tokens[i])
        i += 2 if found else 1
    return merged


def _past_the_end(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged, i = [], 0
    while i < len(tokens):
        found = tokens[i] == pair[0] and tokens[i + 1] == pair[1]
        merged.append(pair[0] + pair[1] if found else tokens[i])
        i += 2 if found else 1
    return merged


def _shrinking_in_a_for(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged = list(tokens)
    for i in range(len(merged) - 1):
        if (merged[i], merged[i + 1]) == pair:
            merged[i : i + 2] = [pair[0] + pair[1]]
    return merged


def _dropping_the_rest(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    return [token for token in _right(tokens, pair) if token == pair[0] + pair[1]]


def _with_a_stack(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged: list[bytes] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged


def _shrinking_in_a_while(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged, i = list(tokens), 0
    while i < len(merged) - 1:
        if merged[i] == pair[0] and merged[i + 1] == pair[1]:
            merged[i : i + 2] = [b"".join(pair)]
        i += 1
    return merged


MERGE_PAIR = Grader(
    cases=[
        _joining("l o w e r l o", "l o", "lo w e r lo"),
        _joining("a a a", "a a", "aa a"),
        _joining("a a a a a", "a a", "aa aa a", tuple),
        _joining("ab c a bc", "a bc", "ab c abc"),
        _joining("xa b a b", "a b", "xa b ab"),
        _joining("a bc ab c", "ab c", "a bc abc", tuple),
        _joining("b a", "a b", "b a"),
        _joining("_ t h", "_ t", "_t h"),
        _joining("x", "x y", "x"),
        _joining("", "x y", ""),
    ],
    mutants=[
        Mutant(_first_only, "You merge the first occurrence only. The pair is joined wherever it stands."),
        Mutant(
            _keeping_the_right_part,
            "You join the two and then move on by one, so the right one comes again, beside the token that already"
            " holds it. After a join, move on by two.",
        ),
        Mutant(
            _from_the_right,
            "You go from right to left. On most words nobody can tell; in a, a, a it joins the last two instead of the"
            " first, and the ids are not those that the model was trained on.",
        ),
        Mutant(
            lambda tokens, pair: _right(
                tokens, pair, lambda two, pair: len(two) == 2 and b"".join(two) == b"".join(pair)
            ),
            "You compare the joined text. (ab, c) and (a, bc) join to the same text, but they are two merges, and only"
            " one of them is meant.",
        ),
        Mutant(
            _as_replaced_text,
            "You replace in the text of all tokens. That also hits the *end* of a longer token: in xa, b it finds"
            " a, b.",
        ),
        Mutant(
            _without_the_last,
            "The last token is lost where it is not part of a pair: the loop ends one token early.",
        ),
        Mutant(
            _past_the_end,
            "At the last token there is no next one, and tokens[i + 1] is an accident. A slice, tokens[i : i + 2], is"
            " just shorter there.",
            begins="IndexError",
        ),
        Mutant(
            _shrinking_in_a_for,
            "The list gets shorter while range(len(...)) still counts to its old end. Use a while, or build"
            " a new list.",
            begins="IndexError",
        ),
        Mutant(
            _in_place,
            "The result is right, but you have written it into the list that you were given, which belongs to whoever"
            " called. Build a new one.",
        ),
        Mutant(
            _dropping_the_rest,
            "Only what was joined is left. All other tokens stay, in their places.",
        ),
        Mutant(
            lambda tokens, pair: _right(tokens, pair, lambda two, pair: sorted(two) == sorted(pair)),
            "You join the two in either order. A pair has an order: (a, b) is not (b, a).",
        ),
        Mutant(
            lambda tokens, pair: (
                _right(tokens, pair, lambda two, pair: two == pair) if isinstance(tokens, tuple) else list(tokens)
            ),
            "You compare a slice of a list with a tuple, which are never equal: [1, 2] != (1, 2). tuple(...) makes them"
            " comparable.",
        ),
        Mutant(
            lambda tokens, pair: list(tokens) if isinstance(tokens, tuple) else _right(tokens, pair),
            "You compare a slice of a tuple with a list, which are never equal: (1, 2) != [1, 2]. Words come as lists"
            " and as tuples: take tuple(tokens[i : i + 2]).",
        ),
    ],
    alternatives=[_with_a_stack, _shrinking_in_a_while, _right],
)
