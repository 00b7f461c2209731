"""17.1: a stream of server-sent events, cut into pieces at all the places that hurt."""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.server.event_stream import EventReader


def _in_pieces(given: str, pieces: Sequence[bytes], want: Sequence[str], after_each: Sequence[int] = ()) -> Case:
    """The events of all pieces together. after_each: how many there must be after each piece, where that is sure."""

    def observe(f: Function) -> Observation:
        reader = EventReader()
        found: list[Any] = []
        counts = []
        for piece in pieces:
            found += f(reader, piece)
            counts.append(len(found))
        seen: dict[str, Any] = {"the events": _row(found)}
        if after_each:
            seen["events after each piece"] = str(counts)
        return seen

    def wanted() -> Observation:
        seen = {"the events": _row(want)}
        if after_each:
            seen["events after each piece"] = str(list(after_each))
        return seen

    return Case(f"{given}: {' then '.join(map(repr, pieces))}", observe, wanted)


def _row(events: Sequence[Any]) -> str:
    """Events as JSON has them, so that spaces and line ends can be seen."""
    return ", ".join(json.dumps(one, ensure_ascii=False) if isinstance(one, str) else repr(one) for one in events)


def _every_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def _reading(
    *,
    split: Callable[[bytes], list[bytes]] = lambda data: re.split(rb"\r\n|\n|\r(?!\Z)", data),
    decode: Callable[[bytes], str] = lambda value: value.decode("utf-8", "replace"),
    value: Callable[[bytes], bytes] = lambda value: value.removeprefix(b" "),
    is_data: Callable[[bytes, bytes], bool] = lambda name, line: name == b"data",
    join: Callable[[list[str]], str] = "\n".join,
    ends: Callable[[bytes, list[str]], bool] = lambda line, data: line == b"" and bool(data),
    clear: bool = True,
    keep: bool = True,
    cut: Callable[[bytes], tuple[bytes, bytes]] = lambda line: (line.partition(b":")[0], line.partition(b":")[2]),
) -> Function:
    """A reader with one thing done otherwise."""

    def feed(self: EventReader, received: bytes) -> list[str]:
        *lines, rest = split(self.rest + received)
        self.rest = rest if keep else b""
        events = []
        for line in lines:
            name, after = cut(line)
            if is_data(name, line):
                self.data.append(decode(value(after)))
            if ends(line, self.data):
                events.append(join(self.data))
                if clear:
                    self.data = []
        return events

    return feed


def _decoding_pieces(self: EventReader, received: bytes) -> list[str]:
    return _reading()(self, received.decode("utf-8", "replace").encode())


def _decoding_strictly(self: EventReader, received: bytes) -> list[str]:
    return _reading()(self, received.decode().encode())


def _decoding_what_it_can(self: EventReader, received: bytes) -> list[str]:
    return _reading()(self, received.decode("utf-8", "ignore").encode())


def _lines_of_text(data: bytes) -> list[bytes]:
    """`str.splitlines` knows eight more line ends than the standard."""
    text = data.decode("utf-8", "surrogateescape")
    lines = [line.encode("utf-8", "surrogateescape") for line in text.splitlines()]
    return [*lines, b""] if text.endswith(("\n", "\r")) or not lines else lines


def _events_at_blank_lines(self: EventReader, received: bytes) -> list[str]:
    """Events as what stands between two line feeds, each with one line."""
    *events, self.rest = (self.rest + received).split(b"\n\n")
    return [event.decode("utf-8", "replace").removeprefix("data: ") for event in events]


def _one_per_piece(self: EventReader, received: bytes) -> list[str]:
    return [line[6:].decode("utf-8", "replace") for line in received.splitlines() if line.startswith(b"data: ")]


def _until_done(self: EventReader, received: bytes) -> list[str]:
    return [event for event in _reading()(self, received) if event != "[DONE]"]


