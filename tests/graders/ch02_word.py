"""2.4: a word's bytes into tokens. Wanted values are worked by hand."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from graders.ch02_bpe import merging, pair_of, split
from minillm.bpe import merge_pair
from minillm.exercises.grading import Case, Grader, Mutant

Pair = tuple[bytes, bytes]
Ranks = Mapping[Pair, int]


def _merging(word: str, ranks: dict[str, int], want: str, kind: type = list) -> Case:
    told = ", ".join(f"({', '.join(pair.split())}): {rank}" for pair, rank in ranks.items())
    given = f"the {kind.__name__} of bytes {word or '(none)'}; ranks {{{told}}}"
    return merging(given, lambda: [kind(split(word)), {pair_of(pair): rank for pair, rank in ranks.items()}], "ranks", want)


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


# In each set of ranks, a pair with a merged part is younger than the merge that makes the part: as training gives them.
MERGE_WORD = Grader(
    cases=[
        _merging("a b c", {"a b": 1, "b c": 0}, "a bc"),
        _merging("x y z", {"x y": 0, "y z": 1}, "xy z", tuple),
        _merging("t h e r e", {"h e": 1, "t h": 0, "th e": 3, "r e": 2, "he r": 4}, "the re"),
        _merging("a b c d", {"c d": 1, "a b": 0, "ab c": 5, "b c": 2}, "ab cd"),
        _merging("a b c d e", {"ab c": 7, "a b": 3, "d e": 5, "c d": 4}, "ab cd e"),
        _merging("a b x a b", {"b x": 0, "a b": 1}, "a bx ab"),
        _merging("a b c", {"a b": 0, "b c": 1, "a bc": 4}, "ab c"),
        _merging("p q r s", {"r s": 2, "q r": 1, "p qr": 6, "pqr s": 9}, "pqrs"),
        _merging("n o n o n o", {"n o": 8, "no no": 9}, "nono no"),
        _merging("m n o", {"n m": 0, "o n": 1}, "m n o", tuple),
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
            "A word of one byte has no pairs, and min() of nothing raises. Stop where there is no pair.",
            begins="ValueError: min()",
        ),
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
    ],
    alternatives=[_one_place_at_a_time, _every_merge_in_its_order, _choosing(_lowest)],
)
