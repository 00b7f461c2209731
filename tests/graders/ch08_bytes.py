"""8.1: which bytes at the end could still become a character."""

import codecs
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

from graders.common import formula
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

# --- 8.1 -------------------------------------------------------------------------------------------------------------


def _bytes(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def _unfinished(hexadecimal: str, want: int, why: str) -> Case:
    return formula(f"the bytes {hexadecimal or '(none)'}: {why}", [_bytes(hexadecimal)], want)


def _behind_a_word(hexadecimal: str, want: int, why: str) -> Case:
    """The bytes behind some letters: then an answer that counts from the front is no accident."""
    return formula(f"the bytes of 'so far', then {hexadecimal}: {why}", [b"so far" + _bytes(hexadecimal)], want)


def _all_of(kind: str, strings: Sequence[bytes]) -> Case:
    """Many inputs at once; what can be seen is the first that goes wrong, and how many do."""

    def observe(f: Function) -> Observation:
        wrong = [(data, n) for data in strings if (n := f(data)) != by_completing(data) or isinstance(n, bool)]
        return {"the first string that goes wrong": _first_of(wrong)}

    given = f"{kind}: {len(strings):,} of them, each by itself"
    return Case(given, observe, lambda: {"the first string that goes wrong": "none"})


def _first_of(wrong: list[tuple[bytes, object]]) -> str:
    if not wrong:
        return "none"
    data, answer = wrong[0]
    rest = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return f"{data.hex(' ').upper()}: {answer} instead of {by_completing(data)}{rest}"


LEADS = bytes.fromhex("41 7F C0 C1 C2 DF E0 E1 EC ED EE EF F0 F1 F3 F4 F5 FF")  # one on each side of every edge
SECONDS = bytes.fromhex("41 7F 80 8F 90 9F A0 BF C0 F0")
PAIRS = [bytes(pair) for pair in product((*LEADS, 0x80, 0xBF), SECONDS)]
TRIPLES = [bytes(triple) for triple in product(LEADS[2:], SECONDS, (0x41, 0x80, 0xBF, 0xE2))]


_SECOND = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}


def _by_range(lead: int) -> int:
    """How long the character is that `lead` begins, or 0."""
    bounds = ((0xC2, 2), (0xE0, 3), (0xF0, 4), (0xF5, 0))
    return next((length for first, length in reversed(bounds) if lead >= first), 1 if lead < 0x80 else 0)


def by_bits(lead: int) -> int:
    ones = next(n for n in range(9) if n == 8 or not lead & (0x80 >> n))
    return {0: 1, 2: 2, 3: 3, 4: 4}.get(ones, 0)


