"""BlockPool: which blocks of the KV cache are in use, and by how many. Numbers only; the tensors are elsewhere.

A block is room for `block_size` tokens. Whoever needs one allocates it, whoever reads one that is there shares it,
and each of them frees it once. What is freed stays as it is until it is handed out anew, so a block whose contents
might be wanted again (`keep`) waits at the far end of the queue: the pool hands out the longest unused one first.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from minillm.errors import InputError


class BlockPool:
    """`num_blocks` blocks, numbered from 0. At any time: free blocks + blocks in use == num_blocks.

    on_reuse: called with the number of a block that is about to be handed out anew, whose contents are lost with that.
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] = lambda block: None) -> None:
        if num_blocks < 1:
            raise InputError(f"a block pool needs at least 1 block, not {num_blocks}")
        self.num_blocks = num_blocks
        self._users = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # the next to hand out comes first
        self._on_reuse = on_reuse

    @property
    def num_free(self) -> int:
        """Blocks that nobody uses, whatever they still hold."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one user."""
        return self.num_blocks - self.num_free

    def users(self, block: int) -> int:
        """How many use a block: above 1, it is shared, and must not be written."""
        return self._users[block]

    def user_counts(self) -> list[int]:
        """How many use each block: a copy, for whoever wants to look at all of them."""
        return self._users[:]

    def allocate(self) -> int:
        """A block for one user, with no contents. Raises InputError where none is free: see `num_free` first."""
        if not self._free:
            raise InputError(f"all {self.num_blocks} blocks are in use")
        block, _ = self._free.popitem(last=False)
        self._users[block] = 1
        self._on_reuse(block)
        return block

    def share(self, block: int) -> None:
        """One more user of a block whose contents are wanted; it may have none at the moment."""
        self._free.pop(block, None)
        self._users[block] += 1

    def free(self, block: int, *, keep: bool = False) -> None:
        """One user less. Without any it can be handed out: at once, or, with `keep`, as late as possible.

        Raises InputError for a block that has no user: it was freed twice.
        """
        if self._users[block] < 1:
            raise InputError(f"block {block} is freed, but nobody uses it")
        self._users[block] -= 1
        if self._users[block]:
            return
        self._free[block] = None
        if not keep:
            self._free.move_to_end(block, last=False)

    def free_all(self, blocks: Iterable[int], keep: Callable[[int], bool] = lambda block: False) -> None:
        """Free a request's blocks, the last one first: a prefix is worth more than what follows, and stays longer."""
        for block in reversed(list(blocks)):
            self.free(block, keep=keep(block))


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold `num_tokens` tokens: the last one may be partly empty."""
    return -(-num_tokens // block_size)
