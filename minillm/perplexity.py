"""How well a model predicts a text that is there already: log-probabilities, and perplexity.

Nothing is chosen here. The text says what comes next, and the model is asked how likely it held that.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError, NumbersError
from minillm.kv_cache import KVCache
from minillm.model import Llama


@torch.inference_mode()
def text_logprobs(model: Llama, ids: Sequence[int], chunk_size: int = 128) -> list[float]:
    """The log-probability (natural, of the raw logits) of each token but the first, given all those before it.

    ids: the token ids of the text, at least two. One number fewer comes back, because nothing precedes the first
    token, so nothing predicts it. (Where a tokenizer begins each text with a BOS token, the first token is that one.)

    The text goes through the model once, `chunk_size` tokens at a time, and every row goes through the head. Memory
    beyond the cache is that of one chunk: its logits are chunk_size x vocabulary x 4 bytes, 25 MB for 128 rows of
    SmolLM2, and a few tensors of that size come with them.

    Raises InputError for fewer than two ids, ids outside the vocabulary, more ids than the context holds, or a
    chunk_size below 1; NumbersError where the model's logits are NaN or infinite.
    """
    _check(model, ids, chunk_size)
    tokens = torch.tensor([ids], device=model.device)  # [1, T]
    inputs, targets = tokens[:, :-1], tokens[0, 1:]  # nobody asks what follows the last token
    cache = KVCache(model.config, inputs.shape[1], device=model.device, dtype=model.dtype)
    parts: list[Tensor] = []
    for chunk, nexts in zip(inputs.split(chunk_size, dim=1), targets.split(chunk_size), strict=True):
        hidden = model(chunk, cache)  # [1, n, E]
        cache.advance(chunk.shape[1])
        parts.append(_logprobs_of(model.logits(hidden[0]), nexts))  # [n]
    logprobs = torch.cat(parts).tolist()
    if any(math.isnan(logprob) for logprob in logprobs):
        raise NumbersError(
            "the model's logits hold NaN or infinity: its weights are damaged, or its numbers outgrow the dtype "
            "(float16 ends at 65,504; bfloat16 and float32 reach 3e38)"
        )
    return logprobs


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
            "there is no log-probability to take a mean of: a perplexity needs a text of two tokens or more."
        )
    try:
        return math.exp(-fmean(logprobs))
    except OverflowError:  # a mean beyond -709, from a model whose logits are in the thousands
        return math.inf


def _logprobs_of(logits: Float[Tensor, "rows vocab"], token_ids: Int[Tensor, " rows"]) -> Float[Tensor, " rows"]:
    """The log-probability that each row of logits gives its token."""
    chosen = logits.gather(1, token_ids[:, None]).squeeze(1)  # [n]
    return chosen - logits.logsumexp(1)  # log_softmax at one column, without the table of all columns


def _check(model: Llama, ids: Sequence[int], chunk_size: int) -> None:
    """Refuse what could only crash, or be answered with numbers of another text."""
    vocab_size, context = model.config.vocab_size, model.config.max_position_embeddings
    if chunk_size < 1:
        raise InputError(f"chunk_size must be at least 1, not {chunk_size}.")
    if len(ids) < 2:
        raise InputError(f"a text of {len(ids)} tokens has none that others predict: give two token ids or more.")
    if len(ids) > context + 1:
        raise InputError(
            f"{len(ids)} tokens do not fit into the model's context of {context}: cut the text, and measure the parts."
        )
    wrong = [token_id for token_id in (min(ids), max(ids)) if not 0 <= token_id < vocab_size]
    if wrong:
        raise InputError(f"token id {wrong[0]} is outside the vocabulary of {vocab_size} tokens.")
