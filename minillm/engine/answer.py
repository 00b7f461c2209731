"""Answer: one request's text, as its tokens come out of the engine. What `Generation` is for a request alone."""

from collections.abc import Sequence

from minillm.detokenizer import Detokenizer, Piece
from minillm.device import clock
from minillm.engine.engine import Engine, Output
from minillm.engine.request import Request
from minillm.generation import Completion, TokenLogprob
from minillm.metrics import Metrics, request_metrics, tokens_held
from minillm.sampling_params import SamplingParams
from minillm.tokenizer import Tokenizer


class Answer:
    """A request in an engine, and its text so far. Made by adding the request; raises what `Engine.add` raises."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        request_id: str | None = None,
    ) -> None:
        self._engine = engine
        self._detokenizer = Detokenizer(tokenizer, params.stop)
        self._started = clock(engine.model.device)
        self._times: list[float] = []  # when each token was there, in seconds since the request came in
        self._logprobs: list[TokenLogprob] = []
        self._text: list[str] = []
        self.request: Request = engine.add(prompt_ids, params, request_id)

    @property
    def text(self) -> str:
        """What has become certain so far."""
        return "".join(self._text)

    def take(self, output: Output) -> Piece:
        """The piece of text that one output of the engine adds. A stop string that is complete ends the request."""
        step = output.step
        if step is None:  # it ended without another token: what was held back is all that comes
            piece = Piece(self._detokenizer.flush(), None, self.request.finish_reason)
        else:
            self._times.append(clock(self._engine.model.device) - self._started)
            self._logprobs.append(TokenLogprob(step.token_id, step.logprob, step.top_logprobs or ()))
            piece = self._detokenizer.piece_of(step)
            if piece.finish_reason is not None and step.finish_reason != piece.finish_reason:
                self._engine.abort(self.request.request_id, piece.finish_reason)
                self.request.finish_reason = piece.finish_reason  # also where it had reached its length just then
        self._text.append(piece.text)
        return piece

    def abort(self) -> Piece:
        """End the request, wherever it is: its last piece, with the text that was held back."""
        self._engine.abort(self.request.request_id)
        return self.take(Output(self.request, None))

    def completion(self) -> Completion:
        """The result so far."""
        request = self.request
        return Completion(
            text=self.text,
            token_ids=tuple(request.generated_ids),
            finish_reason=request.finish_reason or "abort",
            prompt_token_ids=request.prompt_ids,
            logprobs=None if request.params.logprobs is None else tuple(self._logprobs),
            metrics=self._metrics(),
            error=request.error,
            prompt_logprobs=self.prompt_logprobs,
        )

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """What the model held of the prompt's tokens, all of it with the first piece; None where nobody asked."""
        if self.request.params.prompt_logprobs is None:
            return None
        found = self.request.prompt_logprobs
        return tuple(one and TokenLogprob(one.token_id, one.logprob, one.top_logprobs or ()) for one in found)

    def _metrics(self) -> Metrics:
        """Times of this request among others: its waits are part of them."""
        times, request = self._times, self.request
        held = tokens_held(len(request.prompt_ids), len(times)) if times else 0
        return request_metrics(
            prompt_tokens=len(request.prompt_ids),
            cached_tokens=request.num_cached,
            token_times_s=times,
            prefill_s=times[0] if times else 0.0,
            kv_bytes=held * self._engine.cache.bytes_per_token,
        )
