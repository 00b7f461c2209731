"""The other end of a stream of server-sent events: bytes as they come off a connection, put together into events.

As the HTML standard reads them (section 9.2, "Server-sent events"), but for what OpenAI's API does not use: an event's
name and id, and a byte order mark. A connection delivers bytes, not events: a piece may end anywhere, also inside a
character.
"""

import re

_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""Three kinds of line end. A CR that is the last byte so far may be the first half of a CRLF: it has to wait."""


class EventReader:
    """Takes the bytes of one stream, piece by piece. What has no end yet waits in it.

    rest: the beginning of a line. data: the data lines of an event.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """The data of each event that these bytes complete. An event that never ends is none, says the standard."""
        *lines, self.rest = _LINE_END.split(self.rest + received)
        events = []
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self.data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
            if line == b"" and self.data:
                events.append("\n".join(self.data))
                self.data = []
        return events
