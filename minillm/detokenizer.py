"""From token ids back to text, while they are being made.

A token can end in the middle of a character, and a stop string can begin in one token and end in another. So
text is shown when it has become certain, and not before: nothing shown is ever taken back, and nothing is
held longer than that needs. Two small machines do this, one after the other:

    id --StreamDecoder--> whole characters --StopMatcher--> text that cannot be part of a stop string

and `detokenize` runs both over the steps of a decode loop.
"""

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from minillm.errors import InputError
from minillm.token_bytes import count_leading_spaces
from minillm.tokenizer import Tokenizer


class StreamDecoder:
    """An incremental UTF-8 decoder over tokens: "".join of all `add` and the `flush` ==
    `tokenizer.decode(ids)`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._spaces_to_drop = tokenizer.leading_spaces_dropped

    def add(self, token_id: int) -> str:
        """Return the text that `token_id` has made certain: "" while it ends inside a character.

        Bytes that can no longer become a character are U+FFFD.

        Raises:
            InputError: the id is outside the vocabulary.
        """
        if token_id in self._skipped:
            return ""
        return self._utf8.decode(self._drop_leading_spaces(self._tokenizer.id_to_bytes(token_id)))

    def flush(self) -> str:
        """Return what is left (U+FFFD for an unfinished character), once: a second call returns ""."""
        left = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return left

    def _drop_leading_spaces(self, data: bytes) -> bytes:
        spaces = count_leading_spaces(data, self._spaces_to_drop)
        kept = data[spaces:]
        self._spaces_to_drop = 0 if kept else self._spaces_to_drop - spaces
        return kept


class StopMatcher:
    """Lets text through up to the first stop string, wherever the pieces are cut.

    The first is the one whose last character comes first, as someone reading along would see it; of several
    that end there, the longest. So the result does not depend on how the text was cut into pieces, and no
    match waits for later text.
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
        self._stops = tuple(dict.fromkeys(stops))
        self._longest_hold = max((len(stop) - 1 for stop in self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Return what `text` has made safe to show: all but the longest end that could still become a stop
        string.

        After a match this is the text before the stop string, and "" ever after.
        """
        if self.matched is not None:
            return ""
        text = self._held + text
        found = self._first_stop(text)
        if found is not None:
            start, self.matched = found
            self._held = ""
            return text[:start]
        safe = len(text) - self._hold_length(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """Return what was held back, once: the text is over, and no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """(start, stop string) of the first one in `text`."""
        starts = [(text.find(stop), stop) for stop in self._stops]
        found = [(start + len(stop), start, stop) for start, stop in starts if start >= 0]
        if not found:
            return None
        _, start, stop = min(found)  # the earliest end, then the earliest start, which is the longest
        return start, stop

    def _hold_length(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest_hold, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


@runtime_checkable
class Step(Protocol):
    """What `detokenize` reads of a decode step (see `decode.py`)."""

    @property
    def token_id(self) -> int:
        """The chosen token."""
        ...

    @property
    def logprob(self) -> float:
        """Its log-probability, in nats."""
        ...

    @property
    def finish_reason(self) -> str | None:
        """None while it goes on; "stop" if this token ends the sequence; "length" if there is no room for
        another.
        """
        ...


@dataclass(frozen=True)
class Piece:
    """What one step added to the text.

    `text` is "" where nothing has become certain yet: there is one piece per step, so pieces count tokens.
    `step` is the step it came from, or None in the one piece that can follow the last step (see
    `detokenize`).
    """

    text: str
    step: Any
    finish_reason: str | None = None

    @property
    def token_id(self) -> int | None:
        """The step's token, or None where there is no step."""
        return None if self.step is None else self.step.token_id

    @property
    def logprob(self) -> float | None:
        """The step's log-probability in nats, or None where there is no step."""
        return None if self.step is None else self.step.logprob


def detokenize(steps: Iterable[Step], tokenizer: Tokenizer, stop: Sequence[str] = ()) -> Iterator[Piece]:
    """Turn decode steps into pieces of text, one piece per step.

    - The last piece has the finish reason, and all text that was still held.
    - A step that finishes with "stop" shows no text of its own: its token ends the sequence and says nothing.
    - When a stop string is complete, the text ends before it, the reason is "stop", and no further step is
      asked for.
    - If `steps` end without a reason (they were interrupted), held text comes in one more piece, without step
      or reason.

    `steps` are closed (if they can be: generators) before the last piece is handed out, or when the caller
    stops early.

    Raises:
        InputError: an empty stop string (when the first piece is asked for), or a token outside the
            vocabulary.
    """
    decoder, matcher = StreamDecoder(tokenizer), StopMatcher(stop)
    try:
        for step in steps:
            text = "" if step.finish_reason == "stop" else matcher.add(decoder.add(step.token_id))
            reason = step.finish_reason
            if reason is not None:
                text += _rest(decoder, matcher)
            if matcher.matched is not None:
                reason = "stop"
            if reason is not None:
                _close(steps)
                yield Piece(text, step, reason)
                return
            yield Piece(text, step)
        rest = _rest(decoder, matcher)
        if rest or matcher.matched is not None:
            yield Piece(rest, None, "stop" if matcher.matched is not None else None)
    finally:
        _close(steps)


def _rest(decoder: StreamDecoder, matcher: StopMatcher) -> str:
    """All that both machines still hold; the end of an unfinished character may yet complete a stop
    string.
    """
    return matcher.add(decoder.flush()) + matcher.flush()


def _close(steps: Iterable[Step]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()
