"""What `check` says of a function that comes from a notebook's cell."""

from collections.abc import Callable
from typing import Any

from minillm.exercises import reader_files
from minillm.exercises.exercise import Exercise
from minillm.exercises.helpers import grade_apart
from minillm.exercises.progress import State, grade_own, not_the_readers, state_of
from minillm.exercises.time_limit import CASE_LIMIT_S
from minillm.exercises.verdict import Verdict


def verdict_of(exercise: Exercise, function: Callable[..., Any] | None) -> Verdict:
    """The grade of `function`; without one, that of the reader's file, read afresh."""
    if function is None:
        return grade_own(exercise)
    return not_the_readers(exercise, function) or grade_apart(exercise, function, {}, CASE_LIMIT_S)


def where_it_goes(exercise: Exercise) -> str:
    """Where to put an answer that passed in a cell; "" if the reader's file has one already that is right."""
    state = state_of(exercise)
    if state in (State.FINISHED, State.WAITING):
        return ""
    path = reader_files.path_of(exercise)
    line = "" if state is State.NO_FILE else f", from line {reader_files.line_of(exercise)}"
    made = f" (`minillm exercises reset {exercise.chapter}` makes the file)" if state is State.NO_FILE else ""
    return f"Now put it into {reader_files.shown(path)}{line}{made}: there --mine and the progress table find it."
