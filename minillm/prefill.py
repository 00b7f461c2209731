"""Prefill: the whole prompt in one pass (or in a few chunks), for the logits of the token that follows it."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import InputError
from minillm.kv_cache import Cache, NoCache
from minillm.model import Llama


@torch.inference_mode()
def prefill(
    model: Llama, ids: Sequence[int] | Tensor | Any, cache: Cache, chunk_size: int | None = None
) -> Float[Tensor, "batch vocab"]:
    """Compute `ids` behind what `cache` holds, count them into it, and return the last position's logits.

    ids: one sequence of token ids, or an integer tensor [B, T]. chunk_size: at most this many tokens per pass;
    the logits are the same, the activations of a long prompt stay small. All tokens of a pass share one read of
    the weights, which is why a prompt token costs so much less time than a generated one. Only the last row
    goes through the head: nobody asks what follows the other tokens.

    Raises InputError for no ids, ids outside the vocabulary, more ids than fit, or a chunk_size below 1.
    """
    tokens = as_batch(ids, model, cache.batch_size)  # [B, T]
    num_tokens = tokens.shape[1]
    if chunk_size is not None and chunk_size < 1:
        raise InputError(f"chunk_size must be at least 1, not {chunk_size}")
    if cache.length + num_tokens > cache.max_seq_len:
        raise InputError(f"{num_tokens} tokens behind {cache.length} do not fit into a context of {cache.max_seq_len}")
    chunk_size = chunk_size or num_tokens
    if chunk_size < num_tokens and isinstance(cache, NoCache):
        raise InputError("prefill in chunks needs a cache: without one, a chunk cannot see those before it")
    hidden = forward_in_chunks(model, tokens, cache, chunk_size)  # [B, n, E]
    return next_token_logits(model, hidden)  # [B, V]


def forward_in_chunks(
    model: Llama, tokens: Int[Tensor, "batch q_len"], cache: Cache, chunk_size: int
) -> Float[Tensor, "batch last_chunk hidden"]:
    """Send all tokens through the layers, `chunk_size` of them per pass, and count each pass into the cache.

    The last chunk is what is left over; its hidden states are given back. Those of the chunks before it are dropped:
    what later tokens need of them is in the cache, and not to hold them is what chunks are for.
    """
    while tokens.shape[1] > chunk_size:
        one_pass(model, tokens[:, :chunk_size], cache)
        tokens = tokens[:, chunk_size:]  # [B, those that are left]
    return one_pass(model, tokens, cache)  # [B, n, E]


def one_pass(model: Llama, tokens: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
    """Compute and count in: the next pass stands behind this one, in its positions and in what it sees."""
    hidden = model(tokens, cache)  # [B, T, E]
    cache.advance(tokens.shape[1])
    return hidden


def next_token_logits(model: Llama, hidden: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch vocab"]:
    """The logits of what follows each sequence: those of its last row. No other row is sent through the head.

    The head is the largest matrix of a small model, and its result is wider than anything else in a pass: for a prompt
    of 2,000 tokens and Llama-3's vocabulary, all rows would be 1 GB of float32 numbers that nobody looks at.
    """
    return model.logits(hidden[:, -1])  # [B, V]


def as_batch(ids: Any, model: Llama, batch_size: int) -> Int[Tensor, "batch q_len"]:
    """`ids` as a tensor on the model's device, checked: an embedding lookup outside the table is a crash on CUDA.

    Raises InputError for what is not `batch_size` sequences of equally many ids of the vocabulary.
    """
    try:
        tokens = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError):
        raise InputError("ids must be a list of token ids, or a tensor of them: see tokenizer.encode") from None
    if tokens.numel() == 0:
        raise InputError("there are no tokens to compute: the prompt is empty")
    if tokens.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        raise InputError(f"token ids are whole numbers (int64 or less), not {tokens.dtype}: see tokenizer.encode")
    if tokens.dim() == 1:
        tokens = tokens[None]  # [1, T]
    if tokens.dim() != 2 or tokens.shape[0] != batch_size:
        raise InputError(f"ids of shape {list(tokens.shape)} do not fit a cache of {batch_size} sequences")
    # A decode step comes with a list of one id, and each tensor operation spared is felt there.
    is_plain = isinstance(ids, list) and all(type(token_id) is int for token_id in ids)
    lowest, highest = (min(ids), max(ids)) if is_plain else map(int, tokens.aminmax())
    if lowest < 0 or highest >= model.config.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InputError(f"token id {wrong} is outside the vocabulary of {model.config.vocab_size} tokens")
    is_ready = (tokens.dtype, tokens.device) == (torch.long, model.device)
    return tokens if is_ready else tokens.to(model.device, torch.long)
