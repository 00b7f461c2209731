"""Temporary directories beside the place where their result will go, gone whatever happens.

They lie in the destination's own directory, because only within one file system is a rename a single step: a
reader sees either no model or a whole one. On every ordinary exit they are removed. After a `kill -9` the
next process removes them: a directory's owner holds a lock on a file inside, and the system drops it with the
process.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

PREFIX, LOCK = ".minillm-scratch-", "lock"
# Between making a directory and locking it a moment passes; an unlocked one younger than this is left alone.
GRACE_S = 60


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A new empty directory in `parent` (made if need be), removed at the end; abandoned ones are removed
    first.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (directory / LOCK).open("w", encoding="utf-8") as lock:
            try_lock(lock)
            content = directory / "content"
            content.mkdir()
            yield content
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the scratch directories in `parent` whose processes are gone."""
    for directory in parent.glob(PREFIX + "*"):
        if _is_abandoned(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    try:
        with (directory / LOCK).open("r+", encoding="utf-8") as lock:
            return try_lock(lock)
    except OSError:
        return _age_s(directory) > GRACE_S


def _age_s(directory: Path) -> float:
    try:
        return time.time() - directory.stat().st_mtime
    except OSError:  # its owner has just removed it
        return 0.0


def try_lock(file: IO[Any]) -> bool:
    """Take the exclusive lock of an open file without waiting; False if another process holds it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
