"""8.3 and 8.4: how much of a text is held back for stop strings, and which of them comes first."""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

Stops = Sequence[str]

# --- 8.3 -------------------------------------------------------------------------------------------------------------


def _hold(text: str, stops: Stops, want: int) -> Case:
    return formula(f"text {text!r}, stops {list(stops)}", [text, stops], want)


_LETTERS = ["".join(letters) for n in range(1, 7) for letters in product("ab", repeat=n)]
_LISTS = (["aab"], ["abab"], ["bba", "ab"], ["abaab", "bab"], ["aaaa", "babb"], ["bbbbbbb"])


def _all_of_two_letters() -> Case:
    """All short texts over two letters, where ends overlap in every way, but those with a whole stop string."""
    pairs = [(text, stops) for text in _LETTERS for stops in _LISTS if not any(stop in text for stop in stops)]
    given = [(text, stops, longest(text, stops)) for text, stops in pairs]

    def observe(f: Function) -> Observation:
        wrong = [(*case, n) for case in given if (n := f(case[0], tuple(case[1]))) != case[2]]
        if not wrong:
            return {"the first text that goes wrong": "none"}
        text, stops, want, came = wrong[0]
        told = f"text {text!r}, stops {stops}: {came!r} instead of {want}; {len(wrong)} in all"
        return {"the first text that goes wrong": told}

    many = f"all texts of one to six letters a and b, with several stop strings: {len(given)} pairs, each by itself"
    return Case(many, observe, lambda: {"the first text that goes wrong": "none"})


def _ends(text: str, stops: Stops) -> list[int]:
    """The lengths of all ends of the text that begin a stop string, the shortest first."""
    bound = min(len(text) + 1, max(map(len, stops), default=1))
    return [n for n in range(1, bound) if any(stop.startswith(text[-n:]) for stop in stops)]


def longest(text: str, stops: Stops) -> int:
    return max(_ends(text, stops), default=0)


def shortest(text: str, stops: Stops) -> int:
    return min(_ends(text, stops), default=0)


def _bounded(bound: Callable[[Stops], int]) -> Function:
    return lambda text, stops: max((n for n in _ends(text, stops) if n <= bound(stops)), default=0)


def always_less_one(text: str, stops: Stops) -> int:
    return min(len(text), max((len(stop) - 1 for stop in stops), default=0))


def _from_a_first_letter(text: str, stops: Stops) -> int:
    return max((len(text) - text.find(stop[0]) for stop in stops if stop[0] in text), default=0)


def _counted(text: str, stops: Stops) -> int:
    """A pointer into each stop string that goes back to its beginning at a mismatch."""
    best = 0
    for stop in stops:
        at = 0
        for character in text:
            at = at + 1 if character == stop[at] else int(character == stop[0])
            at %= len(stop)
        best = max(best, at)
    return best


def counted_to_a_mismatch(text: str, stops: Stops) -> int:
    """A pointer into each stop string that forgets the character at which it failed."""
    best = 0
    for stop in stops:
        at = 0
        for character in text:
            at = at + 1 if at < len(stop) and character == stop[at] else 0
        best = max(best, at)
    return best


def at_one_place(find: Callable[[str, str], int]) -> Function:
    """Tries one occurrence of each stop string's first letter."""

    def held(text: str, stops: Stops) -> int:
        places = ((stop, find(text, stop[0])) for stop in stops)
        return max((len(text) - at for stop, at in places if at >= 0 and stop.startswith(text[at:])), default=0)

    return held


def anywhere_in(text: str, stops: Stops) -> int:
    return max((n for stop in stops for n in range(1, min(len(stop), len(text) + 1)) if text[-n:] in stop), default=0)


def _same_letters(text: str, stops: Stops) -> int:
    tries = ((stop, n) for stop in stops for n in range(1, min(len(stop), len(text) + 1)))
    return max((n for stop, n in tries if set(text[-n:]) <= set(stop)), default=0)


def _longer_than_the_text(text: str, stops: Stops) -> int:
    tries = ((stop, n) for stop in stops for n in range(1, len(stop)))
    return max((n for stop, n in tries if text and stop.startswith(text[-n:])), default=0)


def _where_it_begins(text: str, stops: Stops) -> int:
    n = longest(text, stops)
    return len(text) - n if n else 0


def first_that_could(text: str, stops: Stops) -> int:
    return next((n for stop in stops if (n := longest(text, [stop]))), 0)


def in_any_case(text: str, stops: Stops) -> int:
    return longest(text.lower(), [stop.lower() for stop in stops])


def _unguarded(text: str, stops: Stops) -> int:
    longest = max(len(stop) for stop in stops)
    return max((n for n in _ends(text, stops) if n < longest), default=0)


def _from_the_left(text: str, stops: Stops) -> int:
    for start in range(len(text)):
        if any(stop.startswith(text[start:]) for stop in stops):
            return len(text) - start
    return 0


