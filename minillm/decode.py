"""The decode loop: choose a token, hand it out, compute what follows it, until a reason to stop.

Every pass reads all the weights to add one token: this loop is where the memory bandwidth goes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.device import clock
from minillm.errors import InputError
from minillm.kv_cache import Cache, KVCache
from minillm.model import Llama
from minillm.prefill import prefill
from minillm.rope import is_turned_alike
from minillm.sampler import SamplerState, SamplingParams, sample_one


@dataclass(frozen=True)
class Step:
    """One generated token.

    logprob and top_logprobs are natural logarithms under the model's own distribution, before any processing.
    finish_reason is None until the last step: then "stop" (an end-of-sequence or stop token: this very one) or
    "length" (max_tokens reached, or the context is full). forward_s and sample_s are the seconds spent on the
    logits and on the choice; the first step's forward pass is the prefill, which is not counted here.
    """

    token_id: int
    logprob: float
    finish_reason: str | None
    top_logprobs: tuple[tuple[int, float], ...] | None = None
    forward_s: float = 0.0
    sample_s: float = 0.0


def decode(
    model: Llama,
    logits: Float[Tensor, "1 vocab"],
    cache: Cache,
    params: SamplingParams,
    *,
    prompt_ids: Sequence[int] | None = None,
) -> Iterator[Step]:
    """Generate from `logits`, which `prefill` returned for what `cache` holds; yield each token as it is chosen.

    prompt_ids: the tokens before the first generated one. They are needed by the repetition penalty (which looks
    at the prompt), without a cache (which computes them again each time), and under longrope scaling, to compute the
    cache anew where the sequence outgrows the original context (without them, its keys stay as they were turned).

    Raises InputError, at once, for `params.stop` (stop strings are a matter of text, see `detokenizer.detokenize`),
    and for what does not fit the model or the cache. See `decode_loop` for the rest.
    """
    _check(params, cache, prompt_ids, model.config.vocab_size)
    return decode_loop(model, logits, cache, params, list(prompt_ids or ()))


def decode_loop(
    model: Llama,
    logits: Float[Tensor, "1 vocab"],
    cache: Cache,
    params: SamplingParams,
    prompt_ids: Sequence[int],
) -> Iterator[Step]:
    """The loop itself, for what `decode` has checked: choose, hand out, compute what follows, until a reason to stop.

    A token is handed out before the pass that follows it is computed, so that a reader of the stream never waits
    for the next one. The last token is never computed: nobody asks what follows it. Whoever closes the generator
    leaves a whole cache behind: it is suspended at `yield`, where no pass is under way.
    """
    known_from = 0 if prompt_ids else cache.length  # the position of the first id in `known`
    known = list(prompt_ids)
    state = SamplerState(params, prompt_ids)
    stop_ids = ending_ids(params, model.config)

    forward_s = 0.0
    for count in range(1, params.max_tokens + 1):
        started = clock(model.device)
        choice = sample_one(logits, params, state)
        sample_s = clock(model.device) - started
        state.observe(choice.token_id)
        known.append(choice.token_id)

        length = known_from + len(known)
        reason = finish_reason(choice.token_id, stop_ids, count, params.max_tokens, length, cache.max_seq_len)
        yield Step(choice.token_id, choice.logprob, reason, choice.top_logprobs, forward_s, sample_s)
        if reason:
            return

        if (
            known_from == 0
            and isinstance(cache, KVCache)
            and not is_turned_alike(model.config, cache.length, len(known))
        ):
            cache.truncate(0)  # all keys change with this token, and are computed anew
        # With a cache this is the one new token; without, `length` stays 0 and this is the whole sequence.
        started = clock(model.device)
        logits = prefill(model, known[cache.length - known_from :], cache)  # [1, V]
        forward_s = clock(model.device) - started


def ending_ids(params: SamplingParams, config: ModelConfig) -> frozenset[int]:
    """The token ids that end a request: the model's end-of-sequence ids, unless ignored, and those asked for.

    A token that was asked for by its id ends the request also where it is an end-of-sequence id that is ignored.
    """
    end_of_sequence = () if params.ignore_eos else config.eos_token_ids
    return frozenset(end_of_sequence) | frozenset(params.stop_token_ids)


def finish_reason(
    token_id: int, stop_ids: Collection[int], count: int, max_tokens: int, length: int, max_seq_len: int
) -> str | None:
    """Why a request ends with the token just chosen: "stop", "length", or None: it goes on.

    count: the tokens generated, this one included, of max_tokens wanted. length: the tokens of prompt and completion,
    this one included, of max_seq_len that there may be. A token that ends the answer ends it with "stop" even where
    it is the last one allowed: the answer is whole.
    """
    if token_id in stop_ids:
        return "stop"
    if count >= max_tokens or length >= max_seq_len:
        return "length"
    return None


def _check(params: SamplingParams, cache: Cache, prompt_ids: Sequence[int] | None, vocab_size: int) -> None:
    """Refuse what this loop could only ignore or get wrong."""
    params.check_against_vocabulary(vocab_size)
    if params.stop:
        raise InputError("decode yields tokens and cannot see stop strings: give them to detokenizer.detokenize")
    if prompt_ids is None and cache.length == 0:
        raise InputError("without a cache, decode needs prompt_ids to compute them again at each step")
    if prompt_ids is None and params.repetition_penalty != 1.0:
        raise InputError("the repetition penalty looks at the prompt too: pass prompt_ids to decode")
    if prompt_ids is not None and cache.length not in (0, len(prompt_ids)):
        raise InputError(
            f"the cache holds {cache.length} tokens, but prompt_ids has {len(prompt_ids)}: `logits` must be what "
            "prefill returned for the last of them"
        )
