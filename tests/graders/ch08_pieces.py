"""8.6: the steps of one request, one after the other, through both machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from graders.ch08_decode import shown
from minillm.detokenizer import Detokenizer, Piece, Step
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.tokenizer import Tokenizer

END_OF_SEQUENCE = 0


class _Vocabulary(Tokenizer):
    """As much of a tokenizer as a detokenizer asks for: id 0 is special, the others are the bytes of the case."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.special_ids = frozenset({END_OF_SEQUENCE})
        self._bytes = [b"<eos>", *tokens]

    @property
    def leading_spaces_dropped(self) -> int:
        return 0

    def id_to_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]


@dataclass(frozen=True)
class _Step:
    token_id: int
    finish_reason: str | None
    logprob: float = -0.5


EOS = "the end-of-sequence token"


def _request(
    *tokens: str, reason: str | None, texts: list[str], wanted: str | None = None, stop: Sequence[str] = ()
) -> Case:
    """Tokens (text, bytes in hexadecimal after a colon, or EOS), the last of which has the reason."""
    data = [bytes.fromhex(token[1:]) if token.startswith(":") else token.encode() for token in tokens]
    reasons = [None] * (len(tokens) - 1) + [reason]
    steps = [
        _Step(END_OF_SEQUENCE if token == EOS else number, why)
        for number, (token, why) in enumerate(zip(tokens, reasons, strict=True), start=1)
    ]

    def observe(f: Function) -> Observation:
        detokenizer = Detokenizer(_Vocabulary(data), stop)
        return _account([f(detokenizer, step) for step in steps], steps)

    def want() -> Observation:
        ends = [None] * (len(tokens) - 1) + [wanted or reason]
        return _account([Piece(t, s, r) for t, s, r in zip(texts, steps, ends, strict=True)], steps)

    words = [token if token == EOS else token[1:] if token.startswith(":") else repr(token) for token in tokens]
    given = f"the tokens {', '.join(words)}; the last step's reason is {reason!r}; stop strings {list(stop)}"
    return Case(given, observe, want)


def _account(pieces: list[Any], steps: list[_Step]) -> Observation:
    real = [piece for piece in pieces if isinstance(piece, Piece)]
    pairs = zip(pieces, steps, strict=True)
    return {
        "what is shown, piece by piece": " ".join(_text(piece) for piece in pieces),
        "the finish reasons": ", ".join(_reason(piece.finish_reason) for piece in real),
        "each piece's step": ", ".join(_step(*pair) for pair in pairs if isinstance(pair[0], Piece)),
    }


def _text(piece: Any) -> str:
    if isinstance(piece, Piece):
        return shown([piece.text])
    return "(nothing: is there a `return`?)" if piece is None else f"({type(piece).__name__} instead of a Piece)"


def _step(piece: Piece, step: _Step) -> str:
    if piece.step is step:
        return "the one that came in"
    return "None" if piece.step is None else f"{type(piece.step).__name__}: {piece.step}"


def _reason(reason: Any) -> str:
    return "a step" if isinstance(reason, _Step) else str(reason)


def _through(self: Detokenizer, step: Step) -> str:
    return self.matcher.add(self.decoder.add(step.token_id))


def _rest(self: Detokenizer) -> str:
    return self.matcher.add(self.decoder.flush()) + self.matcher.flush()


def _piece(
    *,
    text: Callable[[Detokenizer, Step], str] = _through,
    silent: Callable[[str | None], bool] = lambda reason: reason == "stop",
    rest: Callable[[Detokenizer], str] = _rest,
    flushed: Callable[[str | None], bool] = lambda reason: reason is not None,
    final: Callable[[str | None, bool], str | None] = lambda reason, matched: "stop" if matched else reason,
    early: bool = False,
) -> Function:
    """The rule with a part of it done otherwise."""

    def piece_of(self: Detokenizer, step: Step) -> Piece:
        reason = step.finish_reason
        shown_text = "" if silent(reason) else text(self, step)
        matched = self.matcher.matched is not None
        if flushed(reason):
            shown_text += rest(self)
        if not early:
            matched = self.matcher.matched is not None
        return Piece(shown_text, step, final(reason, matched))

    return piece_of


