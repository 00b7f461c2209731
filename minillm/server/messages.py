"""The messages of a chat request: who may say what, in which form."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minillm.server.errors import RequestError, parse_json


class Strict(BaseModel):
    """What a client sends: its fields and no others, of their types and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class TextPart(Strict):
    """A part of a content. Parts of other kinds (pictures, sound, files) are nothing that this engine can read."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(fail_fast=True, min_length=1)]
"""Text, whole or in parts."""


class SystemMessage(Strict):
    """What the model is told before the conversation."""

    role: Literal["system"]
    content: Content
    name: str | None = None


class DeveloperMessage(Strict):
    """OpenAI's newer word for a system message; templates know it by the older one."""

    role: Literal["developer"]
    content: Content
    name: str | None = None


class UserMessage(Strict):
    """What the user says."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class FunctionCall(Strict):
    """A call that the assistant wrote: `arguments` is a JSON object, as text."""

    name: str
    arguments: str


class ToolCall(Strict):
    """One of the calls in an assistant's message."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Strict):
    """What the model said before: text, calls of tools, or both."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Strict):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as chat templates know them (those that `transformers` renders).

    Parts of a content are joined by line breaks; a developer is a system; the arguments of a call are an object again.
    Raises RequestError for arguments that are none.
    """
    return [_one(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _one(message: Message, where: str) -> dict[str, Any]:
    plain = message.model_dump(exclude_none=True)
    if message.role == "developer":
        plain["role"] = "system"
    if isinstance(message.content, list):
        plain["content"] = "\n".join(part.text for part in message.content)
    for i, call in enumerate(plain.get("tool_calls", ())):
        call["function"]["arguments"] = _arguments(call, f"{where}.tool_calls[{i}].function.arguments")
    return plain


def _arguments(call: dict[str, Any], where: str) -> dict[str, Any]:
    text = call["function"]["arguments"]
    try:
        arguments = parse_json(text.encode())
    except RequestError as error:
        raise RequestError(f"{where} must be a JSON object in a string: {error}", param=where) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} must be a JSON object in a string, not {text!r:.80}", param=where)
    return arguments
