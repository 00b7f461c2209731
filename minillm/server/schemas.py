"""What may be asked: the bodies of POST /v1/chat/completions and /v1/completions.

Names, types, defaults and limits are those of OpenAI's API reference; the sampling fields that it lacks have the names
that vLLM gives them. A field of OpenAI's that is not implemented stands here with the values that ask for nothing
(null, or a default), so that clients may send those; any other value is refused by the field's name. A field that
stands nowhere is refused too: nothing is accepted and ignored, apart from notes for the client's own books (`user`,
`metadata`).

Types are strict: "5" is no number, true is no integer, nor is 5.0. null means that a field was left out. The
description of a field ends the sentence "NAME is VALUE, but it must be ...".
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minillm.sampling_params import MAX_LOGIT_BIAS, MAX_LOGPROBS, MAX_PENALTY
from minillm.server.messages import Message, Strict

MAX_CHOICES = 128
"""The largest `n`, as in OpenAI's API."""

MAX_PROMPTS = 2048
"""The most prompts in one body, and the most choices that it may ask for: prompts times `n`."""

MAX_STOPS = 4
"""Stop strings in a request, as in OpenAI's API."""

MAX_TEMPERATURE = 2.0
MAX_COMPLETION_LOGPROBS = 5
DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of /v1/completions where it is not given, as in OpenAI's API."""

_INT64 = 2**63
_Penalty = Annotated[float, Field(ge=-MAX_PENALTY, le=MAX_PENALTY, allow_inf_nan=False)]
_Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS, allow_inf_nan=False)]
_TokenKey = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
_TokenId = Annotated[int, Field(ge=0, lt=_INT64)]
_StopString = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[_TokenId], Field(fail_fast=True, min_length=1)]
_Tokens = Annotated[int, Field(ge=1, lt=_INT64)]


def _only(what: str) -> Any:
    """A field that is not implemented: `what` says which values are accepted, as ones that ask for nothing."""
    return Field(default=None, description=what, json_schema_extra={"implemented": False})


class StreamOptions(Strict):
    """How a stream ends, and whether each of its chunks says what has been used so far (vLLM's field)."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Literal[False] | None = None


class TextFormat(Strict):
    """The one response format there is."""

    type: Literal["text"]


class SharedRequest(Strict):
    """What both kinds of request have."""

    model: str = Field(description="the name of the model that is served, a string")
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = Field(
        default=None, description="a number from 0 (always the likeliest token) to 2; 1 where it is not given"
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="a number from 0 to 1; 1, where it is not given, keeps all tokens"
    )
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        default=None, description=f"a whole number from 1 to {MAX_CHOICES}; 1 where it is not given"
    )
    stop: _StopString | Annotated[list[_StopString], Field(fail_fast=True, max_length=MAX_STOPS)] | None = Field(
        default=None, description=f"a string or a list of up to {MAX_STOPS} of them, none of them empty"
    )
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = Field(
        default=None, description="a signed 64-bit integer; choice i of several draws by seed + i"
    )
    presence_penalty: _Penalty | None = Field(default=None, description="a number from -2 to 2")
    frequency_penalty: _Penalty | None = Field(default=None, description="a number from -2 to 2")
    logit_bias: dict[_TokenKey, _Bias] | None = Field(
        default=None, description='an object of token ids and biases from -100 to 100, such as {"42": -100}'
    )
    stream: bool | None = Field(default=None, description="true or false")
    stream_options: StreamOptions | None = Field(
        default=None, description='an object such as {"include_usage": true}, and only where stream is true'
    )
    user: str | None = Field(default=None, description="a string; it changes nothing")

    # Not OpenAI's, but vLLM's too.
    top_k: Annotated[int, Field(ge=-1, lt=_INT64)] | None = Field(
        default=None, description="a whole number; 0 or -1 keep all tokens"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="a number from 0 to 1")
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="a number above 0; 1 changes nothing"
    )
    ignore_eos: bool | None = Field(default=None, description="true or false")
    stop_token_ids: Annotated[list[_TokenId], Field(fail_fast=True)] | None = Field(
        default=None, description="a list of token ids"
    )
    return_token_ids: bool | None = Field(default=None, description="true or false")


class FunctionDefinition(BaseModel):
    """A tool's function, in the words of a JSON schema. What else stands in it goes to the template as it is."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Strict):
    """A tool that the model may write a call of."""

    type: Literal["function"]
    function: FunctionDefinition


class ChatCompletionRequest(SharedRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1)] = Field(
        description="a list of at least one message, each with a role and a content"
    )
    max_completion_tokens: _Tokens | None = Field(
        default=None,
        description="a whole number of at least 1; where it is not given, all that the context has room for",
    )
    max_tokens: _Tokens | None = Field(
        default=None, description="a whole number of at least 1, the older name of max_completion_tokens"
    )
    logprobs: bool | None = Field(default=None, description="true or false")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        default=None, description=f"a whole number from 0 to {MAX_LOGPROBS}, and only where logprobs is true"
    )
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = Field(
        default=None, description='a list of {"type": "function", "function": {"name": ..., "parameters": ...}}'
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description='an object of further variables for the chat template: {"enable_thinking": false}'
    )

    # Notes of the client's own.
    metadata: dict[str, str] | None = Field(default=None, description="an object of strings; it changes nothing")
    safety_identifier: str | None = Field(default=None, description="a string; it changes nothing")
    prompt_cache_key: str | None = Field(
        default=None, description="a string; it changes nothing: prefixes are found by their tokens"
    )

    audio: None = _only("null")
    function_call: Literal["none"] | None = _only('null or "none"')
    functions: None = _only("null")
    modalities: list[Literal["text"]] | None = _only('null or ["text"]')
    moderation: None = _only("null")
    parallel_tool_calls: Literal[True] | None = _only("null or true")
    prediction: None = _only("null")
    prompt_cache_options: None = _only("null")
    prompt_cache_retention: Literal["in_memory"] | None = _only('null or "in_memory"')
    reasoning_effort: None = _only("null")
    response_format: TextFormat | None = _only('null or {"type": "text"}')
    service_tier: Literal["auto", "default"] | None = _only('null, "auto" or "default"')
    store: Literal[False] | None = _only("null or false")
    tool_choice: Literal["auto", "none"] | None = _only('null or "auto", and "none" where there are no tools')
    verbosity: Literal["medium"] | None = _only('null or "medium"')
    web_search_options: None = _only("null")


class CompletionRequest(SharedRequest):
    """POST /v1/completions. The prompt is text, several texts, token ids, or several lists of them."""

    prompt: (
        str
        | _Ids
        | Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[_Ids], Field(fail_fast=True, min_length=1, max_length=MAX_PROMPTS)]
    ) = Field(description=f"a string, a list of token ids, or a list of up to {MAX_PROMPTS} of either")
    max_tokens: _Tokens | None = Field(
        default=None,
        description=f"a whole number of at least 1; {DEFAULT_COMPLETION_TOKENS} where it is not given",
    )
    logprobs: Annotated[int, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = Field(
        default=None, description=f"a whole number from 0 to {MAX_COMPLETION_LOGPROBS}"
    )
    echo: bool | None = Field(default=None, description="true or false; with logprobs, those of the prompt come too")

    best_of: int | None = _only("null or the same as n")
    suffix: None = _only("null")
