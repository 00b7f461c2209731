"""Answers to 6.3, right ones and wrong ones, for its grader."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.decode import Step, ending_ids, finish_reason
from minillm.exercises.grading import Function
from minillm.kv_cache import KVCache, NoCache
from minillm.prefill import prefill
from minillm.sampler import SamplerState, SamplingParams, sample_one


def loop(
    *,
    state_of: Callable[..., SamplerState] = lambda params, prompt: SamplerState(params, prompt),
    choose: Callable[..., Any] = sample_one,
    each_time: bool = False,
    observe: int = 1,
    step_of: Callable[..., Any] = lambda choice, reason: Step(
        choice.token_id, choice.logprob, reason, choice.top_logprobs
    ),
    reason_of: Callable[..., Any] = lambda reason, count, params: reason,
    pending: Callable[..., Sequence[int]] = lambda ids, held, cache: ids[cache.length - held :],
    length_of: Callable[..., int] = lambda ids, held: held + len(ids),
    room_of: Callable[..., int] = lambda model, cache: cache.max_seq_len,
    first: int = 1,
    compute_first: bool = False,
    compute_last: bool = False,
    keep_logits: bool = False,
    hide_last: bool = False,
    advance: int = 0,
) -> Function:
    """The loop, right unless it is told to make a mistake."""

    def decode_loop(model: Any, logits: Any, cache: Any, params: SamplingParams, prompt_ids: Any) -> Iterator[Any]:
        held = cache.length
        ids = list(prompt_ids[held:])
        state, ends = state_of(params, prompt_ids), ending_ids(params, model.config)
        count = first - 1
        while True:
            count += 1
            if each_time:
                state = state_of(params, prompt_ids)
            choice = choose(logits, params, state)
            for _ in range(observe):
                state.observe(choice.token_id)
            ids.append(choice.token_id)
            full = length_of(ids, held)
            reason = finish_reason(choice.token_id, ends, count, params.max_tokens, full, room_of(model, cache))
            reason = reason_of(reason, count, params)
            if compute_first and not (reason and not compute_last):
                logits = prefill(model, pending(ids, held, cache), cache)
            if not (hide_last and reason):
                yield step_of(choice, reason)
            if reason and not (compute_last and not compute_first):
                return
            if not compute_first:
                new = prefill(model, pending(ids, held, cache), cache)
                logits = logits if keep_logits else new
                cache.advance(advance)
            if reason:
                return

    return decode_loop


def eager(*arguments: Any) -> list[Step]:
    return list(loop()(*arguments))


def prompt_again(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    logits = prefill(model, prompt_ids, cache) if len(prompt_ids) else logits
    yield from loop()(model, logits, cache, params, prompt_ids)


def with_a_for(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    """Another right way: a `for`, and a question for the kind of cache."""
    state = SamplerState(params, prompt_ids)
    everything, before = list(prompt_ids), cache.length or len(prompt_ids)
    for count in range(1, params.max_tokens + 1):
        choice = sample_one(logits, params, state)
        state.observe(choice.token_id)
        everything.append(choice.token_id)
        reason = finish_reason(
            choice.token_id,
            ending_ids(params, model.config),
            count,
            params.max_tokens,
            before + count,
            cache.max_seq_len,
        )
        yield Step(choice.token_id, choice.logprob, reason, top_logprobs=choice.top_logprobs, forward_s=0.1)
        if reason is not None:
            break
        logits = prefill(model, everything if isinstance(cache, NoCache) else [choice.token_id], cache)


def model_alone(*, advance: bool) -> Function:
    """The model called without prefill; the pass at the head of the loop. advance: another right way, or a mistake."""

    def decode_loop(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Any]:
        state, ends = SamplerState(params, prompt_ids), ending_ids(params, model.config)
        known = [0] * (cache.length - len(prompt_ids)) + list(prompt_ids)
        for count in range(1, params.max_tokens + 1):
            if count > 1:
                new = known[-1:] if isinstance(cache, KVCache) else known
                hidden = model(torch.tensor([new]), cache)
                cache.advance(hidden.shape[1] if advance else 0)
                logits = model.logits(hidden[:, -1])
            choice = sample_one(logits, params, state)
            state.observe(choice.token_id)
            known.append(choice.token_id)
            reason = finish_reason(choice.token_id, ends, count, params.max_tokens, len(known), cache.max_seq_len)
            yield Step(choice.token_id, choice.logprob, reason, choice.top_logprobs)
            if reason:
                return

    return decode_loop


def returning_a_generator(*arguments: Any) -> Iterator[Step]:
    """Another right way: a function that has no `yield`, and returns what has."""
    return (step for step in loop()(*arguments))


# --- mistakes that are not one word of the loop above ----------------------------------------------------------------


def by_kind(ids: Sequence[int], held: int, cache: Any) -> Sequence[int]:
    """What to compute, by the kind of cache."""
    return ids if isinstance(cache, NoCache) else ids[-1:]


def likeliest(logits: Tensor, params: SamplingParams, state: SamplerState) -> Any:
    """The likeliest token, as if every request were greedy and without penalties."""
    return sample_one(logits, SamplingParams(logprobs=params.logprobs), SamplerState(params))


def whole_text(pending: Callable[[Any, list[int], list[int]], Sequence[int]]) -> Function:
    """With a list of the whole text, of which `pending(cache, text, made)` picks what to compute."""

    def decode_loop(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Any]:
        before = cache.length or len(prompt_ids)
        made: list[int] = []
        loop_of = loop(
            length_of=lambda ids, held: before + len(made),
            step_of=lambda choice, reason: Step(choice.token_id, choice.logprob, reason, choice.top_logprobs),
            choose=lambda *arguments: _noted(sample_one(*arguments), made),
            pending=lambda ids, held, cache: pending(cache, [*prompt_ids, *made], made),
        )
        yield from loop_of(model, logits, cache, params, prompt_ids)

    return decode_loop


def _noted(choice: Any, made: list[int]) -> Any:
    made.append(choice.token_id)
    return choice


def changing_the_prompt(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    for step in loop()(model, logits, cache, params, list(prompt_ids)):
        prompt_ids.append(step.token_id)
        yield step


def counted_twice(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    counted = loop(length_of=lambda ids, held: cache.length + len(ids) - (0 if held else len(prompt_ids)))
    yield from counted(model, logits, cache, params, prompt_ids)


def model_instead(compute: Callable[..., Any]) -> Function:
    """What `compute(model, ids, cache)` gives, where prefill's logits are wanted."""

    def decode_loop(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
        state, ends = SamplerState(params, prompt_ids), ending_ids(params, model.config)
        for count in range(1, params.max_tokens + 1):
            choice = sample_one(logits, params, state)
            state.observe(choice.token_id)
            reason = finish_reason(choice.token_id, ends, count, params.max_tokens, 0, cache.max_seq_len)
            yield Step(choice.token_id, choice.logprob, reason, choice.top_logprobs)
            if reason:
                return
            logits = compute(model, [choice.token_id], cache)

    return decode_loop