def by_threshold(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def rule(
    *,
    length_of: Callable[[int], int] = _by_range,
    second: dict[int, tuple[int, int]] = _SECOND,
    whole: Callable[[int, int], bool] = lambda length, wanted: length >= wanted,
    answer: Callable[[int, int, bytes], int] = lambda length, wanted, data: length,
    reach: int = 3,
    looks_at: Callable[[int], int] = lambda length: 1 - length,
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
            if length > 1 and not low <= data[looks_at(length)] <= high:
                return nothing(data)
            return answer(length, wanted, data)
        return nothing(data)

    return unfinished


_every_second = {lead: _SECOND.get(lead, (0x80, 0xBF)) for lead in range(0xC2, 0xF5)}


def third_unread(data: bytes) -> int:
    for length in (3, 2, 1):
        if length > len(data) or length >= _by_range(data[-length]):
            continue
        low, high = _SECOND.get(data[-length], (0x80, 0xBF))
        if length == 1 or low <= data[-length + 1] <= high:
            return length
    return 0


def _from_the_front(data: bytes) -> int:
    at = 0
    while at < len(data):
        length = _by_range(data[at]) or 1
        if at + length > len(data):
            return len(data) - at
        at += length
    return 0


def _by_rest(data: bytes) -> int:
    lead = next((n for n, byte in enumerate(reversed(data), start=1) if not 0x80 <= byte < 0xC0), 0)
    length = _by_range(data[-lead]) if lead else 0
    if length < 2:
        return 0
    low, high = _SECOND.get(data[-lead], (0x80, 0xBF))
    return lead % length if lead == 1 or low <= data[-lead + 1] <= high else 0


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


def codec_state(data: bytes) -> bytes:
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


@cache
def by_completing(data: bytes) -> int:
    """Another right answer, and the oracle: some completions are tried."""
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
        _behind_a_word("F0 9F 99", 3, "three of four"),
        _unfinished("61 F0 9F 99 82", 0, "a whole emoji"),
        _unfinished("61 62", 0, "ASCII"),
        _unfinished("C3", 1, "one of two"),
        _unfinished("C3 A9", 0, "a whole é"),
        _unfinished("E2 82 AC C3 A9 E2", 1, "whole characters, and one of three"),
        _behind_a_word("E2 82", 2, "two of three"),
        _unfinished("E2 82 AC", 0, "a whole €"),
        _behind_a_word("F0", 1, "one of four"),
        _behind_a_word("F0 9F", 2, "two of four"),
        _unfinished("", 0, "nothing came"),
        _unfinished("80", 0, "a continuation that continues nothing"),
        _unfinished("C3 A9 A9", 0, "a whole é, and a continuation too many"),
        _unfinished("61 80 80 80 80", 0, "continuations alone"),
        _behind_a_word("E2 41", 0, "a beginning that an A has ended"),
        _behind_a_word("F0 9F 41", 0, "a beginning that an A has ended: the third byte must be 80 to BF as well"),
        _behind_a_word("F0 9F E2", 1, "one of three has begun, and ended what stands before it"),
        _unfinished("FF", 0, "FF begins nothing"),
        _unfinished("C0", 0, "C0 begins nothing"),
        _unfinished("C1", 0, "C1 begins nothing"),
        _unfinished("61 F5", 0, "F5 begins nothing"),
        _behind_a_word("F0 80", 0, "no character begins with F0 80"),
        _behind_a_word("E0 9F", 0, "no character begins with E0 9F"),
        _behind_a_word("ED A0", 0, "no character begins with ED A0: a surrogate would"),
        _behind_a_word("F4 90", 0, "no character begins with F4 90: it would be beyond U+10FFFF"),
        _behind_a_word("F0 8F BF", 0, "no character begins with F0 8F"),
        _behind_a_word("F0 90", 2, "two of four"),
        _behind_a_word("E0 A0", 2, "two of three"),
        _behind_a_word("E0 BF", 2, "two of three"),
        _behind_a_word("ED 9F", 2, "two of three"),
        _behind_a_word("ED 80", 2, "two of three"),
        _behind_a_word("EF BC", 2, "two of the three of a Chinese comma"),
        _behind_a_word("F1 80", 2, "two of four"),
        _behind_a_word("F3 A0 81", 3, "three of four"),
        _behind_a_word("F4 8F BF", 3, "three of four"),
        _unfinished("FF 61 F0 9F", 2, "an invalid byte long before; two of four at the end"),
        _all_of("single bytes", [bytes([byte]) for byte in range(256)]),
        _all_of("pairs of bytes", PAIRS),
        _all_of("three bytes", TRIPLES),
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
            rule(length_of=by_bits),
            "You take C0, C1, F5, F6 or F7 for the first byte of a character. Their bits look like it, and no character"
            " begins with them: two-byte ones begin with C2, and the last of four with F4.",
        ),
        Mutant(
            rule(length_of=by_bits, second={}),
            "You go by the bit patterns alone. They also fit bytes that begin nothing (C0, C1, F5 and above), and"
            " second bytes that E0, ED, F0 and F4 do not allow: see the table.",
        ),
        Mutant(
            rule(length_of=by_threshold),
            "You take every byte from C0 on for the first of a character. C0, C1 and F5 to FF begin none: such a byte"
            " is settled when it comes, and holding it holds up the text behind it.",
        ),
        Mutant(
            rule(length_of=lambda lead: 0 if lead in (0xEE, 0xEF) else _by_range(lead)),
            "You leave out EE and EF. They begin characters of three bytes, among them the Chinese comma and all"
            " full-width letters (EF BC ..).",
        ),
        Mutant(
            rule(length_of=lambda lead: 0 if 0xF1 <= lead <= 0xF3 else _by_range(lead)),
            "You leave out F1, F2 and F3. They begin characters of four bytes, and any continuation may be second.",
        ),
        Mutant(
            rule(length_of=lambda lead: 0 if lead == 0xF4 else _by_range(lead)),
            "You leave out F4. The last of the code points, up to U+10FFFF, begin with it.",
        ),
        Mutant(
            rule(second=_SECOND | dict.fromkeys((0xF1, 0xF2, 0xF3), (0x90, 0xBF))),
            "You give F1, F2 and F3 the second byte of F0. 90 to BF is the range after F0 alone; after those three it"
            " is 80 to BF.",
        ),
        Mutant(
            rule(second=_SECOND | dict.fromkeys(range(0xE1, 0xED), (0xA0, 0xBF))),
            "You give all first bytes of three-byte characters the second byte of E0. A0 to BF is the range after E0"
            " alone.",
        ),
        Mutant(
            third_unread,
            "You find a first byte, check the second, and never look at the third. F0 9F 41 is over: what is not 80 to"
            " BF has ended the character, and may have begun another.",
        ),
        Mutant(
            rule(looks_at=lambda length: -1),
            "You check the last byte of data where the second of the character is meant. Of three bytes, the second is"
            " data[-2]: data[-length + 1].",
        ),
        Mutant(
            rule(second={lead: (low, high - 1) for lead, (low, high) in _every_second.items()}),
            "You leave out the upper end of the second byte's range. The table's ranges include both ends; Python's"
            " range(low, high) ends before high.",
        ),
        Mutant(
            _from_the_front,
            "You walk from the front by the lengths that the first bytes announce. A first byte whose continuations do"
            " not come takes other bytes with it, and from there on you are out of step: look from the end.",
        ),
        Mutant(
            _by_rest,
            "You take the count of bytes modulo the length. A continuation too many, behind a whole character, is not a"
            " beginning of anything.",
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
        by_completing,
        rule(reach=9),
        lambda data: 0 if (held := codec_state(data))[:1] == b"\xed" and held[1:] > b"\x9f" else len(held),
    ],
)
