"""Where `huggingface_hub` keeps models: the layout that its guide "Understand caching" describes.

$HF_HOME/hub/models--ORG--NAME/refs/main               the commit that a branch or tag was, when it was asked for
                              /snapshots/COMMIT/FILE   a link to
                              /blobs/CHECKSUM          the content
        /hub/.locks/models--ORG--NAME/CHECKSUM.lock    held by whoever fetches it
"""

import re
from pathlib import Path

from minillm.loading.hub_id import HubId


def cache_directory(hub_id: HubId) -> Path:
    """Where everything of a model lies."""
    return _root() / _folder(hub_id)


def blob_path(hub_id: HubId, checksum: str) -> Path:
    """Where the content lies that the hub marks with this checksum (its ETag)."""
    return cache_directory(hub_id) / "blobs" / checksum


def lock_path(hub_id: HubId, checksum: str) -> Path:
    """The file that is locked while that content is fetched."""
    return _root() / ".locks" / _folder(hub_id) / f"{checksum}.lock"


def snapshot_of(hub_id: HubId) -> Path | None:
    """The directory of the revision as it was last fetched; None if nothing of it is there."""
    try:
        commit = (cache_directory(hub_id) / "refs" / hub_id.revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = hub_id.revision
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    directory = cache_directory(hub_id) / "snapshots" / commit
    return directory if directory.is_dir() else None


def _root() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _folder(hub_id: HubId) -> str:
    return "--".join(["models", *hub_id.repo.split("/")])
