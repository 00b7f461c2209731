"""From the model's logits to those that the next token is drawn from.

A row of logits passes through these steps, in this order:

    logit bias -> repetition, frequency, presence penalty -> temperature -> min-p -> top-k -> top-p -> draw

First comes what changes *which* token is likeliest: the caller's bias, then the penalties, which thus act
on what the model and the caller together prefer. A greedy request (temperature 0) takes the largest logit
now. Then the temperature changes *how much* likelier one token is than another, and the filters follow it,
because they should cut the distribution that is really drawn from. Min-p compares every token with the
likeliest one and top-k counts, so these two could change places; top-p adds probabilities up, so it comes
last and adds only those of the tokens still left.

This is vLLM's order. In `transformers` top-p comes before min-p and also counts what min-p is about to
drop, so at least as many tokens are kept; llama.cpp filters first and applies the temperature last.

Each step is a pure function: logits in, new logits out with dropped tokens at -inf, nothing changed in place;
and each does nothing at its neutral value (0, or 1 for the repetition penalty and top-p).

No filter cuts between equals. A token exactly as likely as the last one kept is kept too, so the outcome
depends on the values alone, not on how a library happens to sort them. (`transformers` agrees for top-k,
not for top-p.)
"""

import math
from collections.abc import Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.sampler_state import SamplerState
from minillm.sampling_params import SamplingParams

NUCLEUS_HEAD = 256
"""How many of the likeliest tokens top-p looks at first. A trained model's nucleus is rarely larger; and of
49,152 tokens one CPU core finds the likeliest 256 in 0.13 ms, while it needs 4.1 ms to sort them all:

    OMP_NUM_THREADS=1 python -m timeit -s "import torch; p = torch.randn(49152).softmax(0)" "p.topk(256)"
"""


def process_logits(
    logits: Float[Tensor, " vocab"], params: SamplingParams, state: SamplerState
) -> Float[Tensor, " vocab"]:
    """All the steps in order: the logits whose softmax the token is drawn from."""
    logits = apply_logit_bias(logits, params.logit_bias)
    logits = apply_repetition_penalty(logits, state.seen_token_ids, params.repetition_penalty)
    logits = apply_frequency_penalty(logits, state.generated_counts, params.frequency_penalty)
    logits = apply_presence_penalty(logits, state.generated_counts, params.presence_penalty)
    if params.temperature == 0.0:
        return logits  # no later step changes which token is likeliest
    logits = apply_temperature(logits, params.temperature)
    logits = keep_min_p(logits, params.min_p)
    logits = keep_top_k(logits, params.top_k)
    return keep_top_p(logits, params.top_p)


def apply_logit_bias(
    logits: Float[Tensor, " vocab"], logit_bias: Mapping[int, float] | None
) -> Float[Tensor, " vocab"]:
    """Add to each token's logit its bias, if it has one."""
    return _add(logits, logit_bias or {})


def apply_repetition_penalty(
    logits: Float[Tensor, " vocab"], token_ids: Collection[int], penalty: float
) -> Float[Tensor, " vocab"]:
    """Divide the logits of `token_ids` (prompt and completion) by `penalty`; multiply those below zero by it.

    Either way a penalty above 1 moves them down, once, however often a token occurs. From CTRL (Keskar et al.
    2019, section 4.1), with the usual correction: dividing a negative logit would have moved it up.
    """
    if penalty == 1.0 or not token_ids:
        return logits
    index = torch.tensor(list(token_ids), device=logits.device)  # [N]
    seen = logits[index]  # [N]
    return logits.scatter(0, index, torch.where(seen < 0, seen * penalty, seen / penalty))


def apply_frequency_penalty(
    logits: Float[Tensor, " vocab"], generated_counts: Mapping[int, int], penalty: float
) -> Float[Tensor, " vocab"]:
    """Subtract `penalty` from a token's logit for each time that it was generated, as in the OpenAI API."""
    if penalty == 0.0:
        return logits
    return _add(logits, {token_id: -penalty * count for token_id, count in generated_counts.items()})


