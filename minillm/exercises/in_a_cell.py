"""What `check` says of a function that comes from a notebook's cell."""

from collections.abc import Callable
from typing import Any

from minillm.exercises.helpers import grade_apart
from minillm.exercises.manifest import Exercise
from minillm.exercises.progress import grade_own, not_the_readers
from minillm.exercises.time_limit import CASE_LIMIT_S
from minillm.exercises.verdict import Verdict


def verdict_of(exercise: Exercise, function: Callable[..., Any] | None) -> Verdict:
    """The grade of `function`; without one, that of the reader's file, read afresh."""
    if function is None:
        return grade_own(exercise)
    return not_the_readers(exercise, function) or grade_apart(exercise, function, {}, CASE_LIMIT_S)
