"""Directories of exercises as readers leave them: filled in, half done, broken."""

import ast
import functools
import importlib
import inspect
import re
import textwrap
from pathlib import Path

from minillm.exercises import reader_files
from minillm.exercises.manifest import EXERCISES, find


def write_exercises(directory: Path, **sections: str) -> Path:
    """The stubs as given out, with the code of some sections replaced (keyword e5_1: that of 5.1)."""
    for name in sorted({exercise.file_name for exercise in EXERCISES}):
        (directory / name).write_text(reader_files.pristine(name), encoding="utf-8")
    for key, code in sections.items():
        exercise = find(key.removeprefix("e").replace("_", "."))
        path = directory / exercise.file_name
        text = path.read_text(encoding="utf-8")
        section = reader_files.cut(text)[1][exercise.id]
        marker = section.text.splitlines()[0]
        path.write_text(
            text.replace(section.text, f"{marker}\n{textwrap.dedent(code).strip()}\n\n\n"), encoding="utf-8"
        )
    return directory


def write_solutions(directory: Path) -> Path:
    """Every stub filled with the source of its reference."""
    return write_exercises(directory, **{f"e{e.id.replace('.', '_')}": reference_source(e) for e in EXERCISES})


def reference_source(exercise) -> str:
    """The engine's own code of an exercise, as a function of its own; what it uses of its module beyond the names that
    the stub file has is imported before it.
    """
    module_name, qualname = exercise.reference.split(":")
    module = importlib.import_module(module_name)
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(functools.reduce(getattr, qualname.split("."), module))))
    source = re.sub(r"^def \w+", f"def {exercise.name}", source, count=1, flags=re.MULTILINE)
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    missing = sorted(used & vars(module).keys() - _names_of(reader_files.pristine(exercise.file_name)))
    return f"from {module_name} import {', '.join(missing)}\n\n\n{source}" if missing else source


def _names_of(text: str) -> set[str]:
    """What a file imports and defines."""
    imports = [alias for node in ast.parse(text).body for alias in getattr(node, "names", [])]
    defined = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    return {alias.asname or alias.name for alias in imports} | defined
