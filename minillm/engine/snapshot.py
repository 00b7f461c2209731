"""Snapshot: the engine at one moment between two steps, as plain values that another thread may read at leisure.

Taking one must cost the engine next to nothing, however many blocks there are: they are copied in one piece each, and
counted by whoever wants to know (`block_counts`).
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from minillm.engine.engine import Engine
from minillm.engine.request import Request

MOST_RUNNING, MOST_WAITING = 128, 32
"""Requests that are told of one by one; of the others it is said how many there are."""


@dataclass(frozen=True)
class RequestState:
    """A request's tokens: how many its prompt has, how many of these were found in the cache, how many of all have been
    computed, how many were generated, and how many that will be at most. blocks: its block table.
    """

    id: str
    running: bool
    prompt: int
    cached: int
    computed: int
    generated: int
    max_tokens: int
    preemptions: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """users: of each block. found: 1 for each block that the prefix cache can find, from block 0 on, as far as it goes.

    requests: the first of those that run, then the first of those that wait, in their orders.
    """

    users: list[int]
    found: bytes
    num_running: int
    num_waiting: int
    requests: tuple[RequestState, ...]


@dataclass(frozen=True)
class BlockCounts:
    """Blocks of each kind in each cell, a cell being `per_cell` blocks in a row (the last one may be fewer).

    used: by somebody. shared: of those, by more than one. kept: by nobody, but with contents that can be found.
    """

    per_cell: int
    used: tuple[int, ...]
    shared: tuple[int, ...]
    kept: tuple[int, ...]


def take_snapshot(engine: Engine) -> Snapshot:
    """In the engine's thread, between two steps."""
    scheduler = engine.scheduler
    running, waiting = scheduler.running, scheduler.waiting
    return Snapshot(
        users=scheduler.pool.user_counts(),
        found=scheduler.prefix_cache.marks() if scheduler.prefix_cache is not None else b"",
        num_running=len(running),
        num_waiting=len(waiting),
        requests=(*_states(running[:MOST_RUNNING], True), *_states(itertools.islice(waiting, MOST_WAITING), False)),
    )


def _states(requests: Iterable[Request], running: bool) -> list[RequestState]:
    return [
        RequestState(
            id=request.request_id,
            running=running,
            prompt=len(request.prompt_ids),
            cached=min(request.num_cached, len(request.prompt_ids)),
            computed=request.num_computed,
            generated=request.num_generated,
            max_tokens=request.max_length - len(request.prompt_ids),
            preemptions=request.num_preemptions,
            blocks=tuple(request.block_table),
        )
        for request in requests
    ]


def block_counts(snapshot: Snapshot, most_cells: int) -> BlockCounts:
    """The pool in at most `most_cells` cells. In any thread."""
    users = np.fromiter(snapshot.users, np.int64, len(snapshot.users))  # [num_blocks]
    found = np.zeros(len(users), dtype=bool)
    found[: len(snapshot.found)] = np.frombuffer(snapshot.found, dtype=bool)
    per_cell = -(-len(users) // most_cells)
    starts = np.arange(0, len(users), per_cell)

    def counted(blocks: np.ndarray) -> tuple[int, ...]:
        return tuple(np.add.reduceat(blocks, starts, dtype=np.int64).tolist())

    return BlockCounts(per_cell, counted(users > 0), counted(users > 1), counted(found & (users == 0)))
