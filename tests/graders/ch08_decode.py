"""8.2: what goes out while bytes come, and what is held."""

import codecs
from collections.abc import Callable

from graders.ch08_bytes import by_decoding_ends, rule, tail_of_high_bytes
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.utf8 import Utf8Decoder


def shown(pieces: list[object]) -> str:
    """What came out, piece by piece, as one text; what is no text, by its kind."""
    return " ".join(repr(piece) if isinstance(piece, str) else f"({_kind(piece)})" for piece in pieces)


def _kind(piece: object) -> str:
    return "nothing: is there a `return`?" if piece is None else f"{type(piece).__name__} instead of str"


def _held(decoder: Utf8Decoder) -> str:
    held = decoder.held
    if not isinstance(held, bytes | bytearray):
        return f"no bytes: {held!r}"
    return bytes(held).hex(" ").upper() or "nothing"


def _chunks(*hexadecimal: str, want: list[str], held: str = "nothing") -> Case:
    """The bytes of several tokens, one after the other; what goes out for each, and what is held in the end."""

    def observe(f: Function) -> Observation:
        decoder = Utf8Decoder()
        pieces = [f(decoder, bytes.fromhex(each)) for each in hexadecimal]
        return {"what is shown, piece by piece": shown(pieces), "self.held afterwards": _held(decoder)}

    given = f"one after the other, the bytes {', then '.join(each or '(none)' for each in hexadecimal)}"
    return Case(
        given, observe, lambda: {"what is shown, piece by piece": shown(list(want)), "self.held afterwards": held}
    )


right_length = rule()


def _decoder(
    *,
    join: Callable[[bytes, bytes], bytes] = lambda held, data: held + data,
    held: Callable[[bytes], int] = right_length,
    text: Callable[[bytes], object] = lambda data: data.decode(errors="replace"),
    keep: bool = True,
) -> Function:
    """A decoder with a part of it done otherwise."""

    def decode(self: Utf8Decoder, data: bytes) -> object:
        data = join(self.held, data)
        cut = len(data) - held(data)
        if keep:
            self.held = data[cut:]
        return text(data[:cut])

    return decode


def _all_or_nothing(self: Utf8Decoder, data: bytes) -> str:
    self.held += data
    try:
        text = self.held.decode()
    except UnicodeDecodeError:
        return ""
    self.held = b""
    return text


def _never_emptied(self: Utf8Decoder, data: bytes) -> str:
    self.held += data
    return self.held[: len(self.held) - right_length(self.held)].decode(errors="replace")


def _difference(self: Utf8Decoder, data: bytes) -> str:
    before = len(self.held.decode(errors="replace"))
    self.held += data
    return self.held.decode(errors="replace")[before:]


def _wait_for_no_replacement(self: Utf8Decoder, data: bytes) -> str:
    self.held += data
    text = self.held.decode(errors="replace")
    if text.endswith("\ufffd"):
        return ""
    self.held = b""
    return text


def _minus_nothing(self: Utf8Decoder, data: bytes) -> str:
    data = self.held + data
    n = right_length(data)
    self.held = data[-n:]
    return data[:-n].decode(errors="replace")


def _somewhere_else(self: Utf8Decoder, data: bytes) -> str:
    self.codec = getattr(self, "codec", None) or codecs.getincrementaldecoder("utf-8")("replace")  # type: ignore[attr-defined]
    return self.codec.decode(data)  # type: ignore[attr-defined]


def _with_a_codec(self: Utf8Decoder, data: bytes) -> str:
    codec = codecs.getincrementaldecoder("utf-8")("replace")
    codec.setstate((self.held, 0))
    text = codec.decode(data)
    self.held = codec.getstate()[0]
    return text


def _byte_by_byte(self: Utf8Decoder, data: bytes) -> str:
    text = ""
    for byte in data:
        pending = self.held + bytes([byte])
        cut = len(pending) - right_length(pending)
        text, self.held = text + pending[:cut].decode("utf-8", "replace"), pending[cut:]
    return text


