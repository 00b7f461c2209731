"""The journey of a request as one web page that replays it: `generate --trace-html FILE`.

`trace_of` turns a request that has run into plain data (`Trace`): what went in, every forward pass with its time
and bytes, every token with its probability and alternatives, the cache, and the ceiling that memory sets. `write_trace`
puts that data into the page of `trace_page/`.

All times are seconds since the request came in.
"""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from minillm.device import dtype_name
from minillm.generation import Generation
from minillm.kv_cache import KVCache
from minillm.model import weight_bytes_per_pass
from minillm.page import write_page
from minillm.sampling_params import SamplingParams
from minillm.trace import ceiling_sentence
from minillm.trace_page import render

ALTERNATIVES = 4
"""How many alternatives per token a request is asked for when its user asked for none: enough to see a choice."""

MOST_PROMPT_TOKENS = 2000
"""Longer prompts are shown by their first and last tokens: the page is about the passes, and must stay light."""


@dataclass(frozen=True)
class TraceToken:
    """One token. `text` is its own; None where it is not whole characters, and then `bytes` (hexadecimal) says it."""

    id: int
    text: str | None
    bytes: str
    special: bool


@dataclass(frozen=True)
class GeneratedToken:
    """One choice: the token, its probability under the model's own distribution, when it was there.

    `shown` is the text that became certain with it; joined over all tokens, that is the completion.
    """

    token: TraceToken
    probability: float
    at_s: float
    shown: str
    alternatives: tuple[tuple[TraceToken, float], ...]


@dataclass(frozen=True)
class ForwardPass:
    """One trip through the model. Pass 0 is the prefill; pass i chose generated token i, in `sample_s` after `end_s`.

    `tokens` were computed at once. `kv_read_bytes` are the keys and values of earlier tokens and, in decode, of the
    token itself; `kv_written_bytes` those that it leaves behind.
    """

    start_s: float
    end_s: float
    sample_s: float
    tokens: int
    weight_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int


@dataclass(frozen=True)
class CacheRoom:
    """The reserved slots, one per token; `cached_tokens` of them were filled before the request began."""

    slots: int
    bytes_per_token: int
    reserved_bytes: int
    cached_tokens: int


@dataclass(frozen=True)
class Ceiling:
    """What memory allows decode at most, and how near the run came.

    `sentence` says it in words. The other fields are None where there was nothing to measure or it failed.
    """

    sentence: str
    bandwidth_bytes_per_s: float | None = None
    bytes_per_token: float | None = None
    tokens_per_s: float | None = None
    share: float | None = None


@dataclass(frozen=True)
class Trace:
    """Everything that the page shows."""

    model: str
    device: str
    dtype: str
    layers: int
    weight_bytes: int
    prompt_tokens: int
    prompt_skipped_after: int
    prompt: tuple[TraceToken, ...]
    tokenize_s: float
    passes: tuple[ForwardPass, ...]
    tokens: tuple[GeneratedToken, ...]
    ended: str
    cache: CacheRoom | None
    ceiling: Ceiling


def with_alternatives(params: SamplingParams) -> SamplingParams:
    """The same wishes, and alternatives for the page to show where the user asked for none."""
    return params if params.logprobs is not None else dataclasses.replace(params, logprobs=ALTERNATIVES)


def write_trace(path: Path, generation: Generation, model_name: str) -> None:
    """Write the page that replays `generation` to `path`."""
    # A page is passed on: it shows the model's name, and not the directories of its maker.
    name = Path(model_name).name if Path(model_name).exists() else model_name
    trace = trace_of(generation, name)
    write_page(path, render(dataclasses.asdict(trace)))


def trace_of(generation: Generation, model_name: str) -> Trace:
    """The trace of a request that has run, to its end or until it was stopped."""
    model, cache, ids = generation.model, generation.cache, generation.prompt_ids
    room = None
    if isinstance(cache, KVCache):
        room = CacheRoom(cache.max_seq_len, cache.bytes_per_token, cache.reserved_bytes, generation.cached_tokens)
    weights = weight_bytes_per_pass(model)
    passes = _passes(generation, weights, room)
    skipped_after = MOST_PROMPT_TOKENS // 2 if len(ids) > MOST_PROMPT_TOKENS else len(ids)
    shown_ids = ids if skipped_after == len(ids) else (*ids[:skipped_after], *ids[-skipped_after:])
    return Trace(
        model=model_name,
        device=str(model.device),
        dtype=dtype_name(model.dtype),
        layers=model.config.num_hidden_layers,
        weight_bytes=weights,
        prompt_tokens=len(ids),
        prompt_skipped_after=skipped_after,
        prompt=tuple(_token(generation, token_id) for token_id in shown_ids),
        tokenize_s=_rounded(generation.tokenize_s),
        passes=passes,
        tokens=_generated(generation),
        ended=_how_it_ended(generation),
        cache=room,
        ceiling=_ceiling(generation),
    )


