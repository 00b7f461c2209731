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
    waits_for: tuple[str, ...] = ()  # ids: this answer is right, and calls the reader's answers to these, which are not
    of_the_file: bool = False  # the whole file cannot be used, and each of its exercises fails alike


def failed(exercise: Exercise, *lines: str, cause: str = "", waits_for: tuple[str, ...] = ()) -> Verdict:
    """A verdict that says no."""
    text = "\n".join((f"{exercise.id} {exercise.title}: not yet.", *lines))
    return Verdict(exercise, False, text, cause, waits_for)
