"""`minillm grade 5`: grade a chapter's exercises (or some, 5.3 5.5), as `pytest --ch 5` does, from any directory."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence

from minillm.cli import Parser, guarded
from minillm.errors import MissingError
from minillm.exercises.checkout import checkout
from minillm.exercises.manifest import select_all
from minillm.exercises.reader_files import directory

PROG = "minillm grade"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code: 0 if everything passed, 1 if not."""
    parser = Parser(prog=PROG, description="Grade your exercises of a chapter, as `pytest --ch 5` does.")
    parser.add_argument("what", metavar="CHAPTER", nargs="+", help="a chapter (5), or exercises (5.3 5.5)")
    args = parser.parse_args(argv)
    return guarded(lambda: _grade(args.what), PROG)


def _grade(what: Sequence[str]) -> int:
    select_all(what)  # an unknown chapter is refused here, in one sentence
    root = checkout()
    if importlib.util.find_spec("pytest") is None:
        raise MissingError('grading needs pytest, which is not installed: `pip install -e ".[test]"` in the repository')
    environment = {**os.environ, "MINILLM_EXERCISES": str(directory().resolve())}
    command = [sys.executable, "-m", "pytest", "tests/test_exercises.py", *(f"--ch={each}" for each in what)]
    return subprocess.run(command, cwd=root, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