DECODE = Grader(
    cases=[
        _chunks("61 F0 9F", "99", "82 62", want=["a", "", "🙂b"]),
        _chunks("C3", "A9 C3", "A9", want=["", "é", "é"]),
        _chunks("E6 9C AC E8", "AA", "9E", want=["本", "", "語"]),
        _chunks("61", "", "62 63", want=["a", "", "bc"]),
        _chunks("20 E2", "82", want=[" ", ""], held="E2 82"),
        _chunks("62 C3", want=["b"], held="C3"),
        _chunks("61 FF", "62", want=["a\ufffd", "b"]),
        _chunks("F0 9F", "62", want=["", "\ufffdb"]),
        _chunks("F0 9F", "F0 9F 99 82", "80", want=["", "\ufffd🙂", "\ufffd"]),
        _chunks("FF F0", "9F", want=["\ufffd", ""], held="F0 9F"),
    ],
    mutants=[
        Mutant(
            lambda self, data: data.decode(errors="replace"),
            "You decode each token by itself. A character that is spread over two of them comes out as replacement"
            " characters: put what was held before the new bytes.",
        ),
        Mutant(
            _all_or_nothing,
            "You wait until all that was held is valid. Whole characters before an unfinished one could be shown now;"
            " and after one invalid byte nothing would be shown ever again.",
        ),
        Mutant(
            _decoder(text=lambda data: data.decode(errors="ignore")),
            "You drop invalid bytes without a trace. Nobody sees that something is missing, and the stream differs from"
            ' decoding all bytes at once: errors="replace".',
        ),
        Mutant(
            _decoder(text=lambda data: data.decode()),
            "You decode strictly, and one byte that is no UTF-8 ends the request with an exception. A model may produce"
            ' any bytes: errors="replace".',
            begins="UnicodeDecodeError",
        ),
        Mutant(
            _never_emptied,
            "You show again what was shown before: what has gone out must leave self.held.",
        ),
        Mutant(
            _difference,
            "You decode everything and show what is new by its length. An unfinished character counts as one"
            " replacement character: it is shown, and the real one, of the same length, never follows.",
        ),
        Mutant(
            _wait_for_no_replacement,
            "You wait for as long as the text ends in a replacement character. That may be one for good, as for FF, and"
            " whole characters before it wait too: hold what *can* still be completed, and nothing else.",
        ),
        Mutant(
            _minus_nothing,
            "You slice with -n, and n is 0 where nothing is held: data[:-0] is empty and data[-0:] is everything."
            " Slice at len(data) - n.",
        ),
        Mutant(
            _decoder(join=lambda held, data: data),
            "You hold the beginning of a character, and then forget it: the next bytes must be joined to self.held.",
        ),
        Mutant(
            _decoder(join=lambda held, data: data + held),
            "You put what was held behind the new bytes. It came first.",
        ),
        Mutant(
            _decoder(keep=False),
            "You leave out the end of the bytes, and keep it nowhere: it belongs into self.held, for next time.",
        ),
        Mutant(
            _decoder(held=lambda data: min(3, len(data))),
            "You always hold three bytes. The text lags behind by as much, even where every character is whole.",
        ),
        Mutant(
            _decoder(held=tail_of_high_bytes),
            "You hold every byte that is not ASCII until one comes that is. Whole characters can be shown at once: a"
            " text in Japanese would not stream at all.",
        ),
        Mutant(
            _decoder(text=lambda data: data),
            "You return bytes. Text is wanted: decode what is settled.",
        ),
        Mutant(
            _somewhere_else,
            "The pieces are right, but what you hold is not in self.held. When the text is over, `flush` looks there,"
            " and the last unfinished character would be lost.",
        ),
    ],
    alternatives=[_with_a_codec, _byte_by_byte, _decoder(held=by_decoding_ends)],
)
