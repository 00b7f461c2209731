"""The input: one order in each line, {"custom_id", "method": "POST", "url", "body"}.

The file is read twice: once to look it over, so that what is wrong with the file as a whole is said before a model is
loaded; and once, line by line, to be worked on, so that a long file need not be held in memory.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minillm.errors import InputError, MissingError
from minillm.server.errors import RequestError, parse_json, parse_request
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest

_BODIES = {"/v1/chat/completions": ChatCompletionRequest, "/v1/completions": CompletionRequest}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class OrderLine(BaseModel):
    """A line of the input. The body is looked at by itself."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    custom_id: Annotated[str, Field(min_length=1)] = Field(description="a string that is not empty")
    method: Literal["POST"] = Field(description='"POST"')
    url: Literal["/v1/chat/completions", "/v1/completions"] = Field(description=" or ".join(map(repr, _BODIES)))
    body: dict[str, Any] = Field(description="an object: the request itself")


@dataclass(frozen=True)
class Order:
    """A line, read. id: made of the line's place and its bytes, so that another run knows it again. custom_id: None
    where the line has none. request: what it asks for, or what is wrong with it.
    """

    id: str
    custom_id: str | None
    request: ChatCompletionRequest | CompletionRequest | RequestError


@dataclass
class Survey:
    """What looking the file over found. ids: the id of each line, and its custom_id. models: those that are named."""

    ids: dict[str, str | None] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)


def survey(path: Path) -> Survey:
    """Look the input over. Raises MissingError or InputError for a file that is no batch of requests."""
    found = Survey()
    numbers: dict[str, int] = {}
    for number, data in _lines(path):
        line = _parsed_or_none(data)
        custom_id = _custom_id(line)
        if custom_id is not None:
            if custom_id in numbers:
                raise InputError(
                    f"{path} has custom_id {custom_id!r:.80} in line {numbers[custom_id]} and in line {number}: they"
                    " must differ, for they say which answer is whose"
                )
            numbers[custom_id] = number
        body = line.get("body") if isinstance(line, dict) else None
        if isinstance(body, dict) and isinstance(body.get("model"), str):
            found.models.add(body["model"])
        found.ids[_id_of(number, data)] = custom_id
    if not found.ids:
        raise InputError(f"{path} is empty: a batch has a request in each line")
    if not numbers:
        raise InputError(
            f'{path} is no batch of requests: each line is a JSON object with a "custom_id", a "method", a "url" and a'
            ' "body", and no line of it has a custom_id'
        )
    return found


def orders(path: Path, seen: Survey) -> Iterator[Order]:
    """The lines one after the other. Raises InputError if the file is not any more what the survey saw."""
    for number, data in _lines(path):
        order_id = _id_of(number, data)
        if order_id not in seen.ids:
            raise InputError(f"{path} has changed since this run began, in line {number}: start it again")
        yield Order(order_id, seen.ids[order_id], _request(number, data))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes without the line's end) of each line that is not blank."""
    if path.exists() and not path.is_file():
        raise InputError(f"{str(path)!r} is no ordinary file: a batch is read twice, which only a file allows")
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, start=1):
                if number == 1:
                    data = data.removeprefix(_BYTE_ORDER_MARK)
                if data.strip():
                    yield number, data.rstrip(b"\r\n")
    except FileNotFoundError:
        raise MissingError(f"there is no batch file {str(path)!r}") from None
    except OSError as error:
        raise InputError(f"cannot read the batch file {str(path)!r}: {error.strerror}") from None


def _id_of(number: int, data: bytes) -> str:
    return "batch_req_" + hashlib.sha256(b"%d:%b" % (number, data)).hexdigest()[:24]


def _parsed_or_none(data: bytes) -> Any:
    try:
        return parse_json(data)
    except RequestError:
        return None


def _custom_id(line: Any) -> str | None:
    given = line.get("custom_id") if isinstance(line, dict) else None
    return given if isinstance(given, str) and given else None


def _request(number: int, data: bytes) -> ChatCompletionRequest | CompletionRequest | RequestError:
    try:
        value = parse_json(data)
        if _custom_id(value) is None:
            told = f"line {number} is no JSON object with a custom_id, a string that is not empty"
            raise RequestError(told, param="custom_id", code="missing_required_parameter")
        line = parse_request(OrderLine, value)
        return parse_request(_BODIES[line.url], line.body)
    except RequestError as error:
        if _custom_id(_parsed_or_none(data)) is None and error.param != "custom_id":
            return RequestError(f"line {number}: {error}")
        return error
