"""How well a model predicts a text that is there already: log-probabilities, and perplexity.

Nothing is chosen here. The text says what comes next, and the model is asked how likely it held that.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError, NumbersError
from minillm.kv_cache import KVCache
from minillm.model import Llama
from minillm.prefill import as_batch, one_pass


@torch.inference_mode()
def text_logprobs(model: Llama, ids: Sequence[int] | Tensor | Any, chunk_size: int = 128) -> list[float]:
    """The log-probability (natural, of the raw logits) of each token but the first, given all those before it.

    ids: the token ids of the text, at least two, in a list or a tensor. One number fewer comes back, because nothing
    precedes the first token, so nothing predicts it. (Where a tokenizer begins each text with a BOS token, that one is
    the first.)

    The text goes through the model once, `chunk_size` tokens at a time, and every row goes through the head. Memory
    beyond the cache is that of one chunk: its logits are chunk_size x vocabulary x 4 bytes, 25 MB for 128 rows of
    SmolLM2, and a few tensors of that size come with them.

    Raises InputError for fewer than two ids, ids outside the vocabulary, more ids than the context holds, or a
    chunk_size below 1; NumbersError where the model's logits are NaN or infinite.
    """
    tokens = as_batch(ids, model, batch_size=1)  # [1, T]
    _check(tokens.shape[1], model.config.max_position_embeddings, chunk_size)
    inputs, targets = tokens[:, :-1], tokens[0, 1:]  # nobody asks what follows the last token
    cache = KVCache(model.config, inputs.shape[1], device=model.device, dtype=model.dtype)
    parts: list[Tensor] = []
    for chunk, nexts in zip(inputs.split(chunk_size, dim=1), targets.split(chunk_size), strict=True):
        hidden = one_pass(model, chunk, cache)  # [1, n, E]
        parts.append(logprobs_of(model.logits(hidden[0]), nexts))  # [n]
    return torch.cat(parts).tolist()


def perplexity(logprobs: Sequence[float]) -> float:
    """The exponential of minus the mean log-probability: the number of equally likely tokens among which a guess would
    be as hard as this text was.

    logprobs: natural logarithms, one for each predicted token, as `text_logprobs` gives them for a text or as
    `Step.logprob` says them of a completion. 1 is a model that knew every token; the size of the vocabulary, one that
    knew nothing. Infinite where a token was held to be impossible.

    Perplexities compare models only on the same text in the same tokens.

    Raises InputError where there is no log-probability. Source: Jelinek et al. 1977.
    """
    if not logprobs:
        raise InputError(
            "there is no log-probability to take a mean of: a perplexity needs a text of two tokens or more"
        )
    try:
        return math.exp(-fmean(logprobs))
    except OverflowError:  # a mean beyond -709, from a model whose logits are in the thousands
        return math.inf


def logprobs_of(logits: Float[Tensor, "rows vocab"], token_ids: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The log-probability that each row of logits gives its token."""
    chosen = logits.gather(1, token_ids[:, None]).squeeze(1)  # [n]
    total = logits.logsumexp(1)  # [n]; log_softmax at one column, without the table of all columns
    if not bool(total.isfinite().all()):  # one NaN or +inf in a row shows here, and so does a row of nothing but -inf
        raise NumbersError.of_logits("hold NaN or infinity")
    return chosen - total


def _check(num_tokens: int, context: int, chunk_size: int) -> None:
    """Refuse what could only crash, or be answered with numbers of another text."""
    if chunk_size < 1:
        raise InputError(f"chunk_size must be at least 1, not {chunk_size}")
    if num_tokens < 2:
        raise InputError(f"a text of {num_tokens} tokens has none that others predict: give two token ids or more")
    if num_tokens > context + 1:
        raise InputError(
            f"{num_tokens} tokens do not fit into the model's context of {context}: cut the text, and measure the parts"
        )
