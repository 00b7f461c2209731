"""Where the repository is that this package is part of: the graders are in its tests."""

from pathlib import Path

from minillm.errors import MissingError

ROOT = Path(__file__).resolve().parents[2]  # of the repository, if there is one


def checkout() -> Path:
    """The root of the repository. Raises MissingError where the package was installed without it."""
    if not (ROOT / "tests" / "graders").is_dir():
        raise MissingError(
            f"the graders are in the repository's tests/ directory, and there is none beside {ROOT / 'minillm'}:"
            ' clone the repository and `pip install -e ".[test]"` there'
        )
    return ROOT
