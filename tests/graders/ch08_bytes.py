"""8.1: which bytes at the end could still become a character."""

import codecs
from collections.abc import Callable

from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant

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


def rule(
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


def tail_of_high_bytes(data: bytes) -> int:
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
    return rule()(data) if data[-1] >= 0x80 else 0


def _codec_state(data: bytes) -> bytes:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return decoder.getstate()[0]


def by_decoding_ends(data: bytes) -> int:
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
            rule(length_of=_by_range, second={}),
            "You take every continuation for a possible second byte. After E0, ED, F0 and F4 only a part of 80 to BF"
            " can follow: nothing that comes can make a character of F0 80, so it is not worth waiting for.",
        ),
        Mutant(
            rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead != 0xED}),
            "You hold ED A0, the half of a surrogate pair. UTF-8 has no surrogates, so it never becomes a character."
            " (Python's own incremental decoder waits there too: for the sake of an error handler that lets them"
            " pass.)",
        ),
        Mutant(
            rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead != 0xF4}),
            "You hold F4 90. Code points end at U+10FFFF, so after F4 the second byte is at most 8F.",
        ),
        Mutant(
            rule(second={lead: bounds for lead, bounds in _SECOND.items() if lead not in (0xE0, 0xF0)}),
            "You hold what would be a character spelled in more bytes than it needs. After E0 the second byte is at"
            " least A0, after F0 at least 90.",
        ),
        Mutant(
            rule(length_of=_by_bits, second={}),
            "You go by the bit patterns alone. They also fit bytes that begin nothing (C0, C1, F5 and above), and"
            " second bytes that E0, ED, F0 and F4 do not allow: see the table.",
        ),
        Mutant(
            rule(length_of=_by_bits),
            "You take C0, C1, F5, F6 or F7 for the first byte of a character. Their bits look like it, and no character"
            " begins with them: two-byte ones begin with C2, and the last of four with F4.",
        ),
        Mutant(
            rule(length_of=_by_threshold),
            "You take every byte from C0 on for the first of a character. C0, C1 and F5 to FF begin none: such a byte"
            " is settled when it comes, and holding it holds up the text behind it.",
        ),
        Mutant(
            rule(whole=lambda length, wanted: wanted == 0 or length > wanted),
            "You hold a character that is whole. It is unfinished only while fewer bytes are there than its first byte"
            " asks for.",
        ),
        Mutant(
            rule(answer=lambda length, wanted, data: wanted - length),
            "You return how many bytes are missing. Asked for is how many of them are here, at the end of data.",
        ),
        Mutant(
            rule(answer=lambda length, wanted, data: len(data) - length, nothing=len),
            "You return how many bytes are settled. Asked for are the others, at the end.",
        ),
        Mutant(
            rule(reach=1),
            "You look at the last byte alone. It may be a continuation whose character began two or three bytes earlier"
            " and is not whole yet.",
        ),
        Mutant(
            rule(reach=2),
            "You look at the last two bytes alone. Of a character of four, three may be here.",
        ),
        Mutant(
            tail_of_high_bytes,
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
        by_decoding_ends,
        _by_completing,
        rule(reach=9),
        lambda data: 0 if (held := _codec_state(data))[:1] == b"\xed" and held[1:] > b"\x9f" else len(held),
    ],
)
