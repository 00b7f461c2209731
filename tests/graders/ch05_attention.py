"""5.3, 5.4 and 5.5: attention over a warm cache, against plain loops in float64."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graders.common import UNTOUCHED, formula, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

# --- the oracle ------------------------------------------------------------------------------------------------------


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v, number by number in Python's float64; the queries are the last positions."""
    batch, num_heads, q_len, _ = q.shape
    group = num_heads // k.shape[1]
    cached = k.shape[2] - q_len
    qs, ks, vs = q.tolist(), k.tolist(), v.tolist()
    result = [
        [
            [_mix(qs[b][h][t], ks[b][h // group][: cached + t + 1], vs[b][h // group]) for t in range(q_len)]
            for h in range(num_heads)
        ]
        for b in range(batch)
    ]
    return torch.tensor(result, dtype=torch.float64).to(q.dtype)  # [B, H, T, D]


def _mix(query: list[float], keys: list[list[float]], values: list[list[float]]) -> list[float]:
    """One query over the keys that it may see."""
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    mixed = [0.0] * len(query)
    for weight, value in zip(weights, values, strict=False):
        for d, entry in enumerate(value):
            mixed[d] += weight * entry / sum(weights)
    return mixed


# --- inputs, laid out in memory as the engine's are ------------------------------------------------------------------


def _inputs(batch: int, heads: int, kv_heads: int, new: int, so_far: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries as the projection leaves it (a slice, axes swapped), keys and values as the cache gives them (slices)."""
    q = random(batch, new, heads + 2, dim, seed=1).transpose(1, 2)[:, :heads]  # [B, H, T, D]
    k = random(batch, kv_heads, so_far + 3, dim, seed=2)[:, :, :so_far]  # [B, Hkv, S, D]
    v = random(batch, kv_heads, so_far + 3, dim, seed=3)[:, :, :so_far]
    return q, k, v


def _large_scores(batch: int, heads: int, kv_heads: int, new: int, so_far: int, dim: int) -> tuple[Tensor, ...]:
    """Whole numbers, so that scores in the hundreds are exact in float32, and only softmax can go wrong."""
    q, k, v = _inputs(batch, heads, kv_heads, new, so_far, dim)
    return (q * 4).round(), (k * 25).round(), v


def _low_scores(batch: int, heads: int, kv_heads: int, new: int, so_far: int, dim: int) -> tuple[Tensor, ...]:
    """Every score is about -700 * 700 / sqrt(D), so that a hidden key with any score at all would win over the rest.

    Whole numbers again, exact in float32; one axis makes the scores low, and the others tell the keys apart.
    """
    q, k, v = _inputs(batch, heads, kv_heads, new, so_far, dim)
    q, k = (q * 2).round(), (k * 2).round()
    q[..., 0], k[..., 0] = 700, -700
    return q, k, v


_FAR = 2.0**32  # between scores; a power of two, so that sums and scales of it are exact in float32


def _lowest_scores(batch: int, heads: int, kv_heads: int, new: int, so_far: int, dim: int) -> tuple[Tensor, ...]:
    """Every score is -2^32: lower than any number that people write for "very low", and all alike."""
    q, k, v = _inputs(batch, heads, kv_heads, new, so_far, dim)
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0], k[..., 0] = math.sqrt(dim), -_FAR
    return q, k, v


def _rising_scores(step: float) -> Callable[..., tuple[Tensor, ...]]:
    """Each key's score is `step` above the one before, so that a hidden key lowered by less would win."""

    def make(*sizes: int) -> tuple[Tensor, ...]:
        q, k, v = _lowest_scores(*sizes)
        k[..., 0] = step * torch.arange(-k.shape[2], 0, dtype=k.dtype)
        return q, k, v

    return make


def _in_float64(*sizes: int) -> tuple[Tensor, ...]:
    return tuple(x.double() for x in _inputs(*sizes))


def _case(given: str, sizes: tuple[int, ...], make: Callable[..., tuple[Tensor, ...]] = _inputs) -> Case:
    batch, heads, kv_heads, new, so_far, dim = sizes
    shapes = f"q [{batch}, {heads}, {new}, {dim}], k and v [{batch}, {kv_heads}, {so_far}, {dim}]"

    def observe(f: Function) -> Observation:
        q, k, v = make(*sizes)
        before = q.clone(), k.clone(), v.clone()
        result = f(q, k, v)
        return {
            "the result": result,
            "q, k and v afterwards": touched(q=(q, before[0]), k=(k, before[1]), v=(v, before[2])),
        }

    return Case(
        f"{shapes}: {given}",
        observe,
        lambda: {"the result": _attention(*make(*sizes)), "q, k and v afterwards": UNTOUCHED},
    )


# --- one configurable answer: the right one, and what goes wrong with it ---------------------------------------------


def _by_hand(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: Callable[[Tensor, Tensor], float] = lambda q, k: q.shape[-1] ** -0.5,
    spread: Callable[[Tensor, int], Tensor] = lambda x, group: x.repeat_interleave(group, dim=1),
    mask: Callable[[int, int], Tensor] | None = None,
    fill: float = -math.inf,
    weights: Callable[[Tensor], Tensor] = lambda scores: scores.softmax(dim=-1),
    transpose: Callable[[Tensor], Tensor] = lambda k: k.transpose(-2, -1),
) -> Tensor:
    """Attention in five lines; each argument replaces one of its decisions."""
    group = q.shape[1] // k.shape[1]
    scores = q @ transpose(spread(k, group)) * scale(q, k)  # [B, H, T, S]
    if mask is not None:
        scores = scores.masked_fill(~mask(q.shape[2], k.shape[2]), fill)
    return weights(scores) @ spread(v, group)  # [B, H, T, D]


def _lower_right(q_len: int, kv_len: int) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)


def _upper_left(q_len: int, kv_len: int) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool).tril()


def _scale_without_import(q: Tensor, k: Tensor) -> float:
    """What Python does at `math.sqrt(...)` where nobody has imported math."""
    raise NameError("name 'math' is not defined")


def _naive_softmax(scores: Tensor) -> Tensor:
    return scores.exp() / scores.exp().sum(dim=-1, keepdim=True)


def _scaled_keys(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[int, int], Tensor] | None = None) -> Tensor:
    k *= q.shape[-1] ** -0.5
    return _by_hand(q, k, v, scale=lambda q, k: 1.0, mask=mask)


def _cast_up(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[int, int], Tensor] | None = None) -> Tensor:
    return _by_hand(q.double(), k.double(), v.double(), mask=mask)


