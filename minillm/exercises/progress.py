"""Where a reader is: the state of each exercise, and the table that shows it."""

import contextlib
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from minillm.exercises import reader_files
from minillm.exercises.exercise import Exercise
from minillm.exercises.time_limit import CASE_LIMIT_S
from minillm.exercises.verdict import Verdict, failed

_ENGINE = re.compile(r"minillm(?!\.exercises\.ch\d\d$)(\.|$)")  # all of the package but the readers' own files


class State(Enum):
    """How far an exercise is."""

    NO_FILE = "no file"
    NOT_STARTED = "not started"
    UNUSABLE = "cannot be run"  # the whole file: its imports are at fault
    STARTED = "not yet right"
    WAITING = "waits"  # right, but for another exercise's answer that it calls
    FINISHED = "passed"


@dataclass(frozen=True)
class Row:
    """One exercise and its state."""

    exercise: Exercise
    state: State
    waits_for: tuple[str, ...] = ()  # the ids of those that come first, where it is WAITING

    @property
    def standing(self) -> str:
        """The state in words: "passed", "waits for 5.3"."""
        return f"waits for {' and '.join(self.waits_for)}" if self.waits_for else self.state.value

    @property
    def next_step(self) -> str:
        """What to do now; "" when there is nothing."""
        if self.state is State.FINISHED:
            return ""
        if self.state is State.NO_FILE:
            return f"minillm exercises reset {self.exercise.chapter}"
        if self.state is State.UNUSABLE:
            return f"mend the top of {reader_files.shown(reader_files.path_of(self.exercise))}"
        if self.state is State.WAITING:
            return f"finish {' and '.join(self.waits_for)} first"
        if self.state is State.STARTED:
            return f"minillm hint {self.exercise.id}"
        return f"edit {reader_files.shown(reader_files.path_of(self.exercise))}:{reader_files.line_of(self.exercise)}"


def grade_own(exercise: Exercise) -> Verdict:
    """Grade the function in the reader's file. One that cannot be loaded fails, with the line that is at fault."""
    if not reader_files.is_started(exercise):
        path = reader_files.shown(reader_files.path_of(exercise))
        line = reader_files.line_of(exercise)
        return failed(exercise, f"It is not started: {path}, line {line}, still says todo({exercise.id!r}).")
    try:
        function = reader_files.load(exercise)
    except reader_files.UnusableCodeError as error:
        message, _, line = str(error).partition("\n")
        told = failed(exercise, f"came    {message}", *([f"line    {line}"] if line else []))
        return replace(told, of_the_file=isinstance(error, reader_files.UnusableFileError))
    from minillm.exercises.helpers import grade_apart  # imports torch, which nobody needs before

    missing = reader_files.why_missing(exercise)
    return not_the_readers(exercise, function) or grade_apart(exercise, function, missing, CASE_LIMIT_S)


def not_the_readers(exercise: Exercise, function: object) -> Verdict | None:
    """A verdict that says no, if the function is the engine's own: it would pass, and nothing would be learnt."""
    home = getattr(function, "__module__", None) or ""
    if not _ENGINE.match(home):
        return None
    name = getattr(function, "__qualname__", exercise.name)
    return failed(
        exercise,
        f"That is the engine's own {name}, imported from {home}: give yours. (Has yours the same name? Then the cell"
        " or section that defines it has not been run since the import.)",
    )


def state_of(exercise: Exercise) -> State:
    """The state alone."""
    return row_of(exercise).state


def row_of(exercise: Exercise) -> Row:
    """Where the exercise stands, graded if anything was written. What the reader's code prints is not shown."""
    if not reader_files.path_of(exercise).exists():
        return Row(exercise, State.NO_FILE)
    if not reader_files.is_started(exercise):
        return Row(exercise, State.NOT_STARTED)
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        verdict = grade_own(exercise)
    if verdict.of_the_file:
        return Row(exercise, State.UNUSABLE)
    if verdict.waits_for:
        return Row(exercise, State.WAITING, verdict.waits_for)
    return Row(exercise, State.FINISHED if verdict.passed else State.STARTED)


def table(rows: Iterable[Row]) -> str:
    """The progress table, as plain text."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    grid = Table(box=None, pad_edge=False)
    for heading in ("id", "exercise", "state", "next step"):
        grid.add_column(heading, no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, (row.exercise.id, row.exercise.title, row.standing, row.next_step)))
    out = io.StringIO()
    Console(file=out, width=1000).print(grid)
    passed = sum(row.state is State.FINISHED for row in rows)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([*lines, "", f"{passed} of {len(rows)} passed"])
