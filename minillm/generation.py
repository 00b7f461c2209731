"""One request on its way through the engine: prefill, decode, detokenize, with the time of each written down."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minillm.decode import Step, decode
from minillm.detokenizer import Piece, detokenize
from minillm.device import clock
from minillm.errors import InputError
from minillm.kv_cache import Cache, KVCache
from minillm.machine.limits import measure_limits
from minillm.machine.roofline import mbu
from minillm.metrics import Metrics, decode_ceiling, decode_kv_bytes, request_metrics, tokens_held
from minillm.model import Llama, weight_bytes_per_pass
from minillm.prefill import prefill
from minillm.sampler import SamplingParams
from minillm.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenLogprob:
    """Natural-log probabilities of one token and of the likeliest alternatives, before processing."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Completion:
    """What came out. `token_ids` holds every generated id, also those that the text leaves out (the
    end-of-sequence token, a matched stop string). finish_reason: "stop", "length", "abort" for a request that
    was stopped from outside before its end, or, in a batch, "error" for one that could not go on; `error` says why.
    prompt_logprobs: of the prompt's tokens, where asked for; nothing predicts the first one, so its entry is None.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    metrics: Metrics
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class Generation:
    """A running request: iterate over it for the pieces of text; `completion()` at any time for the result so far.

    `cache` may already hold the first tokens of `prompt_ids` (a conversation's earlier turns); at least the last
    prompt token is computed, because its row gives the first logits. `started` and `tokenize_s` are seconds, on
    the clock of `device.clock`, at which the request came in and which its tokenizing took. `bandwidth_bytes_per_s` is
    what this machine's memory delivers, where that is known: the metrics then say how near the request came to it.
    """

    def __init__(
        self,
        model: Llama,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        cache: Cache,
        *,
        started: float | None = None,
        tokenize_s: float = 0.0,
        bandwidth_bytes_per_s: float | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.prompt_ids = tuple(prompt_ids)
        self.params = params
        self.cache = cache
        self.cached_tokens = cache.length
        self.started = clock(model.device) if started is None else started
        self.tokenize_s = tokenize_s
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.prefill_s = 0.0
        self.detokenize_s = 0.0
        # A step and its time, since `started` and without the time of whoever reads: one pair, so that an interrupt
        # cannot come between the two.
        self.timed_steps: list[tuple[Step, float]] = []
        self.pieces: list[Piece] = []
        self._away_s = 0.0  # spent by whoever asked, between the engine's own work
        self._ready = clock(model.device)
        self._started_running = False

    def __iter__(self) -> Iterator[Piece]:
        """Run the request, once; each piece is yielded as soon as its text is certain."""
        if self._started_running:
            raise InputError("this request has been run already: start another one")
        self._started_running = True
        self._away_s = clock(self.model.device) - self._ready
        pieces = detokenize(self._run_model(), self.tokenizer, self.params.stop)
        while True:
            before, steps_before = clock(self.model.device), len(self.timed_steps)
            piece = next(pieces, None)
            spent = clock(self.model.device) - before
            in_model = sum(step.forward_s + step.sample_s for step, _ in self.timed_steps[steps_before:])
            if steps_before == 0:
                in_model += self.prefill_s
            self.detokenize_s += max(0.0, spent - in_model)
            if piece is None:
                return
            self.pieces.append(piece)
            handed_out = clock(self.model.device)
            yield piece
            self._away_s += clock(self.model.device) - handed_out

    def _run_model(self) -> Iterator[Step]:
        """Prefill what is not in the cache, then decode; note when each token was there."""
        before = clock(self.model.device)
        logits = prefill(self.model, self.prompt_ids[self.cached_tokens :], self.cache)  # [1, V]
        self.prefill_s = clock(self.model.device) - before
        params = replace(self.params, stop=())  # stop strings are watched for in the text, one level up
        for step in decode(self.model, logits, self.cache, params, prompt_ids=self.prompt_ids):
            self.timed_steps.append((step, clock(self.model.device) - self.started - self._away_s))
            yield step

    @property
    def steps(self) -> list[Step]:
        """The decode loop's steps so far, one per generated token."""
        return [step for step, _ in self.timed_steps]

    @property
    def token_times_s(self) -> list[float]:
        """When each token was there: seconds since the request came in, without the time of whoever reads."""
        return [at_s for _, at_s in self.timed_steps]

    @property
    def text(self) -> str:
        """The text handed out so far."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish_reason(self) -> str:
        """Why it ended: "stop", "length", or "abort" while the request has not come to its own end."""
        return (self.pieces[-1].finish_reason if self.pieces else None) or "abort"

    def run(self) -> Completion:
        """Run to the end, and give the result."""
        for _ in self:
            pass
        return self.completion()

    def unshown_text(self) -> str:
        """Text of the tokens so far that was not handed out: what was held back when the request was stopped."""
        whole = "".join(piece.text for piece in detokenize(list(self.steps), self.tokenizer, self.params.stop))
        return whole[len(self.text) :]

    def completion(self) -> Completion:
        """The result so far.

        A request that was stopped from outside may have held text back (half a character, the start of a stop
        string): nothing is coming that could decide, so it is part of the result.
        """
        reason = self.finish_reason
        return Completion(
            text=self.text + self.unshown_text() if reason == "abort" else self.text,
            token_ids=tuple(step.token_id for step in self.steps),
            finish_reason=reason,
            prompt_token_ids=self.prompt_ids,
            logprobs=self._logprobs(),
            metrics=self.metrics(),
        )

    def _logprobs(self) -> tuple[TokenLogprob, ...] | None:
        if self.params.logprobs is None:
            return None
        return tuple(TokenLogprob(step.token_id, step.logprob, step.top_logprobs or ()) for step in self.steps)

    def measure_bandwidth(self) -> None:
        """Read memory for a moment, so that the metrics say what it allows. Where there is no room, they go without."""
        with contextlib.suppress(RuntimeError, MemoryError):  # torch's out-of-memory error is a RuntimeError
            self.bandwidth_bytes_per_s = measure_limits(self.model.device, dtypes=()).bandwidth_bytes_per_s

    def decode_contexts(self) -> tuple[int, int]:
        """How many tokens the first and the last decode pass so far have in view: the one for the second token has the
        prompt and the first, each further one a token more.
        """
        prompt = len(self.prompt_ids)
        return tokens_held(prompt, 2), tokens_held(prompt, max(2, len(self.timed_steps)))

    def decode_bytes_per_pass(self) -> tuple[float, float]:
        """What a decode pass of this request reads, in bytes: the weights; and, as a mean, keys and values so far."""
        kv_bytes = 0.0
        if isinstance(self.cache, KVCache):
            tokens = max(2, len(self.timed_steps))
            kv_bytes = decode_kv_bytes(len(self.prompt_ids), tokens, self.cache.bytes_per_token) / (tokens - 1)
        return float(weight_bytes_per_pass(self.model)), kv_bytes

    def metrics(self) -> Metrics:
        """Times and rates so far."""
        metrics = request_metrics(
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.cached_tokens,
            token_times_s=self.token_times_s,
            prefill_s=self.prefill_s,
            kv_bytes=self.cache.used_bytes if isinstance(self.cache, KVCache) else 0,
        )
        if not metrics.tpot_s or not self.bandwidth_bytes_per_s:
            return metrics
        read = self.decode_bytes_per_pass()
        return replace(
            metrics,
            bandwidth_ceiling_tokens_per_s=decode_ceiling(self.bandwidth_bytes_per_s, *read),
            mbu=mbu(sum(read), metrics.tpot_s, self.bandwidth_bytes_per_s),
        )