def _always_float32(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[int, int], Tensor] | None = None) -> Tensor:
    return _by_hand(q.float(), k.float(), v.float(), mask=mask)


def _rows_of_groups(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[int, int], Tensor] | None = None) -> Tensor:
    """Another right answer: no key is repeated, the group is an axis of its own."""
    batch, heads, q_len, dim = q.shape
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], q_len, dim)  # [B, Hkv, G, T, D]
    scores = torch.einsum("bkgtd,bksd->bkgts", grouped, k) / math.sqrt(dim)
    if mask is not None:
        scores = scores + torch.zeros((), dtype=q.dtype).where(mask(q_len, k.shape[2]), -math.inf)
    return torch.einsum("bkgts,bksd->bkgtd", scores.softmax(-1), v).reshape(batch, heads, q_len, dim)


_SHARED_MUTANTS: tuple[tuple[dict, str], ...] = (
    (
        {"scale": lambda q, k: 1.0},
        "The scale is missing: divide the scores by sqrt(head_dim). Without it they grow with the width of a head, and"
        " softmax picks one key and ignores the rest.",
    ),
    (
        {"scale": lambda q, k: 1 / q.shape[-1]},
        "You divide by head_dim. It is its square root: a dot product of D random numbers grows as sqrt(D).",
    ),
    (
        {"scale": lambda q, k: (q.shape[1] * q.shape[-1]) ** -0.5},
        "You scale by the width of all heads together. Each head's dot product has head_dim terms: 1 / sqrt(head_dim).",
    ),
    (
        {"spread": lambda x, group: x.repeat(1, group, 1, 1)},
        "The groups are dealt out like cards: query head h reads key head h % Hkv. Neighbours share a key head, so h"
        " reads h // (H / Hkv): repeat_interleave, not repeat.",
    ),
    (
        {"scale": _scale_without_import},
        "math is not imported where your function is. Say `import math` at the top of the file (in a notebook, in a"
        " cell that you run first), or do without it: head_dim ** 0.5.",
    ),
    (
        {"transpose": lambda k: k.permute(3, 2, 1, 0)},  # what `.T` gives, less the warning
        "`.T` turns round *all* axes: [B, H, S, D] becomes [D, S, H, B]. Only the last two are to change places:"
        " k.transpose(-2, -1), or k.mT.",
    ),
    (
        {"transpose": lambda k: k.t()},
        "`.t()` is for plain matrices. Of k's four axes, the last two are to change places: k.transpose(-2, -1).",
    ),
    (
        {"weights": lambda scores: scores},
        "There is no softmax: you mix the values by the scores themselves. Each query's scores become weights first,"
        " that are positive and sum to one: scores.softmax(dim=-1).",
    ),
    (
        {"weights": lambda scores: scores.softmax(dim=-2)},
        "Softmax runs over the queries. Each query's weights over the *keys* sum to one: the last axis.",
    ),
    (
        {"weights": lambda scores: scores.softmax(dim=1)},
        "Softmax runs over the heads (axis 1). Each query's weights over the *keys* sum to one: the last axis.",
    ),
    (
        {"weights": _naive_softmax},
        "Your softmax overflows: exp(300) is infinite in float32, and infinity by infinity is nan. Subtract each row's"
        " largest score first, or let torch.softmax do it.",
    ),
)

