"""8.1 and 8.2: which bytes are held, and what goes out while they come."""

import codecs
from collections.abc import Callable

from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.utf8 import Utf8Decoder

# --- 8.1 -------------------------------------------------------------------------------------------------------------


def _bytes(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def _unfinished(hexadecimal: str, want: int, why: str) -> Case:
    return formula(f"the bytes {hexadecimal or '(none)'}: {why}", [_bytes(hexadecimal)], want)


_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def _by_range(lead: int) -> int:
    """How long the character is that `lead` begins, or 0."""
    bounds = ((0xC2, 2), (0xE0, 3), (0xF0, 4), (0xF5, 0))
    return next((length for first, length in reversed(bounds) if lead >= first), 1 if lead < 0x80 else 0)


def _by_bits(lead: int) -> int:
    ones = next(n for n in range(9) if n == 8 or not lead & (0x80 >> n))
    return {0: 1, 2: 2, 3: 3, 4: 4}.get(ones, 0)


def _by_threshold(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _rule(
    *,
    length_of: Callable[[int], int] = _by_range,
    second: dict[int, tuple[int, int]] = _SECOND,
    whole: Callable[[int, int], bool] = lambda length, wanted: length >= wanted,
    answer: Callable[[int, int, bytes], int] = lambda length, wanted, data: length,
    reach: int = 3,
    nothing: Callable[[bytes], int] = lambda data: 0,
) -> Function:
    """The rule with a part of it done otherwise."""

    def unfinished(data: bytes) -> int:
        for length in range(1, min(reach, len(data)) + 1):
            lead = data[-length]
            if 0x80 <= lead < 0xC0:
                continue
            wanted = length_of(lead)
            if whole(length, wanted):
                return nothing(data)
            low, high = second.get(lead, (0x80, 0xBF))
            if length > 1 and not low <= data[-length + 1] <= high:
                return nothing(data)
            return answer(length, wanted, data)
        return nothing(data)

    return unfinished


def _tail_of_high_bytes(data: bytes) -> int:
    return next((n for n, byte in enumerate(reversed(data)) if byte < 0x80), len(data))


def _from_the_error(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return len(data) - error.start
    return 0


def _from_the_first_error(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return len(data) - error.start if error.reason == "unexpected end of data" else 0
    return 0


def _last_byte_unguarded(data: bytes) -> int:
    return _rule()(data) if data[-1] >= 0x80 else 0


def _codec_state(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def _by_decoding_ends(data: bytes) -> int:
    """Another right answer: Python says of an end whether it is only unfinished."""
    for length in (3, 2, 1):
        try:
            data[len(data) - length :].decode() if length <= len(data) else None
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return length
    return 0


def _by_completing(data: bytes) -> int:
    """Another right answer: some completions are tried."""
    for length in range(1, min(3, len(data)) + 1):
        end = data[-length:]
        for more in (first + b"\x80" * n for first in (b"\x80", b"\x90", b"\xa0") for n in range(3)):
            try:
                if len((end + more).decode()) == 1:
                    return length
            except UnicodeDecodeError:
                continue
    return 0


UNFINISHED_LENGTH = Grader(
    cases=[
        _unfinished("61 F0 9F 99", 3, "three of four"),
        _unfinished("61 F0 9F 99 82", 0, "a whole emoji"),
        _unfinished("61 62", 0, "ASCII"),
        _unfinished("C3", 1, "one of two"),
        _unfinished("C3 A9", 0, "a whole é"),
        _unfinished("E2 82 AC C3 A9 E2", 1, "whole characters, and one of three"),
        _unfinished("20 E2 82", 2, "two of three"),
        _unfinished("E2 82 AC", 0, "a whole €"),
        _unfinished("F0", 1, "one of four"),
        _unfinished("F0 9F", 2, "two of four"),
        _unfinished("", 0, "nothing came"),
        _unfinished("80", 0, "a continuation that continues nothing"),
        _unfinished("C3 A9 A9", 0, "a whole é, and a continuation too many"),
        _unfinished("61 80 80 80 80", 0, "continuations alone"),
        _unfinished("E2 41", 0, "a beginning that an A has ended"),
        _unfinished("FF", 0, "FF begins nothing"),
        _unfinished("C0", 0, "C0 begins nothing"),
        _unfinished("61 F5", 0, "F5 begins nothing"),
        _unfinished("F0 80", 0, "no character begins with F0 80"),
        _unfinished("E0 9F", 0, "no character begins with E0 9F"),
        _unfinished("ED A0", 0, "no character begins with ED A0: a surrogate would"),
        _unfinished("F4 90", 0, "no character begins with F4 90: it would be beyond U+10FFFF"),
        _unfinished("F0 8F BF", 0, "no character begins with F0 8F"),
        _unfinished("F0 90", 2, "two of four"),
        _unfinished("E0 A0", 2, "two of three"),
        _unfinished("ED 9F", 2, "two of three"),
        _unfinished("F4 8F BF", 3, "three of four"),
        _unfinished("FF 61 F0 9F", 2, "an invalid byte long before; two of four at the end"),
    ],
    mutants=[
        Mutant(
            _rule(length_of=_by_range, second={}),
            "You take every continuation for a possible second byte. After E0, ED, F0 and F4 only a part of 80 to BF"
            " can follow: nothing that comes can make a character of F0 80, so it is not worth waiting for.",
        ),
        Mutant(
            _rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead != 0xED}),
            "You hold ED A0, the half of a surrogate pair. UTF-8 has no surrogates, so it never becomes a character."
            " (Python's own incremental decoder waits there too: for the sake of an error handler that lets them"
            " pass.)",
        ),
        Mutant(
            _rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead != 0xF4}),
            "You hold F4 90. Code points end at U+10FFFF, so after F4 the second byte is at most 8F.",
        ),
        Mutant(
            _rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead not in (0xE0, 0xF0)}),
            "You hold what would be a character spelled in more bytes than it needs. After E0 the second byte is at"
            " least A0, after F0 at least 90.",
        ),
        Mutant(
            _rule(length_of=_by_bits, second={}),
            "You go by the bit patterns alone. They also fit bytes that begin nothing (C0, C1, F5 and above), and"
            " second bytes that E0, ED, F0 and F4 do not allow: see the table.",
        ),
        Mutant(
            _rule(length_of=_by_bits),
            "You take C0, C1, F5, F6 or F7 for the first byte of a character. Their bits look like it, and no character"
            " begins with them: two-byte ones begin with C2, and the last of four with F4.",
        ),
        Mutant(
            _rule(length_of=_by_threshold),
            "You take every byte from C0 on for the first of a character. C0, C1 and F5 to FF begin none: such a byte"
            " is settled when it comes, and holding it holds up the text behind it.",
        ),
        Mutant(
            _rule(whole=lambda length, wanted: wanted == 0 or length > wanted),
            "You hold a character that is whole. It is unfinished only while fewer bytes are there than its first byte"
            " asks for.",
        ),
        Mutant(
            _rule(answer=lambda length, wanted, data: wanted - length),
            "You return how many bytes are missing. Asked for is how many of them are here, at the end of data.",
        ),
        Mutant(
            _rule(answer=lambda length, wanted, data: len(data) - length, nothing=len),
            "You return how many bytes are settled. Asked for are the others, at the end.",
        ),
        Mutant(
            _rule(reach=1),
            "You look at the last byte alone. It may be a continuation whose character began two or three bytes earlier"
            " and is not whole yet.",
        ),
        Mutant(
            _rule(reach=2),
            "You look at the last two bytes alone. Of a character of four, three may be here.",
        ),
        Mutant(
            _tail_of_high_bytes,
            "You count all bytes at the end that are not ASCII. Whole characters are among them, and in Japanese text"
            " nothing would be shown until a space comes.",
        ),
        Mutant(
            _from_the_error,
            "You take wherever decoding fails for the beginning of something unfinished. It also fails at bytes that"
            " can never become a character, and those are not worth waiting for.",
        ),
        Mutant(
            _from_the_first_error,
            "You decode all of data, and Python stops at the first error. If that is an invalid byte in the middle, it"
            " says nothing about the end: look at the last three bytes alone.",
        ),
        Mutant(
            _last_byte_unguarded,
            "data may be empty, and then there is no last byte to look at.",
            begins="IndexError",
        ),
        Mutant(
            lambda data: min(3, len(data)),
            "You hold three bytes whatever they are. Then the last letters of plain English are shown only when others"
            " come.",
        ),
    ],
    alternatives=[
        _by_decoding_ends,
        _by_completing,
        _rule(reach=9),
        lambda data: 0 if (held := _codec_state(data))[:1] == b"\xed" and held[1:] > b"\x9f" else len(held),
    ],
)

# --- 8.2 -------------------------------------------------------------------------------------------------------------


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
        pieces = [f(decoder, _bytes(each)) for each in hexadecimal]
        return {"what is shown, piece by piece": shown(pieces), "self.held afterwards": _held(decoder)}

    given = f"one after the other, the bytes {', then '.join(each or '(none)' for each in hexadecimal)}"
    return Case(
        given, observe, lambda: {"what is shown, piece by piece": shown(list(want)), "self.held afterwards": held}
    )


_right_length = _rule()


def _decoder(
    *,
    join: Callable[[bytes, bytes], bytes] = lambda held, data: held + data,
    held: Callable[[bytes], int] = _right_length,
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
    return self.held[: len(self.held) - _right_length(self.held)].decode(errors="replace")


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
    n = _right_length(data)
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
        cut = len(pending) - _right_length(pending)
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
            _decoder(held=_tail_of_high_bytes),
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
    alternatives=[_with_a_codec, _byte_by_byte, _decoder(held=_by_decoding_ends)],
)
