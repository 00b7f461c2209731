"""A time limit for code that may never end, on every system and in a notebook too.

The code runs in a thread of its own. When its time is over, an exception is sent into that thread; again and again,
because a bare `except:` inside a loop catches it: the next one may strike between two rounds, where nothing does.
A thread that waits inside a library (a long sleep) cannot be reached: it is left behind, and ends with the program.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

CASE_LIMIT_S = 3.0  # for one case of an exercise, which takes milliseconds
_INSIST_S = 2.0  # for how long a thread that catches the exception is sent new ones


class OutOfTimeError(Exception):
    """The code did not end in time. `lines` are the (file name, line number) at which it was, innermost first."""

    def __init__(self, limit_s: float, lines: list[tuple[str, int]]) -> None:
        super().__init__(f"it was still running after {limit_s:g} s: is there a loop that never ends?")
        self.lines = lines


class _Stop(BaseException):
    """Sent into the thread. Not an Exception, so that `except Exception` does not catch it."""


def call_with_limit(function: Callable[[], Any], limit_s: float) -> Any:
    """`function()`, or what it raises; OutOfTimeError if it is not done after `limit_s` seconds."""
    outcome: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            value, error = function(), None
        except BaseException as caught:
            value, error = None, caught
        outcome.append((value, error))

    def quietly() -> None:
        try:
            work()
        except _Stop:  # it came too late, after the code had ended
            return

    thread = threading.Thread(target=quietly, name="exercise", daemon=True)
    thread.start()
    try:
        thread.join(limit_s)
        lines = list(_lines_of(thread))
    finally:
        _stop(thread)
    if not outcome:
        raise OutOfTimeError(limit_s, lines)
    value, error = outcome[0]
    if isinstance(error, _Stop):
        raise OutOfTimeError(limit_s, lines)
    if error is not None:
        raise error
    return value


def _stop(thread: threading.Thread) -> None:
    """End the thread, if it can be ended."""
    give_up = time.monotonic() + _INSIST_S
    while thread.is_alive() and time.monotonic() < give_up:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_Stop))
        thread.join(0.003)


def _lines_of(thread: threading.Thread) -> Iterator[tuple[str, int]]:
    """Where a thread is at this moment, innermost frame first; nothing for one that has ended."""
    frame: FrameType | None = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
