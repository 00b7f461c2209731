"""8.3 to 8.5: how much of a text is held back for stop strings, which one comes first, and the machine of both."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.ch08_bytes import shown
from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.stop_strings import StopMatcher

Stops = Sequence[str]

# --- 8.3 -------------------------------------------------------------------------------------------------------------


def _hold(text: str, stops: Stops, want: int) -> Case:
    return formula(f"text {text!r}, stops {list(stops)}", [text, stops], want)


def _ends(text: str, stops: Stops) -> list[int]:
    """The lengths of all ends of the text that begin a stop string, the shortest first."""
    return [n for n in range(1, len(text) + 1) if any(stop.startswith(text[-n:]) for stop in stops)]


def _held(text: str, stops: Stops) -> int:
    return max(_ends(text, stops), default=0)


def _bounded(bound: Callable[[Stops], int]) -> Function:
    return lambda text, stops: max((n for n in _ends(text, stops) if n <= bound(stops)), default=0)


def _always(text: str, stops: Stops) -> int:
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
    ],
    mutants=[
        Mutant(
            _always,
            "You always hold one character less than the longest stop string. That is safe, and it holds back text that"
            " no stop string can begin in: the user sees everything later than need be.",
        ),
        Mutant(
            lambda text, stops: min(_ends(text, stops), default=0),
            "You take the shortest end that begins a stop string. If a longer one does too, its first part is shown,"
            " and cannot be taken back: try the longest first.",
        ),
        Mutant(
            lambda text, stops: _held(text, stops[:1]),
            "You look at the first stop string only.",
        ),
        Mutant(
            lambda text, stops: next((n for stop in stops if (n := _held(text, [stop]))), 0),
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
            lambda text, stops: len(text[len(text) - _held(text, stops) :].encode()),
            "You count bytes. Here the text is decoded already, and characters are what is held and sliced.",
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
            lambda text, stops: sum(_held(text, [stop]) for stop in stops),
            "You add up what each stop string asks for. The ends overlap, since each is at the end of the text: the"
            " longest is enough.",
        ),
        Mutant(
            lambda text, stops: _held(text.lower(), [stop.lower() for stop in stops]),
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


def _choose(
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


def _last_occurrences(text: str, stops: Stops) -> list[tuple[int, int, str]]:
    return [(text.rfind(stop) + len(stop), text.rfind(stop), stop) for stop in stops if stop in text]


def _letter_by_letter(text: str, stops: Stops) -> tuple[int, str] | None:
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
    ],
    mutants=[
        Mutant(
            lambda text, stops: next(((text.find(stop), stop) for stop in stops if stop in text), None),
            "You take the first of the list that occurs. Which one comes first in the *text* matters, in whatever order"
            " they were given.",
        ),
        Mutant(
            _choose(key=lambda hit: (hit[1], hit[0])),
            "You take the one that begins first. When 'bc' is complete, nobody knows yet whether 'abcd' will be:"
            " waiting for it, or not, would depend on how the text was cut into pieces. Compare where they end.",
        ),
        Mutant(
            _choose(key=lambda hit: (hit[0], -hit[1])),
            "Of several that end at the same place you take the shortest. The beginning of the longer one would be"
            " shown.",
        ),
        Mutant(
            _choose(key=lambda hit: hit[0]),
            "Of several that end at the same place you take the one that was given first. The longest is wanted, in"
            " whatever order they were given.",
        ),
        Mutant(
            _choose(key=lambda hit: (hit[0], hit[2])),
            "Of several that end at the same place you take the first of the alphabet: min of (end, stop) compares"
            " texts. Put the start between them.",
        ),
        Mutant(
            _choose(key=lambda hit: (-len(hit[2]), hit[0])),
            "You prefer the longest of all that occur. It may come last: compare where they end, and lengths only where"
            " they end alike.",
        ),
        Mutant(
            _choose(answer=lambda hit: (hit[0], hit[2])),
            "You return where the stop string ends. The text is cut before it: where does it begin?",
        ),
        Mutant(
            _choose(answer=lambda hit: (hit[2], hit[1])),
            "The two are swapped: (start, stop) is wanted.",
        ),
        Mutant(
            _choose(answer=lambda hit: hit[1]),
            "You return where it begins alone. The caller also wants to know which stop string it was: (start, stop).",
        ),
        Mutant(
            _choose(find=_last_occurrences),
            "You look for the last occurrence of each (rfind, rindex). The text ends at the first.",
        ),
        Mutant(
            _choose(find=lambda text, stops: [hit for hit in _found(text, stops) if hit[1] > 0]),
            "You miss a stop string at the very beginning. `find` gives 0 there, which is a place, and counts as false;"
            " -1 is what it gives where there is none.",
        ),
        Mutant(
            _choose(find=lambda text, stops: _found(text, stops[:1])),
            "You look for the first stop string of the list only.",
        ),
        Mutant(
            lambda text, stops: min(_found(text, stops))[1:],
            "Where no stop string occurs, min(...) has nothing to choose from and raises: return None there.",
            begins="ValueError",
        ),
        Mutant(
            _choose(missing=(-1, "")),
            "Where there is none, None is wanted. (-1, '') looks like a place, and a caller that slices with it loses a"
            " character.",
        ),
    ],
    alternatives=[
        _letter_by_letter,
        _choose(),
        lambda text, stops: (min(_found(text, stops)) or [])[1:] if _found(text, stops) else None,
    ],
)

# --- 8.5 -------------------------------------------------------------------------------------------------------------


def _pieces(stops: Stops, *pieces: str, want: list[str], matched: str | None = None, held: str = "") -> Case:
    """Pieces that come in, one after the other."""

    def observe(f: Function) -> Observation:
        matcher = StopMatcher(stops)
        return _account([f(matcher, piece) for piece in pieces], matcher.matched, matcher.held)

    given = f"stops {list(stops)}; the pieces {', then '.join(map(repr, pieces))}"
    return Case(given, observe, lambda: _account(list(want), matched, held))


def _account(pieces: list[Any], matched: Any, held: Any) -> Observation:
    return {
        "what is shown, piece by piece": shown(pieces),
        "self.matched": repr(matched),
        "self.held": repr(held),
    }


_hit = _choose()


def _matcher(
    *,
    join: Callable[[str, str], str] = lambda held, text: held + text,
    hit: Function = _hit,
    hold: Callable[[str, Stops, str], int] = lambda text, stops, piece: _held(text, stops),
    cut: Callable[[str, int, str], str] = lambda text, start, stop: text[:start],
    after: bool = False,
    note: bool = True,
    empty: bool = True,
) -> Function:
    """The matcher with a part of it done otherwise."""

    def add(self: StopMatcher, text: str) -> str:
        if self.matched is not None and not after:
            return ""
        piece, text = text, join(self.held, text)
        found = hit(text, self.stops)
        if found is not None:
            start, stop = found
            if note:
                self.matched = stop
            if empty:
                self.held = ""
            return cut(text, start, stop)
        safe = len(text) - hold(text, self.stops, piece)
        self.held = text[safe:]
        return text[:safe]

    return add


def _leak(self: StopMatcher, text: str) -> str:
    """Shows everything at once, and looks back for a stop string."""
    if self.matched is not None:
        return ""
    before, whole = self.held, self.held + text
    found = _hit(whole, self.stops)
    if found is not None:
        self.matched, self.held = found[1], ""
        return whole[len(before) : max(found[0], len(before))]
    self.held = whole[len(whole) - _held(whole, self.stops) :]
    return text


def _never_emptied(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    self.held += text
    found = _hit(self.held, self.stops)
    if found is not None:
        self.matched = found[1]
        return self.held[: found[0]]
    return self.held[: len(self.held) - _held(self.held, self.stops)]


def _minus_nothing(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    text = self.held + text
    found = _hit(text, self.stops)
    if found is not None:
        self.held, self.matched = "", found[1]
        return text[: found[0]]
    n = _held(text, self.stops)
    self.held = text[-n:]
    return text[:-n]


def _removed(self: StopMatcher, text: str) -> str:
    text = self.held + text
    for stop in self.stops:
        if stop in text:
            self.matched, text = stop, text.replace(stop, "")
    safe = len(text) - _held(text, self.stops)
    self.held = text[safe:]
    return text[:safe]


def _character_by_character(self: StopMatcher, text: str) -> str:
    """Another right answer: what could begin a stop string is a short queue."""
    out = ""
    for character in text:
        if self.matched is not None:
            break
        self.held += character
        complete = [stop for stop in self.stops if self.held.endswith(stop)]
        if complete:
            self.matched = max(complete, key=len)
            out += self.held.removesuffix(self.matched)
            self.held = ""
        while self.held and not any(stop.startswith(self.held) for stop in self.stops):
            out, self.held = out + self.held[0], self.held[1:]
    return out


STOP_MATCHER_ADD = Grader(
    cases=[
        _pieces(("END",), "one END two", " three", want=["one ", ""], matched="END"),
        _pieces(("\n\nUser:",), "yes\n", "\nUs", "er", ": hi", want=["yes", "", "", ""], matched="\n\nUser:"),
        _pieces(("\n\nUser:",), "yes\n", "\nUs", "ed", want=["yes", "", "\n\nUsed"]),
        _pieces((), "abc", "d", want=["abc", "d"]),
        _pieces(("END",), "the E", "N", " E", "N", want=["the ", "", "EN ", ""], held="EN"),
        _pieces(("END",), "E", "", "ND", "x", want=["", "", "", ""], matched="END"),
        _pieces(("aab",), "xa", "a", "a", "b", "c", want=["x", "", "a", "", ""], matched="aab"),
        _pieces(("X",), "ab", "cXd", "eX", want=["ab", "c", ""], matched="X"),
        _pieces(("abcd", "bc"), "xab", "cd", want=["x", "a"], matched="bc"),
        _pieces(("c", "bc", "abc"), "xa", "bc", want=["x", ""], matched="abc"),
    ],
    mutants=[
        Mutant(
            _matcher(join=lambda held, text: text, hold=lambda text, stops, piece: 0),
            "You look for stop strings within each piece. Pieces are cut anywhere, and a stop string over two of them"
            " is missed, its first half shown: join what was held and what came.",
        ),
        Mutant(
            _leak,
            "You show the beginning of a stop string before you know. When it turns out to be one, its first half has"
            " been shown, and nothing that was streamed can be taken back.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: _always(text, stops)),
            "You always hold one character less than the longest stop string. Only what could be the beginning of one"
            " has to wait.",
        ),
        Mutant(
            _matcher(cut=lambda text, start, stop: text[: start + len(stop)]),
            "You show the stop string too. The text ends before it.",
        ),
        Mutant(
            _matcher(after=True),
            "You go on after a match. The text is over: whatever comes then, return an empty text.",
        ),
        Mutant(
            _matcher(note=False),
            "You cut the text and tell nobody: self.matched says that it is over, and which stop string it was.",
        ),
        Mutant(
            _matcher(empty=False),
            "After a match you leave self.held as it was. It is the stop string's beginning, and `flush` would show"
            " it.",
        ),
        Mutant(
            _never_emptied,
            "You show again what was shown before: of what came, keep in self.held only what has not been shown.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: len(text) if _held(text, stops) else 0),
            "You hold everything as soon as its end could begin a stop string. What stands before that end is safe:"
            " show it now.",
        ),
        Mutant(
            _minus_nothing,
            "You slice with -n, and n is 0 where nothing is held: text[:-0] is empty and text[-0:] is everything."
            " Slice at len(text) - n.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: _held(piece, stops)),
            "You look at the end of the new piece alone. With what was held before it, a longer end may begin a stop"
            " string: look at the end of both, joined.",
        ),
        Mutant(
            _removed,
            "You take the stop string out and go on with what follows. It ends the text: nothing behind it is shown.",
        ),
        Mutant(
            _matcher(join=lambda held, text: text + held),
            "You put what was held behind what came. It came first.",
        ),
        Mutant(
            _matcher(join=lambda held, text: text),
            "You hold text back, and then drop it: what was held must be joined to the next piece, to be shown if no"
            " stop string comes of it.",
        ),
        Mutant(
            _matcher(hit=lambda text, stops: next(((text.find(s), s) for s in stops if s in text), None)),
            "Of several stop strings you take the first of the list. The first to be complete in the text is wanted,"
            " and the longest of those that end there: that is 8.4.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: _held(text, stops[:1])),
            "You hold text back for the first stop string only. Any of them may be the one that comes.",
        ),
    ],
    alternatives=[_character_by_character, _matcher(), _matcher(hit=_letter_by_letter)],
)
