"""From the model's logits to the next token.

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
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError, NumbersError
from minillm.sampling_params import SamplingParams

__all__ = [
    "Sampled",
    "SamplerState",
    "SamplingParams",
    "inverse_cdf",
    "process_logits",
    "sample",
    "sample_one",
]

NUCLEUS_HEAD = 256
"""How many of the likeliest tokens top-p looks at first. A trained model's nucleus is rarely larger; and of
49,152 tokens one CPU core finds the likeliest 256 in 0.13 ms, while it needs 4.1 ms to sort them all:

    OMP_NUM_THREADS=1 python -m timeit -s "import torch; p = torch.randn(49152).softmax(0)" "p.topk(256)"
"""


# --- What comes out, and what a request remembers ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token. Its log-probability is the model's own, of the raw logits: no step above touches it.

    `top_logprobs` holds the likeliest (token id, log-probability) pairs, as many as the request's `logprobs`,
    likeliest first and equal ones by id; None where it did not ask. The chosen token need not be among them.
    """

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] | None


class SamplerState:
    """What one request's sampler remembers from step to step: its random numbers, and the tokens so far.

    The generator is Python's and runs on the CPU, so that a seed means the same on every device; and it
    belongs to one request alone, so that a request's tokens never depend on who shares its batch.
    """

    def __init__(self, params: SamplingParams, prompt_token_ids: Sequence[int] = ()) -> None:
        # Python's generator drops a seed's sign; taken modulo 2**64, 1 and -1 remain two seeds.
        self._random = random.Random(None if params.seed is None else params.seed % 2**64)
        self.seen_token_ids: set[int] = set(prompt_token_ids)
        self.generated_counts: Counter[int] = Counter()

    def next_uniform(self) -> float:
        """The step's random number, in [0, 1). Every step takes one: the n-th token uses the n-th number."""
        return self._random.random()

    def observe(self, token_id: int) -> None:
        """Record a token of the completion. The caller does this once for every token that it keeps."""
        self.seen_token_ids.add(token_id)
        self.generated_counts[token_id] += 1


