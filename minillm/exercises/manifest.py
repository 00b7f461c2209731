"""Which exercises there are, and how one is found. No torch here: listing and hints are quick."""

from collections.abc import Iterable
from typing import Any

from minillm.errors import InputError
from minillm.exercises.chapters import (
    ch01,
    ch02,
    ch03,
    ch04,
    ch05,
    ch06,
    ch07,
    ch08,
    ch09,
    ch10,
    ch11,
    ch12,
    ch13,
    ch14,
    ch17,
)
from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    *ch01.EXERCISES,
    *ch02.EXERCISES,
    *ch03.EXERCISES,
    *ch04.EXERCISES,
    *ch05.EXERCISES,
    *ch06.EXERCISES,
    *ch07.EXERCISES,
    *ch08.EXERCISES,
    *ch09.EXERCISES,
    *ch10.EXERCISES,
    *ch11.EXERCISES,
    *ch12.EXERCISES,
    *ch13.EXERCISES,
    *ch14.EXERCISES,
    *ch17.EXERCISES,
)


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
    *others, last = dict.fromkeys(str(exercise.chapter) for exercise in EXERCISES)
    return f"chapters {', '.join(others)} and {last}"
