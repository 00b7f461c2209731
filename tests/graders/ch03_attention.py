"""3.4: the attention module, on a cache that holds something, against the formula in float64."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_oracle import BATCH, HELD, NEW, ROOM
from graders.ch03_turns import turned
from graders.common import UNTOUCHED, random, touched
from minillm.attention import causal_attention
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache
from minillm.model import Attention

_LAYER = 2
_E, _H = oracle.config().hidden_size, oracle.config().num_attention_heads


def _module(bias: bool) -> Attention:
    return oracle.filled(Attention(oracle.config(bias), _LAYER))


def _case(given: str, *, held: int, new: int, batch: int = BATCH, bias: bool = False) -> Case:
    shape = oracle.config(bias)
    x = random(batch, new, shape.hidden_size, seed=8)
    angles = random(batch, 1, new, shape.head_dim // 2, seed=9) * 2  # any angles will do

    def observe(f: Function) -> Observation:
        cache, own = oracle.warm_cache(shape, held, batch), x.clone()
        calls: Counter[str] = Counter()
        oracle.counted(calls, **{"the cache's attend (or append)": (cache, "append")})
        with oracle.without_shape_checks():
            result = f(_module(bias), own, angles.cos(), angles.sin(), cache)
        return {
            "the result": result,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": cache.length,
            "x afterwards": touched(x=(own, x)),
            "the calls": oracle.repeated(calls),
        }

    def want() -> Observation:
        cache = oracle.warm_cache(shape, held, batch)
        result = oracle.attention(_module(bias), x, angles, cache)
        return {
            "the result": result.float(),
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": held,
            "x afterwards": UNTOUCHED,
            "the calls": oracle.ONCE,
        }

    biases = ", with biases" if bias else ""
    sizes = f"layer {_LAYER} of a model with E = 20, H = 6, Hkv = 3, D = 8{biases}; x [{batch}, {new}, 20]"
    return Case(f"{sizes}; {given} (a cache that holds {held} of {ROOM} tokens)", observe, want)


# --- one configurable answer -----------------------------------------------------------------------------------------

Heads = Callable[[Tensor, int, int], Tensor]  # [B, T, heads x D], heads, D -> [B, heads, T, D]


def _split(piece: Tensor, heads: int, dim: int) -> Tensor:
    return piece.view(*piece.shape[:2], heads, dim).transpose(1, 2)


def _join(mixed: Tensor) -> Tensor:
    return mixed.transpose(1, 2).reshape(mixed.shape[0], mixed.shape[2], -1)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return turned(x, sin.atan2(cos)).to(x.dtype)


def _attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    return cache.attend(self.layer, q, k, v)


def _answer(
    *,
    order: tuple[int, int, int] = (0, 1, 2),
    split: Heads = _split,
    turn: tuple[bool, bool, bool] = (True, True, False),
    attend: Callable[..., Tensor] = _attend,
    join: Callable[[Tensor], Tensor] = _join,
    end: Callable[[Attention, Tensor, Tensor], Tensor] = lambda self, joined, x: self.o_proj(joined),
) -> Function:
    """The module's forward; each argument replaces one of its decisions."""

    def attention_forward(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        sizes = [0, 0, 0]
        for place, piece in enumerate(order):
            sizes[place] = self.sizes[piece]
        in_memory = self.qkv_proj(x).split(sizes, dim=-1)
        pieces = [in_memory[order.index(piece)] for piece in range(3)]  # q, k, v, as the answer believes
        q, k, v = (split(piece, n, self.head_dim) for piece, n in zip(pieces, heads, strict=True))
        q, k, v = (_rope(y, cos, sin) if on else y for y, on in zip((q, k, v), turn, strict=True))
        return end(self, join(attend(self, q, k, v, cache)), x)

    return attention_forward


def _straight_view(piece: Tensor, heads: int, dim: int) -> Tensor:
    return piece.reshape(piece.shape[0], heads, piece.shape[1], dim)


def _dealt_out(piece: Tensor, heads: int, dim: int) -> Tensor:
    return piece.view(*piece.shape[:2], dim, heads).permute(0, 3, 1, 2)


def _past_forgotten(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    return causal_attention(q, k, v)


def _kept_but_not_read(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    cache.append(self.layer, k, v)
    return causal_attention(q, k, v)


def _layer_zero(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    return cache.attend(0, q, k, v)


def _scaled_twice(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    return cache.attend(self.layer, q * self.head_dim**-0.5, k, v)


def _advancing(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    mixed = cache.attend(self.layer, q, k, v)
    cache.advance(k.shape[2])
    return mixed


def _twice(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    cache.attend(self.layer, q, k, v)
    return cache.attend(self.layer, q, k, v)


def _repeated(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    groups = self.num_heads // self.num_kv_heads
    return cache.attend(self.layer, q, k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1))


def _swapped(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    return cache.attend(self.layer, q, v, k)


def _by_append(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
    keys, values = cache.append(self.layer, k, v)
    return causal_attention(q, keys, values)


def _turned_behind_the_cache(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    """Keys are kept as they are, and turned when they are read."""

    def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, cache: KVCache) -> Tensor:
        keys, values = cache.append(self.layer, k, v)
        old = keys[:, :, : keys.shape[2] - k.shape[2]]
        return causal_attention(q, torch.cat((old, _rope(k, cos, sin)), dim=2), values)

    return _answer(turn=(True, False, False), attend=attend)(self, x, cos, sin, cache)


def _turned_before_the_swap(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    q, k, v = self.qkv_proj(x).split(self.sizes, dim=-1)
    batch, new, _ = x.shape
    q, k, v = (piece.view(batch, new, -1, self.head_dim) for piece in (q, k, v))  # [B, T, heads, D]
    half = self.head_dim // 2
    q = q[..., :half] * cos - q[..., half:] * sin  # heads and tokens are still swapped: the shapes do not fit
    return cache.attend(self.layer, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def _thirds(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    batch, new, _ = x.shape
    q, k, v = self.qkv_proj(x).chunk(3, dim=-1)
    q = q.view(batch, new, self.num_heads, self.head_dim).transpose(1, 2)
    return cache.attend(self.layer, q, k, v)


def _equal_thirds(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    pieces = self.qkv_proj(x).chunk(3, dim=-1)
    q, k, v = (piece.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2) for piece in pieces)
    return self.o_proj(_join(cache.attend(self.layer, _rope(q, cos, sin), _rope(k, cos, sin), v)))


def _head_dim_computed(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    dim = x.shape[-1] // self.num_heads
    q, k, v = self.qkv_proj(x).split([self.num_heads * dim, self.num_kv_heads * dim, self.num_kv_heads * dim], dim=-1)
    return cache.attend(self.layer, _split(q, self.num_heads, dim), k, v)


def _without_first_bias(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    qkv = (x @ self.qkv_proj.weight.T).split(self.sizes, dim=-1)
    q, k, v = (_split(piece, piece.shape[-1] // self.head_dim, self.head_dim) for piece in qkv)
    return self.o_proj(_join(cache.attend(self.layer, _rope(q, cos, sin), _rope(k, cos, sin), v)))


def _without_bias(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    qkv = (x @ self.qkv_proj.weight.T).split(self.sizes, dim=-1)
    q, k, v = (_split(piece, piece.shape[-1] // self.head_dim, self.head_dim) for piece in qkv)
    mixed = cache.attend(self.layer, _rope(q, cos, sin), _rope(k, cos, sin), v)
    return _join(mixed) @ self.o_proj.weight.T


def _all_heads_at_once(self: Attention, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
    heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H + 2 Hkv, T, D]
    turning = self.num_heads + self.num_kv_heads
    turned_heads, v = _rope(heads[:, :turning], cos, sin), heads[:, turning:]
    mixed = cache.attend(self.layer, turned_heads[:, : self.num_heads], turned_heads[:, self.num_heads :], v)
    return self.o_proj(mixed.transpose(1, 2).flatten(2))


def _permuted(piece: Tensor, heads: int, dim: int) -> Tensor:
    return piece.reshape(piece.shape[0], piece.shape[1], heads, dim).permute(0, 2, 1, 3).contiguous()


ATTENTION = Grader(
    cases=[
        _case("a chunk", held=HELD, new=NEW),
        _case("a decode step", held=7, new=1),
        _case("a prompt", held=0, new=4, batch=1),
        _case("a chunk", held=HELD, new=NEW, bias=True),
    ],
    mutants=[
        Mutant(
            _answer(split=_straight_view),
            "You view [B, T, heads x D] straight as [B, heads, T, D]. That fits, and hands each head pieces of other"
            " tokens. First an axis for the heads, [B, T, heads, D], then transpose(1, 2).",
        ),
        Mutant(
            _answer(split=_dealt_out),
            "You deal a token's numbers out to the heads like cards. Each head's D numbers lie side by side: .view(B,"
            " T, heads, D), the heads before D.",
        ),
        Mutant(
            _answer(order=(0, 2, 1)),
            "Keys and values have changed places in the projection. Its rows are the queries', then the keys', then the"
            " values'.",
        ),
        Mutant(
            _answer(order=(1, 2, 0)),
            "You look for the queries at the end of the projection. They come first; then keys, then values.",
        ),
        Mutant(
            _answer(attend=_swapped),
            "You hand k and v to the cache the wrong way round: attend(layer, q, k, v).",
        ),
        Mutant(
            _answer(turn=(False, False, False)),
            "Nothing is turned. Without it attention cannot tell where a token stands: queries and keys go through"
            " apply_rope.",
        ),
        Mutant(
            _answer(turn=(True, False, False)),
            "Only the queries are turned. A score depends on the *difference* of two angles, so the keys are turned"
            " too, before they go into the cache.",
        ),
        Mutant(
            _answer(turn=(False, True, False)),
            "Only the keys are turned. A score depends on the *difference* of two angles, so the queries are turned"
            " too.",
        ),
        Mutant(
            _answer(turn=(True, True, True)),
            "The values are turned as well. They are what is handed over, not what is compared: position has no"
            " business in them.",
        ),
        Mutant(
            _turned_behind_the_cache,
            "You turn the keys only after they went into the cache. This pass is right, and the next one reads keys"
            " that were never turned: turn k first, then attend.",
        ),
        Mutant(
            _answer(join=lambda mixed: mixed.reshape(mixed.shape[0], mixed.shape[2], -1)),
            "The heads are joined without swapping the axes back. attend gives [B, H, T, D]: transpose(1, 2) first,"
            " then reshape, or tokens get pieces of each other.",
        ),
        Mutant(
            _answer(end=lambda self, joined, x: joined),
            "o_proj is missing: you return the heads side by side, H x D numbers, where the stream has E.",
        ),
        Mutant(
            _answer(end=lambda self, joined, x: x + self.o_proj(joined)),
            "You add x here. The layer does that (3.6), and it adds to the stream as it was *before* the norm; x is the"
            " normalised copy.",
        ),
        Mutant(
            _answer(attend=_past_forgotten),
            "You attend to the new tokens alone, and keep nothing. cache.attend writes k and v and looks at all that is"
            " held.",
        ),
        Mutant(
            _answer(attend=_kept_but_not_read),
            "You write into the cache and then attend to the new tokens alone. append gives back the keys and values of"
            " *all* tokens so far; cache.attend does both.",
        ),
        Mutant(
            _answer(attend=_layer_zero),
            "You write into layer 0 of the cache, whichever layer this is: self.layer.",
        ),
        Mutant(
            _answer(attend=_scaled_twice),
            "The scores are scaled twice: cache.attend divides by sqrt(D) already.",
        ),
        Mutant(
            _answer(attend=_advancing),
            "You advance the cache. Every layer writes at the same place: only when all have may the caller count the"
            " new tokens in.",
        ),
        Mutant(
            _without_bias,
            "The biases are lost. Call the projections, self.qkv_proj(x), instead of multiplying with their weights:"
            " some models have a bias, and theirs add it.",
        ),
        Mutant(
            _without_first_bias,
            "The bias of q, k and v is lost. Call self.qkv_proj(x) instead of multiplying with its weights: some models"
            " have a bias there.",
        ),
        Mutant(
            _answer(attend=_twice),
            "You call cache.attend twice. It writes into the cache and does all the work of attention each time: call"
            " it once, and keep what it gives.",
        ),
        Mutant(
            _answer(attend=_repeated),
            "You repeat keys and values until there are as many heads as the queries have. The cache keeps Hkv heads"
            " only, which is what they are for; attend lets query heads share them.",
            begins="InputError: keys of shape [2, 6, 5, 8]",
        ),
        Mutant(
            _equal_thirds,
            "You cut the projection into three equal parts, and so get as many heads of keys as of queries. There are H"
            " of queries and Hkv of keys and of values: split(self.sizes, dim=-1).",
            begins="InputError: keys of shape [2, 4, 5, 8]",
        ),
        Mutant(
            _answer(split=lambda piece, heads, _: piece.view(*piece.shape[:2], heads, _E // _H).transpose(1, 2)),
            "You compute a head's width as E / H. It is a number of its own, self.head_dim, and H D need not be E.",
        ),
        Mutant(
            _head_dim_computed,
            "You compute the pieces' widths from E / H. A head's width is a number of its own: self.sizes"
            " has the three widths.",
            begins="RuntimeError: split_with_sizes expects",
        ),
        Mutant(
            _answer(
                join=lambda mixed: mixed.transpose(1, 2),
                end=lambda self, mixed, x: self.o_proj(mixed.reshape(x.shape)),
            ),
            "You reshape the joined heads to x's shape. They are H D numbers for each token, and that need not be E:"
            " reshape(B, T, -1), and o_proj makes E of them.",
        ),
        Mutant(
            _turned_before_the_swap,
            "You turn [B, T, heads, D]. cos and sin are [B, 1, T, D/2], made for [B, heads, T, D]: transpose first.",
            begins="RuntimeError: The size of tensor a (6) must match the size of tensor b (5)",
        ),
        Mutant(
            _thirds,
            "You cut the projection into three equal parts. There are more query heads than key/value heads: split it"
            " by self.sizes.",
            begins="RuntimeError: shape '[2, 5, 6, 8]' is invalid for input of size",
        ),
    ],
    alternatives=[
        _all_heads_at_once,
        _answer(),
        _answer(attend=_by_append),
        _answer(split=_permuted),
    ],
)
