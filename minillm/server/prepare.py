"""From a request's body to what the engine takes: prompts in ids, and SamplingParams.

Where a body leaves a field out, OpenAI's default holds, not that of `SamplingParams`: the temperature is 1, so whoever
wants the likeliest tokens says 0. A chat has no limit of tokens but the context's; a completion has 16.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.sampling_params import SamplingParams
from minillm.server.errors import NESTED_TOO_DEEPLY, RequestError, model_not_found
from minillm.server.messages import Message, for_template
from minillm.server.schemas import (
    DEFAULT_COMPLETION_TOKENS,
    MAX_PROMPTS,
    ChatCompletionRequest,
    CompletionRequest,
    SharedRequest,
    Tool,
)
from minillm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minillm.engine.engine import Engine

LEAST_TOP_P = 1e-6
"""What top_p 0 becomes, which OpenAI allows and `SamplingParams` does not: both keep the likeliest token alone."""

LONG_CHARACTERS = 65_536
"""Of a conversation, from which on a look at its length comes before its tokens."""

_NOT_VARIABLES = {"self", "messages", "add_generation_prompt", "tools"}


@dataclass(frozen=True)
class Served:
    """A model as its clients see it. max_length: tokens of a prompt and its completion that there is room for, at most:
    the model's context, or what the KV cache holds if that is less.
    """

    name: str
    tokenizer: Tokenizer
    config: ModelConfig
    max_length: int

    @classmethod
    def on(cls, engine: "Engine", name: str, tokenizer: Tokenizer) -> "Served":
        """The model of an engine, whose KV cache holds all of a request's tokens but the last."""
        config, scheduler = engine.model.config, engine.scheduler
        held = scheduler.pool.num_blocks * scheduler.block_size
        return cls(name, tokenizer, config, min(config.max_position_embeddings, held + 1))


@dataclass(frozen=True)
class Prepared:
    """What a body asks of the engine. `requests` has one entry for each choice, in the order of their indexes.

    prompts: in ids. echoes: what each prompt puts before its choices' text ("" where that was not asked for).
    params: one for each of the `n` choices that a prompt gets.
    """

    prompts: tuple[tuple[int, ...], ...]
    echoes: tuple[str, ...]
    params: tuple[tuple[SamplingParams, ...], ...]

    @property
    def requests(self) -> list[tuple[tuple[int, ...], SamplingParams]]:
        """(prompt ids, params) of each choice."""
        return [(ids, one) for ids, each in zip(self.prompts, self.params, strict=True) for one in each]


def num_choices(request: ChatCompletionRequest | CompletionRequest) -> int:
    """How many texts a body asks for: `n` for each prompt."""
    prompts = len(_prompts(request)) if isinstance(request, CompletionRequest) else 1
    return prompts * (request.n or 1)


def prepare(request: ChatCompletionRequest | CompletionRequest, served: Served) -> Prepared:
    """Translate a body for the model that is served. Raises RequestError for what it cannot do."""
    if request.model != served.name:
        raise model_not_found(request.model, served.name)
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "stream_options are for streams: leave them out, or let stream be true", param="stream_options"
        )
    options = request.stream_options
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        told = "continuous_usage_stats is for include_usage: leave it out, or let include_usage be true"
        raise RequestError(told, param="stream_options.continuous_usage_stats")
    try:
        if isinstance(request, ChatCompletionRequest):
            return _prepare_chat(request, served)
        return _prepare_completion(request, served)
    except RequestError:
        raise
    except InputError as error:  # of SamplingParams, whose sentences begin with the field
        field = str(error).split(" ")[0]
        param = field if field in SharedRequest.model_fields else None
        raise RequestError(str(error), param=param, code="invalid_value") from error
    except RecursionError:
        raise RequestError(NESTED_TOO_DEEPLY) from None


def _prepare_chat(request: ChatCompletionRequest, served: Served) -> Prepared:
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError(
            "top_logprobs are for logprobs: leave them out, or let logprobs be true", param="top_logprobs"
        )
    if request.tool_choice == "none" and request.tools:
        raise RequestError("tool_choice 'none' is not implemented here: leave out the tools", param="tool_choice")
    given = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(given) > 1:
        told = "max_tokens is the older name of max_completion_tokens, and they differ: give one of them"
        raise RequestError(told, param="max_tokens")
    ids = chat_ids(
        request.messages,
        request.tools,
        request.chat_template_kwargs,
        served.tokenizer,
        check_length=lambda characters: _check_length(characters, served, "messages"),
    )
    max_tokens = _max_tokens(len(ids), next(iter(given), None), served, param="messages")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return Prepared((tuple(ids),), ("",), (_params(request, max_tokens, logprobs, served),))


def chat_ids(
    messages: Sequence[Message],
    tools: Sequence[Tool] | None,
    variables: Mapping[str, Any] | None,
    tokenizer: Tokenizer,
    add_generation_prompt: bool = True,
    check_length: Callable[[int], None] | None = None,
) -> list[int]:
    """A conversation in ids. `variables` are for the chat template, besides those that have fields of their own.

    check_length: is told the characters of what the template makes of a long conversation, and may raise.
    """
    given = dict(variables or {})
    if taken := sorted(_NOT_VARIABLES & set(given)):
        told = f"{taken[0]} is no variable of a chat template's own: leave it out"
        raise RequestError(told, param=f"chat_template_kwargs.{taken[0]}")
    if tools:
        given["tools"] = [tool.model_dump(exclude_unset=True) for tool in tools]
    plain = for_template(messages)
    if not tokenizer.has_chat_template:
        told = "this model has no chat template, so it answers no messages: give /v1/completions a prompt"
        raise RequestError(told, param="messages", code="invalid_value")
    try:
        if check_length is not None and sum(len(str(message)) for message in plain) > LONG_CHARACTERS:
            check_length(len(tokenizer.render_chat(plain, add_generation_prompt, **given)))
        return tokenizer.encode_chat(plain, add_generation_prompt, **given)
    except RequestError:
        raise
    except InputError as error:
        raise RequestError(str(error), param="messages", code="invalid_value") from error