# --- The steps, in order ----------------------------------------------------------------------------------


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
    """Divide by `temperature` > 0: below 1 the likeliest tokens gain, above 1 all the others do.

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


# --- The draw ---------------------------------------------------------------------------------------------


def inverse_cdf(probs: Float[Tensor, " vocab"], u: float) -> int:
    """The token at which the running sum of `probs`, in the order of ids, first exceeds `u`, for u in [0, 1).

    If `u` is uniform, each token comes up with its own probability. The same `probs` and `u` always give the
    same token; one of probability 0 never comes up, because the running sum stands still there. (A GPU
    adds up in blocks: there, "still" holds to the 16th digit.)
    """
    uniforms = torch.tensor([u], dtype=torch.float64, device=probs.device)  # [1]
    return int(_inverse_cdf(probs[None], uniforms))


def _inverse_cdf(probs: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    # In float64: near 1, float32 advances in steps of 6e-8, and a token less likely than that would be lost.
    cdf = probs.cumsum(-1, dtype=torch.float64)  # [B, V]
    # The whole sum is only nearly 1. As a fraction of it, no u below 1 points past the last possible token.
    target = uniforms[:, None] * cdf[:, -1:]  # [B, 1]
    index = torch.searchsorted(cdf, target, right=True).squeeze(1)  # [B]
    return index.clamp(max=probs.shape[-1] - 1)  # only a row of NaN is beyond it, and `sample` reports that


def _choose(
    processed: Float[Tensor, "batch vocab"], params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> Int[Tensor, " batch"]:
    """The likeliest token in greedy rows (the lowest id, if several tie), a drawn one in the others."""
    likeliest = processed.argmax(-1)  # [B]
    if all(p.temperature == 0.0 for p in params):
        return likeliest
    probs = processed.softmax(-1)  # [B, V]
    u = torch.tensor(uniforms, dtype=torch.float64).to(probs.device, non_blocking=True)  # [B]
    is_drawn = torch.tensor([p.temperature > 0.0 for p in params]).to(probs.device, non_blocking=True)  # [B]
    return torch.where(is_drawn, _inverse_cdf(probs, u), likeliest)


def sample(
    logits: Float[Tensor, "batch vocab"], params: Sequence[SamplingParams], states: Sequence[SamplerState]
) -> list[Sampled]:
    """Choose the next token of every request in a batch, greedy and drawn ones side by side.

    Row i belongs to `params[i]` and `states[i]`. Each state gives one random number, greedy or not, and is
    left alone otherwise: the caller tells it the token (`observe`). No row's outcome depends on the other
    rows. Token ids in `params` must be the model's own (`SamplingParams.check_against_vocabulary`).

    All arithmetic is in float32, whatever the model's dtype. What is chosen comes back from a GPU in one
    copy; only alternatives (`logprobs`) take more.

    Raises InputError where bias and penalties leave a row no token to choose, and NumbersError where the
    model failed: its logits are NaN or +inf, or all of them are -inf.
    """
    if not len(params) == len(states) == logits.shape[0]:
        raise InputError(
            f"sample got {logits.shape[0]} rows of logits, {len(params)} params and {len(states)} states, "
            "but it needs one of each per request."
        )
    if not params:
        return []  # a step in which no request has reached its next token
    logits = logits.float()  # [B, V]
    uniforms = [state.next_uniform() for state in states]
    rows = zip(logits, params, states, strict=True)
    processed = torch.stack([process_logits(row, p, state) for row, p, state in rows])  # [B, V]
    token_ids = _choose(processed, params, uniforms)[:, None]  # [B, 1]

    logprobs = logits.log_softmax(-1)  # [B, V]
    # Float64 holds every token id exactly, so one small table carries all three numbers to the CPU.
    columns = token_ids, logprobs.gather(1, token_ids), processed.gather(1, token_ids)
    table = torch.cat([column.double() for column in columns], dim=1)  # [B, 3]

    outcome = []
    for i, (token_id, logprob, processed_logit) in enumerate(table.tolist()):
        _check_numbers(i, logprob, processed_logit)
        outcome.append(Sampled(int(token_id), logprob, _top_logprobs(logprobs[i], params[i].logprobs)))
    return outcome


def sample_one(logits: Float[Tensor, "1 vocab"], params: SamplingParams, state: SamplerState) -> Sampled:
    """`sample` for a batch of one, as a decode loop needs it; `observe` is left to the caller here too."""
    return sample(logits, [params], [state])[0]


def _check_numbers(row: int, logprob: float, processed_logit: float) -> None:
    """Look for trouble in the numbers of the chosen token alone: it always shows there."""
    # One NaN or +inf among the logits, or nothing but -inf, makes every log-probability of the row NaN.
    if math.isnan(logprob):
        raise NumbersError(
            f"the model's logits in row {row} hold NaN or +inf, or are all -inf: its weights are damaged, or its "
            "numbers outgrow the dtype (float16 ends at 65,504; bfloat16 and float32 reach 3e38)"
        )
    if not math.isfinite(processed_logit):
        raise InputError(
            f"row {row} has no token left to choose: with this logit_bias and repetition_penalty, the logits "
            "overflow float32, so move both towards their neutral values, 0 and 1."
        )


def _top_logprobs(logprobs: Float[Tensor, " vocab"], count: int | None) -> tuple[tuple[int, float], ...] | None:
    """The `count` likeliest (token id, log-probability) pairs, likeliest first, equal ones by id."""
    if not count:
        return None if count is None else ()
    least = logprobs.topk(min(count, logprobs.shape[0])).values[-1]
    # Of several that tie for the last place topk takes any: look at all of them, and let the id decide.
    token_ids = (logprobs >= least).nonzero().squeeze(1)  # [N], at least `count` of them
    pairs = zip(token_ids.tolist(), logprobs[token_ids].tolist(), strict=True)
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])
