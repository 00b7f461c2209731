"""What is answered: the bodies of OpenAI's API, whole and in chunks. `answers.py` fills them."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_serializer

FinishReason = Literal["stop", "length"]

AskedIds = Annotated[list[int] | None, Field(exclude_if=lambda ids: ids is None)]
"""Token ids, by vLLM's names, where `return_token_ids` asked for them: else the field is not there at all.

token_ids are those of the tokens that the text shows, one for each entry of logprobs, whether these were asked for or
not. prompt_token_ids of a stream are in the first chunk of each choice.
"""


class TopLogprob(BaseModel):
    """A token as text (bytes that are no character are U+FFFD), as bytes, and its log-probability in nats."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """One entry for each token of a chat's answer."""

    content: list[TokenLogprob]
    refusal: None = None


class PromptTokensDetails(BaseModel):
    """Prompt tokens whose keys and values were there already."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens, of all choices together; a prompt with several choices counts once. The details come with the end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None


class AssistantMessage(BaseModel):
    """What the model said. Calls of tools are part of the content, as the model wrote them."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One of the answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    token_ids: AskedIds = None


class ChatCompletion(BaseModel):
    """The answer to /v1/chat/completions. created: seconds since 1970."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_token_ids: AskedIds = None


class Delta(BaseModel):
    """What is new in an answer. The first one of a choice says the role."""

    role: Literal["assistant"] | None = None
    content: str | None = None

    @model_serializer
    def _without_null(self) -> dict[str, str]:
        """What is not new is not there: the last delta is {}."""
        return {name: value for name, value in self if value is not None}


class ChatChunkChoice(BaseModel):
    """A piece of one of the answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    token_ids: AskedIds = None


class ChatCompletionChunk(BaseModel):
    """An event of a streamed chat. The last one has no choices, and the usage, where that was asked for."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None
    prompt_token_ids: AskedIds = None


class CompletionLogprobs(BaseModel):
    """One entry in each list for each token. text_offset: the character of the choice's text where the token begins;
    top_logprobs: by the tokens' texts, with the chosen one always among them. Of an echoed prompt's first token, which
    nothing predicts, both log-probabilities are null.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One of the continuations. finish_reason is None in the pieces of a stream, but for the last."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    token_ids: AskedIds = None
    prompt_token_ids: AskedIds = None


class Completion(BaseModel):
    """The answer to /v1/completions, and also an event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str | None = None


class Model(BaseModel):
    """The model that is served. max_model_len: tokens of prompt and completion together, at most (vLLM's field)."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "minillm"
    max_model_len: int


class ModelList(BaseModel):
    """The answer to /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    """The answer to /health: "draining" while what runs may finish and nothing new is taken."""

    status: Literal["ok", "draining"]
