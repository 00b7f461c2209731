"""What a reader's function raises while the engine runs on it: one sentence that names the function and its line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.exercises import NotStarted
from minillm.exercises.exercise import Exercise
from minillm.exercises.reader_files import lines_of, shown, source_line


class OwnCodeError(InputError):
    """A reader's own function raised something. The message names the exercise, the line, and what it was."""


def own_code_error(exercise: Exercise, function: Callable[..., Any], error: BaseException) -> OwnCodeError:
    """The sentence for `error`, which `function` raised as exercise `exercise`."""
    if isinstance(error, NotStarted):
        return OwnCodeError(
            f"your {exercise.id} waits for {error.exercise_id}, which it calls and which is not started: finish"
            f" {error.exercise_id} first"
        )
    message = " ".join(str(error).split())
    raised = f"{type(error).__name__}: {message}" if message else type(error).__name__
    told = f"your {exercise.id}{_place(function, error)} raised {raised}"
    if isinstance(error, RecursionError):
        told += (
            f". While the engine runs on your code, its `{exercise.qualname}` *is* your function: calling it never ends"
        )
    return OwnCodeError(told)


def _place(function: Callable[..., Any], error: BaseException) -> str:
    """(file, line 3: `source`), after a space: the innermost line in the function's file, or where it begins."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    own = [number for name, number in lines_of(error) if name == code.co_filename]
    number = own[0] if own else code.co_firstlineno
    return f" ({shown(Path(code.co_filename))}, line {number}: `{source_line(code.co_filename, number)}`)"
