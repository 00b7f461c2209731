"""Giving a stub back, with the reader's version kept beside it."""

from pathlib import Path

from minillm.errors import InputError
from minillm.exercises import reader_files
from minillm.exercises.manifest import Exercise, find, select


def reset(what: str) -> str:
    """Restore one exercise ("5.1"), or the whole file of a chapter ("5"); says in a sentence what was done.

    What was there is written to a new file under `kept/`, beside the reader's files. Raises InputError for an unknown
    exercise, or one whose section cannot be found.
    """
    return _reset_section(find(what)) if "." in what else _reset_file(select(what)[0])


def _reset_section(exercise: Exercise) -> str:
    path = reader_files.path_of(exercise)
    try:
        text = reader_files.read(path)
    except reader_files.UnusableCodeError as error:
        raise InputError(str(error)) from None
    mine = reader_files.cut(text)[1].get(exercise.id)
    stub = reader_files.cut(reader_files.pristine(exercise.file_name))[1][exercise.id]
    if mine is None:
        raise InputError(
            f"the line `# --- {exercise.id}` is missing from {reader_files.shown(path)}, so it is not clear where the"
            f" exercise begins: put it back, or `minillm exercises reset {exercise.chapter}` for the whole file"
        )
    if mine.text.strip() == stub.text.strip():
        return f"{exercise.id} is as it was given out: nothing to do"
    kept = _keep(mine.text, path, f"{path.stem}_{exercise.id}")
    is_last = text.endswith(mine.text)
    restored = stub.text.rstrip("\n") + ("\n" if is_last else "\n\n\n")
    _write(path, text.replace(mine.text, restored, 1))
    return f"{exercise.id} is a stub again in {reader_files.shown(path)}; your version is in {reader_files.shown(kept)}"


def _reset_file(exercise: Exercise) -> str:
    path = reader_files.path_of(exercise)
    stubs = reader_files.pristine(exercise.file_name)
    mine = path.read_bytes().decode("utf-8", errors="replace") if path.is_file() else None
    if mine == stubs:
        return f"{reader_files.shown(path)} is as it was given out: nothing to do"
    kept = _keep(mine, path, path.stem) if mine is not None else None
    _write(path, stubs)
    told = f"; your version is in {reader_files.shown(kept)}" if kept else ""
    return f"{reader_files.shown(path)} has its stubs again{told}"


def _keep(text: str, path: Path, name: str) -> Path:
    """Write the reader's version to the first free name. Git ignores the folder."""
    folder = path.parent / "kept"
    folder.mkdir(exist_ok=True)
    _write(folder / ".gitignore", "*\n")
    number = 1
    while (kept := folder / f"{name}_{number}.py").exists():
        number += 1
    _write(kept, text)
    return kept


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
