"""From what came out of the engine to the body of an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from minillm.detokenizer import StreamDecoder
from minillm.generation import Completion as Generated
from minillm.generation import TokenLogprob as GeneratedLogprob
from minillm.sampling_params import SamplingParams
from minillm.server.errors import RequestError, server_error
from minillm.server.prepare import Prepared, Served
from minillm.server.responses import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    FinishReason,
    PromptTokensDetails,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.shown_tokens import Shown, shown_tokens
from minillm.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON lacks, as in OpenAI's API."""


@dataclass(frozen=True)
class Envelope:
    """What an answer has besides its choices. id: without the prefix that says what it is of. created: seconds since
    1970.
    """

    id: str
    created: int
    fingerprint: str | None = None

    def full_id(self, request: ChatCompletionRequest | CompletionRequest) -> str:
        """The id of the answer to such a request, by which the engine knows it too."""
        kind = "chatcmpl" if isinstance(request, ChatCompletionRequest) else "cmpl"
        return f"{kind}-{self.id}"

    def fields(self, request: ChatCompletionRequest | CompletionRequest, served: Served) -> dict[str, Any]:
        """As the answer to such a request has them, or each chunk of it."""
        return {
            "id": self.full_id(request),
            "created": self.created,
            "model": served.name,
            "system_fingerprint": self.fingerprint,
        }


