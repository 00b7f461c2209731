"""From token ids back to text, while they are being made.

A token can end in the middle of a character, and a stop string can begin in one token and end in another. So
text is shown when it has become certain, and not before: nothing shown is ever taken back, and nothing is
held longer than that needs. Two small machines do this, one after the other:

    id --StreamDecoder--> whole characters --StopMatcher--> text that cannot be part of a stop string

`Detokenizer` joins the two for the steps of one request, and `detokenize` runs it over a decode loop.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from minillm.stop_strings import StopMatcher
from minillm.token_bytes import count_leading_spaces
from minillm.tokenizer import Tokenizer
from minillm.utf8 import Utf8Decoder


class StreamDecoder:
    """An incremental UTF-8 decoder over tokens: "".join of all `add` and the `flush` ==
    `tokenizer.decode(ids)`.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._utf8 = Utf8Decoder()
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
        return self._utf8.flush()

    @property
    def held(self) -> bytes:
        """The bytes taken in and not shown: the beginning of a character."""
        return self._utf8.held

    def _drop_leading_spaces(self, data: bytes) -> bytes:
        spaces = count_leading_spaces(data, self._spaces_to_drop)
        kept = data[spaces:]
        self._spaces_to_drop = 0 if kept else self._spaces_to_drop - spaces
        return kept


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


class Detokenizer:
    """Steps of one request to pieces of its text: a `StreamDecoder`, and a `StopMatcher` behind it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        """Raises InputError for an empty stop string."""
        self.decoder = StreamDecoder(tokenizer)
        self.matcher = StopMatcher(stop)

    def piece_of(self, step: Step) -> Piece:
        """Return the piece that `step` adds.

        - A step that finishes with "stop" shows no text of its own: its token ends the sequence and says nothing.
        - When a stop string is complete, the text ends before it, and the reason is "stop" whatever the step's.
        - The piece with a reason is the last, and has all text that was still held.

        Raises:
            InputError: a token outside the vocabulary.
        """
        reason = step.finish_reason
        text = "" if reason == "stop" else self.matcher.add(self.decoder.add(step.token_id))
        if reason is not None:
            text += self.flush()
        if self.matcher.matched is not None:
            reason = "stop"
        return Piece(text, step, reason)

    def flush(self) -> str:
        """Return all that both machines still hold, once; the end of an unfinished character may yet complete a stop
        string.
        """
        return self.matcher.add(self.decoder.flush()) + self.matcher.flush()


def detokenize(steps: Iterable[Step], tokenizer: Tokenizer, stop: Sequence[str] = ()) -> Iterator[Piece]:
    """Turn decode steps into pieces of text, one piece per step (see `Detokenizer.piece_of`).

    - After a piece with a reason no further step is asked for.
    - If `steps` end without a reason (they were interrupted), held text comes in one more piece, without step or
      reason.

    `steps` are closed (if they can be: generators) before the last piece is handed out, or when the caller
    stops early.

    Raises:
        InputError: an empty stop string (when the first piece is asked for), or a token outside the
            vocabulary.
    """
    detokenizer = Detokenizer(tokenizer, stop)
    try:
        for step in steps:
            piece = detokenizer.piece_of(step)
            if piece.finish_reason is not None:
                _close(steps)
                yield piece
                return
            yield piece
        rest = detokenizer.flush()
        stopped = detokenizer.matcher.matched is not None
        if rest or stopped:
            yield Piece(rest, None, "stop" if stopped else None)
    finally:
        _close(steps)


def _close(steps: Iterable[Step]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()
