"""/tokenize and /detokenize: what the model reads of a text, in the shapes that vLLM's server gives them."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from minillm.errors import InputError
from minillm.server.errors import RequestError, model_not_found
from minillm.server.messages import Message, Strict
from minillm.server.prepare import Served, chat_ids
from minillm.server.schemas import Tool

MAX_TOKEN_ID = 2**63


class TokenizeRequest(Strict):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = Field(default=None, description="the name of the model that is served, a string")
    prompt: str | None = Field(default=None, description="a string")
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)] | None = Field(
        default=None, description="a list of at least one message, each with a role and a content"
    )
    add_special_tokens: bool | None = Field(default=None, description="true or false; true where it is not given")
    add_generation_prompt: bool | None = Field(default=None, description="true or false; true where it is not given")
    return_token_strs: bool | None = Field(default=None, description="true or false")
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = Field(
        default=None, description="a list of tools, as in a chat"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="an object of further variables for the chat template"
    )


class Tokenized(BaseModel):
    """The tokens. token_strs: as the vocabulary spells them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Strict):
    """POST /detokenize."""

    model: str | None = Field(default=None, description="the name of the model that is served, a string")
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_TOKEN_ID)]], Field(fail_fast=True)] = Field(
        description="a list of token ids"
    )


class Detokenized(BaseModel):
    """The text of all the tokens, special ones too."""

    prompt: str


def tokenize(request: TokenizeRequest, served: Served) -> Tokenized:
    """Raises RequestError for what is no text for this model."""
    _check_model(request.model, served)
    ids = _ids(request, served)
    strs = [served.tokenizer.id_to_token(one) or "" for one in ids] if request.return_token_strs else None
    return Tokenized(count=len(ids), max_model_len=served.max_length, tokens=ids, token_strs=strs)


def detokenize(request: DetokenizeRequest, served: Served) -> Detokenized:
    """Raises RequestError for ids outside the vocabulary."""
    _check_model(request.model, served)
    try:
        return Detokenized(prompt=served.tokenizer.decode(request.tokens, skip_special_tokens=False))
    except InputError as error:
        raise RequestError(str(error), param="tokens", code="invalid_value") from error


def _ids(request: TokenizeRequest, served: Served) -> list[int]:
    if (request.prompt is None) == (request.messages is None):
        raise RequestError("give either prompt or messages", param="prompt", code="missing_required_parameter")
    if request.messages is None:
        for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
            if getattr(request, name) is not None:
                raise RequestError(f"{name} is for messages: leave it out", param=name, code="invalid_value")
        assert request.prompt is not None, "one of the two is given"
        special = request.add_special_tokens is not False
        try:
            return served.tokenizer.encode(request.prompt, add_special_tokens=special)
        except InputError as error:
            raise RequestError(str(error), param="prompt", code="invalid_value") from error
    if request.add_special_tokens is not None:
        told = "add_special_tokens is for a prompt: the chat template says which messages have"
        raise RequestError(told, param="add_special_tokens", code="invalid_value")
    return chat_ids(
        request.messages,
        request.tools,
        request.chat_template_kwargs,
        served.tokenizer,
        add_generation_prompt=request.add_generation_prompt is not False,
    )


def _check_model(name: str | None, served: Served) -> None:
    if name is not None and name != served.name:
        raise model_not_found(name, served.name)
