"""Engine: requests in, tokens out, one pass over the model at a time for all that are at work.

    engine.add(prompt_ids, params)  ->  a Request
    engine.step()                   ->  what became of each request whose turn it was
    engine.abort(request_id)        ->  it is over, wherever it was

A step asks the scheduler which tokens to compute, runs the model once over all of them, and samples for the requests
that have come to the end of their tokens. `decode.py` is this for one request; the rules of what a token means (when a
request ends, which random number it draws with) are the same functions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.decode import Step, ending_ids, finish_reason
from minillm.device import clock
from minillm.engine.block_pool import blocks_for
from minillm.engine.log import Observer, Recorder, StepRecorder
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span, blocks_that_fit
from minillm.engine.prompt_logprobs import take_prompt_logprobs
from minillm.engine.request import Request
from minillm.engine.scheduler import Plan, Scheduler
from minillm.errors import InputError, NumbersError
from minillm.model import Llama
from minillm.sampler import Sampled, sample
from minillm.sampling_params import SamplingParams


@dataclass(frozen=True)
class Output:
    """One token of one request; or, where `step` is None, that the request ended without another (see its `error`)."""

    request: Request
    step: Step | None


class Engine:
    """Many requests on one model. Not for several threads at a time.

    num_blocks: of the KV cache, `block_size` tokens each; None: as many as hold `max_batch_size` sequences of the
    model's context, but at most `kv_bytes` bytes. kv_dtype: torch.int8 for a cache of 8 bits; None: the model's dtype.
    policy: the kind of scheduler; the rest is the scheduler's, see there (prefix_caching: None is what the policy does
    by itself). observer: called with a `StepRecord` at the end of each step (see `log`); without one, none is made.

    Raises InputError for sizes that are not possible, and for models whose rotary frequencies depend on the length of
    the sequence: one pass over many sequences would need as many.
    """

    def __init__(
        self,
        model: Llama,
        *,
        num_blocks: int | None = None,
        kv_bytes: int = 2**30,
        kv_dtype: torch.dtype | None = None,
        block_size: int = 16,
        max_batch_size: int = 16,
        token_budget: int = 512,
        prefix_caching: bool | None = None,
        policy: type[Scheduler] = Scheduler,
        observer: Observer | None = None,
    ) -> None:
        scaling = model.config.rope_scaling
        if scaling is not None and model.config.turns_by_length:
            raise InputError(
                f"rope scaling {scaling.kind!r} turns keys by the length of the sequence, which a batch of several"
                " does not share: run such a model's requests one by one"
            )
        if block_size < 1:
            raise InputError(f"block_size must be at least 1, not {block_size}")
        if num_blocks is None:
            num_blocks = _blocks_for_bytes(model.config, kv_bytes, kv_dtype or model.dtype, block_size, max_batch_size)
        self.model = model
        wishes = {} if prefix_caching is None else {"prefix_caching": prefix_caching}
        self.scheduler = policy(
            num_blocks, block_size, max_batch_size=max_batch_size, token_budget=token_budget, **wishes
        )
        self.cache = PagedKVCache(
            model.config, num_blocks, block_size, device=model.device, dtype=kv_dtype or model.dtype
        )
        self.requests: dict[str, Request] = {}  # those that have not ended
        self._numbers = itertools.count()
        self._recorder = Recorder()
        if observer is not None:
            self._recorder = StepRecorder(observer, self.scheduler, lambda: clock(model.device))

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self.scheduler.has_work

    def add(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str | None = None) -> Request:
        """Take a request in. Raises InputError for one that could never be computed, or whose id is in use."""
        config = self.model.config
        ids, context = tuple(prompt_ids), config.max_position_embeddings
        if request_id is None:
            request_id = next(name for name in map(str, self._numbers) if name not in self.requests)
        if request_id in self.requests:
            raise InputError(f"there is a request {request_id!r} already: ids must differ")
        if not ids:
            raise InputError("there are no tokens to compute: the prompt is empty")
        wrong = next((token for token in ids if not 0 <= token < config.vocab_size), None)
        if wrong is not None:
            raise InputError(f"token id {wrong} is outside the vocabulary of {config.vocab_size} tokens")
        if len(ids) >= context:
            raise InputError(
                f"the prompt has {len(ids):,} tokens, which leaves no room for an answer in this model's context of"
                f" {context:,} tokens: shorten it"
            )
        params.check_against_vocabulary(config.vocab_size)
        request = Request(request_id, ids, params, min(len(ids) + params.max_tokens, context))
        self.scheduler.add(request)
        self.requests[request_id] = request
        self._recorder.arrived(request)
        return request

    def abort(self, request_id: str, reason: str = "abort") -> Request | None:
        """End a request, wherever it is. None, and nothing happens, if there is none of this id (any more)."""
        request = self.requests.get(request_id)
        if request is not None:
            self._finish(request, reason)
            self._recorder.aborted()
        return request

    def step(self) -> list[Output]:
        """One pass: a token for each request that has come to the end of its tokens. [] when there is nothing to do.

        Where the model itself fails, every request that took part in the pass ends with "error": none of them can be
        trusted to have its keys and values. A request whose sampling fails ends alone.
        """
        recorder = self._recorder
        recorder.begin()
        plan = self.scheduler.schedule()
        if not plan.scheduled:
            return []
        recorder.scheduled(plan)
        started = clock(self.model.device)
        try:
            logits = self._compute(plan)  # [n, V]
        except Exception:
            for part in plan.scheduled:
                part.request.error = "the model's pass over this request's batch failed"
                self._finish(part.request, "error")
            recorder.failed()
            raise
        forward_s = clock(self.model.device) - started
        recorder.forwarded()
        self.scheduler.computed(plan)
        recorder.computed()
        sampling = [part.request for part in plan.scheduled if part.samples]
        outputs = self._sample(sampling, logits, forward_s) if sampling else []
        recorder.end()
        return outputs

    @torch.inference_mode()
    def _compute(self, plan: Plan) -> Float[Tensor, "sampled vocab"]:
        """Run the model over the planned tokens of all requests; the logits of those that are to be sampled."""
        for source, target in plan.copies:
            self.cache.copy_block(source, target)
        spans, ids, last_rows = [], [], []
        for part in plan.scheduled:
            request, start = part.request, part.request.num_computed
            spans.append(Span(request.block_table, start, part.num_tokens))
            ids += request.token_ids[start : start + part.num_tokens]
            if part.samples:
                last_rows.append(len(ids) - 1)
        batch = PagedBatch(self.cache, spans)
        hidden = self.model(torch.tensor([ids], device=self.model.device), batch)  # [1, N, E]
        self._look_at_prompts(plan, hidden[0])
        return self.model.logits(hidden[0, last_rows])  # [n, V]

    def _look_at_prompts(self, plan: Plan, hidden: Float[Tensor, "tokens hidden"]) -> None:
        """For requests that ask what the model held of their prompts: each row says it of the next token."""
        rows = hidden.split([part.num_tokens for part in plan.scheduled])
        for part, own in zip(plan.scheduled, rows, strict=True):
            if part.request.needs_every_row:
                take_prompt_logprobs(self.model, part.request, own)

    def _sample(
        self, requests: Sequence[Request], logits: Float[Tensor, "sampled vocab"], forward_s: float
    ) -> list[Output]:
        """Choose a token for each request; one whose parameters leave nothing to choose does not stop the others."""
        started = clock(self.model.device)
        chosen = _sample_each(logits, requests)
        sample_s = clock(self.model.device) - started
        outputs = []
        for request, choice in zip(requests, chosen, strict=True):
            if isinstance(choice, Exception):
                request.error, request.own_fault = str(choice), isinstance(choice, InputError)
                if isinstance(choice, NumbersError):
                    self._clear_blocks(request)
                self._finish(request, "error")
                outputs.append(Output(request, None))
                continue
            outputs.append(Output(request, self._accept(request, choice, forward_s, sample_s)))
        return outputs

    def _accept(self, request: Request, choice: Sampled, forward_s: float, sample_s: float) -> Step:
        """The token belongs to the request now; whether it was its last."""
        params = request.params
        request.sampler_state.observe(choice.token_id)
        request.token_ids.append(choice.token_id)
        reason = finish_reason(
            choice.token_id,
            ending_ids(params, self.model.config),
            request.num_generated,
            params.max_tokens,
            len(request.token_ids),
            self.model.config.max_position_embeddings,
        )
        if reason:
            self._finish(request, reason)
        return Step(choice.token_id, choice.logprob, reason, choice.top_logprobs, forward_s, sample_s)

    def _finish(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        self._recorder.finished(request, reason)
        self.scheduler.finish(request)
        self.requests.pop(request.request_id, None)

    def _clear_blocks(self, request: Request) -> None:
        """Leave no NaN behind, to be found by others or met in a slot that is masked. What others read stays."""
        for block in request.block_table:
            if self.scheduler.pool.users(block) == 1:
                self.cache.clear_block(block)
                if self.scheduler.prefix_cache is not None:
                    self.scheduler.prefix_cache.forget(block)


def _sample_each(
    logits: Float[Tensor, "sampled vocab"], requests: Sequence[Request]
) -> list[Sampled | InputError | NumbersError]:
    """`sample` for all rows at once; if that fails, for each by itself, and the error of those that fail again."""
    params, states = [r.params for r in requests], [r.sampler_state for r in requests]
    uniforms = [state.next_uniform() for state in states]  # once per token, however often it is tried
    try:
        return list(sample(logits, params, states, uniforms))
    except (InputError, NumbersError):
        return [_sample_one(logits[i : i + 1], params[i], requests[i], uniforms[i]) for i in range(len(requests))]


def _sample_one(
    logits: Float[Tensor, "1 vocab"], params: SamplingParams, request: Request, uniform: float
) -> Sampled | InputError | NumbersError:
    try:
        return sample(logits, [params], [request.sampler_state], [uniform])[0]
    except (InputError, NumbersError) as error:
        return error


def _blocks_for_bytes(
    config: ModelConfig, kv_bytes: int, kv_dtype: torch.dtype, block_size: int, max_batch_size: int
) -> int:
    """As many blocks as fit into `kv_bytes`, and no more than could ever be used. Raises InputError if that is none."""
    affordable = blocks_that_fit(kv_bytes, config, kv_dtype, block_size)
    if affordable < 1:
        raise InputError(f"{kv_bytes:,} bytes hold no block of {block_size} tokens: give the KV cache more")
    return min(affordable, max_batch_size * blocks_for(config.max_position_embeddings, block_size))
