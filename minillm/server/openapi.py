"""The OpenAPI document: routes whose bodies are read by hand, for the sake of better errors, and still documented."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from minillm.server.errors import ErrorBody
from minillm.server.messages import Strict

_REF = "#/components/schemas/{model}"


def takes(body: type[Strict]) -> dict[str, Any]:
    """What a route says of its body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _ref(body)}}}}


def answers(body: type[BaseModel], stream: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """What a route says of its answers. stream: an event's data, where it can be streamed."""
    content = {"application/json": {"schema": _ref(body)}}
    if stream is not None:
        content["text/event-stream"] = {"schema": _ref(stream)}
    return {"200": {"description": "OK", "content": content}, "default": error()}


def text_answer(description: str) -> dict[int | str, dict[str, Any]]:
    """What a route says that answers with text."""
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {"200": {"description": description, "content": content}, "default": error()}


def error() -> dict[str, Any]:
    """What every route answers where it does not answer 200."""
    return {"description": "An error", "content": {"application/json": {"schema": _ref(ErrorBody)}}}


def document(app: FastAPI, requests: Sequence[type[BaseModel]], replies: Sequence[type[BaseModel]]) -> None:
    """Let /openapi.json hold the schemas of these bodies."""
    plain = app.openapi

    def whole() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            kinds = [*((one, "validation") for one in requests), *((one, "serialization") for one in replies)]
            _, found = models_json_schema(kinds, ref_template=_REF)  # type: ignore[arg-type]  # literals, one by one
            schema.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = whole


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