def apply_presence_penalty(
    logits: Float[Tensor, " vocab"], generated_ids: Collection[int], penalty: float
) -> Float[Tensor, " vocab"]:
    """Subtract `penalty` from the logit of each generated token, once however often, as in the OpenAI API."""
    if penalty == 0.0:
        return logits
    return _add(logits, dict.fromkeys(generated_ids, -penalty))


def apply_temperature(logits: Float[Tensor, " vocab"], temperature: float) -> Float[Tensor, " vocab"]:
    """Divide by `temperature` > 0: below 1 the likeliest tokens gain, above 1 the unlikely ones do.

    The largest logit moves to 0 first, which a softmax does not see. So however small the temperature, the
    quotient can overflow only to -inf, and only for tokens that have no chance.
    """
    smallest = torch.finfo(logits.dtype).tiny  # anything less would be 0 in this dtype, and 0 / 0 is NaN
    return (logits - logits.max()) / max(temperature, smallest)


def keep_min_p(logits: Float[Tensor, " vocab"], min_p: float) -> Float[Tensor, " vocab"]:
    """Keep the tokens that are at least `min_p` times as likely as the likeliest one (Nguyen et al. 2024)."""
    if min_p == 0.0:
        return logits
    # p >= min_p * p_max, written in logarithms: the softmax's denominator cancels.
    return torch.where(logits < logits.max() + math.log(min_p), -math.inf, logits)


def keep_top_k(logits: Float[Tensor, " vocab"], top_k: int) -> Float[Tensor, " vocab"]:
    """Keep the `top_k` likeliest tokens, and those that tie with the last of them (Fan et al. 2018)."""
    if top_k == 0 or top_k >= logits.shape[0]:
        return logits
    return torch.where(logits < logits.topk(top_k).values[-1], -math.inf, logits)


def keep_top_p(logits: Float[Tensor, " vocab"], top_p: float) -> Float[Tensor, " vocab"]:
    """Keep the nucleus: the likeliest tokens, as few as together reach `top_p` (Holtzman et al. 2019).

    The token that carries the sum across `top_p` belongs to it, so a nucleus is never empty; and so do the
    tokens that tie with that one.
    """
    if top_p == 1.0:
        return logits
    probs = logits.softmax(0, dtype=torch.float32)  # [V]
    return torch.where(probs < _least_in_nucleus(probs, top_p), -math.inf, logits)


def _least_in_nucleus(probs: Float[Tensor, " vocab"], top_p: float) -> Float[Tensor, ""]:
    """The probability of the token that carries the running sum, likeliest first, across `top_p`."""
    vocab_size = probs.shape[0]
    # A GPU sorts quickly, but would have to be waited for to learn whether the head had been enough.
    head = vocab_size if probs.is_cuda else min(NUCLEUS_HEAD, vocab_size)
    likeliest = probs.topk(head).values  # [K], descending
    reached = likeliest.cumsum(0, dtype=torch.float64)  # [K]
    if head < vocab_size and reached[-1] < top_p:
        likeliest = probs.topk(vocab_size).values  # [V], descending
        reached = likeliest.cumsum(0, dtype=torch.float64)  # [V]
    crossing = torch.searchsorted(reached, top_p)  # the first place where the sum is at least top_p
    # Rounding can leave the sum of all tokens a hair short of a top_p near 1: then all are in.
    return likeliest.take(crossing.clamp(max=likeliest.shape[0] - 1))


def _add(logits: Float[Tensor, " vocab"], amounts: Mapping[int, float]) -> Float[Tensor, " vocab"]:
    """Add `amounts[token_id]` to that token's logit."""
    if not amounts:
        return logits
    index = torch.tensor(list(amounts), device=logits.device)  # [N]
    values = torch.tensor(list(amounts.values()), dtype=logits.dtype, device=logits.device)  # [N]
    return logits.index_add(0, index, values)