def _by_beginnings(text: str, stops: Stops) -> int:
    return max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)


def _by_failure_links(text: str, stops: Stops) -> int:
    """Knuth, Morris and Pratt: the pointer falls back to the longest border."""
    best = 0
    for stop in stops:
        links = [0] * len(stop)
        for i in range(1, len(stop)):
            k = links[i - 1]
            while k and stop[i] != stop[k]:
                k = links[k - 1]
            links[i] = k + (stop[i] == stop[k])
        at = 0
        for character in text:
            while at and character != stop[at]:
                at = links[at - 1]
            at += character == stop[at]
        best = max(best, at)
    return best


HELD_LENGTH = Grader(
    cases=[
        _hold("the EN", ("END",), 2),
        _hold("the E", ("END",), 1),
        _hold("the ENd", ("END",), 0),
        _hold("An ENd in the EN", ("END",), 2),
        _hold("EN", ["END"], 2),
        _hold("", ("END",), 0),
        _hold("nothing to stop for", (), 0),
        _hold("a b", (",",), 0),
        _hold("xaa", ("aab",), 2),
        _hold("xaaa", ("aab",), 2),
        _hold("xababab", ("ababc",), 4),
        _hold("so\n", ("\n\nUser:", "o\nx"), 2),
        _hold("so\n", ("o\nx", "\n\nUser:"), 2),
        _hold("qxyz", ("ab", "xyzwv"), 3),
        _hold("日本", ("本語", "END"), 1),
        _hold("bend", ("END",), 0),
        _hold("E", ("END",), 1),
        _hold("\n\nUs", ("\n\nUser:",), 4),
        _hold("see the N", ("END",), 0),
        _hold("an", ("banana",), 0),
        _hold("so DEN", ("END",), 2),
        _hold("EDNE", ("END",), 1),
        _hold("the e", ("END",), 0),
        _hold("the E ", ("END",), 0),
        _hold("yes\n", ("\n\nUser:",), 1),
        _hold("\n\n\n", ("\n\nUser:",), 2),
        _hold("say ab", ("a b",), 0),
        _all_of_two_letters(),
    ],
    mutants=[
        Mutant(
            always_less_one,
            "You always hold one character less than the longest stop string. That is safe, and it holds back text that"
            " no stop string can begin in: the user sees everything later than need be.",
        ),
        Mutant(
            shortest,
            "You take the shortest end that begins a stop string. If a longer one does too, its first part is shown,"
            " and cannot be taken back: try the longest first.",
        ),
        Mutant(
            lambda text, stops: longest(text, stops[:1]),
            "You look at the first stop string only.",
        ),
        Mutant(
            first_that_could,
            "You stop at the first stop string that could begin here. Another one of the list may have begun earlier:"
            " take the longest over all.",
        ),
        Mutant(
            _from_a_first_letter,
            "You hold everything from a stop string's first letter on. If other letters than its own have followed, it"
            " has not begun there: compare the whole end of the text.",
        ),
        Mutant(
            lambda text, stops: len(text) if any(stop.startswith(text) for stop in stops) else 0,
            "You ask whether the whole text begins a stop string. A stop string can begin anywhere: every end of the"
            " text has to be tried.",
        ),
        Mutant(
            lambda text, stops: max(
                (n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[-n:])), default=0
            ),
            "You compare with the ends of stop strings. Dangerous is an end of the *text* that is a *beginning* of a"
            " stop string.",
        ),
        Mutant(
            _bounded(lambda stops: max((len(stop) for stop in stops), default=0) - 2),
            "You miss the case in which only the last character of a stop string is missing: lengths go up to one less"
            " than the longest stop string.",
        ),
        Mutant(
            _bounded(lambda stops: min((len(stop) for stop in stops), default=0) - 1),
            "You go up to the length of the shortest stop string. A longer one of the list may be further along.",
        ),
        Mutant(
            lambda text, stops: len(text[len(text) - longest(text, stops) :].encode()),
            "You count bytes. Here the text is decoded already, and characters are what is held and sliced.",
        ),
        Mutant(
            counted_to_a_mismatch,
            "You count matching characters, and a mismatch sets the count to 0. The character that does not go on may"
            " itself be a beginning, and so may an end of what matched before it.",
        ),
        Mutant(
            at_one_place(str.find),
            "You look where the first letter of a stop string occurs first. It may occur again: each place has to be"
            " tried, up to the end of the text.",
        ),
        Mutant(
            at_one_place(str.rfind),
            "You look where the first letter of a stop string occurs last. If the stop string has that letter twice,"
            " it may have begun earlier: each place has to be tried.",
        ),
        Mutant(
            lambda text, stops: max((len(text) - len(text.rstrip(stop)) for stop in stops), default=0),
            "rstrip takes a set of letters, and removes them in whatever order and number they stand. A beginning of"
            " the stop string is what counts, in its order.",
        ),
        Mutant(
            anywhere_in,
            "You ask whether an end of the text occurs *in* a stop string. It must stand at the stop string's"
            " beginning: of END, an N alone is no danger.",
        ),
        Mutant(
            _same_letters,
            "You compare sets of letters. Their order counts: only a beginning of a stop string, letter by letter, can"
            " become one.",
        ),
        Mutant(
            _longer_than_the_text,
            "You return more than there is: text[-n:] of a text with fewer than n characters is all of it, so a longer"
            " n seems to fit too. Try no n above len(text).",
        ),
        Mutant(
            lambda text, stops: _longer_than_the_text(text, stops) if text else max(map(len, stops), default=1) - 1,
            "You go beyond the text's length. Every stop string begins with '', and text[-n:] of a shorter text is all"
            " of it, so an n that is too large seems to fit: try none above len(text).",
        ),
        Mutant(
            _where_it_begins,
            "You return where the held end begins. Asked for is its length.",
        ),
        Mutant(
            lambda text, stops: longest(text.rstrip(" "), stops),
            "You strip spaces from the text first. They are characters like others: behind the E, a space says that no"
            " END comes of it.",
        ),
        Mutant(
            lambda text, stops: longest(text, [stop.strip() for stop in stops]),
            "You strip the stop strings. Spaces and newlines at their beginning belong to them, and are what has to be"
            " held first.",
        ),
        Mutant(
            _counted,
            "You count matching characters and begin anew at a mismatch. The characters that matched may contain"
            " another beginning: in 'aaa', the stop 'aab' has begun twice, and the second time counts.",
        ),
        Mutant(
            _unguarded,
            "There may be no stop strings at all, and then max(...) has nothing to choose from: give it default=0.",
            begins="ValueError",
        ),
        Mutant(
            lambda text, stops: sum(longest(text, [stop]) for stop in stops),
            "You add up what each stop string asks for. The ends overlap, since each is at the end of the text: the"
            " longest is enough.",
        ),
        Mutant(
            in_any_case,
            "You ignore upper and lower case. A stop string is those characters and no others.",
        ),
    ],
    alternatives=[_from_the_left, _by_beginnings, _by_failure_links],
)

