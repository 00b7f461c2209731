"""Admission: whether there is room for a request, asked before any work is done for it."""

from minillm.server.errors import RequestError

RETRY_AFTER_S = 1
"""For a full queue. A request of a second or two ends in that time, and the client's own backoff does the rest."""


def check_room(choices: int, in_engine: int, coming: int, most: int) -> None:
    """Raise RequestError where a request for `choices` texts cannot be taken; all counts are of choices.

    in_engine: those that run or wait in the engine. coming: those that were let in and are not there yet, because
    their prompts are still being made into tokens. most: how many there may be together.

    More than there could ever be room for is the client's mistake (400). More than there is room for now is nobody's:
    429, with the time after which it may be worth asking again.
    """
    if choices > most:
        told = f"the request asks for {choices:,} choices, and this server has room for {most:,} at a time"
        raise RequestError(told, param="n", code="invalid_value")
    if in_engine + coming + choices > most:
        told = f"{most:,} choices run or wait already, and this server takes no more at a time: try again"
        headers = {"retry-after": str(RETRY_AFTER_S)}
        raise RequestError(told, code="queue_full", status=429, type="rate_limit_error", headers=headers)
