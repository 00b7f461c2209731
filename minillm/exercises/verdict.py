"""What grading tells the reader."""

from dataclasses import dataclass

from minillm.exercises.exercise import Exercise


@dataclass(frozen=True)
class Verdict:
    """What came out of grading: whether it passed, and the text for the reader."""

    exercise: Exercise
    passed: bool
    text: str
    cause: str = ""  # the likely cause, where one is known


def failed(exercise: Exercise, *lines: str, cause: str = "") -> Verdict:
    """A verdict that says no."""
    return Verdict(exercise, False, "\n".join((f"{exercise.id} {exercise.title}: not yet.", *lines)), cause)
