"""The files that readers edit: found, cut into exercises, loaded, and given back as they were.

A file is a header (imports) and one section per exercise, each beginning with a line `# --- 5.1 ...`. Every section
is compiled by itself, at its own line numbers, into one namespace: a syntax error in one leaves the others usable,
and a function may call a helper from another section as in any module.
"""

import __future__

import ast
import functools
import linecache
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from minillm.exercises.defaults import torch_defaults_kept
from minillm.exercises.exercise import Exercise
from minillm.exercises.time_limit import OutOfTimeError, call_with_limit

_MARKER = re.compile(r"^# --- (\d+\.\d+)\b.*$", re.MULTILINE)
_PRISTINE = Path(__file__).parent / "pristine"
_HEADER = "header"
_HEADER_LIMIT_S, _SECTION_LIMIT_S = 60.0, 3.0  # a header may be the first to import torch


class UnusableCodeError(Exception):
    """A reader's code that cannot be loaded. The message is for the reader and names the line."""


class UnusableFileError(UnusableCodeError):
    """The same of a whole file: it cannot be read, or its header (the imports at the top) cannot be run."""


@dataclass(frozen=True)
class Section:
    """A part of a file: its text, and the number of its first line."""

    text: str
    first_line: int


def directory() -> Path:
    """Where readers' files are: beside this one, or where the environment variable MINILLM_EXERCISES points."""
    return Path(os.environ.get("MINILLM_EXERCISES") or Path(__file__).parent)


def path_of(exercise: Exercise) -> Path:
    """The reader's file with this exercise."""
    return directory() / exercise.file_name


def shown(path: Path) -> str:
    """A path as readers type it: relative to where they are, if it is below. A notebook's cell has no path to type."""
    if path.parent.name.startswith("ipykernel_"):
        return "your cell"
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def read(path: Path) -> str:
    """The text of a reader's file. Raises UnusableFileError where there is none."""
    way_out = f"`minillm exercises reset {int(path.stem.removeprefix('ch'))}` gives its stubs back"
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark of its encoding
    except OSError as error:
        raise UnusableFileError(f"{shown(path)} cannot be read ({error.strerror}): {way_out}") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{shown(path)} is not UTF-8 text: save it as such, or {way_out}") from None


def pristine(file_name: str) -> str:
    """A file as it was given out."""
    return (_PRISTINE / file_name).read_text(encoding="utf-8")