def _nothing_at_the_end(self: Detokenizer, step: Step) -> Any:
    return None if step.finish_reason == "stop" else _piece()(self, step)


def _nothing(self: Detokenizer, step: Step) -> None:
    _piece()(self, step)


def _nothing_where_empty(self: Detokenizer, step: Step) -> Any:
    piece = _piece()(self, step)
    return piece if piece.text or piece.finish_reason else None


def _text_alone(self: Detokenizer, step: Step) -> Any:
    return _piece()(self, step).text


def _swapped(self: Detokenizer, step: Step) -> Piece:
    piece = _piece()(self, step)
    return Piece(piece.text, piece.finish_reason, piece.step)


def _which_as_reason(self: Detokenizer, step: Step) -> Piece:
    piece = _piece()(self, step)
    return Piece(piece.text, step, self.matcher.matched or piece.finish_reason)


def _reason_left_out(self: Detokenizer, step: Step) -> Piece:
    return Piece(_piece()(self, step).text, step)


def _id_for_step(self: Detokenizer, step: Step) -> Piece:
    piece = _piece()(self, step)
    return Piece(piece.text, step.token_id, piece.finish_reason)


def _without_a_step(self: Detokenizer, step: Step) -> Piece:
    piece = _piece()(self, step)
    return Piece(piece.text, None if piece.finish_reason else step, piece.finish_reason)


def _thrown_away(self: Detokenizer, step: Step) -> str:
    """Decodes every token, and drops the text of the one that ends the sequence."""
    text = self.decoder.add(step.token_id)
    return "" if step.finish_reason == "stop" else self.matcher.add(text)


def _in_branches(self: Detokenizer, step: Step) -> Piece:
    """Another right answer, case by case."""
    if step.finish_reason is None:
        text = _through(self, step)
        return Piece(text, step, None if self.matcher.matched is None else "stop")
    new = self.decoder.add(step.token_id) if step.finish_reason == "length" else ""
    text = self.matcher.add(new + self.decoder.flush())
    if self.matcher.matched is not None:
        return Piece(text, step, "stop")
    return Piece(text + self.matcher.flush(), step=step, finish_reason=step.finish_reason)


