"""Stop strings in text that arrives in pieces: nothing of one is ever shown, and nothing else is kept back for long."""

from collections.abc import Sequence

from minillm.errors import InputError


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """(where it begins, the stop string) of the first one in `text`; None if there is none.

    The first is the one whose last character comes first, as someone reading along would see it; of several that end
    there, the longest.
    """
    starts = [(text.find(stop), stop) for stop in stops]
    found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
    if not found:
        return None
    _, start, stop = min(found)  # the earliest end, then the earliest start, which is the longest
    return start, stop


def held_length(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of `text`, which holds no whole stop string, could be the beginning of one.

    It is the longest end of `text` that begins a stop string: showing any of it could turn out wrong, and what stands
    before it can be part of no stop string any more.
    """
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0


class StopMatcher:
    """Lets text through up to the first stop string, wherever the pieces are cut.

    Which one is the first (see `first_stop`) does not depend on how the text was cut into pieces, and no match waits
    for later text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepare to look for each of `stops`; duplicates are harmless.

        Raises:
            InputError: a stop string is empty, or `stops` is a single string.
        """
        if isinstance(stops, str):
            raise InputError(f"stop strings come as a list: [{stops!r}], not {stops!r}")
        if "" in stops:
            raise InputError("a stop string is empty, which would match everywhere; leave it out")
        self.stops = tuple(dict.fromkeys(stops))
        self.held = ""  # taken in and not shown: it could be the beginning of a stop string
        self.matched: str | None = None  # the stop string that ended the text

    def add(self, text: str) -> str:
        """Return what `text` has made safe to show: all but the longest end that could still become a stop string.

        After a match this is the text before the stop string, and "" ever after.
        """
        if self.matched is not None:
            return ""
        text = self.held + text
        found = first_stop(text, self.stops)
        if found is not None:
            start, self.matched = found
            self.held = ""
            return text[:start]
        safe = len(text) - held_length(text, self.stops)
        self.held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """Return what was held back, once: the text is over, and no stop string came of it."""
        held, self.held = self.held, ""
        return held
