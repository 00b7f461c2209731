"""From the model's logits to the next token: process them (`logits_processors`), then choose or draw.

A greedy request takes the likeliest token. Any other draws: one random number of its own (`sampler_state`), and the
inverse of the distribution's running sum.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError, NumbersError
from minillm.logits_processors import process_logits
from minillm.sampler_state import SamplerState
from minillm.sampling_params import SamplingParams

__all__ = [
    "Sampled",
    "SamplerState",
    "SamplingParams",
    "draw",
    "inverse_cdf",
    "likeliest",
    "process_logits",
    "sample",
    "sample_one",
    "top_logprobs",
]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One chosen token. Its log-probability is the model's own, of the raw logits: no processing touches it.

    `top_logprobs` holds the likeliest (token id, log-probability) pairs, as many as the request's `logprobs`,
    likeliest first and equal ones by id; None where it did not ask. The chosen token need not be among them.
    """

    token_id: int
    logprob: float
    top_logprobs: tuple[tuple[int, float], ...] | None


def draw(probs: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Draw a token from each row of `probs` by the inverse CDF: u in [0, 1) in, token id out.

    The token is the one at which the running sum of the row, in the order of ids, first exceeds u. If u is uniform,
    each token comes up with its own probability. The same row and u always give the same token; one of probability 0
    never comes up, because the running sum stands still there. (A GPU adds up in blocks: there, "still" holds to the
    16th digit.) In a row of NaN there is no such token: the answer may then be V, one past the last.
    """
    # In float64: near 1, float32 advances in steps of 6e-8, and a token less likely than that would be lost.
    cdf = probs.cumsum(-1, dtype=torch.float64)  # [B, V]
    # The whole sum is only nearly 1. As a fraction of it, no u below 1 points past the last possible token.
    target = uniforms[:, None] * cdf[:, -1:]  # [B, 1]
    return torch.searchsorted(cdf, target, right=True).squeeze(1)  # [B]


def inverse_cdf(probs: Float[Tensor, " vocab"], u: float) -> int:
    """`draw` for one row."""
    uniforms = torch.tensor([u], dtype=torch.float64, device=probs.device)  # [1]
    return int(draw(probs[None], uniforms))


def likeliest(scores: Float[Tensor, "batch vocab"]) -> Int[Tensor, " batch"]:
    """The id of the highest score in each row, the lowest one if several tie.

    On a CPU, PyTorch's `argmax` goes from number to number, and NumPy's takes as many as a register holds: of 49,152
    scores, it finds the highest in 6 us for 86.

        S="import torch; from minillm.sampler import likeliest; x = torch.randn(1, 49152)"
        python -m timeit -s "$S" "x.argmax(dim=-1)"
        python -m timeit -s "$S" "likeliest(x)"
    """
    if scores.device.type != "cpu" or scores.dtype != torch.float32:
        return scores.argmax(dim=-1)  # [B]
    return torch.from_numpy(scores.numpy(force=True).argmax(-1))  # [B]


def _process(
    logits: Float[Tensor, "batch vocab"], params: Sequence[SamplingParams], states: Sequence[SamplerState]
) -> Float[Tensor, "batch vocab"]:
    """`process_logits` of every row. Where no request asks for any of it, that is `logits`, and nothing is copied."""
    rows = logits.unbind()  # B x [V]
    processed = [process_logits(row, p, state) for row, p, state in zip(rows, params, states, strict=True)]
    return logits if all(map(operator.is_, processed, rows)) else torch.stack(processed)  # [B, V]


def _choose(
    processed: Float[Tensor, "batch vocab"], params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> Int[Tensor, " batch"]:
    """The likeliest token in greedy rows (the lowest id, if several tie), a drawn one in the others."""
    drawing = [i for i, p in enumerate(params) if p.temperature > 0.0]
    if len(drawing) == len(params):
        return _draw_from(processed, uniforms)
    token_ids = likeliest(processed)  # [B]
    if drawing:
        rows = torch.tensor(drawing).to(processed.device, non_blocking=True)  # [n]
        token_ids[rows] = _draw_from(processed[rows], [uniforms[i] for i in drawing])
    return token_ids


def _draw_from(processed: Float[Tensor, "batch vocab"], uniforms: Sequence[float]) -> Int[Tensor, " batch"]:
    """A drawn token for each row."""
    u = torch.tensor(uniforms, dtype=torch.float64).to(processed.device, non_blocking=True)  # [B]
    # Only of a row of NaN is there no token to draw: keep the id within the vocabulary, and `sample` reports the NaN.
    return draw(processed.softmax(-1), u).clamp(max=processed.shape[-1] - 1)  # [B]


def sample(
    logits: Float[Tensor, "batch vocab"],
    params: Sequence[SamplingParams],
    states: Sequence[SamplerState],
    uniforms: Sequence[float] | None = None,
) -> list[Sampled]:
    """Choose the next token of every request in a batch, greedy and drawn ones side by side.

    Row i belongs to `params[i]` and `states[i]`. Each state gives one random number, greedy or not, and is
    left alone otherwise: the caller tells it the token (`observe`). uniforms: those numbers, where the caller has taken
    them already. No row's outcome depends on the other rows. Token ids in `params` must be the model's own
    (`SamplingParams.check_against_vocabulary`).

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
    if uniforms is None:
        uniforms = [state.next_uniform() for state in states]
    processed = _process(logits, params, states)  # [B, V]
    token_ids = _choose(processed, params, uniforms)[:, None]  # [B, 1]
    logprobs = logits.log_softmax(-1)  # [B, V]

    outcome = []
    chosen = _as_numbers(token_ids, logprobs.gather(1, token_ids), processed.gather(1, token_ids))
    for i, (token_id, logprob, processed_logit) in enumerate(chosen):
        _check_numbers(i, logprob, processed_logit)
        alternatives = None if params[i].logprobs is None else top_logprobs(logprobs[i], params[i].logprobs)
        outcome.append(Sampled(int(token_id), logprob, alternatives))
    return outcome


def sample_one(logits: Float[Tensor, "1 vocab"], params: SamplingParams, state: SamplerState) -> Sampled:
    """`sample` for a batch of one, as a decode loop needs it; `observe` is left to the caller here too."""
    return sample(logits, [params], [state])[0]


def _as_numbers(*columns: Tensor) -> Iterable[Sequence[float]]:
    """The rows of a table of these columns, [B, 1] each. Only what comes from a GPU is made a table before."""
    if columns[0].device.type == "cpu":
        return zip(*(column.flatten().tolist() for column in columns), strict=True)
    # It comes in one copy: float64 holds every token id exactly.
    return torch.cat([column.double() for column in columns], dim=1).tolist()


def _check_numbers(row: int, logprob: float, processed_logit: float) -> None:
    """Look for trouble in the numbers of the chosen token alone: it always shows there."""
    # One NaN or +inf among the logits, or nothing but -inf, makes every log-probability of the row NaN.
    if math.isnan(logprob):
        raise NumbersError.of_logits(f"in row {row} hold NaN or +inf, or are all -inf")
    if not math.isfinite(processed_logit):
        raise InputError(
            f"row {row} has no token left to choose: after this request's logit_bias, penalties and temperature its "
            "logits are NaN or infinite in float32, so move those towards their neutral values (0, 0 or 1, and 1)."
        )


def top_logprobs(logprobs: Float[Tensor, " vocab"], count: int | None) -> tuple[tuple[int, float], ...] | None:
    """The `count` likeliest (token id, log-probability) pairs, likeliest first, equal ones by id."""
    if not count:
        return None if count is None else ()
    least = logprobs.topk(min(count, logprobs.shape[0])).values[-1]
    # Of several that tie for the last place topk takes any: look at all of them, and let the id decide.
    token_ids = (logprobs >= least).nonzero().squeeze(1)  # [N], at least `count` of them
    pairs = zip(token_ids.tolist(), logprobs[token_ids].tolist(), strict=True)
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:count])
