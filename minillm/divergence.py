"""How far one model's predictions are from another's, token by token of a text that is there already.

Two models of the same vocabulary read the same text side by side: one that is trusted (float32), and one that is
smaller or faster. Perplexity says how well each predicts the text; it can hide a difference, for a model may be wrong
here and lucky there. The Kullback-Leibler divergence cannot: it compares whole distributions, and is 0 only where they
are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.model import Llama
from minillm.perplexity import logprobs_of, perplexity
from minillm.prefill import as_batch, one_pass


@dataclass(frozen=True)
class Divergence:
    """What a text of `tokens` predicted tokens says about a model beside its reference.

    perplexity, reference_perplexity: see `perplexity`. kl: nats per token, the mean of `kl_divergence`. same_top: the
    share of positions (0 to 1) at which both hold the same token to be the likeliest.
    """

    tokens: int
    perplexity: float
    reference_perplexity: float
    kl: float
    same_top: float

    @property
    def change(self) -> float:
        """How much higher the perplexity is than the reference's, as a share of it."""
        return self.perplexity / self.reference_perplexity - 1


def kl_divergence(reference: Float[Tensor, "rows vocab"], other: Float[Tensor, "rows vocab"]) -> Float[Tensor, " rows"]:
    """KL(reference || other) of the distributions that two tables of logits stand for, in nats, one number per row.

    The sum over the vocabulary of p (log p - log q): what it costs on average to expect q where p is true. A token that
    the reference holds impossible costs nothing. Source: Kullback and Leibler 1951.
    """
    log_p, log_q = reference.log_softmax(dim=-1), other.log_softmax(dim=-1)  # [n, V]
    p = log_p.exp()
    return torch.where(p == 0, 0.0, p * (log_p - log_q)).sum(dim=-1)  # [n]


@torch.inference_mode()
def compare(
    reference: Llama,
    model: Llama,
    ids: Sequence[int] | Tensor | Any,
    *,
    cache: KVCache | None = None,
    decode: bool = False,
    chunk_size: int = 64,
) -> Divergence:
    """Let both models predict each token of a text but the first, and set the predictions side by side.

    ids: the token ids of the text, at least two. cache: an empty one for `model`; None is one of its own dtype. decode:
    send the text through `model` token by token, as generation does, where it has a `decode_pass` through that one: on
    the CPU that rounds activations as well, which a pass over many rows does not. The reference always goes in chunks.

    No more than `chunk_size` rows of logits of each model are in memory at a time (64 rows of SmolLM2: 13 MB), with a
    few tensors of that size. Raises InputError for models of different vocabularies, fewer than two ids, or ids that do
    not fit into both contexts; NumbersError where logits are NaN or infinite.
    """
    _check(reference, model)
    tokens = as_batch(ids, model, batch_size=1)  # [1, T]
    inputs, targets = tokens[:, :-1], tokens[0, 1:]  # nobody asks what follows the last token
    if targets.numel() == 0:
        raise InputError("a text of 1 token has none that others predict: give two token ids or more")
    length = inputs.shape[1]
    trusted = KVCache(reference.config, length, device=reference.device, dtype=reference.dtype)
    own = KVCache(model.config, length, device=model.device, dtype=model.dtype) if cache is None else cache
    rows_of, step = [], 1 if decode else chunk_size
    for chunk, nexts in zip(inputs.split(chunk_size, dim=1), targets.split(chunk_size), strict=True):
        expected = _logits(reference, chunk.to(reference.device), trusted, chunk_size).to(model.device)  # [n, V]
        rows_of.append(_rows(expected, _logits(model, chunk, own, step), nexts))
    theirs, ours, kl, same = (torch.cat(column).tolist() for column in zip(*rows_of, strict=True))
    return Divergence(len(kl), perplexity(ours), perplexity(theirs), sum(kl) / len(kl), sum(same) / len(same))


def _logits(model: Llama, chunk: Int[Tensor, "1 n"], cache: KVCache, step: int) -> Float[Tensor, "n vocab"]:
    """The logits behind each token of a chunk, which goes through the model `step` tokens at a time."""
    parts = [model.logits(one_pass(model, part, cache)[0]) for part in chunk.split(step, dim=1)]  # each [step, V]
    return torch.cat(parts)  # [n, V]


def _rows(expected: Float[Tensor, "n vocab"], got: Float[Tensor, "n vocab"], nexts: Int[Tensor, " n"]) -> list[Tensor]:
    """Four columns [n]: the log-probability of the token that comes, twice; the divergence; whether the tops agree."""
    same = expected.argmax(dim=-1) == got.argmax(dim=-1)
    return [logprobs_of(expected, nexts), logprobs_of(got, nexts), kl_divergence(expected, got), same]


def _check(reference: Llama, model: Llama) -> None:
    ours, theirs = model.config.vocab_size, reference.config.vocab_size
    if ours != theirs:
        raise InputError(
            f"a vocabulary of {ours:,} tokens cannot be set against one of {theirs:,}: take the same model twice"
        )
