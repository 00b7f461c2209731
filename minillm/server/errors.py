"""Errors in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}} and an HTTP status."""

import json
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from pydantic import BaseModel, ValidationError

from minillm.errors import InputError

INVALID, SERVER = "invalid_request_error", "server_error"

NESTED_TOO_DEEPLY = "the JSON is nested too deeply"

MAX_FIELDS = 16_384
"""Of one object in a body: a logit_bias for a tenth of a large vocabulary."""

MAX_PARAM = 200
"""Characters of a field's name in an error: the client knows the rest."""

_WITH_PARTS = {"messages", "tools", "stream_options"}
"""Fields about whose parts an error is told; of others, what the whole field must be says more."""

Request = TypeVar("Request", bound=BaseModel)


class ErrorDetail(BaseModel):
    """message: one sentence. type: whose fault it is. param: which field. code: a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is not 200."""

    error: ErrorDetail


def _as_text(told: str) -> str:
    """What a client wrote, such as the name of a field, may hold half a surrogate pair: no text that can be sent."""
    return told.encode("utf-8", "backslashreplace").decode("utf-8")


class RequestError(InputError):
    """A request that cannot be served. `status` is HTTP's, with its `headers`; `body()` what the client is told."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        type: str = INVALID,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(_as_text(message))
        self.param = None if param is None else _as_text(param)[:MAX_PARAM]
        self.code, self.status, self.type, self.headers = code, status, type, dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error as JSON has it."""
        detail = ErrorDetail(message=str(self), type=self.type, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump()


def server_error(message: str) -> RequestError:
    """A request that failed by no fault of its own."""
    return RequestError(message, status=500, type=SERVER)


def model_not_found(name: str, served: str) -> RequestError:
    """The request names another model than the one that is here."""
    told = f"there is no model {reprlib.repr(name)} here: {served!r} is served"
    return RequestError(told, param="model", code="model_not_found", status=404)


def parse_json(data: bytes) -> Any:
    """The JSON value in `data`. Raises RequestError for what is none (NaN and Infinity are none)."""
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RequestError:
        raise
    except RecursionError:
        raise RequestError(NESTED_TOO_DEEPLY) from None
    except ValueError as error:  # wrong encoding, wrong JSON, a number of thousands of digits
        raise RequestError(f"this is not JSON in UTF-8: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. To find what is wrong with each of a hundred thousand fields takes seconds, and nobody reads it."""
    if len(pairs) > MAX_FIELDS:
        raise RequestError(f"an object of the JSON has {len(pairs):,} fields, and may have {MAX_FIELDS:,}")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def parse_request(kind: type[Request], body: Any) -> Request:
    """The request in `body`, parsed JSON. Raises RequestError about the first thing that is wrong with it."""
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, not {reprlib.repr(body)}")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _first_error(kind, body, error) from None
    except RecursionError:
        raise RequestError(NESTED_TOO_DEEPLY) from None


def _first_error(kind: type[BaseModel], body: Mapping[str, Any], error: ValidationError) -> RequestError:
    """One sentence about one field: of several that are wrong the first, and in it what lies deepest.

    Where a field may have one of several types, pydantic tells what each of them misses: the one that came furthest is
    the one that was meant.
    """
    found = [(_place(body, one["loc"], one["type"]), one) for one in error.errors()]
    if not all(path for path, _ in found):  # a name that is no text: half a surrogate pair
        return RequestError("the names of the body's fields must be text: one of them is not valid Unicode")
    name = str(found[0][0][0])
    path, wrong = max(((path, one) for path, one in found if path[0] == name), key=lambda one: len(one[0]))
    param, field, given = _written(path), kind.model_fields.get(name), reprlib.repr(body.get(name))
    if field is not None and field.json_schema_extra:
        told = f"{name} is not implemented here: leave it out (it is {given}, and may be {field.description})"
        return RequestError(told, param=name, code="unsupported_parameter")
    if wrong["type"] == "extra_forbidden":
        told = f"{param} is no parameter that is known here: leave it out"
        return RequestError(told, param=param, code="unknown_parameter")
    if wrong["type"] == "missing":
        told = f": it must be {field.description}" if field is not None and path == (name,) else ""
        return RequestError(f"{param} is missing{told}", param=param, code="missing_required_parameter")
    if field is None or (path != (name,) and name in _WITH_PARTS):
        message = "not implemented here, leave it out" if wrong["type"] == "none_required" else wrong["msg"]
        told = f"{param} is {reprlib.repr(wrong['input'])}: {message[:1].lower()}{message[1:]}"
        return RequestError(told, param=param, code="invalid_value")
    return RequestError(f"{name} is {given}, but it must be {field.description}", param=name, code="invalid_value")


def _place(body: Any, loc: Sequence[str | int], what: str) -> tuple[str | int, ...]:
    """The path in the body to what an error is about. pydantic's own names of types are left out of it."""
    path: list[str | int] = []
    value: Any = body
    for i, step in enumerate(loc):
        inside = step < len(value) if isinstance(value, list) and isinstance(step, int) else False
        if inside or (isinstance(value, dict) and step in value):
            value = cast(Any, value)[step]
        elif not (what == "missing" and i == len(loc) - 1):  # a key that is missing is told too
            continue
        path.append(step)
    return tuple(path)


def _written(path: Sequence[str | int]) -> str:
    """messages[0].content"""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step:.{MAX_PARAM}}" for step in path)
    return "".join(steps).removeprefix(".")
