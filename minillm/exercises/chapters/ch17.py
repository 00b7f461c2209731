"""The exercises of chapter 17, *Serving on a port*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "17.1",
        "Events out of bytes",
        "minillm.server.event_stream:EventReader.feed",
        (
            "What is certain to be whole, when bytes have come? Not a character, not even a line end. What do you have"
            " to keep for the next call?",
            "Join self.rest and what was received, and cut that at line ends. The last piece has no end yet: it is the"
            " new self.rest. Decode whole lines only. A CR that is the very last byte may be half of a CR LF.",
            r'*lines, self.rest = re.split(rb"\r\n|\n|\r(?!\Z)", self.rest + received). For each line: name, _, value ='
            r' line.partition(b":"); if name == b"data", append value.removeprefix(b" ").decode() to self.data; if the'
            r' line is empty and there are data, the event is "\n".join(self.data), and self.data = [].',
        ),
        section="what-lies-on-the-wire",
    ),
    Exercise(
        "17.2",
        "A reader leaves",
        "minillm.engine.async_engine:AsyncEngine._leave",
        (
            "Go through the reader's own requests, not through all. For each, one question: is it still this reader's?",
            "self._readers.get(request_id) is None, or a pair whose first part is the reader. Compare it by `is`.",
            "for answer in reading.answers: request_id = answer.request.request_id; if"
            " self._readers.get(request_id, (None, 0))[0] is reading: del self._readers[request_id], then"
            " self.engine.abort(request_id, reason).",
        ),
        called="when a client of a server has its answer, or goes away",
        section="a-client-goes-away",
        stub="leave",
    ),
    Exercise(
        "17.3",
        "Room for a request",
        "minillm.server.admission:check_room",
        (
            "There are two questions. Which of them does not depend on who else is here? It comes first.",
            "choices > most can never be: 400. Otherwise everybody counts who has been let in: in_engine, coming, and"
            " the newcomer's own choices.",
            'if choices > most: raise RequestError("...", param="n", code="invalid_value"). if in_engine + coming +'
            ' choices > most: raise RequestError("...", code="queue_full", status=429, type="rate_limit_error",'
            ' headers={"retry-after": "1"}).',
        ),
        called="at every request to a server",
        section="too-many-clients",
    ),
    Exercise(
        "17.4",
        "How long a queue?",
        "minillm.machine.waiting:longest_queue",
        (
            "How long does the last of n that wait have to wait for a place? And what has it then still to do?",
            "n * answer_s / places + prefill_s is at most ttft_s. Solve it for n.",
            "max(0, math.floor((ttft_s - prefill_s) * places / answer_s))",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "17.5",
        "A quantile out of buckets",
        "minillm.server.histogram:quantile",
        (
            "Draw it: counts over bounds, a line that only rises. Which height do you look for, and where does the line"
            " cross it?",
            "Find the first bucket whose count is at least q * counts[-1]. It begins at the bound before it, where the"
            " count before it was reached (0 at 0 for the first bucket).",
            "low + (high - low) * (rank - count_before) / (count - count_before). Before that: nan where counts[-1] is"
            " 0, and bounds[-2] where the bucket's bound is infinite.",
        ),
        section="what-you-can-see-from-outside",
    ),
    Exercise(
        "17.6",
        "Who may come in",
        "minillm.server.keys:is_authorized",
        (
            "Cut the header in two at the first space. Which part may be written in different ways, and which not?",
            "compare_digest refuses two str that are not ASCII, and a header may hold any bytes: compare bytes.",
            'scheme, _, given = header.partition(b" "); return scheme.lower() == b"bearer" and'
            " hmac.compare_digest(given.strip(), key.encode())",
        ),
        called="at every request to a server that has a key",
        section="who-may-knock",
    ),
)