def _byte_by_byte(self: EventReader, received: bytes) -> list[str]:
    """A machine of one byte at a time; a CR ends its line at once, and a LF behind it is dropped."""
    events, line = [], bytearray(self.rest)
    for byte in received:
        if byte == 10 and getattr(self, "after_cr", False):
            self.after_cr = False  # type: ignore[attr-defined]
            continue
        self.after_cr = byte == 13  # type: ignore[attr-defined]
        if byte not in (10, 13):
            line.append(byte)
            continue
        name, _, value = bytes(line).partition(b":")
        line.clear()
        if name == b"" and not value and self.data:
            events.append("\n".join(self.data))
            self.data = []
        elif name == b"data":
            self.data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
    self.rest = bytes(line)
    return events


def _as_text(self: EventReader, received: bytes) -> list[str]:
    """With a decoder that keeps half a character, and lines as text."""
    if not hasattr(self, "decoder"):
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")  # type: ignore[attr-defined]
        self.text = ""  # type: ignore[attr-defined]
    self.text += self.decoder.decode(received)  # type: ignore[attr-defined]
    held = "\r" if self.text.endswith("\r") else ""  # type: ignore[attr-defined]
    whole = self.text.removesuffix(held) if held else self.text  # type: ignore[attr-defined]
    *lines, rest = whole.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    self.text = rest + held  # type: ignore[attr-defined]
    events = []
    for line in lines:
        name, _, value = line.partition(":")
        if name == "data":
            self.data.append(value.removeprefix(" "))
        if not line and self.data:
            events.append("\n".join(self.data))
            self.data.clear()
    return events


_CHUNK = 'data: {"text":"Zürich 🌟"}\n\n'.encode()

