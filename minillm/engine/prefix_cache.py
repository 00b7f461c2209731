"""PrefixCache: full blocks of tokens that were computed before, found again by their tokens.

Keys and values of a token depend on it and on everything before it. So a block can serve another request only if all
tokens from the start of the sequence to the block's end are the same. Each block's hash covers its own tokens and the
hash of the block before it, and thereby all of them: one lookup per block.

A hash can be the same for different tokens, and then another request's text would answer. So what is found is
verified: the tokens of each block, and that it really follows the block found before it.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NO_PARENT = b""


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """16 bytes that stand for a block's tokens and, through the hash of the block before it, for all before them."""
    return hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


@dataclass(frozen=True, eq=False)
class CachedBlock:
    """A full block whose keys and values are in the cache: its tokens, and what it follows."""

    block: int
    hash: bytes
    token_ids: tuple[int, ...]
    parent: "CachedBlock | None"


class PrefixCache:
    """Blocks by hash. It owns no block: the pool says when one is handed out anew, and it is forgotten (`forget`).

    hash_block: None for `block_hash`; another one only to see what becomes of hashes that collide.
    """

    def __init__(self, block_size: int, hash_block: Callable[[bytes, Sequence[int]], bytes] | None = None) -> None:
        self.block_size = block_size
        self._hash_block = block_hash if hash_block is None else hash_block
        self._by_hash: dict[bytes, CachedBlock] = {}
        self._by_block: dict[int, CachedBlock] = {}
        self._marks = bytearray()  # the keys of _by_block as ones among zeros, which is what can be copied at once

    def __len__(self) -> int:
        """How many blocks can be found."""
        return len(self._by_hash)

    def __contains__(self, block: int) -> bool:
        """Whether a block's contents can be found: it is worth keeping, and must not be written any more."""
        return block in self._by_block

    def marks(self) -> bytes:
        """One byte for each block up to the highest that was ever remembered, 1 where it can be found now: a copy."""
        return bytes(self._marks)

    def find(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks that hold the longest known prefix of these tokens, in order."""
        found: list[int] = []
        parent: CachedBlock | None = None
        for tokens in self._full_blocks(token_ids):
            parent = self._lookup(parent, tokens)
            if parent is None:
                break
            found.append(parent.block)
        return found

    def insert(self, token_ids: Sequence[int], block_table: Sequence[int]) -> None:
        """Remember the full blocks of these computed tokens. Where one is known already, the first copy stays."""
        parent: CachedBlock | None = None
        for tokens, block in zip(self._full_blocks(token_ids), block_table, strict=False):
            known = self._by_block.get(block) or self._lookup(parent, tokens)
            parent = known or self._remember(block, tokens, parent)
            if parent is None:
                return

    def forget(self, block: int) -> None:
        """The contents of a block are gone. What followed it is out of reach until they are computed again."""
        entry = self._by_block.pop(block, None)
        if entry is not None:
            del self._by_hash[entry.hash]
            self._marks[block] = 0

    def hashes(self, token_ids: Sequence[int]) -> list[bytes]:
        """The hash of each full block of these tokens, whether it is known or not."""
        found: list[bytes] = []
        for tokens in self._full_blocks(token_ids):
            found.append(self._hash_block(found[-1] if found else NO_PARENT, tokens))
        return found

    def _full_blocks(self, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.block_size
        return [tuple(token_ids[start : start + size]) for start in range(0, len(token_ids) - size + 1, size)]

    def _hash(self, parent: CachedBlock | None, tokens: tuple[int, ...]) -> bytes:
        return self._hash_block(NO_PARENT if parent is None else parent.hash, tokens)

    def _lookup(self, parent: CachedBlock | None, tokens: tuple[int, ...]) -> CachedBlock | None:
        entry = self._by_hash.get(self._hash(parent, tokens))
        # Equal hashes are no proof. Equal tokens, all the way back to the start, are.
        same = entry is not None and entry.token_ids == tokens and is_same_prefix(entry.parent, parent)
        return entry if same else None

    def _remember(self, block: int, tokens: tuple[int, ...], parent: CachedBlock | None) -> CachedBlock | None:
        """A new entry. None where another block has this hash: one of the two has to go without."""
        entry = CachedBlock(block, self._hash(parent, tokens), tokens, parent)
        if entry.hash in self._by_hash:
            return None
        self._by_hash[entry.hash] = self._by_block[block] = entry
        if block >= len(self._marks):
            self._marks.extend(bytes(block + 1 - len(self._marks)))
        self._marks[block] = 1
        return entry


def is_same_prefix(one: CachedBlock | None, other: CachedBlock | None) -> bool:
    """Whether two blocks stand for the same tokens from the start. Most often they are one, and nothing is compared."""
    while one is not other:
        if one is None or other is None or one.token_ids != other.token_ids:
            return False
        one, other = one.parent, other.parent
    return True
