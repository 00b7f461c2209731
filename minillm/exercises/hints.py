"""Hints, one by one: `minillm hint 5.2`, `pytest --hint 5.2` and, in a notebook, `hint("5.2")` give the same ones."""

import json
from pathlib import Path

from minillm.exercises.exercise import Exercise
from minillm.exercises.kept import kept_folder


def next_hint(exercise: Exercise, command: str, *, again: bool = False) -> str:
    """The hint after the one that was given last, whichever way that was; the last one stays.

    command: what the reader typed, to name it where there is a way on. again: begin with the first.
    """
    count = len(exercise.hints)
    given = _given()
    number = 1 if again else min(given.get(exercise.id, 0) + 1, count)
    _file().write_text(json.dumps({**given, exercise.id: number}, indent=2) + "\n", encoding="utf-8")
    text = f"{exercise.id} {exercise.title}, hint {number} of {count}: {exercise.hints[number - 1]}"
    if number < count:
        return text
    return f"{text}\nThat was the last one. `{command}` begins again; read {exercise.where}"


def _file() -> Path:
    return kept_folder() / "hints.json"


def _given() -> dict[str, int]:
    """How many hints were given, by exercise id; nothing, where no file (or something else) is."""
    try:
        given = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: n for key, n in given.items() if isinstance(n, int) and n >= 0} if isinstance(given, dict) else {}
