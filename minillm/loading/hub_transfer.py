"""What the hub lists of a model, and how its files come into the cache: small ones by `huggingface_hub` alone, large
ones so that they resume.
"""

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minillm.errors import InputError, MissingError
from minillm.loading.download import RemoteFile, download, fetched_bytes
from minillm.loading.hub_cache import blob_path, cache_directory, lock_path
from minillm.loading.hub_id import HubId
from minillm.loading.progress import Meter, Progress, meter, size_text

ASK_TIMEOUT_S = 10.0
# The library fetches files below this size: seconds at worst, and nothing is lost if they are fetched again.
RESUMABLE_BYTES = 8 << 20


@dataclass(frozen=True)
class Listing:
    """What the hub says of a repository at one commit: the size of each file, and the checksums of the large ones."""

    hub_id: HubId
    commit: str
    sizes: Mapping[str, int]
    sha256: Mapping[str, str]


def list_model(hub_id: HubId) -> Listing:
    """Ask the hub. The commit is kept to from here on, wherever the branch moves meanwhile."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="minillm")
    info = api.model_info(hub_id.repo, revision=hub_id.revision, files_metadata=True, timeout=ASK_TIMEOUT_S)
    files = info.siblings or []
    if info.sha is None:
        raise MissingError(f"the hub does not say which commit {hub_id} is: look whether HF_ENDPOINT is a model hub")
    return Listing(
        hub_id,
        info.sha,
        {file.rfilename: file.size or 0 for file in files},
        {file.rfilename: file.lfs.sha256 for file in files if file.lfs is not None},
    )


def fetch_files(listing: Listing, names: Sequence[str], progress: Progress) -> Path:
    """Fetch these files, those that are not in the cache; returns the directory that they are in."""
    directory = cache_directory(listing.hub_id) / "snapshots" / listing.commit
    to_fetch = [name for name in names if not (directory / name).is_file()]
    total = sum(listing.sizes[name] for name in to_fetch)
    fetched = sum(_already(listing, name) for name in to_fetch)
    _tell_and_check_room(listing, names, total - fetched, progress)
    with _without_bars_of_the_library(), meter(total - fetched, progress) as bytes_come:
        for name in to_fetch:
            bytes_come.file(name)
            _fetch_file(listing, name, bytes_come)
    return directory


def _already(listing: Listing, name: str) -> int:
    """Bytes that an earlier, broken download has left of a file. The library's name for it is its checksum."""
    checksum = listing.sha256.get(name)
    if checksum is None:
        return 0
    blob = blob_path(listing.hub_id, checksum)
    return listing.sizes[name] if blob.is_file() else min(fetched_bytes(blob), listing.sizes[name])


def _tell_and_check_room(listing: Listing, names: Sequence[str], to_come: int, progress: Progress) -> None:
    """Say how much it is and how much of it is to come, and refuse it where the disk has no room for that."""
    hub_id, place = listing.hub_id, cache_directory(listing.hub_id)
    free = shutil.disk_usage(next(path for path in (place, *place.parents) if path.exists())).free
    whole = sum(listing.sizes[name] for name in names)
    if to_come:
        here = f", {size_text(whole - to_come)} of them already here" if whole - to_come > 0.01 * whole else ""
        progress(
            f"fetching {hub_id}, commit {listing.commit[:12]}: {len(names)} file{'s' if len(names) > 1 else ''}, "
            f"{size_text(whole)}{here}; to {place}, where {size_text(free)} are free"
        )
    if to_come > free:
        raise InputError(
            f"fetching {hub_id} takes {size_text(to_come)} in {place}, where {size_text(free)} are free: make room, "
            "or name another directory with HF_HOME"
        )


def _fetch_file(listing: Listing, name: str, bytes_come: Meter) -> None:
    from huggingface_hub import hf_hub_download

    repo, commit, size = listing.hub_id.repo, listing.commit, listing.sizes[name]
    if size >= RESUMABLE_BYTES:
        _fetch_blob(listing, name, bytes_come)
    hf_hub_download(repo, name, revision=commit)  # of a large file it finds the content, and puts it in its place
    if size < RESUMABLE_BYTES:
        bytes_come.add(size)


def _fetch_blob(listing: Listing, name: str, bytes_come: Meter) -> None:
    """Fetch a large file's content to where the library looks for it, under the lock that it takes for it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    url = hf_hub_url(listing.hub_id.repo, name, revision=listing.commit)
    remote = get_hf_file_metadata(url, timeout=ASK_TIMEOUT_S)
    if remote.etag is None or remote.size is None or not re.fullmatch(r"[\w.-]*\w", remote.etag):
        return  # not how a hub answers: the library may get along with it, or has a sentence for it
    blob, lock = blob_path(listing.hub_id, remote.etag), lock_path(listing.hub_id, remote.etag)
    lock.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.is_file():  # another program has fetched it meanwhile
            return
        file = RemoteFile(name, url, remote.size, listing.sha256.get(name))
        download(file, blob, build_hf_headers(library_name="minillm"), bytes_come)


@contextmanager
def _without_bars_of_the_library() -> Iterator[None]:
    """Its bars, one per file, would mix with ours. Whoever has switched them off finds them off afterwards."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def point_revision_at(listing: Listing, name: str) -> None:
    """Let the library write down which commit the branch or tag is: it does so with the next file that it is asked
    for by the revision's name.
    """
    from huggingface_hub import hf_hub_download

    if listing.hub_id.revision != listing.commit:
        with _without_bars_of_the_library():
            hf_hub_download(listing.hub_id.repo, name, revision=listing.hub_id.revision)
