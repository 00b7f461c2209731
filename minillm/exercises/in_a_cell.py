"""What `check` says of a function that comes from a notebook's cell."""

from collections.abc import Callable
from typing import Any

from minillm.exercises.grading import grade
from minillm.exercises.manifest import Exercise
from minillm.exercises.progress import grade_own, not_the_readers
from minillm.exercises.verdict import Verdict


def verdict_of(exercise: Exercise, function: Callable[..., Any] | None) -> Verdict:
    """The grade of `function`; without one, that of the reader's file, read afresh."""
    if function is None:
        return grade_own(exercise)
    return not_the_readers(exercise, function) or grade(exercise, function)
