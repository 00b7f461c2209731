"""UTF-8, read as it arrives: which bytes are whole characters, and which could still become one.

A character (code point) is one to four bytes, and its first byte, the *lead*, says how many. The others are
*continuations*, 0x80 to 0xBF. Four leads allow their second byte a part of that range only; what is left out would
spell a character in more bytes than it needs, a surrogate, or something beyond U+10FFFF. Source: the Unicode Standard,
section 3.9, table 3-7, "Well-Formed UTF-8 Byte Sequences". Checked against Python's own incremental decoder.
"""

_CONTINUATION = range(0x80, 0xC0)
_SECOND_BYTE = {  # where it is not any continuation
    0xE0: range(0xA0, 0xC0),  # below: two bytes would do
    0xED: range(0x80, 0xA0),  # above: surrogates
    0xF0: range(0x90, 0xC0),  # below: three bytes would do
    0xF4: range(0x80, 0x90),  # above: beyond U+10FFFF
}


def character_length(lead: int) -> int:
    """How many bytes the character has that begins with the byte `lead`: 1 to 4, or 0 if none begins with it."""
    if lead < 0x80:
        return 1
    if 0xC2 <= lead <= 0xDF:
        return 2
    if 0xE0 <= lead <= 0xEF:
        return 3
    return 4 if 0xF0 <= lead <= 0xF4 else 0


def unfinished_length(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that later bytes can still complete: 0 to 3.

    All before them is settled: decoding it now, with errors="replace", gives what decoding the whole would give.
    """
    for length in range(1, min(3, len(data)) + 1):
        lead = data[-length]
        if lead in _CONTINUATION:
            continue  # its lead stands further left, if it has one
        if length >= character_length(lead):
            return 0  # whole, or nothing that begins a character
        possible = _SECOND_BYTE.get(lead, _CONTINUATION)
        return length if length == 1 or data[-length + 1] in possible else 0
    return 0


class Utf8Decoder:
    """Bytes in, as they come; text out, as soon as it is certain. Invalid bytes are U+FFFD, one for each group that
    could have begun a character: joined, the output is what decoding all bytes at once gives, with errors="replace".
    """

    def __init__(self) -> None:
        self.held = b""  # the beginning of a character, up to three bytes

    def decode(self, data: bytes) -> str:
        """Return the text that `data`, behind what is held, has made certain; hold what could still become more."""
        data = self.held + data
        settled = len(data) - unfinished_length(data)
        self.held = data[settled:]
        return data[:settled].decode(errors="replace")

    def flush(self) -> str:
        """Return what is left, once: the bytes are over, and an unfinished character is U+FFFD."""
        held, self.held = self.held, b""
        return held.decode(errors="replace")