def answer(
    request: ChatCompletionRequest | CompletionRequest,
    prepared: Prepared,
    generated: Sequence[Generated],
    served: Served,
    envelope: Envelope,
) -> ChatCompletion | Completion:
    """The body of a 200. `generated` has one completion for each of `prepared.requests`, all of them at their ends."""
    fields, used = envelope.fields(request, served), usage(prepared, generated)
    asked = [params for _, params in prepared.requests]
    if isinstance(request, ChatCompletionRequest):
        choices = [_chat_choice(request, i, one, asked[i], served) for i, one in enumerate(generated)]
        prompt_ids = list(prepared.prompts[0]) if request.return_token_ids else None
        return ChatCompletion(**fields, choices=choices, usage=used, prompt_token_ids=prompt_ids)
    per_prompt = len(generated) // len(prepared.prompts)
    texts = [
        _completion_choice(request, i, one, asked[i], served, prepared.echoes[i // per_prompt])
        for i, one in enumerate(generated)
    ]
    return Completion(**fields, choices=texts, usage=used)


def token_ids(shown: Sequence[Shown]) -> list[int]:
    """Tokens' ids, as `return_token_ids` asks for them."""
    return [one.token_id for one, _ in shown]


def failure(error: str, own_fault: bool) -> RequestError:
    """The error of a request that could not go on: 400 if its parameters are the reason, else 500."""
    return RequestError(error, code="invalid_value") if own_fault else server_error(error)


def usage(prepared: Prepared, generated: Sequence[Generated]) -> Usage:
    """Tokens of all choices. Of a prompt with several, the first one's prefix counts as cached."""
    per_prompt = len(generated) // len(prepared.prompts)
    prompt_tokens = sum(map(len, prepared.prompts))
    completion_tokens = sum(len(one.token_ids) for one in generated)
    firsts = generated[::per_prompt]
    # A request that lost its blocks may have found some of its own answer again, which is no part of its prompt.
    cached = sum(min(one.metrics.cached_tokens, len(one.prompt_token_ids)) for one in firsts)
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_tokens=prompt_tokens + completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


def _chat_choice(
    request: ChatCompletionRequest, index: int, generated: Generated, params: SamplingParams, served: Served
) -> ChatChoice:
    shown = _asked_tokens(request, generated, params, served)
    return ChatChoice(
        index=index,
        message=AssistantMessage(content=generated.text),
        logprobs=None if generated.logprobs is None else chat_logprobs(shown, served.tokenizer),
        finish_reason=_reason(generated),
        token_ids=token_ids(shown) if request.return_token_ids else None,
    )


def _completion_choice(
    request: CompletionRequest, index: int, generated: Generated, params: SamplingParams, served: Served, echo: str
) -> CompletionChoice:
    shown, logprobs = _asked_tokens(request, generated, params, served), None
    if generated.logprobs is not None:
        logprobs = completion_logprobs(shown, served.tokenizer, len(echo))
        if generated.prompt_logprobs is not None:
            before = echoed_logprobs(generated.prompt_token_ids, generated.prompt_logprobs, served.tokenizer)
            logprobs = joined(before, logprobs)
    return CompletionChoice(
        index=index,
        text=echo + generated.text,
        logprobs=logprobs,
        finish_reason=_reason(generated),
        token_ids=token_ids(shown) if request.return_token_ids else None,
        prompt_token_ids=list(generated.prompt_token_ids) if request.return_token_ids else None,
    )


def _asked_tokens(
    request: ChatCompletionRequest | CompletionRequest, generated: Generated, params: SamplingParams, served: Served
) -> list[Shown]:
    """The tokens that the text shows, where their log-probabilities or ids were asked for."""
    wanted = generated.logprobs is not None or request.return_token_ids
    return shown_tokens(generated, params, served) if wanted else []


def _reason(generated: Generated) -> FinishReason:
    assert generated.finish_reason in ("stop", "length"), "an answer is made of what came to its end"
    return cast(FinishReason, generated.finish_reason)


def chat_logprobs(shown: Sequence[Shown], tokenizer: Tokenizer) -> ChatLogprobs:
    """Tokens' entries in a chat's logprobs."""
    return ChatLogprobs(content=[_chat_logprob(one, tokenizer) for one, _ in shown])


def completion_logprobs(shown: Sequence[Shown], tokenizer: Tokenizer, echoed: int = 0) -> CompletionLogprobs:
    """Tokens' entries in a completion's logprobs. echoed: characters of the prompt that stand before them."""
    return CompletionLogprobs(
        tokens=[_text(one.token_id, tokenizer) for one, _ in shown],
        token_logprobs=[_finite(one.logprob) for one, _ in shown],
        top_logprobs=[_by_text(one, tokenizer) for one, _ in shown],
        text_offset=[echoed + offset for _, offset in shown],
    )


def echoed_logprobs(
    ids: Sequence[int], held: Sequence[GeneratedLogprob | None], tokenizer: Tokenizer
) -> CompletionLogprobs:
    """The entries of a prompt's tokens, to be put before the others. held: of each token, None of the first."""
    decoder, offsets, characters = StreamDecoder(tokenizer), [], 0
    for token_id in ids:
        offsets.append(characters)
        characters += len(decoder.add(token_id))
    return CompletionLogprobs(
        tokens=[_text(token_id, tokenizer) for token_id in ids],
        token_logprobs=[None if one is None else _finite(one.logprob) for one in held],
        top_logprobs=[None if one is None else _by_text(one, tokenizer) for one in held],
        text_offset=offsets,
    )


def joined(before: CompletionLogprobs, behind: CompletionLogprobs) -> CompletionLogprobs:
    """The entries of the one, then those of the other."""
    names = CompletionLogprobs.model_fields
    return CompletionLogprobs(**{name: getattr(before, name) + getattr(behind, name) for name in names})


def _chat_logprob(logprob: GeneratedLogprob, tokenizer: Tokenizer) -> TokenLogprob:
    chosen = _top(logprob.token_id, logprob.logprob, tokenizer)
    top = [_top(token_id, value, tokenizer) for token_id, value in logprob.top]
    return TokenLogprob(token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes, top_logprobs=top)


def _top(token_id: int, logprob: float, tokenizer: Tokenizer) -> TopLogprob:
    data = tokenizer.id_to_bytes(token_id)
    return TopLogprob(token=data.decode(errors="replace"), logprob=_finite(logprob), bytes=list(data))


def _by_text(logprob: GeneratedLogprob, tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest tokens' log-probabilities by their texts. Of several with one text, the likeliest counts."""
    by_text: dict[str, float] = {}
    for token_id, value in (*logprob.top, (logprob.token_id, logprob.logprob)):
        by_text.setdefault(_text(token_id, tokenizer), _finite(value))
    return by_text


def _text(token_id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.id_to_bytes(token_id).decode(errors="replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
