"""Exercises of chapter 17, *Serving on a port*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 17          grades this file and shows where you are
    pytest --ch 17.2        grades one exercise
    pytest --hint 17.2      the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

They are pieces of the server, and of those who talk to it: no socket and no model is needed to write them. `generate`
has no server and calls none of them. The last cell of the chapter's notebook runs one on what you have finished.
"""

import hmac  # noqa: F401 - here for you
import math  # noqa: F401 - here for you
import re  # noqa: F401 - here for you
from collections.abc import Sequence

from minillm.engine.async_engine import Reading
from minillm.errors import InputError  # noqa: F401 - here for you
from minillm.exercises import todo
from minillm.server.errors import RequestError  # noqa: F401 - here for you


# --- 17.1 ------------------------------------------------------------------------------------------------------------
def feed(self, received: bytes) -> list[str]:
    """`EventReader.feed`: bytes of a stream of server-sent events have come. Return the events that are complete now.

    self is the reader of one stream, and this function its method. Two fields are yours, and keep what has come and
    has no end yet:

        self.rest       bytes, b"" at first: the beginning of a line
        self.data       a list of str, [] at first: the data lines of an event

    A connection delivers bytes in pieces of any size: one may end inside a line, between the two bytes of a line end,
    or inside a character of several bytes.

    - Lines end with LF, with CR LF, or with CR alone.
    - A line `data: TEXT` is a line of the event's data. One space behind the colon belongs to the form, more do not.
      The text is UTF-8. (`data` without a colon is an empty line of data.)
    - An empty line ends the event. Its data are its lines of data, joined by line feeds. Without any such line there
      is no event.
    - Other lines mean nothing here: `event: ...`, `id: ...`, `retry: ...`, and comments, which begin with a colon.

    Return the data of the events as a list of str, [] if none is complete. `[DONE]` is an event like any other. An
    event that has no empty line behind it has not ended.

    About 12 lines.
    """
    todo("17.1")


# --- 17.2 ------------------------------------------------------------------------------------------------------------
def leave(self, reading: Reading, reason: str = "abort") -> None:
    """`AsyncEngine._leave`: a reader has had its last piece, or has gone away before it. End what it still has.

    self is the AsyncEngine, and this function its method, called in the engine's own thread:

        self._readers                           a dict: request id -> (who reads it, its place among theirs)
        self.engine.abort(request_id, reason)   ends a request, wherever it is, and gives its blocks back; of one that
                                                has ended already it does nothing

    What the reader has read, or wanted to read, is `reading.answers`, a list with an answer for each of its requests;
    `answer.request.request_id` is the request's id. The list may be empty.

    Each request that this reader still has in self._readers is taken out of it and aborted, for the given reason. What
    is not there, or belongs to somebody else by now (ids may come again), is none of its business: this may be called
    a second time for the same reader.

    About 5 lines.
    """
    todo("17.2")


# --- 17.3 ------------------------------------------------------------------------------------------------------------
def check_room(choices: int, in_engine: int, coming: int, most: int) -> None:
    """Is there room for a request that asks for `choices` texts? Raise RequestError if there is not.

    choices: the texts that it asks for, at least 1: each becomes a request of the engine.
    in_engine: texts that run or wait in the engine.
    coming: texts of requests that have been let in and are not in the engine yet (their prompts become tokens).
    most: how many there may be in all.

    Two answers, and which one it is decides what a client does next:

    - more than there could ever be room for: the request is wrong. RequestError("a sentence", param="n",
      code="invalid_value"), whose status is 400 by itself.
    - more than there is room for at the moment: RequestError("a sentence", code="queue_full", status=429,
      type="rate_limit_error", headers={"retry-after": "1"}). The header says after how many seconds to try again, as a
      str.

    Return nothing if there is room.

    About 8 lines.
    """
    todo("17.3")


# --- 17.4 ------------------------------------------------------------------------------------------------------------
def longest_queue(ttft_s: float, prefill_s: float, answer_s: float, places: int) -> int:
    """How many requests may wait, if the last of them is to have its first token after `ttft_s` seconds at most?

    places: requests that run at a time. All places are taken, and whoever has got one keeps it for `answer_s` seconds,
    prompt and answer together. They began one after the other, evenly: one ends every `answer_s / places` seconds, and
    the first that waits has to wait that long, the second twice as long.
    prefill_s: a request that has got a place has its first token this much later.

    Return an int, 0 where not even the first one that waits would be in time.

    About 2 lines.
    """
    todo("17.4")


# --- 17.5 ------------------------------------------------------------------------------------------------------------
def quantile(q: float, bounds: Sequence[float], counts: Sequence[float]) -> float:
    """A quantile out of a histogram's buckets, as Prometheus' `histogram_quantile` computes it.

    q: which one, 0.5 for the median. Raise InputError, with a sentence, unless it is above 0 and at most 1.
    bounds: the upper bounds of the buckets, increasing and above 0; the last one is `math.inf`.
    counts: for each bucket, how many observations are at most as large as its bound. They include those of the
    buckets before it, so the last count is the number of all.

    - The rank is q times the number of all. The bucket is the first one whose count reaches it.
    - Within a bucket, observations are taken to lie evenly, from the bound before it (0 for the first bucket) to its
      own. Take the value at the rank's place among those of this very bucket.
    - Of the last bucket nobody knows how far it reaches: return the largest bound that is a number.
    - Without any observations, return `math.nan`.

    About 8 lines.
    """
    todo("17.5")


# --- 17.6 ------------------------------------------------------------------------------------------------------------
def is_authorized(header: bytes, key: str) -> bool:
    """May this request come in?

    header: the value of its Authorization header, as it was sent: any bytes; b"" if there was none.
    key: the server's key, printable ASCII, not empty. It may have spaces inside.

    The right header is `Bearer KEY`. The word may be in capitals or not, as HTTP has it, and there may be spaces around
    the key. The key itself must be the same, letter by letter.

    Compare by `hmac.compare_digest(one, other)`, which takes as long whether the first letter is wrong or the last:
    from a comparison that ends at the first difference, one can learn a key letter by letter. It takes two bytes
    objects, or two str that are ASCII.

    About 2 lines.
    """
    todo("17.6")
