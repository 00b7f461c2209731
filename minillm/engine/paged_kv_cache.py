"""PagedKVCache: keys and values of many requests in one tensor, cut into blocks that belong to nobody for long.

A dense cache reserves room for the longest sequence that a request might become. Here a request has a *block table*:
the numbers of the blocks in which its tokens lie, in order. Token i is in slot i % block_size of block
block_table[i // block_size]. A block is given out when a token needs it, so at most block_size - 1 slots per request
are reserved and empty. Source: PagedAttention (Kwon et al. 2023).

The model knows nothing of blocks. For one pass over many requests it is handed a `PagedBatch`, which is a `Cache` like
any other: the new tokens of all requests lie one behind the other in a single row, each at its own position, and
`attend` sends every request's queries to its own keys.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor

from minillm.attention import causal_attention, gathered_attention, windowed_attention
from minillm.config import ModelConfig
from minillm.engine.block_pool import blocks_for
from minillm.errors import InputError
from minillm.kv_cache import cache_bytes_per_token, rounded_to_codes, sliding_windows
from minillm.placement import Placement

MOST_PADDING = 1.5
"""A call for many requests costs little more than one for one; gathering keys that nobody wants costs their bytes."""


class PagedKVCache:
    """The storage: `keys` and `values` are [num_layers, num_blocks, block_size, num_kv_heads, head_dim].

    dtype: for int8, keys and values are codes, and `scales` are those of keys and of values, float32, one for each head
    of each token, as in `Int8KVCache`. Raises InputError where there is no memory for so many blocks.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int = 16,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InputError(f"a paged cache needs at least 1 block of 1 token, not {num_blocks} of {block_size}")
        shape = (config.num_hidden_layers, num_blocks, block_size, config.num_key_value_heads, config.head_dim)
        self.config, self.num_blocks, self.block_size = config, num_blocks, block_size
        self.bytes_per_token = cache_bytes_per_token(config, dtype)
        self.scales: tuple[Tensor, ...] = ()
        try:
            # Zeros, not what memory happens to hold: slots that are not written yet are read, with weight 0.
            self.keys = torch.zeros(shape, device=device, dtype=dtype)  # [L, blocks, block_size, Hkv, D]
            self.values = torch.zeros(shape, device=device, dtype=dtype)  # [L, blocks, block_size, Hkv, D]
            if dtype == torch.int8:
                self.scales = tuple(torch.zeros(shape[:-1], device=device) for _ in range(2))  # [L, blocks, ..., Hkv]
        except RuntimeError:  # also torch's out-of-memory error
            size = num_blocks * block_size * self.bytes_per_token
            raise InputError(
                f"{num_blocks:,} blocks of {block_size} tokens need {size / 1e9:,.1f} GB, more than there is:"
                " ask for fewer"
            ) from None

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all blocks, used or not."""
        return sum(part.nbytes for part in self._parts())

    def write(
        self, layer: int, slots: Int[Tensor, " tokens"], *new: Float[Tensor, "tokens num_kv_heads head_dim"]
    ) -> None:
        """Put the keys and values of new tokens into their slots, counted over all blocks."""
        for index, (part, numbers) in enumerate(zip((self.keys, self.values), new, strict=True)):
            if self.scales:
                numbers, scale = rounded_to_codes(numbers)  # [N, Hkv, D], [N, Hkv]
                self.scales[index][layer].flatten(0, 1)[slots] = scale
            part[layer].flatten(0, 1)[slots] = numbers.to(part.dtype)

    def gather(
        self, layer: int, tables: Int[Tensor, "requests most_blocks"], num_tokens: int, dtype: torch.dtype
    ) -> list[Float[Tensor, "requests num_kv_heads num_tokens head_dim"]]:
        """Keys and values of each request's first `num_tokens` tokens: see `gather_blocks`."""
        found = [gather_blocks(part[layer], tables, num_tokens) for part in (self.keys, self.values)]
        if not self.scales:
            return [part.to(dtype) for part in found]
        scales = [gather_blocks(part[layer][..., None], tables, num_tokens) for part in self.scales]  # [R, Hkv, S, 1]
        return [(codes * scale).to(dtype) for codes, scale in zip(found, scales, strict=True)]

    def _parts(self) -> tuple[Tensor, ...]:
        return (self.keys, self.values, *self.scales)

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block in every layer: what a request does with a shared block before it writes into it."""
        for part in self._parts():
            part[:, target] = part[:, source]

    def clear_block(self, block: int) -> None:
        """Zeros again: for the blocks of a request whose numbers had become NaN."""
        for part in self._parts():
            part[:, block] = 0


def blocks_that_fit(num_bytes: int, config: ModelConfig, dtype: torch.dtype, block_size: int) -> int:
    """How many blocks of a `PagedKVCache` of this dtype `num_bytes` bytes hold."""
    return num_bytes // (cache_bytes_per_token(config, dtype) * block_size)


@dataclass(frozen=True)
class Span:
    """The tokens of one request that a pass computes: `num_tokens` of them, from position `start`, in these blocks."""

    block_table: Sequence[int]
    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        """The position behind the last new token: how many keys the last query sees."""
        return self.start + self.num_tokens


class PagedBatch:
    """A `Cache` for one pass over the new tokens of many requests, in one row: ids are [1, sum of num_tokens].

    Spans with one new token are attended to together; those with more, one by one. Nothing is counted in by it: the
    caller keeps `num_computed` of each request.
    """

    batch_size = 1

    def __init__(self, cache: PagedKVCache, spans: Sequence[Span]) -> None:
        self._cache = cache
        self._windows = sliding_windows(cache.config)
        self._spans = list(spans)
        device, size = cache.keys.device, cache.block_size
        positions = [position for span in spans for position in range(span.start, span.end)]
        slots = [slot for span in spans for slot in slots_of(span.block_table, span.start, span.num_tokens, size)]
        self._positions = torch.tensor(positions, device=device)  # [N]
        self._slots = torch.tensor(slots, device=device)  # [N]: of all blocks' slots, in a row

    @functools.cached_property
    def _groups(self) -> "tuple[list[_Group], list[tuple[slice, _Group]]]":
        """Spans with one new token, in groups that are attended to together; and the others, with their rows."""
        starts = itertools.accumulate((span.num_tokens for span in self._spans), initial=0)
        rows = [slice(start, start + span.num_tokens) for start, span in zip(starts, self._spans, strict=False)]
        placed = list(zip(self._spans, rows, strict=True))
        single = [(span, row) for span, row in placed if span.num_tokens == 1]
        long = [(row, self._group([(span, row)])) for span, row in placed if span.num_tokens > 1]
        return [self._group(members) for members in similar_lengths(single)], long

    def placement(self, num_tokens: int) -> Placement | None:
        """Where everything lies; None where a layer has a window, and for other tokens than those of this pass."""
        if self._windows or num_tokens != len(self._positions):
            return None
        keys = self._cache.keys
        layers, _, block_size, num_kv_heads, head_dim = keys.shape
        return Placement(
            keys,
            self._cache.values,
            self._cache.scales,
            sizes=(layers, num_kv_heads, head_dim),
            ids_shape=(1, num_tokens),
            positions=[span.start for span in self._spans],
            counts=[span.num_tokens for span in self._spans],
            tables=[self._blocks(span) for span in self._spans],
            block_size=block_size,
            rows_per_block=block_size * num_kv_heads,
            rows_per_position=num_kv_heads,
            rows_per_head=1,
        )

    @property
    def length(self) -> int:
        """Of the longest request, before this pass."""
        return max(span.start for span in self._spans)

    @property
    def max_seq_len(self) -> int:
        """Tokens that any request may have."""
        return self._cache.config.max_position_embeddings

    def positions(self, num_tokens: int) -> Int[Tensor, "1 q_len"]:
        """[1, N]: each new token's position in its own request."""
        if num_tokens != len(self._positions):
            raise InputError(f"a pass over {len(self._positions)} tokens was prepared, not over {num_tokens}")
        return self._positions[None]  # [1, N]

    def advance(self, num_tokens: int) -> None:
        """Each request's own `num_computed` is counted by the engine."""

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "1 num_heads q_len head_dim"],
        k: Float[Tensor, "1 num_kv_heads q_len head_dim"],
        v: Float[Tensor, "1 num_kv_heads q_len head_dim"],
    ) -> Float[Tensor, "1 num_heads q_len head_dim"]:
        """Write k and v of all new tokens to their slots; then each request's queries meet its own keys."""
        self._cache.write(layer, self._slots, *(new[0].transpose(0, 1) for new in (k, v)))  # [N, Hkv, D]
        mixed = torch.empty_like(q)  # [1, H, N, D]
        window = self._windows.get(layer)
        single, long = self._groups
        for group in single:
            keys, values = self._cache.gather(layer, group.tables, group.longest, q.dtype)  # 2 x [R, Hkv, S, D]
            queries = q[0].transpose(0, 1)[group.rows][:, :, None]  # [R, H, 1, D]
            found = gathered_attention(queries, keys, values, group.lengths, window)  # [R, H, 1, D]
            mixed[0].transpose(0, 1)[group.rows] = found[:, :, 0]  # [R, H, D]
        for rows, group in long:
            keys, values = self._cache.gather(layer, group.tables, group.longest, q.dtype)  # 2 x [1, Hkv, S, D]
            if window is None:
                mixed[:, :, rows] = causal_attention(q[:, :, rows], keys, values)
            else:
                mixed[:, :, rows] = windowed_attention(q[:, :, rows], keys, values, window)
        return mixed

    def _blocks(self, span: Span) -> list[int]:
        return list(span.block_table[: blocks_for(span.end, self._cache.block_size)])

    def _group(self, members: Sequence[tuple[Span, slice]]) -> "_Group":
        """One table per request, all as long as the longest: a request's own last block fills up, and is masked."""
        tables = [self._blocks(span) for span, _ in members]
        most = max(map(len, tables))
        padded = [table + table[-1:] * (most - len(table)) for table in tables]
        device = self._cache.keys.device
        return _Group(
            rows=torch.tensor([row.start for _, row in members], device=device),
            lengths=torch.tensor([span.end for span, _ in members], device=device),
            tables=torch.tensor(padded, device=device),
            longest=max(span.end for span, _ in members),
        )


