"""Where the graders are: under tests/graders/ in the repository, beside the package."""

import importlib
import importlib.util
import sys
from pathlib import Path

from minillm.errors import MissingError
from minillm.exercises.grading import Grader
from minillm.exercises.manifest import Exercise


def checkout() -> Path:
    """The root of the repository that this package is part of. Raises MissingError where it was installed alone."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "graders").is_dir():
        raise MissingError(
            f"the graders are in the repository's tests/ directory, and there is none beside {root / 'minillm'}:"
            ' clone the repository and `pip install -e ".[test]"` there'
        )
    return root


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