# --- 8.4 -------------------------------------------------------------------------------------------------------------


def _first(text: str, stops: Stops, want: tuple[int, str] | None) -> Case:
    given = f"text {text!r}, stops {list(stops)}"

    def observe(f: Function) -> Observation:
        result = f(text, tuple(stops))
        return {"the result": repr(tuple(result) if isinstance(result, list) else result)}

    return Case(given, observe, lambda: {"the result": repr(want)})


def _found(text: str, stops: Stops) -> list[tuple[int, int, str]]:
    """(end, start, stop) of the first occurrence of each."""
    return [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]


def choose(
    key: Callable[[tuple[int, int, str]], Any] = lambda hit: (hit[0], hit[1]),
    answer: Callable[[tuple[int, int, str]], Any] = lambda hit: (hit[1], hit[2]),
    find: Callable[[str, Stops], list[tuple[int, int, str]]] = _found,
    missing: Any = None,
) -> Function:
    """The rule with a part of it done otherwise."""

    def first(text: str, stops: Stops) -> Any:
        hits = find(text, stops)
        return answer(min(hits, key=key)) if hits else missing

    return first


def last_occurrences(text: str, stops: Stops) -> list[tuple[int, int, str]]:
    return [(text.rfind(stop) + len(stop), text.rfind(stop), stop) for stop in stops if stop in text]


def letter_by_letter(text: str, stops: Stops) -> tuple[int, str] | None:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text.endswith(stop, 0, end)]
        if complete:
            longest = max(complete, key=len)
            return end - len(longest), longest
    return None


