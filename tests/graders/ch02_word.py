"""2.4: a word's bytes into tokens. Wanted values are worked by hand."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from graders.ch02_bpe import merging, pair_of, split
from minillm.bpe import merge_pair
from minillm.exercises.grading import Case, Grader, Mutant
from minillm.exercises.time_limit import CASE_LIMIT_S, OutOfTimeError

Pair = tuple[bytes, bytes]
Ranks = Mapping[Pair, int]


def _merging(word: str, ranks: dict[str, int], want: str, kind: type = list) -> Case:
    told = ", ".join(f"({', '.join(pair.split())}): {rank}" for pair, rank in ranks.items())
    given = f"the {kind.__name__} of bytes {word or '(none)'}; ranks {{{told}}}"
    return merging(
        given, lambda: [kind(split(word)), {pair_of(pair): rank for pair, rank in ranks.items()}], "ranks", want
    )


def _choosing(choose: Callable[[list[Pair], Ranks], Pair]) -> Callable[[Sequence[bytes], Ranks], list[bytes]]:
    """The right loop, but for the pair that it takes from those that have a rank."""

    def merge(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
        merged = list(tokens)
        while known := [pair for pair in pairwise(merged) if pair in ranks]:
            merged = merge_pair(merged, choose(known, ranks))
        return merged

    return merge


def _once(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    known = [pair for pair in pairwise(tokens) if pair in ranks]
    return merge_pair(tokens, min(known, key=ranks.__getitem__)) if known else list(tokens)


def _no_new_pairs(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    for pair in sorted({pair for pair in pairwise(tokens) if pair in ranks}, key=ranks.__getitem__):
        merged = merge_pair(merged, pair)
    return merged


def _rank_once_a_round(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while known := {pair for pair in pairwise(merged) if pair in ranks}:
        for pair in sorted(known, key=ranks.__getitem__):
            merged = merge_pair(merged, pair)
    return merged


def _lower_than_the_next(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    """Rounds from left to right; a pair is merged where the one that overlaps it on the right has no lower rank."""
    before, merged = [], list(tokens)
    while merged != before:
        before, merged, i = merged, [], 0
        own = [ranks.get(pair, 10**9) for pair in pairwise(before)] + [10**9, 10**9]
        while i < len(before):
            found = own[i] < 10**9 and own[i] <= own[i + 1]
            merged.append(b"".join(before[i : i + 2]) if found else before[i])
            i += 2 if found else 1
    return merged


def _by_joined_text(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    joined, merged = {left + right: rank for (left, right), rank in ranks.items()}, list(tokens)
    while known := [pair for pair in pairwise(merged) if b"".join(pair) in joined]:
        merged = merge_pair(merged, min(known, key=lambda pair: joined[b"".join(pair)]))
    return merged


def _using_ranks_up(tokens: Sequence[bytes], ranks: Any) -> list[bytes]:
    merged = list(tokens)
    while known := [pair for pair in pairwise(merged) if pair in ranks]:
        best = _lowest(known, ranks)
        ranks.pop(best)
        merged = merge_pair(merged, best)
    return merged


def _never_ending(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    """What `while known: merge_pair(...)` does; told here without waiting for it."""
    if any(pair in ranks for pair in pairwise(tokens)):
        raise OutOfTimeError(CASE_LIMIT_S, [])
    return list(tokens)


def _min_of_none_known(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while len(merged) > 1:
        merged = merge_pair(merged, min((pair for pair in pairwise(merged) if pair in ranks), key=ranks.__getitem__))
    return merged


def _given_back_where_nothing_is_known(tokens: Any, ranks: Ranks) -> list[bytes]:
    return _choosing(_lowest)(tokens, ranks) if any(pair in ranks for pair in pairwise(tokens)) else tokens


def _longest_match(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    known, text, found = {left + right for left, right in ranks}, b"".join(tokens), []
    while text:
        length = next((n for n in range(len(text), 1, -1) if text[:n] in known), 1)
        found.append(text[:length])
        text = text[length:]
    return found


def _everything(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while len(merged) > 1:
        merged = merge_pair(merged, min(pairwise(merged), key=lambda pair: ranks.get(pair, 10**9)))
    return merged


def _key_error(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while len(merged) > 1:
        merged = merge_pair(merged, min(pairwise(merged), key=lambda pair: ranks[pair]))
    return merged


def _min_of_nothing(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while True:
        best = min((pair for pair in pairwise(merged)), key=lambda pair: ranks.get(pair, 10**9))
        if best not in ranks:
            return merged
        merged = merge_pair(merged, best)


def _rank_zero_is_false(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    while known := [pair for pair in pairwise(merged) if ranks.get(pair)]:
        merged = merge_pair(merged, min(known, key=ranks.__getitem__))
    return merged


def _in_file_order(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    for pair in ranks:
        merged = merge_pair(merged, pair)
    return merged


def _from_left_to_right(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged: list[bytes] = []
    for token in tokens:
        merged.append(token)
        while len(merged) > 1 and (merged[-2], merged[-1]) in ranks:
            right = merged.pop()
            merged[-1] += right
    return merged


def _changing_its_argument(tokens: Any, ranks: Ranks) -> list[bytes]:
    result = _choosing(_lowest)(tokens, ranks)
    if isinstance(tokens, list):
        tokens[:] = result
    return result


def _lowest(known: list[Pair], ranks: Ranks) -> Pair:
    return min(known, key=ranks.__getitem__)


def _most_frequent(known: list[Pair], ranks: Ranks) -> Pair:
    counts = Counter(known)
    return min(known, key=lambda pair: (-counts[pair], ranks[pair]))


def _one_place_at_a_time(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    """As the library in Rust does it: the lowest rank, the leftmost of its places, and look again."""
    merged = list(tokens)
    while len(merged) > 1:
        ranked = [(ranks.get(pair, 10**9), i) for i, pair in enumerate(pairwise(merged))]
        rank, i = min(ranked)
        if rank == 10**9:
            break
        merged[i : i + 2] = [merged[i] + merged[i + 1]]
    return merged


def _every_merge_in_its_order(tokens: Sequence[bytes], ranks: Ranks) -> list[bytes]:
    merged = list(tokens)
    for pair in sorted(ranks, key=ranks.__getitem__):
        merged = merge_pair(merged, pair)
    return merged


# What training gives, and the docstring promises: in each of these, a merged part of a pair has a lower rank than the
# pair. Given that, one sweep through all merges in their order is right too.
_PARTS_OF_STRAWBERRY = {  # SmolLM2's merges, all that can come up in the word
    "e r": 7, "_ s": 10, "s t": 50, "r a": 65, "_s t": 76, "r y": 289, "b er": 341, "_st r": 619, "a w": 660,
    "st r": 1069, "b e": 1173, "er r": 1319, "ra w": 1457, "_st ra": 3788, "t ra": 4609, "t r": 8237, "ber ry": 9248,
    "_st raw": 11111, "st ra": 13679, "w b": 25656, "r r": 31930, "_straw berry": 34947,
}  # fmt: skip

MERGE_WORD = Grader(
    cases=[
        _merging("a b c", {"a b": 1, "b c": 0}, "a bc"),
        _merging("x y z", {"x y": 0, "y z": 1}, "xy z", tuple),
        _merging("t h e r e", {"h e": 1, "t h": 0, "th e": 3, "r e": 2, "he r": 4}, "the re"),
        _merging("a b c d", {"c d": 1, "a b": 0, "ab c": 5, "b c": 2}, "ab cd"),
        _merging("a b c d e", {"ab c": 7, "a b": 3, "d e": 5, "c d": 4}, "ab cd e"),
        _merging("a b x a b", {"b x": 0, "a b": 1, "x a": 2}, "a bx ab"),
        _merging("a b c d", {"ab c": 1, "a b": 0, "c d": 2}, "abc d"),
        _merging("a b c d", {"c d": 1, "b cd": 4, "b c": 8, "a b": 9}, "a bcd"),
        _merging("a b c", {"a b": 0, "b c": 1, "a bc": 4}, "ab c"),
        _merging("p q r s", {"r s": 2, "q r": 1, "p qr": 6, "pqr s": 9}, "pqrs"),
        _merging("n o n o n o", {"n o": 8, "no no": 9}, "nono no"),
        _merging("m n o", {"n m": 0, "o n": 1}, "m n o", tuple),
        _merging("_ s t r a w b e r r y", _PARTS_OF_STRAWBERRY, "_strawberry"),
        _merging("s t r a w b e r r y", _PARTS_OF_STRAWBERRY, "st raw berry"),
        _merging("k", {"k k": 0}, "k"),
        _merging("", {"k k": 0}, ""),
    ],
    mutants=[
        Mutant(
            _from_left_to_right,
            "You merge from the left, as soon as two neighbours can be merged. It is the rank that decides, wherever in"
            " the word the pair stands: what was learned first is merged first.",
        ),
        Mutant(
            _choosing(lambda known, ranks: max(known, key=ranks.__getitem__)),
            "You take the highest rank. Rank 0 was learned first and comes first: the lowest.",
        ),
        Mutant(
            _choosing(lambda known, ranks: max(known, key=lambda pair: (len(pair[0] + pair[1]), -ranks[pair]))),
            "You merge what gives the longest token. Length decides nothing in BPE; the rank does.",
        ),
        Mutant(
            _longest_match,
            "You look for the longest token of the vocabulary that the rest of the word begins with. That is another"
            " algorithm (WordPiece reads so): BPE's tokens come out of its merges, in their order.",
        ),
        Mutant(
            _once,
            "You merge once. Merging makes new neighbours, and new pairs: go on until none of them has a rank.",
        ),
        Mutant(
            _no_new_pairs,
            "You merge only pairs that the single bytes make. Each merge makes new pairs, with the token it has just"
            " made: look at the neighbours again after each.",
        ),
        Mutant(
            _rank_once_a_round,
            "You rank the pairs once per round, and merge all of them before you look again. A merge makes a new pair,"
            " which may have a lower rank than those still on your list: look again after each single merge.",
        ),
        Mutant(
            _lower_than_the_next,
            "You go from left to right and merge a pair where the next one has no lower rank. Of *all* pairs in the"
            " word the lowest goes first; only then look again.",
        ),
        Mutant(
            _choosing(lambda known, ranks: max(known, key=lambda pair: len(pair[0] + pair[1]))),
            "You merge what gives the longest token, and of equally long ones the leftmost. Neither length nor place"
            " decides anything in BPE; the rank does.",
        ),
        Mutant(
            _choosing(lambda known, ranks: min(known)),
            "min(known) compares the pairs themselves, byte by byte, so the alphabet decides. Have their ranks"
            " compared: min(known, key=ranks.get).",
        ),
        Mutant(
            _choosing(lambda known, ranks: known[-1]),
            "You merge from the right. It is the rank that decides, wherever in the word the pair stands.",
        ),
        Mutant(
            _by_joined_text,
            "You look up the joined text. (a, bc) and (ab, c) join to the same text and are two merges: that one of"
            " them was learned does not allow the other.",
        ),
        Mutant(
            _choosing(_most_frequent),
            "You merge what is most frequent in the word. Frequency is how merges are *learned*, over a whole corpus;"
            " encoding only repeats what was learned, in the order of the ranks.",
        ),
        Mutant(
            _everything,
            "You go on until one token is left. A pair that has no rank is never merged: stop when none has.",
        ),
        Mutant(
            _key_error,
            "ranks[pair] fails for a pair that was never learned; most pairs were not. Ask `pair in ranks` first.",
            begins="KeyError",
        ),
        Mutant(
            _min_of_nothing,
            "A word that has become a single token has no pairs, and min() of nothing raises. Stop where there is no"
            " pair.",
            begins="ValueError: min()",
        ),
        Mutant(
            _min_of_none_known,
            "When none of the pairs has a rank, there is nothing to take the min() of, and it raises. That is where"
            " you are done: ask first whether there is any.",
            begins="ValueError: min()",
        ),
        Mutant(
            _never_ending,
            "Your loop never ends, so what it asks for never changes. merge_pair gives a new list and leaves yours as"
            " it is: merged = merge_pair(merged, pair). And the pairs are to be looked for anew in each round.",
        ),
        Mutant(
            lambda tokens, ranks: list(tokens),
            "Nothing is merged. If you call merge_pair: it gives a new list and leaves yours as it is, so keep what it"
            " returns.",
        ),
        Mutant(lambda tokens, ranks: None, "Nothing comes back: the function ends without a `return`."),
        Mutant(
            _rank_zero_is_false,
            "The merge with rank 0 never happens: 0 counts as false. Ask `pair in ranks`, or compare with None.",
        ),
        Mutant(
            _in_file_order,
            "You go through the merges in the order in which the dict happens to hold them. Their order is their rank.",
        ),
        Mutant(
            _changing_its_argument,
            "The result is right, but the tokens that you were given are changed. Work on a copy: list(tokens).",
        ),
        Mutant(
            _using_ranks_up,
            "The result is right, but you have taken merges out of `ranks`. They belong to the encoding, and the next"
            " word needs them: read, and remove nothing.",
        ),
        Mutant(
            _given_back_where_nothing_is_known,
            "Where nothing can be merged, you return the very tokens that you were given, perhaps a tuple. A new list"
            " is wanted there too: begin with list(tokens).",
        ),
        Mutant(
            lambda tokens, ranks: tuple(_choosing(_lowest)(tokens, ranks)),
            "The tokens are right, and they are a tuple. A list is wanted.",
        ),
    ],
    alternatives=[_one_place_at_a_time, _every_merge_in_its_order, _choosing(_lowest)],
)