FEED = Grader(
    cases=[
        _in_pieces("two events in one piece", [b'data: {"a":1}\n\ndata: [DONE]\n\n'], ['{"a":1}', "[DONE]"]),
        _in_pieces(
            "cut inside a line", [b"data: one", b" more\n", b"\nda", b"ta: two\n\n"], ["one more", "two"], [0, 0, 1, 2]
        ),
        _in_pieces("cut inside a character", [_CHUNK[:17], _CHUNK[17:27], _CHUNK[27:]], ['{"text":"Zürich 🌟"}']),
        _in_pieces("one byte at a time", _every_byte(_CHUNK), ['{"text":"Zürich 🌟"}']),
        _in_pieces("lines end with CR LF", [b"data: one\r\n\r\n", b"data: two\r\n\r\n"], ["one", "two"]),
        _in_pieces(
            "cut between CR and LF", [b"data: one\r", b"\ndata: two\r", b"\n\r", b"\ndata: x\n\n"], ["one\ntwo", "x"]
        ),
        _in_pieces("CR alone", [b"data: one\rdata: two\r\rdata: x\n\n"], ["one\ntwo", "x"]),
        _in_pieces("two lines of data", [b"data: one\ndata: two\n\n"], ["one\ntwo"]),
        _in_pieces("two spaces, and none", [b"data:  one\n\ndata:two\n\n"], [" one", "two"]),
        _in_pieces("a colon in the data", [b'data: {"a":"b: c"}\n\n'], ['{"a":"b: c"}']),
        _in_pieces(
            "a comment, and other fields", [b": keep-alive\n\nevent: x\nid: 7\ndata: one\nretry: 9\n\n"], ["one"]
        ),
        _in_pieces("a field that begins so", [b"database: no\ndata: yes\n\n"], ["yes"]),
        _in_pieces("empty lines without an event", [b"\n\n\ndata: one\n\n\n\n"], ["one"]),
        _in_pieces("data without a colon, and with nothing behind it", [b"data\n\ndata:\n\n"], ["", ""]),
        _in_pieces("a line separator in the text", ["data: a\u2028b\x85c\n\n".encode()], ["a\u2028b\x85c"]),
        _in_pieces("an event without an end", [b"data: one\n\ndata: tw", b"o\n"], ["one"], [1, 1]),
        _in_pieces("nothing", [b""], [], [0]),
    ],
    mutants=[
        Mutant(
            _decoding_pieces,
            "You decode each piece as it comes. A piece may end inside a character: its two halves become replacement"
            " characters. Decode whole lines.",
        ),
        Mutant(
            _decoding_strictly,
            "You decode each piece as it comes, and a piece may end inside a character. Decode whole lines.",
            begins="UnicodeDecodeError",
        ),
        Mutant(
            _decoding_what_it_can,
            "You decode each piece as it comes, and throw away what is no character yet. A piece may end inside of"
            " one: both of its halves are lost. Decode whole lines.",
        ),
        Mutant(
            _reading(keep=False),
            "You forget the beginning of a line when its piece is over: the next piece brings the rest of it. Keep it"
            " in self.rest.",
        ),
        Mutant(
            _one_per_piece,
            "You take each piece for whole lines. A connection delivers bytes in pieces of any size, and keeps no line"
            " together.",
        ),
        Mutant(
            _events_at_blank_lines,
            "You cut at two line feeds, and take what is between them for one line of data. Lines may end with CR LF,"
            " an event may have several lines, and not all of them are data.",
        ),
        Mutant(
            _reading(split=lambda data: data.split(b"\n")),
            "You cut lines at line feeds alone, so a CR LF leaves its CR behind: no line is empty any more. CR LF, LF"
            " and CR all end a line.",
        ),
        Mutant(
            _reading(split=lambda data: [line.removesuffix(b"\r") for line in data.split(b"\n")]),
            "You do not take a CR alone for the end of a line (or lose it where a piece ends with it). CR LF, LF and CR"
            " all end a line.",
        ),
        Mutant(
            _reading(split=lambda data: re.split(rb"\r\n|\n|\r", data)),
            "A CR at the end of a piece ends your line, and the LF that comes with the next piece ends another, empty"
            " one: the event is over too early. Wait for the byte behind a CR.",
        ),
        Mutant(
            _reading(split=_lines_of_text),
            "You cut lines by `splitlines` of a str, which takes U+2028 and U+0085 for line ends, too, and drops"
            " whether the last line has an end. The standard knows CR LF, LF and CR.",
        ),
        Mutant(
            _reading(join="".join),
            "You join the lines of an event without anything between them. They are lines: a line feed belongs there.",
        ),
        Mutant(
            _reading(ends=lambda line, data: bool(data), join="\n".join),
            "You give each line of data as an event. An event may have several: the empty line ends it.",
        ),
        Mutant(
            _reading(clear=False),
            "You keep the data of an event that you have given: the next one begins with it.",
        ),
        Mutant(
            _reading(value=lambda value: value.strip()),
            "You take away all spaces around the data. One space behind the colon belongs to the form, the others to"
            " the text: of a model that streams words with their spaces, you would lose them.",
        ),
        Mutant(
            _reading(value=lambda value: value[1:]),
            "You drop the first byte behind the colon whatever it is. The space there may be missing.",
        ),
        Mutant(
            _reading(value=lambda value: value),
            "You keep the space behind the colon. One space there belongs to the form, not to the text.",
        ),
        Mutant(
            _reading(cut=lambda line: (line.split(b":")[0], line.split(b":")[1] if b":" in line else b"")),
            "You cut a line at every colon. JSON is full of them: only the first one ends the field's name.",
        ),
        Mutant(
            _reading(is_data=lambda name, line: name not in (b"", b"event", b"id", b"retry") or line[:1] == b":"),
            "You take a comment, or an unknown field, for data. Of fields, only `data` is data; a line that begins with"
            " a colon is a comment, which servers send to keep a connection open.",
        ),
        Mutant(
            _reading(
                is_data=lambda name, line: line.startswith(b"data"),
                cut=lambda line: (line[:4], line[4:].removeprefix(b":")),
            ),
            "You take every line that begins with these four letters. The field's name ends at the colon.",
        ),
        Mutant(
            _reading(ends=lambda line, data: line == b""),
            "You give an event for every empty line. Without a line of data there is no event.",
        ),
        Mutant(
            _reading(ends=lambda line, data: line == b"" and any(data)),
            "You drop an event whose data are empty. It has a line of data, if an empty one.",
        ),
        Mutant(
            _until_done,
            "You leave out [DONE]. For this function it is an event like any other: whoever reads the stream has to"
            " know that it came, for without it the answer is not whole.",
        ),
    ],
    alternatives=[_reading(), _byte_by_byte, _as_text],
)
