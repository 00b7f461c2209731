"""8.5: the machine that holds text back, on pieces that are cut anywhere."""

from collections.abc import Callable, Sequence
from typing import Any

from graders.ch08_decode import shown
from graders.ch08_stops import (
    always_less_one,
    anywhere_in,
    at_one_place,
    choose,
    counted_to_a_mismatch,
    first_that_could,
    in_any_case,
    last_occurrences,
    letter_by_letter,
    longest,
    shortest,
)
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
    searched: Callable[[str, str], str] = lambda whole, piece: whole,
    matched: Callable[[tuple[int, str]], Any] = lambda found: found[1],
    after: bool = False,
    note: bool = True,
    left: Callable[[str, tuple[int, str]], str] = lambda text, found: "",
    empty: bool = True,
) -> Function:
    """The matcher with a part of it done otherwise."""

    def add(self: StopMatcher, text: str) -> str:
        if self.matched is not None and not after:
            return ""
        piece, text = text, join(self.held, text)
        found = hit(searched(text, piece), self.stops)
        if found is not None:
            start, stop = found
            if note:
                self.matched = matched(found)
            if empty:
                self.held = left(text, found)
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


def _of_the_new_piece(self: StopMatcher, text: str) -> str:
    """Finds the place in held text and piece, joined, and cuts the piece there."""
    found = None if self.matched is not None else _hit(self.held + text, self.stops)
    if found is None:
        return _matcher()(self, text)
    self.held, self.matched = "", found[1]
    return text[: found[0]]


def _nothing_at_the_match(self: StopMatcher, text: str) -> str:
    shown_text = _matcher()(self, text)
    return "" if self.matched is not None else shown_text


