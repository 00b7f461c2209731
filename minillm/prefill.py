"""Prefill: the whole prompt in one pass (or in a few chunks), for the logits of the token that follows it."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.errors import InputError
from minillm.kv_cache import Cache
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
    tokens = _as_batch(ids, model, cache)  # [B, T]
    num_tokens = tokens.shape[1]
    if chunk_size is not None and chunk_size < 1:
        raise InputError(f"chunk_size must be at least 1, not {chunk_size}")
    if cache.length + num_tokens > cache.max_seq_len:
        raise InputError(f"{num_tokens} tokens behind {cache.length} do not fit into a context of {cache.max_seq_len}")
    chunks = tokens.split(chunk_size or num_tokens, dim=1)  # each [B, <= chunk_size]
    hidden = model(chunks[0], cache)  # [B, n, E]
    cache.advance(chunks[0].shape[1])
    for chunk in chunks[1:]:
        if cache.length == 0:
            raise InputError("prefill in chunks needs a cache: without one, a chunk cannot see those before it")
        hidden = model(chunk, cache)  # [B, n, E]
        cache.advance(chunk.shape[1])
    return model.logits(hidden[:, -1])  # [B, V]


def _as_batch(ids: Any, model: Llama, cache: Cache) -> Tensor:
    """[B, T] on the model's device, checked: an embedding lookup outside the table is a crash on CUDA."""
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
    if tokens.dim() != 2 or tokens.shape[0] != cache.batch_size:
        raise InputError(f"ids of shape {list(tokens.shape)} do not fit a cache of {cache.batch_size} sequences")
    lowest, highest = int(tokens.min()), int(tokens.max())
    if lowest < 0 or highest >= model.config.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InputError(f"token id {wrong} is outside the vocabulary of {model.config.vocab_size} tokens")
    return tokens.to(model.device, torch.long)
