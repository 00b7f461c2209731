"""A model's name -> what its files say, as it stands there: an alias, a directory, a GGUF file, a hub model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minillm.errors import InputError, MissingError
from minillm.inspection import stored as stored_tensors
from minillm.inspection import vocabulary
from minillm.inspection.stored import Stored
from minillm.inspection.vocabulary import Vocabulary
from minillm.loading.files import existing_path, read_description
from minillm.loading.gguf_header import Header, read_header
from minillm.loading.hub import cached, fetch_description_from_hub, weights_of
from minillm.loading.hub_cache import snapshot_of
from minillm.loading.hub_errors import in_plain_words
from minillm.loading.hub_files import CONFIG, check_listing
from minillm.loading.hub_id import HubId, parse_hub_id
from minillm.loading.hub_transfer import Listing
from minillm.loading.progress import tell_on_stderr


@dataclass(frozen=True)
class Found:
    """`hf_config` is a parsed config.json, or `gguf_header` the header of a GGUF file; one of the two is None.

    `path` is the directory or file; `vocabulary` None where there is no tokenizer.
    """

    name: str
    path: Path
    origin: str
    stored: Stored
    vocabulary: Vocabulary | None
    hf_config: Mapping[str, Any] | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    gguf_header: Header | None = None


def find(model: str) -> Found:
    """What is said of the model that is meant.

    An alias is fetched at first use. Of a hub model that is not in the cache, the description, the tokenizer and the
    headers of the tensors are fetched, and not the weights.
    Raises MissingError where there is no such model, InputError where its files are damaged.
    """
    from minillm.loading.registry import ALIASES, resolve

    hub_id = None if model in ALIASES or existing_path(model) else parse_hub_id(model)
    if hub_id is not None:
        return _of_hub(hub_id)
    return _of_path(model, resolve(model, progress=tell_on_stderr))


def _of_path(name: str, path: Path) -> Found:
    if path.is_dir():
        return _of_directory(name, path, str(path))
    if not path.is_file() or path.suffix != ".gguf":
        raise InputError(f"{path} is not a model: a model is a directory with config.json, or a .gguf file")
    header = read_header(path, keeps_arrays=True)
    return Found(
        name,
        path,
        str(path),
        stored_tensors.read_gguf(path, header),
        vocabulary.read_gguf(header.metadata),
        gguf_header=header,
    )


def _of_directory(name: str, path: Path, origin: str, stored: Stored | None = None) -> Found:
    config, generation_config = read_description(path)
    return Found(
        name,
        path,
        origin,
        stored_tensors.read_directory(path) if stored is None else stored,
        vocabulary.read_directory(path),
        hf_config=config,
        generation_config=generation_config,
    )


def _of_hub(hub_id: HubId) -> Found:
    with in_plain_words(hub_id):
        path = cached(hub_id)
        if path is not None:
            return _of_path(str(hub_id), path)
        if hub_id.wants_gguf:
            raise MissingError(f"{hub_id} is not in the cache: `minillm fetch {hub_id}` fetches it")
        try:
            directory, listing = fetch_description_from_hub(hub_id)
        except MissingError:
            directory = snapshot_of(hub_id)  # a part of it may be there, from another question
            if directory is None or not (directory / CONFIG).is_file():
                raise
            return _of_directory(str(hub_id), directory, f"{directory}, a part of the model: the hub was not reached")
        origin = f"on the hub, commit {listing.commit[:12]}; its weights are not fetched"
        return _of_directory(str(hub_id), directory, origin, _stored_on_hub(directory, listing))


def _stored_on_hub(directory: Path, listing: Listing) -> Stored:
    """The tensors of a hub model, from the beginnings of its files."""
    from huggingface_hub import HfApi

    try:
        check_listing(listing.hub_id, listing.sizes)
        names = weights_of(listing, directory)
    except (InputError, MissingError) as error:
        return Stored(None, str(error))
    api, tensors = HfApi(library_name="minillm"), []
    for number, name in enumerate(names, start=1):
        if len(names) > 4:
            tell_on_stderr(f"reading the header of {name} ({number} of {len(names)})")
        header = api.parse_safetensors_file_metadata(listing.hub_id.repo, name, revision=listing.commit)
        tensors += [
            stored_tensors.stored_tensor(tensor, info.shape, info.dtype) for tensor, info in header.tensors.items()
        ]
    return Stored(tuple(tensors))
