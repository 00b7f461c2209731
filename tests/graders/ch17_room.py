"""17.3 and 17.4: whether there is room, and how long a queue may be."""

import math
from collections.abc import Callable
from typing import Any

from graders.common import formula
from minillm.errors import InputError
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.server.errors import RequestError

# --- 17.3 ------------------------------------------------------------------------------------------------------------

TAKEN = "there is room"
NEVER = "400 invalid_value, about n, without retry-after"
LATER = "429 queue_full, with retry-after"
LIMITED = "rate_limit_error"
RETRY = {"retry-after": "1"}


def _asked(choices: int, in_engine: int, coming: int, most: int, want: str) -> Case:
    def observe(f: Function) -> Observation:
        try:
            result = f(choices, in_engine, coming, most)
        except RequestError as error:
            return {"the answer": _told(error)}
        except (InputError, ValueError) as error:
            return {"the answer": f"{type(error).__name__}, which is no RequestError"}
        return {"the answer": TAKEN if result is None else f"no exception, and {type(result).__name__} returned"}

    given = f"choices {choices}, in_engine {in_engine}, coming {coming}, most {most}"
    return Case(given, observe, lambda: {"the answer": want})


def _told(error: RequestError) -> str:
    """What decides what a client does next."""
    after = error.headers.get("retry-after", error.headers.get("Retry-After"))
    waits = "without retry-after" if after is None else "with retry-after"
    if after is not None and not (isinstance(after, str) and after.isdigit() and int(after) > 0):
        waits = f"with a retry-after of {after!r}"
    about = f", about {error.param}" if error.param else ""
    silent = "" if str(error).strip() else ", without a sentence"
    kind = f", of the type {error.type}" if (error.status == 429) != (error.type == LIMITED) else ""
    return f"{error.status} {error.code}{about}, {waits}{kind}{silent}"


def _never() -> RequestError:
    return RequestError("so many choices never fit", param="n", code="invalid_value")


def _later(status: int = 429, headers: Any = RETRY, **named: Any) -> RequestError:
    named = {"type": LIMITED} | named
    return RequestError("full: try again", code="queue_full", status=status, headers=headers, **named)


def _room(
    *,
    never: Callable[[int, int, int, int], bool] = lambda c, e, w, m: c > m,
    later: Callable[[int, int, int, int], bool] = lambda c, e, w, m: e + w + c > m,
    refuse_never: Callable[[], Any] = _never,
    refuse_later: Callable[[], Any] = _later,
) -> Function:
    """The check with one thing done otherwise."""

    def check_room(choices: int, in_engine: int, coming: int, most: int) -> Any:
        counts = choices, in_engine, coming, most
        if never(*counts):
            return _raised(refuse_never())
        return _raised(refuse_later()) if later(*counts) else None

    return check_room


def _raised(error: Any) -> Any:
    if isinstance(error, tuple):
        return error[0]  # returned, not raised
    raise error


def _full_first(choices: int, in_engine: int, coming: int, most: int) -> None:
    if in_engine + coming >= most:
        raise _later()
    if choices > most:
        raise _never()
    if in_engine + coming + choices > most:
        raise _later()


def _by_what_is_left(choices: int, in_engine: int, coming: int, most: int) -> None:
    left = most - in_engine - coming
    if choices <= left:
        return
    if choices > most:
        raise RequestError("never", param="n", code="invalid_value")
    raise RequestError("later", code="queue_full", status=429, type=LIMITED, headers={"Retry-After": "5"})


