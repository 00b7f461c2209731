"""2.3: merging one pair; and how tokens are written here. Wanted values are worked by hand."""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from graders.common import CHANGED, UNTOUCHED
from minillm.exercises.compare import in_words
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

Pair = tuple[bytes, bytes]

NOTHING = "None (is there a `return`?)"


def split(text: str) -> tuple[bytes, ...]:
    """A word's tokens, from text with spaces between them; "_" is a space in a token."""
    return tuple(token.replace("_", " ").encode() for token in text.split())


def pair_of(text: str) -> Pair:
    """The same, for two tokens."""
    left, right = split(text)
    return left, right


def merging(given: str, arguments: Callable[[], list[Any]], other: str, want: str) -> Case:
    """A case of a function of a word's tokens and something else, which gives new tokens back."""

    def observe(f: Function) -> Observation:
        mine = arguments()
        before = copy.deepcopy(mine)
        result = f(*mine)
        return {
            "the tokens": _tokens_in_words(result),
            "the tokens that were given, afterwards": UNTOUCHED if mine[0] == before[0] else CHANGED,
            f"the {other} afterwards": UNTOUCHED if mine[1] == before[1] else CHANGED,
            "the list that comes back": "the very one that was given" if result is mine[0] else "a new one",
        }

    wanted = {
        "the tokens": _tokens_in_words([*split(want)]),
        "the tokens that were given, afterwards": UNTOUCHED,
        f"the {other} afterwards": UNTOUCHED,
        "the list that comes back": "a new one",
    }
    return Case(given, observe, lambda: wanted)


def _tokens_in_words(tokens: Any) -> str:
    """Tokens compare and are read as a text."""
    if tokens is None:
        return NOTHING
    if not isinstance(tokens, list):
        return f"no list of tokens, but {in_words(tokens)}"
    others = [type(token).__name__ for token in tokens if not isinstance(token, bytes)]
    if others:
        return f"a list in which not all are bytes objects: there is one of type {others[0]}"
    return " | ".join(token.decode().replace(" ", "_") for token in tokens) or "none"


def _joining(tokens: str, pair: str, want: str, kind: type = list) -> Case:
    given = f"the {kind.__name__} of tokens {tokens or '(none)'}; the pair ({', '.join(pair.split())})"
    return merging(given, lambda: [kind(split(tokens)), pair_of(pair)], "pair", want)


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


def _as_they_are_found(tokens: Sequence[bytes], pair: Pair) -> list[bytes]:
    merged, i = [], 0
    while i < len(tokens):
        two = tuple(tokens[i : i + 2])
        found = two in (pair, pair[::-1])
        merged.append(b"".join(two) if found else tokens[i])
        i += 2 if found else 1
    return merged


def _not_joining(tokens: Sequence[bytes], pair: Pair) -> list[Any]:
    joined = pair[0] + pair[1]
    return [pair if token == joined else token for token in _right(tokens, pair)]


def _adding_numbers(tokens: Sequence[bytes], pair: Pair) -> list[Any]:
    merged: list[Any] = []
    for token in _right(tokens, pair):
        merged += token
    return merged


def _in_place_without_a_return(tokens: Any, pair: Pair) -> None:
    _in_place(tokens, pair)


def _given_back_where_nothing_is_found(tokens: Any, pair: Pair) -> list[bytes]:
    return _right(tokens, pair) if pair in pairwise(tokens) else tokens


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
            _as_they_are_found,
            "You also join the two where they stand the other way round. A pair has an order: where (a, b) is meant,"
            " b, a stays two tokens.",
        ),
        Mutant(
            _not_joining,
            "You put the pair itself, a tuple, into the list. Joined it is one token: pair[0] + pair[1].",
        ),
        Mutant(
            _adding_numbers,
            "list += token takes the bytes object apart, into one number for each byte. Use append.",
        ),
        Mutant(
            lambda tokens, pair: list(tokens),
            "Nothing is joined: the tokens come back as they were. Is the new token appended, pair[0] + pair[1], and is"
            " it the new list that you return?",
        ),
        Mutant(
            _given_back_where_nothing_is_found,
            "Where nothing is to be joined, you return the very tokens that you were given. A new list is wanted there"
            " too: whoever changes it must not change theirs.",
        ),
        Mutant(
            lambda tokens, pair: tuple(_right(tokens, pair)),
            "The tokens are right, and they are a tuple. A list is wanted.",
        ),
        Mutant(lambda tokens, pair: None, "Nothing comes back: the function ends without a `return`."),
        Mutant(
            _in_place_without_a_return,
            "You write into the list that you were given, and return nothing. It is not yours: build a new list, and"
            " return that.",
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
