"""The reader's own exercises. `pytest` skips those that are not started; `pytest --ch 5` grades a chapter strictly."""

import pytest

from minillm.exercises import reader_files
from minillm.exercises.manifest import EXERCISES, select_all
from minillm.exercises.progress import grade_own

MOST_OUTPUT = 2000  # characters of what the reader's code prints: a loop that never ends prints more than anyone reads


@pytest.fixture(scope="module")
def told():
    """What was said of a whole file, and by which exercise: said once, and not by each of the file's."""
    return {}


def pytest_generate_tests(metafunc):
    """With --ch, a test for each of its exercises, and no other is collected."""
    chosen = metafunc.config.getoption("--ch")
    exercises = EXERCISES if chosen is None else select_all(chosen)
    metafunc.parametrize("exercise", exercises, ids=lambda exercise: exercise.id)


def test_exercise(exercise, told, request, capsys):
    started = reader_files.is_started(exercise)
    # For the report, so that CI can tell these skips from others.
    request.node.user_properties.append(("exercise", f"{exercise.id} {'started' if started else 'untouched'}"))
    if not started and request.config.getoption("--ch") is None:
        path = reader_files.shown(reader_files.path_of(exercise))
        pytest.skip(f"{exercise.id} is not started ({path}); `pytest --ch {exercise.chapter}` grades its chapter")
    verdict = grade_own(exercise)
    printed = capsys.readouterr().out
    print(printed[:MOST_OUTPUT], end="...\n" if len(printed) > MOST_OUTPUT else "")
    if verdict.of_the_file and (first := told.setdefault(verdict.text.partition("\n")[2], exercise.id)) != exercise.id:
        pytest.fail(f"{exercise.id} {exercise.title}: not yet, for the same reason as {first}.", pytrace=False)
    if not verdict.passed:
        pytest.fail(verdict.text, pytrace=False)
