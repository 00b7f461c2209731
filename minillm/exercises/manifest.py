"""Which exercises there are, and how one is found. No torch here: listing and hints are quick."""

from collections.abc import Iterable
from typing import Any

from minillm.errors import InputError
from minillm.exercises.exercise import CHAPTERS, Exercise
from minillm.exercises.one_request import ONE_REQUEST
from minillm.exercises.the_machine import THE_MACHINE

EXERCISES: tuple[Exercise, ...] = (*ONE_REQUEST, *THE_MACHINE)


def find(exercise_id: Any) -> Exercise:
    """The exercise with this id: "5.2", or 5.2. Raises InputError where there is none."""
    if isinstance(exercise_id, int | float):
        exercise_id = str(exercise_id)
    if not isinstance(exercise_id, str):
        raise InputError(f'an exercise\'s id is a text, such as "5.1" with its quotes, and not {exercise_id!r}')
    for exercise in EXERCISES:
        if exercise.id == exercise_id:
            return exercise
    chapter = exercise_id.split(".")[0]
    of_chapter = [e.id for e in EXERCISES if str(e.chapter) == chapter]
    some = f"there are some for {_known_chapters()}"
    known = f"chapter {chapter} has {', '.join(of_chapter)}" if of_chapter else some
    raise InputError(f"there is no exercise {exercise_id!r}: {known}")


def select(what: str) -> tuple[Exercise, ...]:
    """The exercises of a chapter ("5"), or one ("5.2"). Raises InputError where there are none."""
    found = tuple(e for e in EXERCISES if what in (e.id, str(e.chapter)))
    if found:
        return found
    if "." in what:
        return (find(what),)
    raise InputError(f"there are no exercises for chapter {what!r}: there are some for {_known_chapters()}")


def select_all(what: Iterable[str]) -> tuple[Exercise, ...]:
    """The exercises of several chapters or ids, each once and in the book's order. Raises InputError as `select`."""
    chosen = {exercise.id for each in what for exercise in select(each)}
    return tuple(exercise for exercise in EXERCISES if exercise.id in chosen)


def _known_chapters() -> str:
    *others, last = map(str, CHAPTERS)
    return f"chapters {', '.join(others)} and {last}"