def pieces(text: str) -> tuple[Section, list[tuple[str, Section]]]:
    """The header, and each section with its exercise's id, as they stand in the file."""
    starts = [*_MARKER.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    header = Section(text[: starts[0].start()] if starts else text, 1)
    sections = []
    for match, end in zip(starts, ends, strict=True):
        first_line = text.count("\n", 0, match.start()) + 1
        sections.append((match[1], Section(text[match.start() : end], first_line)))
    return header, sections


def cut(text: str) -> tuple[Section, dict[str, Section]]:
    """The header, and the sections by exercise id. Where an id occurs twice (see `_lines_with`): the last."""
    header, sections = pieces(text)
    return header, dict(sections)


def _lines_with(exercise: Exercise, text: str) -> list[int]:
    """The lines at which a section of the exercise begins: one, if all is well."""
    return [section.first_line for exercise_id, section in pieces(text)[1] if exercise_id == exercise.id]


def is_started(exercise: Exercise) -> bool:
    """Whether there is anything but `todo(...)` in the exercise's function. Says nothing about right or wrong."""
    try:
        text = read(path_of(exercise))
        section = cut(text)[1].get(exercise.id, Section(text, 1))
        definition = _definition(ast.parse(section.text), exercise.name)
        if len(_lines_with(exercise, text)) > 1:
            return True
    except (UnusableCodeError, SyntaxError, ValueError):
        return True
    return definition is None or not _is_stub(definition)


def line_of(exercise: Exercise) -> int:
    """The line at which the exercise begins in the reader's file; 1 if its marker is gone."""
    section = cut(read(path_of(exercise)))[1].get(exercise.id)
    return section.first_line if section else 1


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return found[-1] if found else None


def _is_stub(definition: ast.FunctionDef) -> bool:
    """Nothing but a docstring and `todo(...)`."""
    body = [node for node in definition.body if not _is_text(node)]
    return len(body) == 1 and ast.unparse(body[0]).startswith("todo(")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def load(exercise: Exercise) -> Callable[..., Any]:
    """The reader's function. Raises UnusableCodeError, naming the line, where its section or the header is broken."""
    path = path_of(exercise)
    text = read(path)
    lines = _lines_with(exercise, text)
    if len(lines) > 1:
        raise UnusableCodeError(
            f"the line `# --- {exercise.id}` occurs {len(lines)} times in {shown(path)}, at lines"
            f" {' and '.join(map(str, lines))}: keep one of these sections, or `minillm exercises reset {exercise.id}`"
            " puts a single stub into their place"
        )
    namespace, failures = _namespace(path, text)
    if _HEADER in failures:
        raise UnusableFileError(failures[_HEADER])
    if exercise.id in failures:
        raise UnusableCodeError(failures[exercise.id])
    function = namespace.get(exercise.name)
    if not callable(function):
        raise UnusableCodeError(
            f"there is no function `{exercise.name}` in {shown(path)}:"
            f" `minillm exercises reset {exercise.id}` gives its stub back"
        )
    return function


def why_missing(exercise: Exercise) -> dict[str, str]:
    """For each section of the exercise's file that could not be run, by exercise id: that, and for what."""
    path = path_of(exercise)
    failures = _namespace(path, read(path))[1]
    return {part: f"cannot be run ({wrong.splitlines()[0]})" for part, wrong in failures.items() if part != _HEADER}


@functools.lru_cache(maxsize=8)
def _namespace(path: Path, text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """What the file defines, and what went wrong in which of its parts (an exercise id, or the header)."""
    header, sections = cut(text)
    module = ModuleType(f"your_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses look for what their annotations mean
    namespace, failures = vars(module), {}
    flags = _future_flags(header, path)
    for part, section in {_HEADER: header, **sections}.items():
        wrong = _execute(section, path, namespace, _HEADER_LIMIT_S if part == _HEADER else _SECTION_LIMIT_S, flags)
        if wrong:
            failures[part] = wrong
    return namespace, failures


def _compiled(section: Section, path: Path, flags: int = 0) -> CodeType:
    """A section's code, at its own line numbers."""
    return compile("\n" * (section.first_line - 1) + section.text, str(path), "exec", flags, dont_inherit=True)


def _future_flags(header: Section, path: Path) -> int:
    """What the header's `from __future__ import annotations` means for the sections, which are compiled apart."""
    try:
        return _compiled(header, path).co_flags & __future__.annotations.compiler_flag
    except (SyntaxError, ValueError):
        return 0  # the header's own failure tells the reader


def _execute(section: Section, path: Path, namespace: dict[str, Any], limit_s: float, flags: int) -> str:
    """Run a section's definitions; what went wrong, with the line, or ""."""
    try:
        code = _compiled(section, path, flags)
        with torch_defaults_kept():
            call_with_limit(lambda: exec(code, namespace), limit_s)
    except SyntaxError as error:
        return f"{type(error).__name__}: {error.msg}\n{shown(path)}, line {error.lineno}: {(error.text or '').strip()}"
    except OutOfTimeError as error:
        return _with_line(str(error), error.lines, path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _with_line(f"{type(error).__name__}: {error}", lines_of(error), path)
    return ""


def _with_line(message: str, lines: list[tuple[str, int]], path: Path) -> str:
    return "\n".join(filter(None, (message, own_line(lines, str(path)))))


def lines_of(error: BaseException) -> list[tuple[str, int]]:
    """The (file name, line number) of each frame of an exception, innermost first."""
    lines, trace = [], error.__traceback__
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return lines[::-1]


def own_line(lines: list[tuple[str, int]], file_name: str) -> str:
    """The innermost line that belongs to `file_name`, as "file, line 3: source"; "" if there is none."""
    for name, number in lines:
        if name == file_name:
            return f"{shown(Path(name))}, line {number}: {source_line(name, number)}"
    return ""


def source_line(file_name: str, number: int) -> str:
    """A line of a file as it is now, without its indentation."""
    linecache.checkcache(file_name)
    return linecache.getline(file_name, number).strip()
