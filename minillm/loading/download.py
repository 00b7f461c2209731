"""One large file from a hub, so that a broken download goes on where it broke off: today, and after a restart too.

`huggingface_hub` resumes within one call only: what an interrupted program has fetched, it throws away. A file of some
gigabytes is therefore fetched here, by HTTP's range requests, into the library's cache, under the name that it has
there ("blob"). The library then finds it as if it had fetched it itself.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from minillm.errors import MissingError
from minillm.loading.files import sha256_of
from minillm.loading.progress import Meter, size_text

PART_SUFFIX = ".minillm.incomplete"
CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30.0  # without a byte
ATTEMPTS_WITHOUT_A_BYTE = 4
PAUSE_S = 1.0  # before the second attempt; twice as long before each further one

PARTIAL_CONTENT = 206


@dataclass(frozen=True)
class RemoteFile:
    """A file of a hub: `size` in bytes; `sha256` of its content, where the hub states it (it does for large ones)."""

    name: str
    url: str
    size: int
    sha256: str | None = None


class BrokenOffError(Exception):
    """The connection failed, or ended too early; what came is kept."""


def part_of(blob: Path) -> Path:
    """Where the bytes of an unfinished `blob` lie."""
    return blob.with_name(blob.name + PART_SUFFIX)


def fetched_bytes(blob: Path) -> int:
    """How many bytes of an unfinished `blob` are there."""
    try:
        return part_of(blob).stat().st_size
    except OSError:
        return 0


def download(file: RemoteFile, blob: Path, headers: Mapping[str, str], meter: Meter) -> None:
    """Put the file's content at `blob`: all of it, or nothing there and what has come beside it.

    Raises BrokenOffError if the connection failed several times in a row without a byte in between; MissingError if
    what came is not the file; what `huggingface_hub` raises for an answer of the hub; OSError of the disk.
    """
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(blob)
    with part.open("ab") as out:
        if out.tell() > file.size:
            out.truncate(0)
        _fill(file, out, headers, meter)
    if part.stat().st_size != file.size or (file.sha256 and sha256_of(part) != file.sha256):
        part.unlink()
        raise MissingError(f"what the hub sent as {file.name} is not the file that it lists: fetch it again")
    part.replace(blob)


def _fill(file: RemoteFile, out: IO[bytes], headers: Mapping[str, str], meter: Meter) -> None:
    """Append to `out` until it has the file's size, in as many requests as it takes."""
    failures = 0
    while out.tell() < file.size:
        before = out.tell()
        try:
            _append(file, out, headers, meter)
            problem = BrokenOffError(
                f"the hub ended {file.name} after {size_text(out.tell())} of {size_text(file.size)}"
            )
        except BrokenOffError as error:
            problem = error
        if out.tell() >= file.size:
            return
        failures = 0 if out.tell() > before else failures + 1
        if failures == ATTEMPTS_WITHOUT_A_BYTE:
            raise problem
        if failures:
            time.sleep(PAUSE_S * 2 ** (failures - 1))


def _append(file: RemoteFile, out: IO[bytes], headers: Mapping[str, str], meter: Meter) -> None:
    """One request for what `out` lacks. A server that does not know ranges sends all: then all is written anew."""
    start = out.tell()
    for status, chunk in _chunks(file, start, headers):
        if start and status != PARTIAL_CONTENT:
            out.truncate(0)
            meter.add(-start)
            start = 0
        out.write(chunk)
        out.flush()
        meter.add(len(chunk))


def _chunks(file: RemoteFile, start: int, headers: Mapping[str, str]) -> Iterator[tuple[int, bytes]]:
    """The answer to one request, piece by piece, each with its status. BrokenOffError where the network fails."""
    from huggingface_hub import get_session
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import hf_raise_for_status

    # Not compressed: positions in the answer must be positions in the file.
    asked = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={start}-"}
    try:
        with get_session().stream("GET", file.url, headers=asked, timeout=TIMEOUT_S, follow_redirects=True) as answer:
            hf_raise_for_status(answer)
            for chunk in answer.iter_bytes(CHUNK_BYTES):
                yield answer.status_code, chunk
    except HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        raise BrokenOffError(f"the hub answered {error.response.status_code}") from error
    except Exception as error:  # whatever the HTTP client raises: it is another library in each version
        raise BrokenOffError(f"the connection broke off ({type(error).__name__})") from error
