"""The folder beside the reader's files for what is kept of them: earlier versions, and which hint is next."""

from pathlib import Path

from minillm.exercises.reader_files import directory


def kept_folder() -> Path:
    """`kept/`, made if need be. Git ignores it."""
    folder = directory() / "kept"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n", encoding="utf-8", newline="\n")
    return folder