def _passes(generation: Generation, weights: int, room: CacheRoom | None) -> tuple[ForwardPass, ...]:
    """The prefill and one pass per further token. An interrupted pass is left out: it was not timed."""
    if not generation.prefill_s:
        return ()
    per_token = room.bytes_per_token if room else 0
    times, steps, prompt = generation.token_times_s, generation.steps, len(generation.prompt_ids)
    computed = prompt - generation.cached_tokens
    passes = []
    for number, at_s in enumerate(times or [generation.tokenize_s + generation.prefill_s]):
        sample_s = steps[number].sample_s if times else 0.0
        forward_s = steps[number].forward_s if number else generation.prefill_s
        context = prompt + number
        read = generation.cached_tokens if number == 0 else context
        tokens = computed if number == 0 else 1 if room else context
        passes.append(
            ForwardPass(
                start_s=_rounded(at_s - sample_s - forward_s),
                end_s=_rounded(at_s - sample_s),
                sample_s=_rounded(sample_s),
                tokens=tokens,
                weight_bytes=weights,
                kv_read_bytes=read * per_token,
                kv_written_bytes=tokens * per_token,
            )
        )
    return tuple(passes)


def _generated(generation: Generation) -> tuple[GeneratedToken, ...]:
    texts = _shown_texts(generation)
    return tuple(
        GeneratedToken(
            token=_token(generation, step.token_id),
            probability=_probability(step.logprob),
            at_s=_rounded(at_s),
            shown=shown,
            alternatives=tuple(
                (_token(generation, token_id), _probability(logprob)) for token_id, logprob in step.top_logprobs or ()
            ),
        )
        for step, at_s, shown in zip(generation.steps, generation.token_times_s, texts, strict=True)
    )


def _shown_texts(generation: Generation) -> list[str]:
    """For each token the text that came out with it; the last one takes what was still held back."""
    count = len(generation.steps)
    texts = [""] * count
    if not count:
        return texts
    for number, piece in enumerate(generation.pieces):
        texts[min(number, count - 1)] += piece.text
    texts[-1] += generation.completion().text[len(generation.text) :]
    return texts


def _token(generation: Generation, token_id: int) -> TraceToken:
    tokenizer = generation.tokenizer
    data = tokenizer.id_to_bytes(token_id)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # part of a character
        text = None
    return TraceToken(token_id, text, data.hex(" ") if text is None else "", token_id in tokenizer.special_ids)


def _how_it_ended(generation: Generation) -> str:
    """A sentence for the end of the answer."""
    last = generation.steps[-1].finish_reason if generation.steps else None
    if generation.finish_reason == "abort":
        return "Interrupted: the request was stopped from outside."
    if generation.finish_reason == "length":
        if len(generation.steps) == generation.params.max_tokens:
            return f"Length limit: {len(generation.steps):,} tokens were asked for, and no more."
        return f"The context is full: there is room for {generation.cache.max_seq_len:,} tokens."
    if last == "stop":
        return "Stopped by itself: the last token means “the end”, and has no text of its own."
    return "Stop string: the text contained one, and ends before it."


def _ceiling(generation: Generation) -> Ceiling:
    """The ceiling for the mean decode pass of this request, and the share of it that was reached."""
    metrics = generation.metrics()
    return Ceiling(
        ceiling_sentence(generation),
        generation.bandwidth_bytes_per_s,
        None if metrics.mbu is None else sum(generation.decode_bytes_per_pass()),
        metrics.bandwidth_ceiling_tokens_per_s,
        metrics.mbu,
    )


def _rounded(seconds: float) -> float:
    """To the microsecond, and not below zero: so that what the page compares is what it was given."""
    return max(0.0, round(seconds, 6))


def _probability(logprob: float) -> float:
    return round(math.exp(logprob), 5)