@dataclass(frozen=True)
class _Group:
    """Requests with one new token each, attended to together: their rows in the pass, tokens so far, and blocks."""

    rows: Int[Tensor, " requests"]
    lengths: Int[Tensor, " requests"]
    tables: Int[Tensor, "requests most_blocks"]
    longest: int  # the largest of `lengths`


def similar_lengths(spans: Sequence[tuple[Span, slice]]) -> list[list[tuple[Span, slice]]]:
    """The spans in groups of similar length: padded to its longest, a group is at most MOST_PADDING x its tokens."""
    groups: list[list[tuple[Span, slice]]] = []
    tokens = 0  # of the last group
    for member in sorted(spans, key=lambda member: member[0].end):
        end = member[0].end
        if groups and end * (len(groups[-1]) + 1) <= MOST_PADDING * (tokens + end):
            groups[-1].append(member)
            tokens += end
        else:
            groups.append([member])
            tokens = end
    return groups


def slots_of(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    """Where `num_tokens` tokens of one request lie, from position `start` on, counted over the slots of all blocks.

    Token i is in slot i % block_size of block block_table[i // block_size].
    """
    positions = range(start, start + num_tokens)
    return [block_table[i // block_size] * block_size + i % block_size for i in positions]


def gather_blocks(
    part: Num[Tensor, "blocks block_size num_kv_heads head_dim"],
    tables: Int[Tensor, "requests most_blocks"],
    num_tokens: int,
) -> Num[Tensor, "requests num_kv_heads num_tokens head_dim"]:
    """Keys (or values) of each request's first `num_tokens` tokens, copied from its blocks into one piece: attention
    wants them side by side.
    """
    found = part.index_select(0, tables.flatten())  # [R x most blocks, block_size, Hkv, D]
    return found.view(len(tables), -1, *part.shape[2:])[:, :num_tokens].transpose(1, 2)  # [R, Hkv, S, D]
