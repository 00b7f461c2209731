"""17.2: an AsyncEngine whose thread never starts, around an engine that only writes down what it is told."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from minillm.engine.async_engine import AsyncEngine, Reading
from minillm.engine.engine import Engine
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.tokenizer import Tokenizer


class _Reader(Reading):
    """A reader without a loop: its name, and the answers of its requests."""

    def __init__(self, name: str, request_ids: Sequence[str]) -> None:
        self.name = name
        self.answers = [SimpleNamespace(request=SimpleNamespace(request_id=one)) for one in request_ids]


class _Engine(Engine):
    """An engine that only writes down what it is told to end."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    def abort(self, request_id: str, reason: str = "abort") -> None:
        """Write it down."""
        self.aborted.append(f"{request_id} ({reason})")


def _leaving(
    given: str,
    asked: Mapping[str, Sequence[str]],
    left: Sequence[str],
    aborted: Sequence[str],
    remain: str,
    *,
    owners: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> Case:
    """asked: the request ids of each reader. owners: who reads an id, where it is not whoever asked; "" is nobody.
    left: the readers that leave, in order.
    """
    owned = {request_id: name for name, ids in asked.items() for request_id in ids} | dict(owners or {})

    def observe(f: Function) -> Observation:
        engine = _Engine()
        serving = AsyncEngine(engine, object.__new__(Tokenizer))
        readers = {name: _Reader(name, ids) for name, ids in asked.items()}
        for request_id, name in owned.items():
            if name:
                place = list(asked[name]).index(request_id)
                serving._readers[request_id] = readers[name], place
        for name in left:
            before = len(engine.aborted)
            f(serving, readers[name], reason) if reason else f(serving, readers[name])
            engine.aborted[before:] = sorted(engine.aborted[before:])  # in whatever order a reader's own are ended
        after = [f"{one}: {reader.name}" for one, (reader, _) in serving._readers.items()]  # type: ignore[attr-defined]
        return {"aborted": ", ".join(engine.aborted) or "none", "who is still read": ", ".join(after) or "none"}

    held = [f"{request_id}: {name}" for request_id, name in owned.items() if name]
    by_whom = "; ".join(f"{name} asked for {', '.join(ids) or 'nothing'}" for name, ids in asked.items())
    told = f"{given}: {by_whom}; in self._readers {', '.join(held) or 'none'}; {' and then '.join(left)} leaves"
    told += f", for the reason {reason!r}" if reason else ""
    return Case(told, observe, lambda: {"aborted": ", ".join(aborted) or "none", "who is still read": remain})


def _leave(
    *,
    mine: Callable[[AsyncEngine, Any, str], bool] = lambda s, reading, one: (
        s._readers.get(one, (None, 0))[0] is reading
    ),
    which: Callable[[AsyncEngine, Any], list[Any]] = lambda s, reading: list(reading.answers),
    forget: bool = True,
    abort: bool = True,
    why: Callable[[str], str] = lambda reason: reason,
    stop: bool = False,
) -> Function:
    """`_leave` with one thing done otherwise."""

    def leave(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
        for answer in which(self, reading):
            request_id = answer.request.request_id
            if not mine(self, reading, request_id):
                if stop:
                    return
                continue
            if forget:
                self._readers.pop(request_id, None)
            if abort:
                self.engine.abort(request_id, why(reason))

    return leave


def _everybody(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for request_id in list(self._readers):
        del self._readers[request_id]
        self.engine.abort(request_id, reason)


def _while_it_changes(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for request_id, (reader, _) in self._readers.items():
        if reader is reading:
            del self._readers[request_id]
            self.engine.abort(request_id, reason)


def _forgetting_the_name(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for answer in reading.answers:
        entry = self._readers.pop(answer.request.request_id, None)
        if entry is not None and entry[0] is reading:
            self.engine.abort(answer.request.request_id, reason)


def _deleting_blindly(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for answer in reading.answers:
        del self._readers[answer.request.request_id]
        self.engine.abort(answer.request.request_id, reason)


def _through_the_table(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    own = {answer.request.request_id for answer in reading.answers}
    gone = [one for one, (reader, _) in self._readers.items() if reader is reading and one in own]
    for request_id in gone:
        self._readers.pop(request_id)
        self.engine.abort(request_id, reason)


def _looking_up(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for answer in reading.answers:
        entry = self._readers.get(answer.request.request_id)
        if entry is None or entry[0] is not reading:
            continue
        self.engine.abort(answer.request.request_id, reason)
        del self._readers[answer.request.request_id]


def _backwards(self: AsyncEngine, reading: Any, reason: str = "abort") -> None:
    for answer in reversed(reading.answers):
        request_id = answer.request.request_id
        reader, _ = self._readers.get(request_id, (None, 0))
        if reader is reading:
            self.engine.abort(request_id, reason=reason)
            self._readers.pop(request_id)


LEAVE = Grader(
    cases=[
        _leaving("one of two", {"X": ["a"], "Y": ["b"]}, ["X"], ["a (abort)"], "b: Y"),
        _leaving("with a reason", {"X": ["a"], "Y": ["b"]}, ["Y"], ["b (error)"], "a: X", reason="error"),
        _leaving("three choices", {"X": ["a", "b", "c"]}, ["X"], ["a (abort)", "b (abort)", "c (abort)"], "none"),
        _leaving("twice", {"X": ["a"], "Y": ["b"]}, ["X", "X"], ["a (abort)"], "b: Y"),
        _leaving(
            "its first request is out already",
            {"X": ["a", "b"], "Y": ["c"]},
            ["X"],
            ["b (abort)"],
            "c: Y",
            owners={"a": ""},
        ),
        _leaving(
            "the same id, and somebody else's by now",
            {"X": ["a", "b"], "Y": ["a"]},
            ["X"],
            ["b (abort)"],
            "a: Y",
            owners={"a": "Y"},
        ),
        _leaving("nothing came in", {"X": [], "Y": ["b"]}, ["X"], [], "b: Y"),
        _leaving(
            "all, one by one",
            {"X": ["a"], "Y": ["b", "c"]},
            ["Y", "X"],
            ["b (abort)", "c (abort)", "a (abort)"],
            "none",
        ),
    ],
    mutants=[
        Mutant(
            _leave(mine=lambda s, reading, one: True),
            "You abort whatever the reader once asked for, also what is not in self._readers, or is somebody else's by"
            " now. An id may have been given again: that would end another client's request.",
        ),
        Mutant(
            _leave(mine=lambda s, reading, one: one in s._readers),
            "You ask whether somebody reads the request, and not who. An id may have been given again: that would end"
            " another client's request.",
        ),
        Mutant(
            _forgetting_the_name,
            "You take the id out of self._readers before you know whose it is. If it has been given again, the other"
            " client's request runs on and nobody gets its pieces.",
        ),
        Mutant(
            _leave(forget=False),
            "You leave the requests in self._readers. The reader is called upon a second time, and its requests are"
            " aborted twice; and a reader that is gone is kept for ever.",
        ),
        Mutant(
            _leave(abort=False),
            "You take the requests out of self._readers and let them run. Nobody reads them, and they keep their blocks"
            " to the end of their answers: that is the leak.",
        ),
        Mutant(
            _leave(which=lambda s, reading: reading.answers[:1]),
            "You end the first request only. A reader may have several: `n` choices, several prompts.",
        ),
        Mutant(_leave(why=lambda reason: "abort"), 'You say "abort" whatever the reason is. Pass `reason` on.'),
        Mutant(
            _everybody,
            "You end the requests of all readers. One has left; the others still read.",
        ),
        Mutant(
            _leave(mine=lambda s, reading, one: s._readers.get(one) is reading),
            "You compare the table's entry with the reader, and it is a pair: (reader, place). Nothing is ever the"
            " reader's own, so nothing ends.",
        ),
        Mutant(
            _leave(stop=True),
            "You stop at the first request that is not the reader's any more. Those behind it still run: go on with"
            " the next.",
        ),
        Mutant(
            _while_it_changes,
            "You delete from self._readers while you go through it. Go through reading.answers, or through a copy.",
            begins="RuntimeError",
        ),
        Mutant(
            _deleting_blindly,
            "You delete what may not be there: a request that was taken out before raises a KeyError in the engine's"
            " thread, and with the thread all others end. Look first whose it is.",
            begins="KeyError",
        ),
    ],
    alternatives=[_leave(), _through_the_table, _looking_up, _backwards],
)