def _held_twice(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    text = self.held + text
    found = _hit(text, self.stops)
    if found is not None:
        self.held, self.matched = "", found[1]
        return text[: found[0]]
    safe = len(text) - longest(text, self.stops)
    self.held += text[safe:]
    return text[:safe]


def _not_always_set(self: StopMatcher, text: str) -> str:
    before, shown_text = self.held, _matcher()(self, text)
    if self.matched is None and not self.held:
        self.held = before
    return shown_text


def _held_taken_off_first(self: StopMatcher, text: str) -> str:
    """Takes off the end to be held, and then cuts what is left where a stop string was found in the whole."""
    if self.matched is not None:
        return ""
    text = self.held + text
    found, safe = _hit(text, self.stops), len(text) - longest(text, self.stops)
    if found is None:
        self.held = text[safe:]
        return text[:safe]
    self.held, self.matched = "", found[1]
    return text[:safe][: found[0]]


def _searched_in_the_rest(self: StopMatcher, text: str) -> str:
    """Takes off the end to be held, and looks for a stop string in what is left."""
    if self.matched is not None:
        return ""
    text = self.held + text
    safe = len(text) - longest(text, self.stops)
    self.held, text = text[safe:], text[:safe]
    found = _hit(text, self.stops)
    if found is None:
        return text
    self.held, self.matched = "", found[1]
    return text[: found[0]]


def _all_or_nothing_held(self: StopMatcher, text: str) -> str:
    """Holds on while all of the held text begins a stop string, and else lets go of all of it."""
    if self.matched is not None:
        return ""
    self.held += text
    found = _hit(self.held, self.stops)
    if found is not None:
        text, self.held, self.matched = self.held[: found[0]], "", found[1]
        return text
    if any(stop.startswith(self.held) for stop in self.stops):
        return ""
    text, self.held = self.held, ""
    return text


def _empty_flushes(self: StopMatcher, text: str) -> str:
    if text or self.matched is not None:
        return _matcher()(self, text)
    text, self.held = self.held, ""
    return text


def _all_until_a_stop(self: StopMatcher, text: str) -> str:
    if self.matched is not None:
        return ""
    self.held += text
    found = _hit(self.held, self.stops)
    if found is None:
        return ""
    text, self.held, self.matched = self.held[: found[0]], "", found[1]
    return text


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
        _pieces(("abcd", "bc"), "xab", "cde", want=["x", "a"], matched="bc"),
        _pieces(("bc", "c", "abc"), "xa", "bc", want=["x", ""], matched="abc"),
        _pieces(("c", "abc", "bc"), "xabcx", want=["x"], matched="abc"),
        _pieces(("abcd", "bc"), "xabcde", want=["xa"], matched="bc"),
        _pieces(("END",), "one END two END x", want=["one "], matched="END"),
        _pieces(("END", "a|bc"), "END, then a|bc", want=[""], matched="END"),
        _pieces(("xabcd", "bc"), "wxabc", want=["wxa"], matched="bc"),
        _pieces(("END", "|"), "a | b END", want=["a "], matched="|"),
        _pieces(("END", "STOP"), "a STOP then END", want=["a "], matched="STOP"),
        _pieces(("a", "bcd"), "x bcd a", want=["x "], matched="bcd"),
        _pieces(("END",), "see N", "D end, D", want=["see N", "D end, D"]),
        _pieces(("END",), "the e", "nd", want=["the e", "nd"]),
        _pieces(("\n\nUser:", "o\nx"), "so\n", "x", want=["s", ""], matched="o\nx"),
        _pieces(("ENDE", "END"), "an END", want=["an "], matched="END"),
        _pieces(("END", "Dx"), "an END", want=["an "], matched="END"),
        _pieces(("END",), "well", "E", "xEN", "D", want=["well", "", "Ex", ""], matched="END"),
        _pieces(("aab",), "xaa", "", "cab", "aab", want=["x", "", "aacab", ""], matched="aab"),
        _pieces(("abab",), "xaba", "ca", "bab", want=["x", "abac", ""], matched="abab"),
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
            _matcher(hit=choose(key=lambda hit: (hit[1], hit[0]))),
            "Of several stop strings you take the one that begins first. Read letter by letter: the first to be"
            " *complete* ends the text, or the answer would depend on the cuts. That is 8.4.",
        ),
        Mutant(
            _matcher(hit=choose(key=lambda hit: (hit[0], -hit[1]))),
            "Of several stop strings that end at the same place you take the shortest. The beginning of the longer one"
            " would be shown.",
        ),
        Mutant(
            _matcher(hit=choose(key=lambda hit: hit[0])),
            "Of several stop strings that end at the same place you take the one that was given first. The longest is"
            " wanted.",
        ),
        Mutant(
            _matcher(hit=choose(key=lambda hit: (-len(hit[2]), hit[0]))),
            "Of several stop strings you take the longest, wherever it is. The first to be complete ends the text;"
            " lengths decide between those that end alike.",
        ),
        Mutant(
            _matcher(hit=choose(find=last_occurrences)),
            "You look for the stop string from the right (rfind). The text ends at the first of them, and what stands"
            " between the two is not shown.",
        ),
        Mutant(
            _matcher(hit=lambda text, stops: letter_by_letter(text, stops) if text.endswith(tuple(stops)) else None),
            "You look at the end of the text only. A stop string may stand in the middle of a piece.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: shortest(text, stops)),
            "You hold the shortest end that begins a stop string. If a longer one does too, its first part is shown:"
            " hold the longest.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: first_that_could(text, stops)),
            "You hold text back for the first stop string that could begin here. Another of the list may have begun"
            " earlier: hold the longest end over all.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: anywhere_in(text, stops)),
            "You hold an end of the text that occurs anywhere in a stop string. It is dangerous only at the stop"
            " string's beginning.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: in_any_case(text, stops)),
            "You ignore upper and lower case. A stop string is those characters and no others: hold nothing else.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: at_one_place(str.rfind)(text, stops)),
            "You look where the first letter of a stop string occurs last. If the stop string has that letter twice, it"
            " may have begun earlier.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: at_one_place(str.find)(text, stops)),
            "You look where the first letter of a stop string occurs first. It may occur again, and begin there.",
        ),
        Mutant(
            _matcher(hold=lambda text, stops, piece: counted_to_a_mismatch(text, stops)),
            "You count matching characters, and a mismatch sets the count to 0. What matched may contain another"
            " beginning: compare whole ends.",
        ),
        Mutant(
            _matcher(searched=lambda whole, piece: piece, cut=lambda text, start, stop: text[: text.find(stop)]),
            "You look for stop strings in the new piece alone, though you hold their beginnings: look in both, joined.",
        ),
        Mutant(
            _of_the_new_piece,
            "You cut the new piece where the stop string begins in the joined text. The place counts from the beginning"
            " of what was held: slice the joined text.",
        ),
        Mutant(
            _nothing_at_the_match,
            "When a stop string is complete you show nothing. What stands before it in the same piece is text.",
        ),
        Mutant(
            _held_twice,
            "You add to self.held what has the held text in it already: it is held twice. Set self.held, with =.",
        ),
        Mutant(
            _not_always_set,
            "You set self.held only where something is held now. Where nothing is, what it had before stays, and is"
            " shown again with the next piece.",
        ),
        Mutant(
            _held_taken_off_first,
            "You take the end off that would be held, also where a stop string is complete. The end of that stop string"
            " may begin another, and text before it is lost: look for a complete one first.",
        ),
        Mutant(
            _searched_in_the_rest,
            "You take off the end to be held first, and look for a complete stop string in what is left. Its own last"
            " letters may have been taken off: look for a complete one first.",
        ),
        Mutant(
            _all_or_nothing_held,
            "You hold only if all that has come since begins a stop string. Most pieces have ordinary text before the"
            " beginning: some end of it is what has to be held.",
        ),
        Mutant(
            _empty_flushes,
            "You let go of what is held when an empty piece comes. It decides nothing: a token may have shown no text"
            " yet, and the stop string goes on after it.",
        ),
        Mutant(
            _all_until_a_stop,
            "You hold everything until a stop string comes. What can be no beginning of one is to be shown at once.",
        ),
        Mutant(
            _matcher(left=lambda text, found: text[found[0] + len(found[1]) :]),
            "After a match you keep what stands behind the stop string. It is never to be shown, and `flush` would show"
            " it: hold nothing.",
        ),
        Mutant(
            _matcher(matched=lambda found: True),
            "You set self.matched to True. It says *which* stop string ended the text.",
        ),
        Mutant(
            _matcher(matched=lambda found: found),
            "You set self.matched to the pair that 8.4 returns. Only the stop string belongs there: start, self.matched"
            " = found.",
        ),
        Mutant(
            _matcher(hit=lambda text, stops: hit if (hit := _hit(text, stops)) and hit[0] else None),
            "You miss a stop string at the very beginning: its place is 0, which counts as false. Ask whether the"
            " result is None.",
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