_NO_GROUPS = (
    "q has H heads and k only Hkv, and PyTorch cannot pair them. Let each key/value head serve its H / Hkv query heads:"
    " k.repeat_interleave(H // Hkv, dim=1), or an axis of its own for the group."
)
_NOT_TRANSPOSED = (
    "k is not transposed. q @ k would pair q's last axis, D, with k's last but one, S: the last two axes of k are to"
    " change places, q @ k.transpose(-2, -1)."
)
_INNER_SIZES_DIFFER = "RuntimeError: Expected size for first two dimensions of batch2 tensor to be"
_WRITES_KEYS = (
    "You scale k in place. The result is right, this once: k is a view of the cache, and the next token finds the old"
    " keys scaled twice. Scale the scores, or a copy."
)
_WRONG_DTYPE = "You compute in another dtype, which is fine, and give the result back in it: `.to(q.dtype)` at the end."
_ALWAYS_FLOAT32 = (
    "The result is float32 whatever q's dtype is. A model in bfloat16 hands over bfloat16, and its next matrix product"
    " refuses anything else: `.to(q.dtype)` at the end."
)
_NO_VALUES = "Those are the attention weights. Use them to mix the values: weights @ v."


def _weights_alone(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[int, int], Tensor] | None = None) -> Tensor:
    """The softmax itself, [B, H, T, S]: the last step is forgotten."""
    one_hot = torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:3], k.shape[2])  # [B, Hkv, S, S]
    return _by_hand(q, k, one_hot, mask=mask)


# --- 5.3 -------------------------------------------------------------------------------------------------------------


def _single(**changes: Callable) -> Function:
    return lambda q, k, v: _by_hand(q, k, v, **changes)


