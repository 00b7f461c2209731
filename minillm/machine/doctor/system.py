"""The doctor's one door to the machine. Tests put recorded outputs behind it."""

import contextlib
import os
import platform
import resource
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from minillm.loading.registry import weights_directory

MOST_BYTES = 4 * 2**20
"""More text than any of these tools writes in good health; the rest of a longer one is not read."""


@dataclass(frozen=True)
class Output:
    """What a command answered: its text (stdout, then stderr), and its exit code.

    `exit_code` is None if there is none: the command is not installed (`missing`), or did not end in time (`hung`).
    """

    text: str = ""
    exit_code: int | None = None
    missing: bool = False
    hung: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether the command ran to its end and reports success."""
        return self.exit_code == 0


class System:
    """The machine that this process runs on. Nothing here raises: what cannot be read is None, empty or `missing`."""

    def run(self, *command: str, limit_s: float = 10.0) -> Output:
        """Run a command, for `limit_s` seconds at most."""
        environment = {**os.environ, "LC_ALL": "C", "LANG": "C"}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError):
            return Output(missing=True)
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            # A program that waits inside a stuck driver cannot be killed, so its end is not waited for.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            return Output(hung=True)
        return Output(_text(out + err), process.returncode)

    def read(self, path: str) -> str | None:
        """A file's text; None if there is none, or it may not be read."""
        try:
            with open(path, "rb") as file:
                return _text(file.read(MOST_BYTES))
        except (OSError, ValueError):
            return None

    def names(self, directory: str) -> tuple[str, ...] | None:
        """The names in a directory, sorted; None if it cannot be listed."""
        try:
            return tuple(sorted(os.listdir(directory)))
        except OSError:
            return None

    def exists(self, path: str) -> bool:
        """Whether something lies at the path."""
        return os.path.exists(path)

    def link_name(self, path: str) -> str | None:
        """The last part of what a symbolic link points to, as `driver -> ../../bus/pci/drivers/nvidia`."""
        try:
            return os.path.basename(os.readlink(path))
        except OSError:
            return None

    def platform(self) -> tuple[str, str]:
        """("Linux", "x86_64"), ("Darwin", "arm64"), ..."""
        return platform.system(), platform.machine()

    def environment(self, variable: str) -> str | None:
        """An environment variable."""
        return os.environ.get(variable)

    def cpus(self) -> tuple[int | None, int | None]:
        """Logical processors of the machine, and those that this process may run on."""
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        return os.cpu_count(), allowed

    def disk(self, path: str) -> tuple[int, int] | None:
        """(bytes in all, bytes free) of the file system at the path."""
        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return usage.total, usage.free

    def working_directory(self) -> Path | None:
        """The directory that we are in; None if it was deleted."""
        try:
            return Path.cwd()
        except OSError:
            return None

    def weights(self) -> tuple[str | None, bool]:
        """Where weights are kept (or the first directory above it that is there), and whether we may write there.

        None if they are kept below the directory that we are in, and that was deleted.
        """
        directory, here = weights_directory(), self.working_directory()
        if here is None and not directory.is_absolute():
            return None, False
        path = Path(os.path.normpath((here or Path("/")) / directory))
        while not path.is_dir() and path != path.parent:
            path = path.parent
        shown = os.path.relpath(path) if here is not None and path.is_relative_to(here) else str(path)
        return shown, os.access(path, os.W_OK)

    def limits(self) -> tuple[int | None, int | None]:
        """Open files that a process may have, and bytes that it may lock in memory; None: no limit."""
        return _soft_limit(resource.RLIMIT_NOFILE), _soft_limit(resource.RLIMIT_MEMLOCK)


def _soft_limit(which: int) -> int | None:
    limit = resource.getrlimit(which)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _text(data: bytes) -> str:
    return data[:MOST_BYTES].decode("utf-8", errors="replace").replace("\r\n", "\n")
