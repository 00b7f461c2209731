"""Whole answers over HTTP: JSON that can always be sent, errors in OpenAI's shape whoever found them."""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from minillm.errors import InputError
from minillm.server.errors import RequestError, server_error

A_BUG = "the server failed at this request, by no fault of the request; its log says why"

LOG = logging.getLogger("minillm.server")


def json_bytes(value: Any) -> bytes:
    """JSON in ASCII: half a surrogate pair, which a client can send and UTF-8 cannot say, stays an escape."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def json_reply(body: BaseModel, headers: Mapping[str, str] | None = None) -> Response:
    """A 200."""
    return Response(body.model_dump_json(), media_type="application/json", headers=headers)


def error_reply(error: RequestError, headers: Mapping[str, str] | None = None) -> Response:
    """An error with its status; `headers` besides the error's own."""
    told = {**error.headers, **(headers or {})}
    return Response(json_bytes(error.body()), error.status, media_type="application/json", headers=told)


def as_request_error(error: Exception) -> RequestError:
    """What a client is told of an error. Of one that is a bug, only that: the log has the rest."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, InputError):
        return RequestError(str(error), code="invalid_value")
    LOG.error("a request failed", exc_info=error)
    return server_error(A_BUG)


def add_error_handlers(app: FastAPI) -> None:
    """Let all errors have OpenAI's shape: also those of the framework, which are about paths and methods."""

    async def refused(request: Request, error: Exception) -> Response:
        return error_reply(as_request_error(error))

    async def not_routed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "the handler is for this kind"
        return error_reply(_of_http(request, error), error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        return error_reply(server_error(A_BUG))  # the HTTP server, which gets the error too, writes it into its log

    app.add_exception_handler(Exception, failed)
    app.add_exception_handler(InputError, refused)
    app.add_exception_handler(HTTPException, not_routed)


def _of_http(request: Request, error: HTTPException) -> RequestError:
    path = f"{request.url.path:.200}"
    if error.status_code == 404:
        return RequestError(f"there is nothing at {path}", code="unknown_path", status=404)
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        told = f"{path} takes {allowed}, not {request.method}"
        return RequestError(told, code="wrong_method", status=405)
    phrase = HTTPStatus(error.status_code).phrase
    return RequestError(f"{phrase}: {error.detail}", status=error.status_code)
