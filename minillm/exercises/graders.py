"""Where the graders are: under tests/graders/ in the repository, beside the package."""

import importlib
import importlib.util
import sys
from pathlib import Path

from minillm.exercises.checkout import checkout
from minillm.exercises.exercise import Exercise
from minillm.exercises.grading import Grader


def grader_of(exercise: Exercise) -> Grader:
    """The grader of one exercise. Raises MissingError outside a checkout."""
    _make_importable(checkout() / "tests" / "graders")
    return importlib.import_module(f"graders.ch{exercise.chapter:02}").GRADERS[exercise.id]


def _make_importable(directory: Path) -> None:
    """Import the package `graders` from `directory`, without putting the tests on the path of a notebook."""
    if "graders" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location("graders", directory / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["graders"] = package
    spec.loader.exec_module(package)
