"""Where the keys and values of a pass lie, for code that finds them by their addresses instead of asking a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """The new tokens of several sequences, and the cache's memory.

    keys, values: of all layers; each layer is rows of head_dim numbers, one per position and key head, in blocks of
    `block_size` positions. scales: of keys and of values, one number for each row; none where the rows are numbers and
    not codes. sizes: (num_layers, num_kv_heads, head_dim). ids_shape: the shape in which the pass is handed its tokens.
    positions: of each sequence's first new token. counts: how many new tokens it has. tables: its blocks, in order.
    Position p of head h is row
    tables[i][p // block_size] * rows_per_block + p % block_size * rows_per_position + h * rows_per_head.
    """

    keys: Tensor
    values: Tensor
    scales: tuple[Tensor, ...]
    sizes: tuple[int, int, int]
    ids_shape: tuple[int, int]
    positions: Sequence[int]
    counts: Sequence[int]
    tables: Sequence[Sequence[int]]
    block_size: int
    rows_per_block: int
    rows_per_position: int
    rows_per_head: int


@runtime_checkable
class Placed(Protocol):
    """A cache that says where things lie."""

    def placement(self, num_tokens: int) -> Placement | None:
        """For the next `num_tokens` tokens of each row of ids; None where it cannot be said in this way."""
        ...
