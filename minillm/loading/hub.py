"""The other source: any Llama-family model of a hub, by its id ("org/name"), through `huggingface_hub`.

Only what this engine reads is downloaded: safetensors, JSON and chat templates of the top directory. The
library keeps it in its own cache, resumes broken downloads, and knows tokens for gated models.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from minillm.errors import InputError, MissingError

PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
SUBDIRECTORIES = ["*/*"]  # other formats of the same weights


def fetch_from_hub(repo_id: str) -> Path:
    """The directory of a hub model, downloaded if it is not in the cache.

    Raises MissingError where it cannot be had, InputError where the id is malformed.
    """
    return _fetch(
        repo_id, lambda hub: hub.snapshot_download(repo_id, allow_patterns=PATTERNS, ignore_patterns=SUBDIRECTORIES)
    )


def fetch_config_from_hub(repo_id: str) -> Path:
    """The `config.json` of a hub model, and nothing else of it. Raises as `fetch_from_hub` does."""
    return _fetch(repo_id, lambda hub: hub.hf_hub_download(repo_id, "config.json"))


def _fetch(repo_id: str, download: Callable[[Any], str]) -> Path:
    """What `download` gives when it is handed the library; every way in which it can fail has its sentence."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise MissingError(
            f"there is no file or directory {repo_id}, and to fetch it from a hub huggingface_hub is "
            'needed: pip install "minillm[hub]"'
        ) from None
    try:
        return Path(download(huggingface_hub))
    except errors.HFValidationError:
        raise InputError(f"{repo_id!r} is neither a path nor a hub id of the form org/name") from None
    except errors.GatedRepoError:
        raise MissingError(
            f"the hub model {repo_id} is gated: accept its licence online and log in with `hf auth login`"
        ) from None
    except errors.RepositoryNotFoundError:
        raise MissingError(
            f"there is no file or directory {repo_id}, and no hub model of this name (or it is private: "
            "log in with `hf auth login`)"
        ) from None
    except errors.LocalEntryNotFoundError:  # before EntryNotFoundError, which it also is
        raise MissingError(
            f"there is no file or directory {repo_id}, and the hub could not be asked for it: check the network, "
            "or give a local directory or .gguf file"
        ) from None
    except errors.EntryNotFoundError:
        raise MissingError(f"the hub model {repo_id} has no config.json, so its shape is not stated there") from None
    except Exception as error:  # besides its own errors the library lets through those of its HTTP client
        raise MissingError(
            f"could not fetch {repo_id} from the hub ({type(error).__name__}): check the network and try "
            "again, or give a local directory or .gguf file"
        ) from None
