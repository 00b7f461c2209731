"""8.2: what goes out while bytes come, and what is held."""

import codecs
from collections.abc import Callable
from functools import cache

from graders.ch08_bytes import (
    TRIPLES,
    by_bits,
    by_completing,
    by_decoding_ends,
    by_threshold,
    codec_state,
    rule,
    tail_of_high_bytes,
    third_unread,
)
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


def _all_streams() -> Case:
    """Strings of critical bytes, one byte at a time; what can be seen is the first stream that goes wrong."""

    def observe(f: Function) -> Observation:
        wrong = [data for data in TRIPLES[::3] if _stream(f, data) != _streamed(data)]
        if not wrong:
            return {"the first stream that goes wrong": "none"}
        came, want = (shown(pieces) for pieces, _ in (_stream(f, wrong[0]), _streamed(wrong[0])))
        differs = f"{came} instead of {want}" if came != want else f"{came} is right, and self.held is not"
        return {"the first stream that goes wrong": f"{wrong[0].hex(' ').upper()}: {differs}; {len(wrong)} in all"}

    given = f"{len(TRIPLES[::3])} strings of three bytes, each by itself, one byte after the other"
    return Case(given, observe, lambda: {"the first stream that goes wrong": "none"})


def _stream(f: Function, data: bytes) -> tuple[list[object], object]:
    decoder = Utf8Decoder()
    return [f(decoder, bytes([byte])) for byte in data], decoder.held


@cache
def _streamed(data: bytes) -> tuple[list[object], object]:
    return _stream(_decoder(held=by_completing), data)


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


def _not_always_set(self: Utf8Decoder, data: bytes) -> str:
    data = self.held + data
    n = right_length(data)
    if n:
        self.held = data[len(data) - n :]
    return data[: len(data) - n].decode(errors="replace")


def _each_by_itself(self: Utf8Decoder, data: bytes) -> str:
    before, n = self.held, right_length(self.held + data)
    if n > len(data):
        self.held += data
        return ""
    self.held = data[len(data) - n :]
    return before.decode(errors="replace") + data[: len(data) - n].decode(errors="replace")


def _end_of_the_new(self: Utf8Decoder, data: bytes) -> str:
    cut = len(data) - right_length(data)
    text, self.held = (self.held + data[:cut]).decode(errors="replace"), data[cut:]
    return text


def _from_the_diamonds(self: Utf8Decoder, data: bytes) -> str:
    data = self.held + data
    text = data.decode(errors="replace")
    if not text.endswith("\ufffd"):
        self.held = b""
        return text
    text = text.rstrip("\ufffd")
    self.held = data[len(text.encode()) :]
    return text


def _from_the_error(self: Utf8Decoder, data: bytes) -> str:
    data = self.held + data
    try:
        text, self.held = data.decode(), b""
    except UnicodeDecodeError as error:
        text, self.held = data[: error.start].decode(), data[error.start :]
    return text


def _one_for_all(self: Utf8Decoder, data: bytes) -> str:
    data = self.held + data
    cut = len(data) - right_length(data)
    self.held = data[cut:]
    try:
        return data[:cut].decode()
    except UnicodeDecodeError:
        return "\ufffd"


def _empty_flushes(self: Utf8Decoder, data: bytes) -> str:
    if data:
        return _decoder()(self, data)
    held, self.held = self.held, b""
    return held.decode(errors="replace")


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
    text, held = codec.decode(data), codec.getstate()[0]
    if held[:1] == b"\xed" and held[1:] > b"\x9f":  # where Python waits and need not
        text, held = text + held.decode(errors="replace"), b""
    self.held = held
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
        _chunks("61 F0", "80", "62", want=["a", "\ufffd\ufffd", "b"]),
        _chunks("61 ED A0", "62", want=["a\ufffd\ufffd", "b"]),
        _chunks("61 C0", "62", want=["a\ufffd", "b"]),
        _chunks("61 F0 90 80", "80", want=["a", "\U00010000"]),
        _chunks("F0 9F", "", "99 82", want=["", "", "🙂"]),
        _chunks("61 C3", "A9 FF 62 E2 82", "AC", want=["a", "é\ufffdb", "€"]),
        _all_streams(),
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
            _not_always_set,
            "You set self.held only where something is held now. Where nothing is, what it had before stays, and is"
            " shown again with the next bytes.",
        ),
        Mutant(
            _each_by_itself,
            "You decode what was held and what came one by one. The two halves of a character make it only together:"
            " join the bytes, then decode.",
        ),
        Mutant(
            _end_of_the_new,
            "You look for an unfinished end in the new bytes alone. Those held belong before them: the end of a"
            " character's beginning may be continuations, which begin nothing by themselves.",
        ),
        Mutant(
            _from_the_diamonds,
            "You hold all bytes that are replacement characters at the end of the text. Some of them are that for"
            " good: FF will never become a character, however long you wait.",
        ),
        Mutant(
            _from_the_error,
            "You hold everything from the first error on. After a byte that is invalid for good, nothing would be shown"
            " ever again: ask which end can still be completed.",
        ),
        Mutant(
            _one_for_all,
            "One invalid byte turns all that came with it into a single replacement character. What is valid around it"
            ' is text: errors="replace" puts one in the place of the invalid bytes alone.',
        ),
        Mutant(
            _empty_flushes,
            "You flush when no bytes come. A token may have no bytes at all (a special one, say), and the character"
            " goes on after it: the end is told by a call of `flush`.",
        ),
        Mutant(
            _decoder(held=rule(length_of=by_threshold)),
            "You hold C0, or FF, as if a character began with it. None does: it is settled when it comes.",
        ),
        Mutant(
            _decoder(held=rule(length_of=by_bits)),
            "You go by the bit patterns, and hold C0 or F5. They look like first bytes, and no character begins with"
            " them.",
        ),
        Mutant(
            _decoder(held=third_unread),
            "You hold F0 9F with whatever comes third. What is not 80 to BF has ended it: show a replacement character,"
            " and go on with that byte.",
        ),
        Mutant(
            _decoder(held=rule(second={})),
            "You hold F0 80 and ED A0, as if they could become characters. The second byte settles it: after E0, ED, F0"
            " and F4 only a part of 80 to BF is possible.",
        ),
        Mutant(
            _decoder(held=lambda data: len(codec_state(data))),
            "You hold ED A0, as Python's own incremental decoder does. It is the half of a surrogate pair, UTF-8 has"
            " none, and nothing that comes makes a character of it.",
        ),
        Mutant(
            _decoder(held=rule(looks_at=lambda length: -1)),
            "Of three bytes held, you check the last where the second is meant. The table's ranges are for the byte"
            " right after the first.",
        ),
        Mutant(
            _decoder(held=rule(reach=2)),
            "You look at the last two bytes alone. Of a character of four, three may be held.",
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