CHECK_ROOM = Grader(
    cases=[
        _asked(1, 0, 0, 4, TAKEN),
        _asked(1, 3, 0, 4, TAKEN),
        _asked(1, 4, 0, 4, LATER),
        _asked(4, 0, 0, 4, TAKEN),
        _asked(5, 0, 0, 4, NEVER),
        _asked(5, 4, 0, 4, NEVER),
        _asked(3, 2, 0, 4, LATER),
        _asked(2, 1, 1, 4, TAKEN),
        _asked(2, 1, 2, 4, LATER),
        _asked(1, 0, 4, 4, LATER),
        _asked(300, 100, 20, 272, NEVER),
        _asked(128, 100, 44, 272, TAKEN),
        _asked(128, 100, 45, 272, LATER),
    ],
    mutants=[
        Mutant(
            _room(never=lambda c, e, w, m: False),
            "You say 429 to what can never fit. The client waits, and asks for the same again, for ever: a request that"
            " is wrong is a 400.",
        ),
        Mutant(
            _full_first,
            "You look at the others first. A request that can never fit is told to come back, just because the server"
            " is full at the moment: ask what does not depend on anybody else first.",
        ),
        Mutant(
            _room(refuse_later=_never),
            "You say 400 to a full queue. The request is right, and a client does not repeat what was called wrong:"
            " 429.",
        ),
        Mutant(
            _room(refuse_later=lambda: _later(503)),
            "You say 503 to a full queue. That is for a server that does not work, or ends; a load balancer would take"
            " it out. Too many requests are 429.",
        ),
        Mutant(
            _room(refuse_later=lambda: _later(headers={})),
            "You do not say when to come back. Without retry-after clients choose for themselves, and many choose at"
            " once.",
        ),
        Mutant(
            _room(refuse_later=lambda: _later(headers={"retry-after": 1})),
            'retry-after is a number. Headers are text: "1".',
        ),
        Mutant(
            _room(refuse_later=lambda: _later(type="invalid_request_error")),
            "You leave out the type, and an error without one is called the client's mistake. This one is nobody's:"
            " rate_limit_error.",
        ),
        Mutant(
            _room(refuse_never=lambda: RequestError("never", code="invalid_value")),
            'You do not say which field is wrong: param="n".',
        ),
        Mutant(
            _room(refuse_never=lambda: ValueError("never"), refuse_later=lambda: ValueError("full")),
            "You raise ValueError, which the server takes for a fault of its own: a 500. A RequestError brings its"
            " status along.",
        ),
        Mutant(
            _room(later=lambda c, e, w, m: e + c > m),
            "You forget those that are coming. Many requests may be let in while their prompts become tokens, and then"
            " all of them arrive.",
        ),
        Mutant(
            _room(later=lambda c, e, w, m: e + w + 1 > m),
            "You count the newcomer as one, or ask only whether anything is free. It brings `choices` requests along.",
        ),
        Mutant(
            _room(later=lambda c, e, w, m: e + w + c >= m),
            "You leave the last place empty: `most` of them are allowed.",
        ),
        Mutant(
            _room(never=lambda c, e, w, m: c >= m),
            "You refuse a request for exactly as many as there may be. It fits, when nobody else is here.",
        ),
        Mutant(
            _room(refuse_never=lambda: (_never(),), refuse_later=lambda: (_later(),)),
            "You return the error, and nobody is stopped: the caller goes on. Raise it.",
        ),
        Mutant(
            _room(never=lambda c, e, w, m: False, later=lambda c, e, w, m: False),
            "You let everybody in. The queue then grows as long as requests come faster than answers, and everybody"
            " waits longer than they will.",
        ),
    ],
    alternatives=[_room(), _by_what_is_left],
)

# --- 17.4 ------------------------------------------------------------------------------------------------------------


def _queue(given: str, ttft_s: float, prefill_s: float, answer_s: float, places: int, want: int) -> Case:
    numbers = f"ttft_s {ttft_s}, prefill_s {prefill_s}, answer_s {answer_s}, places {places}"
    return formula(f"{given}: {numbers}", [ttft_s, prefill_s, answer_s, places], want)


def _counted(ttft_s: float, prefill_s: float, answer_s: float, places: int) -> int:
    """One more at a time, as long as the last one is in time."""
    waiting = 0
    while (waiting + 1) * answer_s / places + prefill_s <= ttft_s:
        waiting += 1
    return waiting


def _floor(number: float) -> int:
    return max(0, math.floor(number))


LONGEST_QUEUE = Grader(
    cases=[
        _queue("three in time, exactly", 2.0, 0.5, 4.0, 8, 3),
        _queue("a little less than four", 2.0, 0.125, 4.0, 8, 3),
        _queue("one place", 10.0, 1.0, 4.0, 1, 2),
        _queue("many places", 2.0, 0.25, 7.0, 64, 16),
        _queue("not even the first", 0.5, 0.25, 8.0, 16, 0),
        _queue("the prompt alone takes longer", 0.5, 2.0, 8.0, 16, 0),
        _queue("exactly the first", 0.75, 0.25, 8.0, 16, 1),
        _queue("short answers", 1.0, 0.125, 0.25, 4, 14),
    ],
    mutants=[
        Mutant(
            lambda t, p, a, n: _floor(t * n / a),
            "You forget the prompt: whoever has got a place has to read it before there is a first token.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) / a),
            "You let one request run at a time. There are `places` of them, and one ends every answer_s / places"
            " seconds.",
        ),
        Mutant(
            lambda t, p, a, n: n * _floor((t - p) / a),
            "You let all that run end at the same time, so that whole rounds of `places` begin together. They end one"
            " after the other, answer_s / places apart.",
        ),
        Mutant(
            lambda t, p, a, n: max(0, math.ceil((t - p) * n / a)),
            "You round up: the last one comes too late.",
        ),
        Mutant(
            lambda t, p, a, n: max(0, round((t - p) * n / a)),
            "You round to the nearest number. What is more than the result comes too late: round down.",
        ),
        Mutant(
            lambda t, p, a, n: math.floor((t - p) * n / a),
            "The result may be below zero: where the prompt alone takes longer than the promise, nobody may wait.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) * n / a) + n,
            "You count those that run, too. They do not wait.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) * n / a) + 1,
            "You let the first one that waits begin at once. All places are taken: it waits answer_s / places.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) * n / a) if t - p >= a else 0,
            "You let the first one wait for a whole answer. Those that run are staggered: the next of them ends after"
            " answer_s / places.",
        ),
        Mutant(
            lambda t, p, a, n: _floor(t / (a / n + p)),
            "You let prompts be read one after the other, each before the next one gets its place. Whoever is before"
            " the last one reads its prompt while the others wait.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) * a / n),
            "You have the fraction upside down: more places and shorter answers make a longer queue possible.",
        ),
        Mutant(
            lambda t, p, a, n: _floor((t - p) * n / (a + p)),
            "You count the prompt into the time that a place is kept. answer_s is for both already.",
        ),
    ],
    alternatives=[_counted, lambda t, p, a, n: int(max(0.0, (t - p) / (a / n)))],
)
