"""The book's exercises: stubs for your own code, what grades them, and how the engine runs on them.

`ch01.py`, `ch05.py`, ... are yours to edit. `manifest.py` lists them, and what each stands for. This package imports
torch only when something is graded, so that listing exercises and printing hints is quick.
"""

from collections.abc import Sequence
from typing import Any, NoReturn


class NotStarted(NotImplementedError):  # noqa: N818 - a state of the reader's work, not an accident
    """Raised by a stub that nobody has filled in yet."""

    def __init__(self, exercise_id: str) -> None:
        super().__init__(f"exercise {exercise_id} is not started: it still says todo({exercise_id!r})")
        self.exercise_id = exercise_id


def todo(exercise_id: str) -> NoReturn:
    """Mark where your code goes: replace this call. Raises NotStarted."""
    raise NotStarted(exercise_id)


def check(exercise_id: Any, function: Any = None) -> bool:  # a str and a function: anything else is told
    """Grade `function` as exercise `exercise_id`, print the verdict, and return whether it passed.

    Made for notebook cells: `check("5.1", my_function)`. Without a function, your file's is graded, read afresh.
    Raises InputError for an unknown id, MissingError where the repository's tests are not beside the package.
    """
    from minillm.errors import InputError
    from minillm.exercises.in_a_cell import verdict_of, where_it_goes
    from minillm.exercises.manifest import find

    if callable(exercise_id):
        raise InputError('the arguments are swapped: check("5.1", my_function), the id first')
    exercise = find(exercise_id)
    verdict = verdict_of(exercise, function)
    print(verdict.text)
    if verdict.passed and function is not None and (where := where_it_goes(exercise)):
        print(where)
    return verdict.passed


def hint(exercise_id: Any, *, again: bool = False) -> None:
    """Print the next hint for an exercise; with `again`, the first. Made for notebook cells, beside `check`.

    For an unknown id the sentence that says so is printed, without the traceback of an exception.
    """
    from minillm.errors import InputError
    from minillm.exercises.hints import next_hint
    from minillm.exercises.manifest import find

    try:
        exercise = find(exercise_id)
    except InputError as error:
        print(error)
        return
    print(next_hint(exercise, f'hint("{exercise.id}", again=True)', again=again))


def main(argv: Sequence[str] | None = None) -> int:
    """`minillm exercises`: list them, or give a stub back."""
    from minillm.exercises.command import main

    return main(argv)
