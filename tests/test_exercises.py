"""The reader's own exercises. `pytest` skips those that are not started; `pytest --ch 5` grades a chapter strictly."""

import pytest

from minillm.exercises import reader_files
from minillm.exercises.manifest import EXERCISES
from minillm.exercises.progress import grade_own

MOST_OUTPUT = 2000  # characters of what the reader's code prints: a loop that never ends prints more than anyone reads


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_exercise(exercise, request, capsys):
    started = reader_files.is_started(exercise)
    # For the report, so that CI can tell these skips from others.
    request.node.user_properties.append(("exercise", f"{exercise.id} {'started' if started else 'untouched'}"))
    if not started and request.config.getoption("--ch") is None:
        path = reader_files.shown(reader_files.path_of(exercise))
        pytest.skip(f"{exercise.id} is not started ({path}); `pytest --ch {exercise.chapter}` grades its chapter")
    verdict = grade_own(exercise)
    printed = capsys.readouterr().out
    print(printed[:MOST_OUTPUT], end="...\n" if len(printed) > MOST_OUTPUT else "")
    if not verdict.passed:
        pytest.fail(verdict.text, pytrace=False)