def _prepare_completion(request: CompletionRequest, served: Served) -> Prepared:
    n = request.n or 1
    if request.best_of not in (None, n):
        told = f"best_of is not implemented here: leave it out (it is {request.best_of}, and may be null or {n}, as n)"
        raise RequestError(told, param="best_of", code="unsupported_parameter")
    for prompt in _prompts(request):
        _check_length(len(prompt) if isinstance(prompt, str) else 0, served, "prompt")
    prompts = [_prompt_ids(prompt, served.tokenizer) for prompt in _prompts(request)]
    if len(prompts) * n > MAX_PROMPTS:
        told = f"{len(prompts):,} prompts with {n} choices each are more than {MAX_PROMPTS:,}: ask for fewer"
        raise RequestError(told, param="n", code="invalid_value")
    params = []
    for ids in prompts:
        max_tokens = _max_tokens(len(ids), request.max_tokens, served, "prompt", DEFAULT_COMPLETION_TOKENS)
        params.append(
            _params(request, max_tokens, request.logprobs, served, request.logprobs if request.echo else None)
        )
    echoes = [_text(prompt, served.tokenizer) if request.echo else "" for prompt in _prompts(request)]
    return Prepared(tuple(prompts), tuple(echoes), tuple(params))


def _text(prompt: str | list[int], tokenizer: Tokenizer) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)


def _prompts(request: CompletionRequest) -> Sequence[str | list[int]]:
    """The prompts of a body, whichever of its four forms it has."""
    prompt: Any = request.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def _prompt_ids(prompt: str | list[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    if not isinstance(prompt, str):
        wrong = next((token for token in prompt if token >= tokenizer.vocab_size), None)
        if wrong is not None:
            told = f"token id {wrong} is outside the vocabulary of {tokenizer.vocab_size} tokens"
            raise RequestError(told, param="prompt", code="invalid_value")
        return tuple(prompt)
    try:
        return tuple(tokenizer.encode(prompt))
    except InputError as error:
        raise RequestError(str(error), param="prompt", code="invalid_value") from error


def _check_length(characters: int, served: Served, param: str) -> None:
    """Refuse a text that cannot fit, before it is made into tokens: of megabytes that takes seconds."""
    most = served.tokenizer.characters_per_token
    if most is not None and characters > most * served.max_length:
        told = (
            f"{served.max_length:,} tokens, prompt and completion together, is what a request can have here, and a "
            f"prompt of {characters:,} characters has more: shorten it"
        )
        raise RequestError(told, param=param, code="context_length_exceeded")


def _max_tokens(prompt_tokens: int, asked: int | None, served: Served, param: str, default: int | None = None) -> int:
    """The length of a completion: what was asked for, if there is room, else the default, or all that there is."""
    room = served.max_length - prompt_tokens
    limit = f"{served.max_length:,} tokens, prompt and completion together, is what a request can have here"
    if prompt_tokens == 0:
        raise RequestError("the prompt is empty: give at least one token", param=param, code="invalid_value")
    if room < 1:
        told = f"{limit}, and the prompt alone has {prompt_tokens:,}: shorten it"
        raise RequestError(told, param=param, code="context_length_exceeded")
    if asked is not None and asked > room:
        told = f"{limit}; the prompt has {prompt_tokens:,}, so max_tokens may be {room:,}, and is {asked:,}"
        raise RequestError(told, param="max_tokens", code="context_length_exceeded")
    if asked is not None:
        return asked
    return room if default is None else min(default, room)


def _params(
    request: SharedRequest, max_tokens: int, logprobs: int | None, served: Served, prompt_logprobs: int | None = None
) -> tuple[SamplingParams, ...]:
    """SamplingParams for each of the request's `n` choices: they differ in the seed, if one was given."""
    given = {
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "top_p": None if request.top_p is None else max(request.top_p, LEAST_TOP_P),
        "top_k": None if request.top_k is None else max(request.top_k, 0),
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": _biases(request),
        "stop": request.stop,
        "stop_token_ids": request.stop_token_ids,
        "ignore_eos": request.ignore_eos,
    }
    fields = {name: value for name, value in given.items() if value is not None}
    seeds = [None if request.seed is None else _int64(request.seed + i) for i in range(request.n or 1)]
    fields |= {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    params = tuple(SamplingParams(seed=seed, **fields) for seed in seeds)
    params[0].check_against_vocabulary(served.config.vocab_size)
    return params


def _biases(request: SharedRequest) -> dict[int, float] | None:
    """Logit biases by token. Raises RequestError where two spellings ("7", "07") name one token."""
    if request.logit_bias is None:
        return None
    biases = {int(token): bias for token, bias in request.logit_bias.items()}
    if len(biases) < len(request.logit_bias):
        raise RequestError("logit_bias names a token twice", param="logit_bias", code="invalid_value")
    return biases


def _int64(number: int) -> int:
    """The number, wrapped around at the ends of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63
