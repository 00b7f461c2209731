"""Exercises of chapter 4, *Prefill*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 4           grades this file and shows where you are
    pytest --ch 4.2         grades one exercise
    pytest --hint 4.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

Letters used for sizes:

    B sequences   T new tokens   n tokens of the last chunk   E hidden size   V vocabulary
"""

import math  # noqa: F401 - here for you, as are the others

import torch  # noqa: F401
from jaxtyping import Float, Int
from torch import Tensor

from minillm.exercises import todo
from minillm.kv_cache import Cache
from minillm.machine.roofline import Machine, bound_by, prefill_work  # noqa: F401
from minillm.machine.shape import ModelShape
from minillm.model import Llama


# --- 4.1 -------------------------------------------------------------------------------------------------------------
def positions(self, num_tokens: int) -> Int[Tensor, "batch q_len"]:
    """`KVCache.positions`: at which positions do the next `num_tokens` tokens stand?

    self is the cache, and this function its method:

        self.length        how many tokens the cache holds, in each of its sequences: at first 0. Only to be read
        self.batch_size    how many sequences it holds, B
        self.keys.device   where the positions are needed: they are turned into the angles that say to a key where it is

    Return an integer tensor (int64) [B, num_tokens] on that device, with the same positions for each sequence. The
    first token of a text stands at position 0.

    The cache itself stays as it is: its length grows when the tokens have been computed, not when somebody asks.

    About 2 lines.
    """
    todo("4.1")


# --- 4.2 -------------------------------------------------------------------------------------------------------------
def forward_in_chunks(
    model: Llama, tokens: Int[Tensor, "batch q_len"], cache: Cache, chunk_size: int
) -> Float[Tensor, "batch last_chunk hidden"]:
    """Prefill's core: send all tokens through the layers, `chunk_size` of them in each pass.

    tokens: [B, T], at least one per sequence, checked to fit. chunk_size: 1 or more; where it is T or more, there is a
    single pass. Every chunk but the last has exactly `chunk_size` tokens of each sequence; the last has what is left.

    `model(chunk, cache)` is one pass. It gives the hidden states of the chunk's tokens, [B, n, E]; it asks the cache
    for their positions, writes their keys and values behind what is counted in, and attends over both.
    `cache.advance(n)` counts n tokens of each sequence in. The model does not do that: you do, when the pass is over.

    The cache may hold something when you are called: the earlier turns of a chat. The head has nothing to do here.

    Return the hidden states of the last chunk, [B, n, E]. Those of earlier chunks are not needed: what later tokens
    want to know of them is in the cache.

    About 5 lines.
    """
    todo("4.2")


# --- 4.3 -------------------------------------------------------------------------------------------------------------
def next_token_logits(model: Llama, hidden: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch vocab"]:
    """The logits of the token that follows each sequence, and of no other.

    hidden: [B, n, E], the hidden states of a prompt (or of its last chunk), as they come out of the layers.
    `model.logits(rows)` sends rows [..., E] through the head and gives [..., V], in float32.

    Return [B, V]. The head is the largest matrix of a small model: compute no row of it that nobody asks for. How many
    rows went through it is graded.

    About 1 line.
    """
    todo("4.3")


# --- 4.4 -------------------------------------------------------------------------------------------------------------
def visible_pairs(new_tokens: int, context: int = 0) -> int:
    """How many (query, key) pairs does attention compute for `new_tokens` tokens behind `context` cached ones?

    The causal mask hides the rest: each token looks at itself, at the new tokens before it, and at all cached ones.
    It is the number of True entries of `causal_mask(new_tokens, context + new_tokens)`, without making that mask,
    which for a prompt of 100,000 tokens would take 10 GB: one of the cases has a context for which no memory suffices.

    3 new tokens behind 4 cached ones see 5, 6 and 7: 18 pairs. Return a whole number (int). There is a formula, so that
    you need no loop either.

    About 1 line.
    """
    todo("4.4")


# --- 4.5 -------------------------------------------------------------------------------------------------------------
def smallest_compute_bound_prompt(
    shape: ModelShape, machine: Machine, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> int:
    """The knee: the fewest tokens, 1 or more, of a prompt whose prefill is limited by arithmetic and not by memory.

    shape: the model, dense. machine: its two speeds, `bandwidth_bytes_per_s` and `flops_per_s`; their quotient is
    `machine.ridge_point`. bytes_per_weight, bytes_per_kv: bytes of one number of weights and of cache.

    `prefill_work(shape, prompt_tokens, bytes_per_weight, bytes_per_kv)` (imported above) says what one pass over a
    prompt asks for: its `flops`, its `bytes`, and its `intensity`, which is the first by the second. A pass is limited
    by arithmetic when the time for its operations is at least the time for its bytes.

    Longer prompts bring more operations per byte, always, so there is such a length, and from there on all are. It may
    lie thousands of tokens out.

    About 4 lines.
    """
    todo("4.5")
