"""The other source: any Llama-family model of a hub, by its id ("org/name"), through `huggingface_hub`.

Only what this engine reads is fetched, into the library's own cache (HF_HOME), where other programs find it too:

1. Is it in the cache, whole? Then the hub is not asked.
2. The hub lists the files and their sizes. What cannot be loaded is refused now.
3. The description is fetched and read: what this engine does not run is refused now.
4. Tokenizer and weights follow, if the disk has room: file by file, each resumed where it broke off.
5. The revision ("main") is pointed at what has come: until then it is at what was there before.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from minillm.config import ModelConfig
from minillm.errors import InputError, MissingError
from minillm.loading.download import RemoteFile, download, fetched_bytes
from minillm.loading.files import read_json_object
from minillm.loading.hub_cache import blob_path, cache_directory, lock_path, snapshot_of
from minillm.loading.hub_errors import in_plain_words
from minillm.loading.hub_files import (
    CONFIG,
    GENERATION_CONFIG,
    check_listing,
    choose_gguf,
    description_files,
    missing_files,
    tokenizer_files,
    weight_files,
)
from minillm.loading.hub_id import HubId, parse_hub_id
from minillm.loading.progress import Meter, Progress, meter, silent, size_text
from minillm.loading.shards import SINGLE

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


def fetch_from_hub(model: str | HubId, progress: Progress = silent, look_again: bool = False) -> Path:
    """The directory, or the GGUF file, of a hub model; fetched if it is not in the cache.

    look_again: ask the hub for a newer state of the revision, and fetch what has changed.
    Raises MissingError where it cannot be had, InputError where the id is malformed or the model cannot be loaded.
    """
    hub_id = _understood(model)
    with in_plain_words(hub_id):
        found = None if look_again else cached(hub_id)
        return found or _fetch(hub_id, progress)


def fetch_config_from_hub(model: str | HubId) -> Path:
    """The `config.json` of a hub model, and nothing else of it. Raises as `fetch_from_hub` does."""
    hub_id = _understood(model)
    with in_plain_words(hub_id):
        directory = snapshot_of(hub_id)
        if directory is None or not (directory / CONFIG).is_file():
            listing = _list(hub_id)
            if CONFIG not in listing.sizes:
                raise MissingError(f"the hub model {hub_id} has no {CONFIG}, so its shape is not stated there")
            directory = _fetch_files(listing, [CONFIG], silent)
            _point_revision_at(listing, CONFIG)
        return directory / CONFIG


def fetch_description_from_hub(hub_id: HubId) -> tuple[Path, Listing]:
    """Config, generation config, index and tokenizer of a hub model, and what the hub lists of it; no weights.

    Raises as `fetch_from_hub` does.
    """
    with in_plain_words(hub_id):
        listing = _list(hub_id)
        if CONFIG not in listing.sizes:
            check_listing(hub_id, listing.sizes)
        names = [*description_files(listing.sizes), *tokenizer_files(listing.sizes)]
        return _fetch_files(listing, names, silent), listing


def cached(hub_id: HubId) -> Path | None:
    """Where the model lies in the cache, if all that is needed of it is there. The hub is not asked."""
    directory = snapshot_of(hub_id)
    if directory is None:
        return None
    try:
        if not hub_id.wants_gguf:
            return None if missing_files(directory) else directory
        present = [path.relative_to(directory).as_posix() for path in directory.rglob("*.gguf") if path.is_file()]
        return directory / choose_gguf(hub_id, present)
    except (InputError, MissingError):  # an unreadable index, or not this GGUF file: the hub may know better
        return None


def _understood(model: str | HubId) -> HubId:
    hub_id = model if isinstance(model, HubId) else parse_hub_id(model)
    if hub_id is None:
        raise InputError(f"{model!r} is neither a path nor a hub id of the form org/name")
    return hub_id


def _fetch(hub_id: HubId, progress: Progress) -> Path:
    listing = _list(hub_id)
    if hub_id.wants_gguf:
        name = choose_gguf(hub_id, listing.sizes, listing.sizes)
        directory = _fetch_files(listing, [name], progress)
        _point_revision_at(listing, name)
        return directory / name
    check_listing(hub_id, listing.sizes)
    description = description_files(listing.sizes)
    directory = _fetch_files(listing, description, silent)
    _check_description(hub_id, directory)
    rest = [*tokenizer_files(listing.sizes), *weights_of(listing, directory)]
    _fetch_files(listing, [*description, *rest], progress)
    _point_revision_at(listing, CONFIG)
    return directory


def _list(hub_id: HubId) -> Listing:
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


def _check_description(hub_id: HubId, directory: Path) -> None:
    """Refuse a model that this engine does not run before its weights are fetched."""
    generation = directory / GENERATION_CONFIG
    try:
        ModelConfig.from_hf(
            read_json_object(directory / CONFIG), read_json_object(generation) if generation.is_file() else None
        )
    except InputError as error:
        raise InputError(f"the hub model {hub_id} is not fetched, for minillm cannot run it: {error}") from None


def weights_of(listing: Listing, directory: Path) -> list[str]:
    """The weights' files; the description is in `directory` by now. Raises MissingError where one is not listed."""
    names = [SINGLE] if SINGLE in listing.sizes else weight_files(directory)
    absent = [name for name in names if name not in listing.sizes]
    if absent:
        raise MissingError(f"the hub model {listing.hub_id} lacks {absent[0]}, which its own index names: take another")
    return names


def _fetch_files(listing: Listing, names: Sequence[str], progress: Progress) -> Path:
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
    if remote.etag is None or remote.size is None:
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


def _point_revision_at(listing: Listing, name: str) -> None:
    """Let the library write down which commit the branch or tag is: it does so with the next file that it is asked
    for by the revision's name.
    """
    from huggingface_hub import hf_hub_download

    if listing.hub_id.revision != listing.commit:
        with _without_bars_of_the_library():
            hf_hub_download(listing.hub_id.repo, name, revision=listing.hub_id.revision)
