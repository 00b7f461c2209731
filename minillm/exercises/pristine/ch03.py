"""Exercises of chapter 3, *Inside the transformer*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 3           grades this file and shows where you are
    pytest --ch 3.2         grades one exercise
    pytest --hint 3.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

Four of the seven are methods: `self` is the module whose `forward` you write, with its weights in it. Its parts are
modules too, and called like functions: `self.qkv_proj(x)` multiplies x with that matrix and adds its bias, if any.

Letters used for sizes:

    B sequences   T new tokens   S tokens so far, the new ones included   E hidden_size   I intermediate_size
    H query heads   Hkv key/value heads   D head_dim
"""

import math  # noqa: F401 - here for you

import torch  # noqa: F401 - here for you
import torch.nn.functional as F  # noqa: F401 - here for you
from jaxtyping import Float, Int
from torch import Tensor

from minillm.exercises import todo
from minillm.kv_cache import Cache
from minillm.rope import rope_tables  # noqa: F401 - here for you


# --- 3.1 -------------------------------------------------------------------------------------------------------------
def rms_norm(
    x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], eps: float
) -> Float[Tensor, "*rows hidden"]:
    """RMSNorm: bring every token's vector to the same size, then scale each of its numbers by a learned weight.

    x: [..., E], any number of axes before the last; each row along the last axis is one token. weight: [E].

        x / sqrt(mean of the squares of the row + eps) * weight

    Return [..., E], in x's dtype. The squares and their mean must be taken in float32, whatever x is in: in float16
    the square of 256 is infinite already. x is the residual stream, which others still read: do not write into it.

    About 3 lines.
    """
    todo("3.1")


# --- 3.2 -------------------------------------------------------------------------------------------------------------
def plain_frequencies(head_dim: int, rope_theta: float) -> Float[Tensor, " half_dim"]:
    """How fast does each pair of a head turn? In radians per position, [D/2], float32.

    Pair i (0, 1, ..., D/2 - 1) turns by rope_theta ** (-2 i / D). Pair 0 turns by one radian per token, whatever
    rope_theta is; each further pair more slowly, by the same factor each time.

    With head_dim = 4 and rope_theta = 10000.0 the answer is [1.0, 0.01].

    About 2 lines.
    """
    todo("3.2")


# --- 3.3 -------------------------------------------------------------------------------------------------------------
def apply_rope(
    x: Float[Tensor, "batch heads q_len head_dim"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Turn every pair of every head by its angle.

    x: [B, H, T, D], queries or keys. cos, sin: [B, 1, T, D/2], the cosine and sine of each token's angle for each
    pair, in x's dtype; the axis of size 1 stands for the heads, which all turn alike.

    Which two numbers are a pair? Number i and number i + D/2: the first half of a head holds all the x-coordinates,
    the second half all the y-coordinates. A pair (a, b) turned by an angle counter-clockwise becomes

        (a cos - b sin,  b cos + a sin)

    Return [B, H, T, D], each number in the place of the one it was made from. Leave x as it is.

    About 2 lines.
    """
    todo("3.3")


# --- 3.4 -------------------------------------------------------------------------------------------------------------
def attention_forward(
    self,
    x: Float[Tensor, "batch q_len hidden"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
    cache: Cache,
) -> Float[Tensor, "batch q_len hidden"]:
    """`Attention.forward`: project, split into heads, turn, attend, join the heads, project back.

    self is the module, and this function its method:

        self.qkv_proj        E -> (H + 2 Hkv) D: the queries of all heads, then the keys, then the values
        self.o_proj          H D -> E
        self.num_heads, self.num_kv_heads, self.head_dim        H, Hkv, D
        self.sizes           [H D, Hkv D, Hkv D]
        self.layer           which layer this is

    x: [B, T, E], normalised already. cos, sin: [B, 1, T, D/2], for the positions of these T tokens. Queries and keys
    are turned by them, as in 3.3; values are not.

    `cache.attend(self.layer, q, k, v)` writes k and v behind what the cache holds, and attends with q over all of it:
    it wants q [B, H, T, D], k and v [B, Hkv, T, D], and gives [B, H, T, D]. (That is chapter 5, and takes care of scale
    and mask.) Leave the cache's length alone: the caller advances it when all layers have run.

    Return [B, T, E]: what is to be added to the residual stream, without the stream itself.

    About 8 lines. You may call your 3.3.
    """
    todo("3.4")


# --- 3.5 -------------------------------------------------------------------------------------------------------------
def mlp_forward(self, x: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch q_len hidden"]:
    """`SwiGLU.forward`: widen each token's vector, let a gate decide what passes, and narrow it again.

    self is the module:

        self.gate_up_proj    E -> 2 I: first the I numbers of the gate, then the I numbers of "up"
        self.down_proj       I -> E

    x: [B, T, E], normalised already. The gate goes through silu(z) = z * sigmoid(z) (`F.silu`), and multiplies "up",
    number by number. Return [B, T, E], without the residual stream itself.

    About 2 lines.
    """
    todo("3.5")


# --- 3.6 -------------------------------------------------------------------------------------------------------------
def layer_forward(
    self,
    x: Float[Tensor, "batch q_len hidden"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
    cache: Cache,
) -> Float[Tensor, "batch q_len hidden"]:
    """`DecoderLayer.forward`: attention, then the MLP; each reads the residual stream and adds to it.

    self is the module:

        self.input_layernorm, self.post_attention_layernorm        the two norms, [B, T, E] -> [B, T, E]
        self.self_attn(x, cos, sin, cache)                         3.4, [B, T, E]
        self.mlp(x)                                                3.5, [B, T, E]

    x: [B, T, E], the residual stream as it comes in. Each half reads a *normalised copy* of it, and what it gives is
    added to the stream itself; the second half reads what the first has left. Return the stream, [B, T, E], as a new
    tensor: the x that came in is the caller's, and stays as it is.

    The name post_attention_layernorm says where in the layer it stands: behind attention, before the MLP.

    About 2 lines.
    """
    todo("3.6")


# --- 3.7 -------------------------------------------------------------------------------------------------------------
def llama_forward(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
    """`Llama.forward`: the whole pass, from token ids to the hidden states that the LM head will turn into logits.

    self is the model:

        self.embed_tokens(ids)       [B, T] -> [B, T, E]: row id of the embedding table, for each token
        self.layers                  the decoder layers, in order; each is called as layer(x, cos, sin, cache)
        self.norm                    the last norm
        self.inv_freq                [D/2], 3.2 (in float32, and stretched where a model asks for it)

    ids: [B, T], the tokens that follow what `cache` holds. `cache.positions(T)` gives the positions at which they
    stand, [B, T], and `rope_tables(positions, self.inv_freq)` the pair (cos, sin), each [B, 1, T, D/2] in float32. The
    layers compute in the dtype of the model, and want cos and sin in it.

    Return [B, T, E] after the last norm. No LM head: a prompt needs it for its last row only, so it is another call.
    Leave the cache's length alone: all layers write at the same place, and the caller advances it afterwards.

    About 6 lines.
    """
    todo("3.7")