def _groups_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The right numbers as [B, Hkv, G, 1, D]: a group is an axis still."""
    return _by_hand(q, k, v).unflatten(1, (k.shape[1], -1))


def _groups_swapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, _, dim = q.shape
    rows = q.reshape(batch, heads // k.shape[1], k.shape[1], dim).transpose(1, 2)  # [B, Hkv, G, D]
    return ((rows @ k.mT / math.sqrt(dim)).softmax(-1) @ v).reshape(batch, heads, 1, dim)


SINGLE_QUERY_ATTENTION = Grader(
    cases=[
        _case("a decode step on 10 cached tokens, groups of 4 heads", (3, 8, 2, 1, 11, 6)),
        _case("every query head has a key head of its own", (2, 5, 5, 1, 7, 4)),
        _case("all query heads share one key head", (2, 5, 1, 1, 7, 4)),
        _case("the very first token, which sees itself alone", (3, 8, 2, 1, 1, 6)),
        _case("scores in the hundreds", (3, 8, 2, 1, 11, 16), _large_scores),
        _case("everything in float64", (3, 8, 2, 1, 11, 6), _in_float64),
    ],
    mutants=[
        *(Mutant(_single(**changes), cause) for changes, cause in _SHARED_MUTANTS),
        Mutant(
            _single(mask=_upper_left),
            "You mask, and aligned to the upper left: the one query is taken for position 0 and sees the first key"
            " alone. It is the newest token, which may see them all. (`is_causal=True` does this.)",
        ),
        Mutant(
            _single(mask=lambda q_len, kv_len: torch.arange(kv_len)[None] != kv_len - 1),
            "The newest token does not see itself. Its own key is the last of k, and it may look at that one too.",
        ),
        Mutant(
            _single(scale=lambda q, k: k.shape[2] ** -0.5),
            "You scale by the number of keys. The scale is 1 / sqrt(head_dim), the last axis: a dot product has"
            " head_dim terms, however many keys there are.",
        ),
        Mutant(
            lambda q, k, v: _groups_apart(q, k, v).squeeze(3),
            "You give back the groups, [B, Hkv, H / Hkv, D]. The heads belong in one axis again: .view(B, H, 1, D) at"
            " the end.",
        ),
        Mutant(
            lambda q, k, v: _single()(q, k, v).transpose(1, 2),
            "The axes of heads and tokens have changed places: [B, 1, H, D]. What you swapped to compute, swap back:"
            " .transpose(1, 2).",
        ),
        Mutant(
            _groups_swapped,
            "You split the heads as [H / Hkv, Hkv] and join them as [Hkv, H / Hkv]. Neighbours share a key head, so it"
            " is q.view(B, Hkv, H / Hkv, D), and the same order back.",
        ),
        Mutant(_single(spread=lambda x, group: x), _NO_GROUPS),
        Mutant(_single(transpose=lambda k: k), _NOT_TRANSPOSED, begins=_INNER_SIZES_DIFFER),
        Mutant(_scaled_keys, _WRITES_KEYS),
        Mutant(_cast_up, _WRONG_DTYPE),
        Mutant(_always_float32, _ALWAYS_FLOAT32),
        Mutant(_weights_alone, _NO_VALUES),
    ],
    alternatives=[
        _rows_of_groups,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        lambda q, k, v: _cast_up(q, k, v).to(q.dtype),
        lambda q, k, v: _by_hand(q * q.shape[-1] ** -0.5, k, v, scale=lambda q, k: 1.0),
    ],
)

# --- 5.4 -------------------------------------------------------------------------------------------------------------


def _wanted_mask(q_len: int, kv_len: int) -> Tensor:
    return torch.tensor([[s <= kv_len - q_len + t for s in range(kv_len)] for t in range(q_len)])


def _mask_case(given: str, q_len: int, kv_len: int) -> Case:
    return formula(f"q_len = {q_len}, kv_len = {kv_len}: {given}", [q_len, kv_len], _wanted_mask(q_len, kv_len))


_ON_META = Case(
    'q_len = 2, kv_len = 5, device = torch.device("meta")',
    lambda f: {"the result": f(2, 5, torch.device("meta"))},
    lambda: {"the result": torch.ones(2, 5, device="meta").tril().bool()},  # only its shape, dtype and device count
)


def _ones(q_len: int, kv_len: int, device: torch.device | None = None) -> Tensor:
    return torch.ones(q_len, kv_len, dtype=torch.bool, device=device)


CAUSAL_MASK = Grader(
    cases=[
        _mask_case("3 new tokens behind 5 cached ones", 3, 8),
        _mask_case("a prompt on an empty cache", 4, 4),
        _mask_case("a decode step", 1, 6),
        _mask_case("5 new tokens behind a single one", 5, 6),
        _ON_META,
    ],
    mutants=[
        Mutant(
            lambda t, s, device=None: _ones(t, s, device).tril(),
            "The diagonal is aligned to the upper left: query 0 is taken for position 0. It stands behind the cached"
            " tokens, at kv_len - q_len. The two agree only where nothing is cached.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s, device).tril(s - t - 1),
            "A token does not see itself. Its own key is there already when it attends: the diagonal is included.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s, device).tril(s - t + 1),
            "Each token sees the one after it. The model would copy the next token instead of predicting it.",
        ),
        Mutant(
            lambda t, s, device=None: ~_ones(t, s, device).tril(s - t),
            "True and False are swapped: yours says what is hidden. Here True means that the query may look, as in"
            " scaled_dot_product_attention (masked_fill wants the opposite).",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s, device).triu(s - t),
            "That is the upper triangle: each token sees itself and the future. The past is the lower one: tril.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s, device),
            "Everything is visible. In a chunk of several tokens, the earlier ones must not see the later.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(s, t, device).triu(t - s),
            "Rows and columns are swapped: [q_len, kv_len] has a row for each query.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(s, t, device).tril(s - t),
            "The two sizes are swapped: the mask is [q_len, kv_len], with a row for each query and a column for each"
            " key.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(s, t, device).tril(),
            "The two sizes are swapped: the mask is [q_len, kv_len], with a row for each query. And the first query"
            " stands at position kv_len - q_len, not at 0.",
        ),
        Mutant(
            lambda t, s, device=None: torch.full((t, s), -math.inf, device=device).triu(s - t + 1),
            "That is an additive mask, 0 and -inf. A bool mask is wanted, True where the query may look.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s, device).tril(s - t).float(),
            "Ones and zeros in a float tensor. scaled_dot_product_attention would *add* them to the scores: make it"
            " bool.",
        ),
        Mutant(
            lambda t, s, device=None: _ones(t, s).tril(s - t),
            "You ignore `device`. On a GPU the mask would lie in the wrong memory: make it where it is asked for.",
        ),
    ],
    alternatives=[
        lambda t, s, device=None: (
            torch.arange(s, device=device)[None] <= torch.arange(s - t, s, device=device)[:, None]
        ),
        lambda t, s, device=None: torch.tensor([[j <= i + s - t for j in range(s)] for i in range(t)], device=device),
        lambda t, s, device=None: ~_ones(t, s, device).triu(s - t + 1),
        lambda t, s, device=None: _ones(s, s, device).tril()[s - t :],
    ],
)

# --- 5.5 -------------------------------------------------------------------------------------------------------------


def _masked(mask: Callable[[int, int], Tensor] | None = _lower_right, **changes: Any) -> Function:
    return lambda q, k, v: _by_hand(q, k, v, mask=mask, **changes)


def _zeroed_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = _lower_right(q.shape[2], k.shape[2])
    return _by_hand(q, k, v, weights=lambda scores: (scores * mask).softmax(dim=-1))


def _exponentials_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = _lower_right(q.shape[2], k.shape[2])

    def weights(scores: Tensor) -> Tensor:
        visible = scores.exp() * mask
        return visible / visible.sum(dim=-1, keepdim=True)

    return _by_hand(q, k, v, weights=weights)


def _lowered(amount: float) -> Function:
    """Hidden scores minus an amount, the habit of additive masks."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        hidden = ~_lower_right(q.shape[2], k.shape[2])
        return _by_hand(q, k, v, weights=lambda scores: (scores + hidden * -amount).softmax(dim=-1))

    return attention


