"""Every way in which a hub can fail, in plain words: what is wrong, and what to do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minillm.errors import InputError, MissingError
from minillm.loading.download import BrokenOffError
from minillm.loading.hub_id import HubId

UNAUTHORIZED, FORBIDDEN, TOO_MANY_REQUESTS = 401, 403, 429
LOCAL = "or give a local directory or .gguf file"


@contextmanager
def in_plain_words(hub_id: HubId) -> Iterator[None]:
    """What `huggingface_hub` raises inside becomes MissingError or InputError, in one sentence.

    Raises MissingError by itself where the library is not installed.
    """
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise MissingError(
            f"there is no file or directory {hub_id}, and to fetch it from a hub huggingface_hub is needed: "
            'pip install "minillm[hub]"'
        ) from None
    try:
        yield
    except (InputError, MissingError):
        raise
    except Exception as error:  # besides its own errors the library lets through those of its HTTP client
        raise _translated(hub_id, error) from None


def _translated(hub_id: HubId, error: Exception) -> Exception:
    """The sentence for an error of the library, of the connection, or of the disk."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.HFValidationError):
        return InputError(f"{str(hub_id)!r} is neither a path nor a hub id of the form org/name")
    if isinstance(error, errors.GatedRepoError):
        return MissingError(_gated(hub_id, constants.ENDPOINT))
    if isinstance(error, errors.RepositoryNotFoundError):
        return MissingError(
            f"there is no file or directory {hub_id}, and no hub model of this name that {_whoever_asks()} may see: "
            f"look at its spelling; if it is private, {_LOG_IN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return MissingError(
            f"the hub model {hub_id.repo} has no revision {hub_id.revision!r}: give a branch, a tag or a commit"
        )
    if isinstance(error, errors.DisabledRepoError):
        return MissingError(f"the hub has disabled access to the model {hub_id.repo}: take another one")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return MissingError(
            f"there is no file or directory {hub_id}, the hub model of this name is not (wholly) in the cache "
            f"{constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids to fetch it: unset it, {LOCAL}"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        return _translated(hub_id, error.__cause__)  # the library hides behind it why it could not ask
    if isinstance(error, errors.HfHubHTTPError):
        return MissingError(_answer(hub_id, error.response.status_code, constants.ENDPOINT))
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return _of_the_disk(hub_id, error, constants.HF_HUB_CACHE)
    return MissingError(_not_reached(hub_id, error, constants.ENDPOINT))


_LOG_IN = "set HF_TOKEN to a token of an account that may see it, or log in with `hf auth login`"


def _token() -> Any:
    from huggingface_hub import get_token

    return get_token()


def _whoever_asks() -> str:
    return "the account of your token" if _token() else "somebody who is not logged in"


def _gated(hub_id: HubId, endpoint: str) -> str:
    page = f"{endpoint}/{hub_id.repo}"
    if _token():
        return (
            f"the hub model {hub_id.repo} is gated, and the account of your token has not been let in: ask for access "
            f"at {page}, and if the token is of the fine-grained kind, let it read gated repositories"
        )
    return f"the hub model {hub_id.repo} is gated: accept its terms at {page}, then {_LOG_IN}"


def _answer(hub_id: HubId, status: int, endpoint: str) -> str:
    if status == UNAUTHORIZED:
        return f"the hub at {endpoint} does not accept your token (HF_TOKEN, or `hf auth login`): make a new one"
    if status == FORBIDDEN:
        return f"the hub at {endpoint} does not let {_whoever_asks()} read {hub_id.repo}: {_LOG_IN}"
    if status == TOO_MANY_REQUESTS:
        return f"the hub at {endpoint} has had too many requests from here: wait some minutes, or log in (HF_TOKEN)"
    return f"the hub at {endpoint} could not be asked for {hub_id} (it answered {status}): try again later, {LOCAL}"


def _of_the_disk(hub_id: HubId, error: OSError, cache: str) -> InputError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(
            f"the disk is full: make room in {cache}, or name another directory with HF_HOME; what has come of "
            f"{hub_id} is kept, and fetching it again goes on from there"
        )
    return InputError(
        f"could not keep {hub_id} in {error.filename or cache} ({error.strerror}): mend that, or name another "
        "directory with HF_HOME"
    )


def _not_reached(hub_id: HubId, error: Exception, endpoint: str) -> str:
    if isinstance(error, BrokenOffError):
        return (
            f"the download of {hub_id} stopped: {error}; what has come is kept: check the network and fetch it again, "
            "it goes on from there"
        )
    how = "did not answer in time" if "Timeout" in type(error).__name__ else f"not reached: {type(error).__name__}"
    return (
        f"there is no file or directory {hub_id}, and the hub at {endpoint} could not be asked for it ({how}): check "
        f"the network, {LOCAL}"
    )
