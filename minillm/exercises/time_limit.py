"""A time limit for code that may never end, on every system and in a notebook too.

The code runs in a thread of its own. When its time is over, an exception is sent into that thread. A bare `except:`
inside a loop catches it, so the exception brings a tracer along, which sends another at each further line: the one
that is sent from the handler's last line strikes between two rounds of the loop, where nothing catches it.
A thread that cannot be reached (it waits inside a library, or catches everything at every level of several loops) is
left behind, and ends with the program.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, no_type_check

CASE_LIMIT_S = 3.0  # for one case of an exercise, which takes milliseconds
_INSIST_S = 2.0  # for how long a thread that does not end is sent exceptions


class OutOfTimeError(Exception):
    """The code did not end in time. `lines` are the (file name, line number) at which it was, innermost first."""

    def __init__(self, limit_s: float, lines: list[tuple[str, int]]) -> None:
        super().__init__(f"it was still running after {limit_s:g} s: is there a loop that never ends?")
        self.lines = lines


@no_type_check  # here and below: a checker wrapped around these would be interrupted itself
class _Stop(SystemExit):
    """Sent into the thread, which makes the object itself, so that `__init__` runs there.

    Not an Exception, so that `except Exception` does not catch it; a SystemExit, so that a thread may end with it.
    """

    def __init__(self) -> None:
        super().__init__()
        sys.settrace(_send_another)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not _is_ours(frame):
            frame.f_trace = _send_another
            frame = frame.f_back


@no_type_check
def call_with_limit(function: Callable[[], Any], limit_s: float) -> Any:
    """`function()`, or what it raises; OutOfTimeError if it is not done after `limit_s` seconds."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            value, error = function(), None
        except BaseException as caught:
            value, error = None, caught
        sys.settrace(None)
        outcome.append((value, error))

    thread = threading.Thread(target=work, name="exercise", daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
        lines = list(_lines_of(thread))
    finally:
        _stop(thread)
    value, error = outcome[0] if outcome else (None, _Stop)
    if error is _Stop or isinstance(error, _Stop):
        raise OutOfTimeError(limit_s, lines)
    if error is not None:
        raise error
    return value


def _stop(thread: threading.Thread) -> None:
    """End the thread, if it can be ended."""
    give_up = time.monotonic() + _INSIST_S
    while thread.is_alive() and time.monotonic() < give_up:
        _send(thread.ident)
        thread.join(0.02)


@no_type_check
def _send(thread_id: int | None) -> None:
    """Have _Stop raised in a thread, as soon as it takes its next step."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id or 0), ctypes.py_object(_Stop))


@no_type_check
def _send_another(frame: FrameType, event: str, argument: Any) -> Any:
    """A tracer: at each line of the thread's code, one more."""
    if _is_ours(frame):
        return None
    _send(threading.get_ident())
    return _send_another


@no_type_check
def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename == __file__


def _lines_of(thread: threading.Thread) -> Iterator[tuple[str, int]]:
    """Where a thread is at this moment, innermost frame first; nothing for one that has ended."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