FIRST_STOP = Grader(
    cases=[
        _first("one END two", ("END",), (4, "END")),
        _first("one EN", ("END",), None),
        _first("END of it", ("END",), (0, "END")),
        _first("aXbXc", ("X",), (1, "X")),
        _first("no stops", (), None),
        _first("a | b END", ("END", "|"), (2, "|")),
        _first("xabcd", ("abcd", "bc"), (2, "bc")),
        _first("xabcd", ("bc", "abcd"), (2, "bc")),
        _first("xabc", ("bc", "abc"), (1, "abc")),
        _first("zyx", ("x", "yx", "zyx", "zyx"), (0, "zyx")),
        _first("zyx", ("yx", "x", "zyx"), (0, "zyx")),
        _first("a###b", ("##",), (1, "##")),
        _first("a | b", ("END", "|"), (2, "|")),
        _first("", ("END",), None),
        _first("the end", ("END",), None),
        _first("zabc", ("c", "bc", "d"), (2, "bc")),
        _first("zcba", ("ba", "cba", "a"), (1, "cba")),
        _first("to END or STOP", ("STOP", "END"), (3, "END")),
        _first("END, a | b", ("END", "|"), (0, "END")),
        _first("a, bc d", (",", "bc", "d"), (1, ",")),
    ],
    mutants=[
        Mutant(
            lambda text, stops: next(((text.find(stop), stop) for stop in stops if stop in text), None),
            "You take the first of the list that occurs. Which one comes first in the *text* matters, in whatever order"
            " they were given.",
        ),
        Mutant(
            choose(key=lambda hit: (hit[1], hit[0])),
            "You take the one that begins first. When 'bc' is complete, nobody knows yet whether 'abcd' will be:"
            " waiting for it, or not, would depend on how the text was cut into pieces. Compare where they end.",
        ),
        Mutant(
            choose(key=lambda hit: (hit[0], -hit[1])),
            "Of several that end at the same place you take the shortest. The beginning of the longer one would be"
            " shown.",
        ),
        Mutant(
            choose(key=lambda hit: hit[0]),
            "Of several that end at the same place you take the one that was given first. The longest is wanted, in"
            " whatever order they were given.",
        ),
        Mutant(
            choose(key=lambda hit: (hit[0], hit[2])),
            "Of several that end at the same place you take the first of the alphabet: min of (end, stop) compares"
            " texts. Put the start between them.",
        ),
        Mutant(
            choose(key=lambda hit: (-len(hit[2]), hit[0])),
            "You prefer the longest of all that occur. It may come last: compare where they end, and lengths only where"
            " they end alike.",
        ),
        Mutant(
            choose(answer=lambda hit: (hit[0], hit[2])),
            "You return where the stop string ends. The text is cut before it: where does it begin?",
        ),
        Mutant(
            choose(answer=lambda hit: (hit[2], hit[1])),
            "The two are swapped: (start, stop) is wanted.",
        ),
        Mutant(
            choose(answer=lambda hit: hit[1]),
            "You return where it begins alone. The caller also wants to know which stop string it was: (start, stop).",
        ),
        Mutant(
            choose(find=last_occurrences),
            "You look for the last occurrence of each (rfind, rindex). The text ends at the first.",
        ),
        Mutant(
            choose(find=lambda text, stops: [hit for hit in _found(text, stops) if hit[1] > 0]),
            "You miss a stop string at the very beginning. `find` gives 0 there, which is a place, and counts as false;"
            " -1 is what it gives where there is none.",
        ),
        Mutant(
            choose(find=lambda text, stops: _found(text, stops[:1])),
            "You look for the first stop string of the list only.",
        ),
        Mutant(
            lambda text, stops: min(_found(text, stops))[1:],
            "Where no stop string occurs, min(...) has nothing to choose from and raises: return None there.",
            begins="ValueError: m",
        ),
        Mutant(
            lambda text, stops: min(((text.index(stop), stop) for stop in stops), default=None),
            "text.index(stop) raises where the stop string does not occur, and most of them do not: ask `stop in text`"
            " first, or take text.find(stop), which gives -1.",
            begins="ValueError: sub",
        ),
        Mutant(
            choose(find=lambda text, stops: [(text.find(s) + len(s), text.find(s), s) for s in stops]),
            "You take find's -1 for a place. It says that the stop string does not occur: leave those out.",
        ),
        Mutant(
            choose(find=lambda text, stops: _found(text.lower(), [stop.lower() for stop in stops])),
            "You ignore upper and lower case. A stop string is those characters and no others.",
        ),
        Mutant(
            choose(key=lambda hit: (-hit[0], hit[1])),
            "You take the one that ends last. The text is over as soon as the first is complete.",
        ),
        Mutant(
            choose(key=lambda hit: (hit[0], [-ord(letter) for letter in hit[2]])),
            "Of several that end at the same place you take the last of the alphabet: max of (..., stop) compares"
            " texts. The longest is wanted.",
        ),
        Mutant(
            choose(find=lambda text, stops: [hit for hit in _found(text, stops) if hit[0] == len(text)]),
            "You look at the end of the text only. A stop string may be followed by text that came with it.",
        ),
        Mutant(
            choose(find=lambda text, stops: [hit for hit in _found(text, stops) if hit[0] < len(text)]),
            "You miss a stop string at the very end of the text. There too it is complete: range(n) ends before n.",
        ),
        Mutant(
            choose(missing=(-1, "")),
            "Where there is none, None is wanted. (-1, '') looks like a place, and a caller that slices with it loses a"
            " character.",
        ),
    ],
    alternatives=[
        letter_by_letter,
        choose(),
        lambda text, stops: (min(_found(text, stops)) or [])[1:] if _found(text, stops) else None,
    ],
)