PIECE_OF = Grader(
    cases=[
        _request("ab", " c", EOS, reason="stop", texts=["ab", " c", ""]),
        _request("ab", "z", reason="stop", texts=["ab", ""]),
        _request("ab", "z", reason="length", texts=["ab", "z"]),
        _request("a", ":F0 9F", ":99 82", EOS, reason="stop", texts=["a", "", "🙂", ""]),
        _request("ab", "EN", "Dx", reason=None, wanted="stop", stop=["END"], texts=["ab", "", ""]),
        _request("ab", "EN", "D", reason="length", wanted="stop", stop=["END"], texts=["ab", "", ""]),
        _request("aE", "N", reason="length", stop=["END"], texts=["a", "EN"]),
        _request("aEN", EOS, reason="stop", stop=["END"], texts=["a", "EN"]),
        _request("a", ":F0 9F", reason="length", texts=["a", "\ufffd"]),
        _request("aEN", ":F0 9F", EOS, reason="stop", stop=["END"], texts=["a", "", "EN\ufffd"]),
        _request("ab", ":F0", reason="length", wanted="stop", stop=["b\ufffd"], texts=["a", ""]),
        _request("a", ":F0 9F", "z", reason="stop", texts=["a", "", "\ufffd"]),
        _request("a", EOS, "b", reason="length", texts=["a", "", "b"]),
    ],
    mutants=[
        Mutant(
            _piece(silent=lambda reason: False),
            "You show the text of the token that ends the sequence. It need not be a special token (`stop_token_ids`"
            ' may name any), and it says "enough": it is no part of the answer.',
        ),
        Mutant(
            _piece(flushed=lambda reason: False),
            "You never flush. What the machines held at the end, half a character or the beginning of a stop string"
            " that did not come, is part of the text, and lost.",
        ),
        Mutant(
            _piece(flushed=lambda reason: reason == "stop"),
            'You flush at "stop" only. At "length" the text is over as well, and its held end would be lost.',
        ),
        Mutant(
            _piece(flushed=lambda reason: reason == "length"),
            'You flush at "length" only. At "stop" the text is over as well, and its held end would be lost.',
        ),
        Mutant(
            _piece(flushed=lambda reason: True),
            "You flush after every step. Then nothing is ever held: characters come out broken, and stop strings that"
            " span tokens leak.",
        ),
        Mutant(
            _piece(rest=lambda self: self.matcher.flush()),
            "You flush the matcher and not the decoder: an unfinished character at the end vanishes without a trace.",
        ),
        Mutant(
            _piece(rest=lambda self: self.matcher.add(self.decoder.flush())),
            "You flush the decoder and not the matcher: what was held for a stop string that did not come is lost.",
        ),
        Mutant(
            _piece(rest=lambda self: self.decoder.flush() + self.matcher.flush()),
            "You put what the decoder held before what the matcher held. The matcher's came earlier: the decoder's end"
            " must go through the matcher, as all text does.",
        ),
        Mutant(
            _piece(rest=lambda self: self.matcher.flush() + self.decoder.flush()),
            "You append what the decoder held behind the matcher's back. It may complete a stop string: it must go"
            " through the matcher, as all text does.",
        ),
        Mutant(
            _piece(final=lambda reason, matched: reason),
            'You pass the step\'s reason on and forget the stop string. It ends the text too: the reason is "stop",'
            " and if nobody says so, the engine computes on for a text that is over.",
        ),
        Mutant(
            _piece(final=lambda reason, matched: reason or ("stop" if matched else None)),
            'A stop string that the very last token completes ends the text: the reason is "stop", also where the step'
            ' says "length".',
        ),
        Mutant(
            _piece(final=lambda reason, matched: "stop" if matched or reason else None),
            'You say "stop" whatever the reason. A caller who is told "stop" takes a text for complete that was cut'
            " off by its limit.",
        ),
        Mutant(
            _piece(early=True),
            "You look at self.matcher.matched before the flush. The replacement character of a broken end may"
            " complete a stop string: look after it.",
        ),
        Mutant(
            _piece(text=lambda self, step: self.decoder.add(step.token_id)),
            "The text does not go through the matcher: no stop string is ever found.",
        ),
        Mutant(
            _piece(text=_thrown_away, silent=lambda reason: False),
            "You decode the token that ends the sequence, and drop its text. With it goes what the decoder held of"
            " the text before: leave that token out from the start.",
        ),
        Mutant(
            _nothing_at_the_end,
            "Where the sequence ends you return nothing. There is a piece for every step, and the last one brings the"
            " reason and what was held, even if it has no text of its own.",
        ),
        Mutant(
            _nothing,
            "You return nothing, from no step at all: the last line is return Piece(text, step, reason).",
        ),
        Mutant(
            _nothing_where_empty,
            "You return nothing where no text has become certain. There is a piece for every step: its text may be"
            ' "", and whoever counts pieces counts tokens.',
        ),
        Mutant(
            _text_alone,
            "You return the text alone. Around it belongs a Piece, with the step and the reason.",
        ),
        Mutant(
            _swapped,
            "The arguments of Piece are swapped: Piece(text, step, finish_reason).",
        ),
        Mutant(
            _which_as_reason,
            'You give the stop string itself as the reason. The reason is the word "stop"; which stop string it was is'
            " in self.matcher.matched.",
        ),
        Mutant(
            _reason_left_out,
            "Your pieces have no reason: without its third argument, Piece says None, and the text never ends.",
        ),
        Mutant(
            _id_for_step,
            "You put the token's id where the step belongs. A Piece carries the whole step.",
        ),
        Mutant(
            _piece(silent=lambda reason: reason is not None),
            'You leave out the last token at "length" too. There it is text like any other: only at "stop" is it no'
            " part of the answer.",
        ),
        Mutant(
            lambda self, step: Piece((piece := _piece()(self, step)).text, None, piece.finish_reason),
            "Your pieces have no step: the second argument of Piece is the step that came in.",
        ),
        Mutant(
            _without_a_step,
            "The last piece has lost its step. Every piece carries the step that it came from.",
        ),
    ],
    alternatives=[_in_branches, _piece(rest=Detokenizer.flush)],
)
