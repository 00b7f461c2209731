"""The other source: any Llama-family model of a hub, by its id ("org/name"), through `huggingface_hub`.

Only what this engine reads is downloaded: safetensors, JSON and chat templates of the top directory. The
library keeps it in its own cache, resumes broken downloads, and knows tokens for gated models.
"""

from pathlib import Path

from minillm.errors import InputError, MissingError

PATTERNS = ["*.safetensors", "*.json", "*.jinja"]
SUBDIRECTORIES = ["*/*"]  # other formats of the same weights


def fetch_from_hub(repo_id: str) -> Path:
    """The directory of a hub model, downloaded if it is not in the cache.

    Raises MissingError where it cannot be had, InputError where the id is malformed.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise MissingError(
            f"there is no file or directory {repo_id}, and to fetch it from a hub huggingface_hub is "
            'needed: pip install "minillm[hub]"'
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(repo_id, allow_patterns=PATTERNS, ignore_patterns=SUBDIRECTORIES))
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
    except errors.LocalEntryNotFoundError:
        raise MissingError(
            f"there is no file or directory {repo_id}, and the hub could not be asked for it: check the network, "
            "or give a local directory or .gguf file"
        ) from None
    except Exception as error:  # besides its own errors the library lets through those of its HTTP client
        raise MissingError(
            f"could not fetch {repo_id} from the hub ({type(error).__name__}): check the network and try "
            "again, or give a local directory or .gguf file"
        ) from None
