"""Giving a stub back, with the reader's version kept beside it."""

from pathlib import Path

from minillm.errors import InputError
from minillm.exercises import reader_files
from minillm.exercises.exercise import Exercise
from minillm.exercises.kept import kept_folder
from minillm.exercises.manifest import find, select


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
    header, sections = reader_files.pieces(text)
    mine = [section.text for exercise_id, section in sections if exercise_id == exercise.id]
    stub = reader_files.cut(reader_files.pristine(exercise.file_name))[1][exercise.id]
    if not mine:
        raise InputError(
            f"the line `# --- {exercise.id}` is missing from {reader_files.shown(path)}, so it is not clear where the"
            f" exercise begins: put it back, or `minillm exercises reset {exercise.chapter}` for the whole file"
        )
    if [each.strip() for each in mine] == [stub.text.strip()]:
        return f"{exercise.id} is as it was given out: nothing to do"
    kept = _keep("".join(mine), f"{path.stem}_{exercise.id}")
    restored = [header.text]
    for exercise_id, section in sections:
        if exercise_id != exercise.id:
            restored.append(section.text)
        elif section.text is mine[0]:  # a second section of the same exercise goes
            restored.append(stub.text.rstrip("\n") + "\n\n\n")
    _write(path, "".join(restored).rstrip("\n") + "\n")
    return f"{exercise.id} is a stub again in {reader_files.shown(path)}; your version is in {reader_files.shown(kept)}"


def _reset_file(exercise: Exercise) -> str:
    path = reader_files.path_of(exercise)
    stubs = reader_files.pristine(exercise.file_name)
    mine = path.read_bytes().decode("utf-8-sig", errors="replace") if path.is_file() else None
    if mine == stubs:
        return f"{reader_files.shown(path)} is as it was given out: nothing to do"
    kept = _keep(mine, path.stem) if mine is not None else None
    _write(path, stubs)
    told = f"; your version is in {reader_files.shown(kept)}" if kept else ""
    return f"{reader_files.shown(path)} has its stubs again{told}"


def _keep(text: str, name: str) -> Path:
    """Write the reader's version to the first free name. Git ignores the folder."""
    folder = kept_folder()
    number = 1
    while (kept := folder / f"{name}_{number}.py").exists():
        number += 1
    _write(kept, text)
    return kept


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