def _zeroed_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = _lower_right(q.shape[2], k.shape[2])
    return _by_hand(q, k, v, weights=lambda scores: scores.softmax(dim=-1) * mask)


def _fused_hiding_what_is_allowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = ~_lower_right(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=hidden, enable_gqa=True)


def _rows_out_of_step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A group's queries as rows of one matrix, head by head, and a mask whose rows go token by token."""
    batch, heads, q_len, dim = q.shape
    group = heads // k.shape[1]
    rows = q.reshape(batch, k.shape[1], group * q_len, dim)  # [B, Hkv, G x T, D]
    mask = _lower_right(q_len, k.shape[2]).repeat_interleave(group, dim=0)  # [G x T, S]
    scores = (rows @ k.mT / math.sqrt(dim)).masked_fill(~mask, -math.inf)  # [B, Hkv, G x T, S]
    return (scores.softmax(-1) @ v).reshape(batch, heads, q_len, dim)


def _new_tokens_only(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _masked()(q, k[:, :, -q.shape[2] :], v[:, :, -q.shape[2] :])


def _added_bool(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = _lower_right(q.shape[2], k.shape[2])
    return _by_hand(q, k, v, weights=lambda scores: (scores + mask).softmax(dim=-1))


def _row_by_row(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Another right answer: each query over its own past, with no mask at all."""
    q_len, cached = q.shape[2], k.shape[2] - q.shape[2]
    rows = [_by_hand(q[:, :, t : t + 1], k[:, :, : cached + t + 1], v[:, :, : cached + t + 1]) for t in range(q_len)]
    return torch.cat(rows, dim=2)


CAUSAL_ATTENTION = Grader(
    cases=[
        _case("5 new tokens behind 6 cached ones, groups of 4 heads", (3, 8, 2, 5, 11, 6)),
        _case("a prompt of 7 tokens on an empty cache", (3, 8, 2, 7, 7, 6)),
        _case("a decode step behind 10 cached tokens", (3, 8, 2, 1, 11, 6)),
        _case("2 new tokens behind a single one, every query head with a key head of its own", (2, 5, 5, 2, 3, 4)),
        _case("3 new tokens behind 4, all query heads share one key head", (2, 5, 1, 3, 7, 4)),
        _case("the very first token", (3, 8, 2, 1, 1, 6)),
        _case("scores in the hundreds", (3, 8, 2, 5, 11, 16), _large_scores),
        _case("every score about -122,500", (3, 8, 2, 5, 11, 16), _low_scores),
        _case("every score -4,294,967,296 (2^32)", (3, 8, 2, 5, 11, 16), _lowest_scores),
        _case("each key's score 65,536 above the one before", (3, 8, 2, 5, 11, 16), _rising_scores(2.0**16)),
        _case("each key's score 2^32 above the one before", (3, 8, 2, 5, 11, 16), _rising_scores(_FAR)),
        _case("everything in float64", (3, 8, 2, 5, 11, 6), _in_float64),
    ],
    mutants=[
        *(Mutant(_masked(**changes), cause) for changes, cause in _SHARED_MUTANTS),
        Mutant(
            _masked(_upper_left),
            "The mask is aligned to the upper left, as `is_causal=True` aligns it: the first new token is taken for"
            " position 0, and the last ones miss most of what is cached. It stands at S - T. On an empty cache the two"
            " agree, so a prompt alone does not show it.",
        ),
        Mutant(
            _masked(None),
            "There is no mask: tokens of a chunk see those that come after them. With one token at a time it makes no"
            " difference, so decode alone does not show it.",
        ),
        Mutant(
            _masked(lambda t, s: torch.ones(t, s, dtype=torch.bool).tril(s - t - 1)),
            "A token does not see itself: include the diagonal. The very first one then sees nothing at all, and"
            " softmax over nothing is nan.",
        ),
        Mutant(
            _masked(lambda t, s: torch.ones(t, s, dtype=torch.bool).tril(s - t + 1)),
            "Each token sees the one after it: the diagonal is one too far to the right.",
        ),
        Mutant(
            _masked(lambda t, s: torch.ones(t, s, dtype=torch.bool).triu(s - t)),
            "Each token sees itself and the future: the mask is upside down.",
        ),
        Mutant(
            _masked(lambda t, s: ~_lower_right(t, s)),
            "You hide what the mask allows. It is True where a query may look, and masked_fill fills where it is given"
            " True: turn it round, masked_fill(~mask, -inf).",
        ),
        Mutant(
            _fused_hiding_what_is_allowed,
            "You turn the mask round for scaled_dot_product_attention. Its attn_mask is True where a query may look, as"
            " causal_mask is: give it as it is. (Only masked_fill wants the opposite.)",
        ),
        Mutant(
            _rows_out_of_step,
            "The rows of the mask are out of step with those of the queries. With a group's queries in one matrix, all"
            " tokens of its first head come first: repeat the whole mask for each head, mask.repeat(group, 1).",
        ),
        Mutant(
            _zeroed_scores,
            "You set hidden scores to 0. exp(0) is 1, so hidden keys still get weight: set them to -inf.",
        ),
        Mutant(
            _masked(fill=-1e4),
            "You give hidden keys a score that is low, and not the lowest. Where the visible ones are lower still, the"
            " hidden ones get all the weight: fill with -inf, below which there is nothing.",
        ),
        Mutant(
            _masked(fill=-1e9),
            "You fill hidden scores with a number that looks low enough, -1e9 or the like. Where the visible ones are"
            " lower still, the hidden ones get all the weight: fill with -inf, below which there is nothing.",
        ),
        Mutant(
            _lowered(1e4),
            "You lower hidden scores by an amount (+ mask * -1e4), instead of replacing them. A hidden score that is"
            " higher than the visible ones by more than that still wins: put -inf into its place.",
        ),
        Mutant(
            _lowered(1e9),
            "You lower hidden scores by a large amount, such as 1e9. However large: a hidden score may be higher than"
            " the visible ones by more. Put -inf into its place, or add -inf.",
        ),
        Mutant(
            _zeroed_weights,
            "You mask after the softmax. The weights that are left no longer sum to one: put -inf into the scores"
            " before it.",
        ),
        Mutant(
            _added_bool,
            "You add the bool mask to the scores: True counts as 1, so hidden keys lose a little and are not hidden."
            " Fill with -inf where it is False.",
        ),
        Mutant(
            _new_tokens_only,
            "The new tokens attend to each other only. All that is cached comes before them: use the whole of k and v.",
        ),
        Mutant(_masked(spread=lambda x, group: x), _NO_GROUPS),
        Mutant(_masked(transpose=lambda k: k), _NOT_TRANSPOSED, begins=_INNER_SIZES_DIFFER),
        Mutant(
            _exponentials_by_hand,
            "Your exponentials overflow: exp(300) is infinite in float32, and infinity times 0, or by infinity, is nan."
            " Put -inf into the hidden scores, and let torch.softmax do the rest (or subtract each row's largest score"
            " first).",
        ),
        Mutant(lambda q, k, v: _scaled_keys(q, k, v, _lower_right), _WRITES_KEYS),
        Mutant(lambda q, k, v: _cast_up(q, k, v, _lower_right), _WRONG_DTYPE),
        Mutant(lambda q, k, v: _always_float32(q, k, v, _lower_right), _ALWAYS_FLOAT32),
        Mutant(lambda q, k, v: _weights_alone(q, k, v, _lower_right), _NO_VALUES),
    ],
    alternatives=[
        _row_by_row,
        lambda q, k, v: _rows_of_groups(q, k, v, _lower_right),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=_lower_right(q.shape[2], k.shape[2]), enable_gqa=True
        ),
        lambda q, k, v: _cast_up(q, k, v, _lower_right).to(q.dtype),
    ],
)
