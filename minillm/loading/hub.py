"""The other source: any Llama-family model of a hub, by its id ("org/name"), through `huggingface_hub`.

Only what this engine reads is fetched, into the library's own cache (HF_HOME), where other programs find it too:

1. Is it in the cache, whole? Then the hub is not asked.
2. The hub lists the files and their sizes. What cannot be loaded is refused now.
3. The description is fetched and read: what this engine does not run is refused now.
4. Tokenizer and weights follow, if the disk has room: file by file, each resumed where it broke off.
5. The revision ("main") is pointed at what has come: until then it is at what was there before.
"""

from pathlib import Path

from minillm.config import ModelConfig
from minillm.errors import InputError, MissingError
from minillm.loading.files import read_description
from minillm.loading.hub_cache import snapshot_of
from minillm.loading.hub_errors import in_plain_words
from minillm.loading.hub_files import (
    CONFIG,
    check_listing,
    choose_gguf,
    description_files,
    missing_files,
    tokenizer_files,
    weight_files,
)
from minillm.loading.hub_id import HubId, parse_hub_id
from minillm.loading.hub_transfer import Listing, fetch_files, list_model, point_revision_at
from minillm.loading.progress import Progress, silent
from minillm.loading.shards import SINGLE


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
            listing = list_model(hub_id)
            if CONFIG not in listing.sizes:
                raise MissingError(f"the hub model {hub_id} has no {CONFIG}, so its shape is not stated there")
            directory = fetch_files(listing, [CONFIG], silent)
            point_revision_at(listing, CONFIG)
        return directory / CONFIG


def fetch_description_from_hub(hub_id: HubId) -> tuple[Path, Listing]:
    """Config, generation config, index and tokenizer of a hub model, and what the hub lists of it; no weights.

    Raises as `fetch_from_hub` does.
    """
    with in_plain_words(hub_id):
        listing = list_model(hub_id)
        if CONFIG not in listing.sizes:
            check_listing(hub_id, listing.sizes)
        names = [*description_files(listing.sizes), *tokenizer_files(listing.sizes)]
        return fetch_files(listing, names, silent), listing


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
    listing = list_model(hub_id)
    if hub_id.wants_gguf:
        name = choose_gguf(hub_id, listing.sizes, listing.sizes)
        directory = fetch_files(listing, [name], progress)
        point_revision_at(listing, name)
        return directory / name
    check_listing(hub_id, listing.sizes)
    description = description_files(listing.sizes)
    directory = fetch_files(listing, description, silent)
    _check_description(hub_id, directory)
    rest = [*tokenizer_files(listing.sizes), *weights_of(listing, directory)]
    fetch_files(listing, [*description, *rest], progress)
    point_revision_at(listing, CONFIG)
    return directory


def _check_description(hub_id: HubId, directory: Path) -> None:
    """Refuse a model that this engine does not run before its weights are fetched."""
    try:
        ModelConfig.from_hf(*read_description(directory))
    except InputError as error:
        raise InputError(f"the hub model {hub_id} is not fetched, for minillm cannot run it: {error}") from None


def weights_of(listing: Listing, directory: Path) -> list[str]:
    """The weights' files; the description is in `directory` by now. Raises MissingError where one is not listed."""
    names = [SINGLE] if SINGLE in listing.sizes else weight_files(directory)
    absent = [name for name in names if name not in listing.sizes]
    if absent:
        raise MissingError(f"the hub model {listing.hub_id} lacks {absent[0]}, which its own index names: take another")
    return names
