"""8.5: the machine that holds text back, on pieces that are cut anywhere."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.ch08_decode import shown
from graders.ch08_stops import always_less_one, choose, letter_by_letter, longest
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.stop_strings import StopMatcher

Stops = Sequence[str]


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


_hit = choose()


def _matcher(
    *,
    join: Callable[[str, str], str] = lambda held, text: held + text,
    hit: Function = _hit,
    hold: Callable[[str, Stops, str], int] = lambda text, stops, piece: longest(text, stops),
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
    self.held = whole[len(whole) - longest(whole, self.stops) :]
    return text


def _never_emptied(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    self.held += text
    found = _hit(self.held, self.stops)
    if found is not None:
        self.matched = found[1]
        return self.held[: found[0]]
    return self.held[: len(self.held) - longest(self.held, self.stops)]


def _minus_nothing(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    text = self.held + text
    found = _hit(text, self.stops)
    if found is not None:
        self.held, self.matched = "", found[1]
        return text[: found[0]]
    n = longest(text, self.stops)
    self.held = text[-n:]
    return text[:-n]


def _removed(self: StopMatcher, text: str) -> str:
    text = self.held + text
    for stop in self.stops:
        if stop in text:
            self.matched, text = stop, text.replace(stop, "")
    safe = len(text) - longest(text, self.stops)
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
            _matcher(hold=lambda text, stops, piece: always_less_one(text, stops)),
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
            _matcher(hold=lambda text, stops, piece: len(text) if longest(text, stops) else 0),
            "You hold everything as soon as its end could begin a stop string. What stands before that end is safe:"
            " show it now.",
        ),
        Mutant(
            _minus_nothing,
            "You slice with -n, and n is 0 where nothing is held: text[:-0] is empty and text[-0:] is everything."
            " Slice at len(text) - n.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: longest(piece, stops)),
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
            _matcher(hold=lambda text, stops, piece: longest(text, stops[:1])),
            "You hold text back for the first stop string only. Any of them may be the one that comes.",
        ),
    ],
    alternatives=[_character_by_character, _matcher(), _matcher(hit=letter_by_letter)],
)
