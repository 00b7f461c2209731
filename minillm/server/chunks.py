"""From the pieces of an answer to the events of a stream: what `answers.py` says at the end, said as it comes."""

from collections.abc import Iterator, Sequence
from typing import cast

from minillm.detokenizer import Piece
from minillm.generation import Completion as Generated
from minillm.generation import TokenLogprob
from minillm.sampling_params import SamplingParams
from minillm.server.answers import (
    Envelope,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    joined,
    token_ids,
    usage,
)
from minillm.server.prepare import Prepared, Served
from minillm.server.responses import (
    ChatChunkChoice,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Delta,
    FinishReason,
    Usage,
)
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.shown_tokens import Shown, ShownTokens

Chunk = ChatCompletionChunk | Completion


class _Choice:
    """One of the choices: how much of its text there is, and what of it has not been said yet.

    prompt_ids: None where ids were not asked for.
    """

    def __init__(
        self, params: SamplingParams, served: Served, echo: str, prompt_ids: Sequence[int] | None = None
    ) -> None:
        self.echo = echo
        self.prompt_ids = None if prompt_ids is None else list(prompt_ids)
        self.with_logprobs = params.logprobs is not None
        self.begun = False
        self.tokens = 0
        self.awaits_prompt = params.prompt_logprobs is not None
        self.before: CompletionLogprobs | None = None  # the prompt's, until they are told
        self._characters = 0
        tells_tokens = self.with_logprobs or prompt_ids is not None
        self._tokens = ShownTokens(params, served) if tells_tokens else None

    def add(self, piece: Piece) -> list[Shown] | None:
        """The tokens that the piece shows; None where neither logprobs nor ids were asked for."""
        self._characters += len(piece.text)
        if self._tokens is None:
            return None
        if piece.step is not None:
            step = piece.step
            self._tokens.add(TokenLogprob(step.token_id, step.logprob, step.top_logprobs or ()))
        return self._tokens.shown(self._characters, piece.finish_reason)


class Chunks:
    """The chunks of one request's stream. Joined, they say what the answer would say that is not streamed.

    A piece that shows nothing makes no chunk. The first chunk of a chat's choice says the role, the last one the
    finish_reason; in a completion they are the first and the last text's own.
    """

    def __init__(
        self,
        request: ChatCompletionRequest | CompletionRequest,
        prepared: Prepared,
        served: Served,
        envelope: Envelope,
    ) -> None:
        self._is_chat = isinstance(request, ChatCompletionRequest)
        options = request.stream_options
        self.include_usage = options is not None and bool(options.include_usage)
        self._tells_usage_meanwhile = options is not None and bool(options.continuous_usage_stats)
        self._prepared, self._served, self._fields = prepared, served, envelope.fields(request, served)
        per_prompt = len(prepared.requests) // len(prepared.prompts)
        self._choices = [
            _Choice(params, served, prepared.echoes[i // per_prompt], ids if request.return_token_ids else None)
            for i, (ids, params) in enumerate(prepared.requests)
        ]

    def awaits_prompt(self, index: int) -> bool:
        """Whether the next piece of this choice is its first, and the prompt's log-probabilities go before it."""
        return self._choices[index].awaits_prompt and not self._choices[index].begun

    def of(
        self, index: int, piece: Piece, prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    ) -> Iterator[Chunk]:
        """What a piece of the choice `index` adds. Its finish_reason, if it has one, is "stop" or "length".

        prompt_logprobs: of the prompt's tokens, where the choice awaits them.
        """
        choice = self._choices[index]
        if prompt_logprobs is not None:
            ids, _ = self._prepared.requests[index]
            choice.before = echoed_logprobs(ids, prompt_logprobs, self._served.tokenizer)
        shown = choice.add(piece)
        choice.tokens += piece.step is not None
        kind = self._chat if self._is_chat else self._text
        for chunk in kind(index, choice, piece, shown):
            if self._tells_usage_meanwhile:
                chunk.usage = self._usage_so_far()
            yield chunk
        choice.begun = True

    def usage(self, generated: Sequence[Generated]) -> Chunk:
        """The last chunk of all, where the usage was asked for: it has no choices."""
        chunk = self._chunk([])
        chunk.usage = usage(self._prepared, generated)
        return chunk

    def _usage_so_far(self) -> Usage:
        prompt, completion = sum(map(len, self._prepared.prompts)), sum(choice.tokens for choice in self._choices)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            prompt_tokens_details=None,
        )

    def _chat(self, index: int, choice: _Choice, piece: Piece, shown: list[Shown] | None) -> Iterator[Chunk]:
        if not choice.begun:
            first = ChatChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            yield self._chunk([first], choice.prompt_ids)
        if piece.text or shown:
            logprobs = chat_logprobs(shown, self._served.tokenizer) if shown and choice.with_logprobs else None
            ids = None if choice.prompt_ids is None else token_ids(shown or ())
            one = ChatChunkChoice(index=index, delta=Delta(content=piece.text), logprobs=logprobs, token_ids=ids)
            yield self._chunk([one])
        if piece.finish_reason is not None:
            reason = cast(FinishReason, piece.finish_reason)
            yield self._chunk([ChatChunkChoice(index=index, delta=Delta(), finish_reason=reason)])

    def _text(self, index: int, choice: _Choice, piece: Piece, shown: list[Shown] | None) -> Iterator[Chunk]:
        text = piece.text if choice.begun else choice.echo + piece.text
        tells_prompt = choice.prompt_ids is not None and not choice.begun
        if text or shown or piece.finish_reason is not None or tells_prompt:
            logprobs = self._text_logprobs(choice, shown or ()) if choice.with_logprobs else None
            reason = cast(FinishReason | None, piece.finish_reason)
            one = CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=reason)
            if choice.prompt_ids is not None:
                one.token_ids = token_ids(shown or ())
                one.prompt_token_ids = choice.prompt_ids if tells_prompt else None
            yield self._chunk([one])

    def _text_logprobs(self, choice: _Choice, shown: Sequence[Shown]) -> CompletionLogprobs | None:
        """Those of the tokens that are shown now, the prompt's before the first ones; None where there are none."""
        logprobs = completion_logprobs(shown, self._served.tokenizer, len(choice.echo))
        if choice.before is not None:
            logprobs, choice.before = joined(choice.before, logprobs), None
        return logprobs if logprobs.tokens else None

    def _chunk(
        self, choices: Sequence[ChatChunkChoice | CompletionChoice], prompt_ids: list[int] | None = None
    ) -> Chunk:
        kind = ChatCompletionChunk if self._is_chat else Completion
        # The kind of choice is that which belongs to the kind of chunk.
        fields = self._fields if prompt_ids is None else {**self._fields, "prompt_token_ids": prompt_ids}
        return kind(**fields, choices=list(choices))  # type: ignore[arg-type]
