"""Exercises of chapter 5, *The KV cache*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 5           grades this file and shows where you are
    pytest --ch 5.2         grades one exercise
    pytest --hint 5.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

Letters used for sizes:

    B sequences   T new tokens   S tokens so far, the new ones included   L layers
    H query heads   Hkv key/value heads   D head_dim
"""

import torch
import torch.nn.functional as F  # noqa: F401 - here for you
from jaxtyping import Bool, Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.errors import InputError  # noqa: F401 - here for you
from minillm.exercises import todo


# --- 5.1 -------------------------------------------------------------------------------------------------------------
def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """How many bytes of cache does one token of one sequence need?

    config: the model's shape; look at `ModelConfig` in minillm/config.py for what it knows. dtype: what keys and
    values are stored in; `dtype.itemsize` is the bytes of one number.

    SmolLM2-135M keeps 23,040 bytes per token in bfloat16. Return a whole number (int).

    About 1 line.
    """
    todo("5.1")


# --- 5.2 -------------------------------------------------------------------------------------------------------------
def append(
    self,
    layer: int,
    k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
) -> tuple[Float[Tensor, "batch num_kv_heads kv_len head_dim"], Float[Tensor, "batch num_kv_heads kv_len head_dim"]]:
    """`KVCache.append`: keep the new tokens' keys and values of one layer; give back those of all tokens so far.

    self is the cache, and this function its method:

        self.keys, self.values    tensors [L, B, Hkv, max_seq_len, D], allocated once and for all
        self.length               how many tokens the cache holds; the new ones stand right behind them
        self.max_seq_len          how many it has room for

    layer: which layer is speaking. k, v: [B, Hkv, T, D], the T new tokens (a whole prompt, or a single token).

    Write them in place, into this layer alone. Return (keys, values) of the layer, each [B, Hkv, length + T, D], as
    *views* of the cache: slices, no copies. Do not touch `self.length`: every layer appends at the same place, and
    the caller advances the length once, when all have.

    Raise InputError, with a sentence, where the new tokens do not fit; nothing may have been written then. (Slicing
    past the end of a tensor is no error in PyTorch: one token assigned there vanishes without a word.)

    About 6 lines.
    """
    todo("5.2")


# --- 5.3 -------------------------------------------------------------------------------------------------------------
def single_query_attention(
    q: Float[Tensor, "batch num_heads 1 head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
) -> Float[Tensor, "batch num_heads 1 head_dim"]:
    """Attention of one new token over everything that is cached: softmax(q k^T / sqrt(D)) v, for each head.

    q: [B, H, 1, D], the newest token's queries. k, v: [B, Hkv, S, D], the keys and values of all S tokens so far,
    its own included. Return [B, H, 1, D], in q's dtype.

    The newest token may look at all of them, so there is no mask. Grouped-query attention: H is a multiple of Hkv,
    and each key/value head serves H / Hkv *neighbouring* query heads: with H = 6 and Hkv = 2, query heads 0, 1, 2
    read key head 0, and 3, 4, 5 read key head 1.

    k and v are views of the cache: whatever you write into them, the cache has for good. Do not.

    About 6 lines by hand (matmul, softmax, matmul).
    """
    todo("5.3")


# --- 5.4 -------------------------------------------------------------------------------------------------------------
def causal_mask(q_len: int, kv_len: int, device: torch.device | None = None) -> Bool[Tensor, "q_len kv_len"]:
    """Which key may which query see? [q_len, kv_len], True where it may.

    The queries are the *last* q_len of kv_len positions; those before are in the cache already. A token sees itself
    and everything before it. With 2 new tokens behind 3 cached ones, causal_mask(2, 5) is

        True  True  True  True  False
        True  True  True  True  True

    device: where the mask is to be made; None is PyTorch's default.

    About 2 lines.
    """
    todo("5.4")


# --- 5.5 -------------------------------------------------------------------------------------------------------------
def causal_attention(
    q: Float[Tensor, "batch num_heads q_len head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
) -> Float[Tensor, "batch num_heads q_len head_dim"]:
    """Attention of several new tokens on a warm cache: 5.3 for a whole chunk, where each token sees its own past only.

    q: [B, H, T, D], the queries of the last T of the S positions. k, v: [B, Hkv, S, D], all positions. Return
    [B, H, T, D], in q's dtype. Heads are grouped as in 5.3, and who sees whom is 5.4's mask. T == S is a prompt on an
    empty cache; T == 1 is a decode step; everything between is a chunk of a prompt, or a chat's next turn.

    Let the scores be large, of either sign: a score of 300 must not become a nan, and a hidden key gets no weight at
    all, however low the visible ones' scores are. k and v belong to the cache: do not write into them.

    About 8 lines by hand; 1 to 5 with `F.scaled_dot_product_attention`, if you know what its `is_causal` means when
    T < S. You may call your 5.4, and your 5.3: that a decode step needs no mask is worth using, and not graded.
    """
    todo("5.5")


# --- 5.6 -------------------------------------------------------------------------------------------------------------
def truncate(self, length: int) -> None:
    """`KVCache.truncate`: forget everything behind the first `length` tokens.

    self is the cache, as in 5.2; its property `length` reads the attribute `self._length`, which you may set.

    A chat whose last message is edited, a speculative decoder whose guess was wrong: both step back. What is
    forgotten need not be erased, because the next append overwrites it. So this costs nothing: no copy, no clearing,
    the same tensors as before, with the same room.

    length: 0 up to and including `self.length`. Raise InputError, with a sentence, for anything else: a cache cannot
    be truncated to more than it holds, nor to a negative length. The cache is then as it was.

    About 3 lines.
    """
    todo("5.6")


# --- 5.7 -------------------------------------------------------------------------------------------------------------
def tokens_that_fit(num_bytes: int, config: ModelConfig, dtype: torch.dtype, batch_size: int = 1) -> int:
    """When does the cache outgrow its memory? How many tokens may each of `batch_size` sequences have?

    num_bytes: the memory that is there for keys and values, in bytes. config, dtype: as in 5.1. All sequences are
    equally long, and none is shared. Return a whole number: a token that fits in part does not fit.

    With `num_bytes` set to the bytes of the weights, this is the length at which the cache weighs as much as the
    model does. Llama-2-13B in float16 has 26 GB of weights; 32 users get there with 991 tokens each.

    About 1 line. You may call your 5.1.
    """
    todo("5.7")
