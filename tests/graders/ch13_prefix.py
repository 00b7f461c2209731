"""13.6: a real PrefixCache whose contents are put in by hand, with a good hash and with one that collides."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from graders.ch13_blocks import listed
from minillm.engine.prefix_cache import NO_PARENT, CachedBlock, PrefixCache, is_same_prefix
from minillm.errors import InputError
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

_Hash = Callable[[bytes, Sequence[int]], bytes]
_Known = Sequence[tuple[int, Sequence[Sequence[int]]]]  # a block's number, and the tokens of all blocks up to it


def _good(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return hashlib.sha256(parent + repr(list(token_ids)).encode()).digest()


def _first_token(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """A bad hash: of its tokens a block's first alone counts, and of its parent only whether there is one."""
    return bytes([token_ids[0], len(parent) > 0])


def _cache(known: _Known, size: int, hash_block: _Hash, *, parents_anew: bool = False) -> PrefixCache:
    """A prefix cache that knows these blocks.

    parents_anew: the first block was lost and computed again, so that the entry found for it is not the very object
    that the entries behind it have for their parent.
    """
    cache = PrefixCache(size, hash_block)
    made: dict[tuple[tuple[int, ...], ...], CachedBlock] = {}
    for block, chain in known:
        path = tuple(tuple(tokens) for tokens in chain)
        parent = made.get(path[:-1]) or _unknown(path[:-1], hash_block)
        entry = CachedBlock(block, hash_block(parent.hash if parent else NO_PARENT, path[-1]), path[-1], parent)
        made[path] = cache._by_hash[entry.hash] = cache._by_block[block] = entry
    if parents_anew:
        for entry in [each for each in made.values() if each.parent is None]:
            again = CachedBlock(entry.block, entry.hash, entry.token_ids, None)
            cache._by_hash[entry.hash] = cache._by_block[entry.block] = again
    return cache


def _unknown(path: tuple[tuple[int, ...], ...], hash_block: _Hash) -> CachedBlock | None:
    """What a block follows, where that itself cannot be found any more."""
    entry = None
    for tokens in path:
        entry = CachedBlock(99, hash_block(entry.hash if entry else NO_PARENT, tokens), tokens, entry)
    return entry


def _oracle(known: _Known, token_ids: Sequence[int], size: int) -> list[int]:
    """By the tokens alone, without any hash: from the start, block by block, as long as each is known."""
    by_tokens = {tuple(token for tokens in chain for token in tokens): block for block, chain in known}
    found, end = [], size
    while end <= len(token_ids) and tuple(token_ids[:end]) in by_tokens:
        found.append(by_tokens[tuple(token_ids[:end])])
        end += size
    return found


def _find_case(
    given: str,
    known: _Known,
    token_ids: Sequence[int],
    *,
    size: int = 3,
    hash_block: _Hash = _good,
    parents_anew: bool = False,
) -> Case:
    def observe(f: Function) -> Observation:
        cache = _cache(known, size, hash_block, parents_anew=parents_anew)
        before = dict(cache._by_hash)
        result = f(cache, list(token_ids))
        same = cache._by_hash == before
        return {"the result": listed(result), "the prefix cache afterwards": "as it was" if same else "changed"}

    words = ", ".join(f"{block}: {' '.join(map(str, chain))}" for block, chain in known)
    return Case(
        f"{given}. block_size = {size}; known are {words}; token_ids = {list(token_ids)}",
        observe,
        lambda: {
            "the result": str(_oracle(known, token_ids, size)),
            "the prefix cache afterwards": "as it was",
        },
    )


_A, _B, _C, _X = [1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 5, 9]
_ABC = [(5, [_A]), (2, [_A, _B]), (8, [_A, _B, _C])]


def _walk(
    *,
    ok: Callable[[CachedBlock, tuple[int, ...], CachedBlock | None], bool] = lambda entry, tokens, last: (
        entry.token_ids == tokens and is_same_prefix(entry.parent, last)
    ),
    parent: Callable[[CachedBlock | None], bytes] = lambda last: last.hash if last else NO_PARENT,
    starts: Callable[[int, int], Sequence[int]] = lambda length, size: range(0, length - size + 1, size),
    tokens_of: Callable[[Sequence[int]], Any] = tuple,
    goes_on: bool = False,
    result: Callable[[list[CachedBlock]], Any] = lambda found: [entry.block for entry in found],
) -> Function:
    """`find` with one part of it done otherwise."""

    def find(self: PrefixCache, token_ids: Sequence[int]) -> Any:
        found: list[CachedBlock] = []
        last: CachedBlock | None = None
        for start in starts(len(token_ids), self.block_size):
            tokens = tokens_of(token_ids[start : start + self.block_size])
            entry = self._by_hash.get(self._hash_block(parent(last), tokens))
            if entry is None or not ok(entry, tokens, last):
                if goes_on:
                    continue
                break
            found.append(entry)
            last = entry
        return result(found)

    return find


def _skipping(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    """Every block that is known, whether or not the one before it is."""
    found, size, hash = [], self.block_size, NO_PARENT
    for start in range(0, len(token_ids) - size + 1, size):
        tokens = tuple(token_ids[start : start + size])
        hash = self._hash_block(hash, tokens)
        entry = self._by_hash.get(hash)
        if entry is not None and entry.token_ids == tokens and entry.hash == hash:
            found.append(entry.block)
    return found


def _raising(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    right = _walk()(self, token_ids)
    if len(right) < len(_walk(ok=lambda entry, tokens, last: True)(self, token_ids)):
        raise InputError("a collision")
    return right


def _unknown_key(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    found, size, last = [], self.block_size, None
    for start in range(0, len(token_ids) - size + 1, size):
        tokens = tuple(token_ids[start : start + size])
        last = self._by_hash[self._hash_block(last.hash if last else NO_PARENT, tokens)]
        found.append(last.block)
    return found


def _no_hash_of_none(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    last: Any = None
    self._hash_block(last.hash, token_ids)
    return []


def _hash_of_entry(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    last: Any = None
    self._by_hash.get(self._hash_block(last, token_ids[: self.block_size]))
    return _walk()(self, token_ids)


def _whole_sequences(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    """Longest first, by the tokens of whole prefixes: slow, and right."""
    size = self.block_size
    for end in range(len(token_ids) // size * size, 0, -size):
        for entry in self._by_hash.values():
            if _all_tokens(entry) == tuple(token_ids[:end]):
                shorter = _whole_sequences(self, token_ids[: end - size])
                if len(shorter) == end // size - 1:
                    return [*shorter, entry.block]
    return []


def _all_tokens(entry: CachedBlock | None) -> tuple[int, ...]:
    return () if entry is None else (*_all_tokens(entry.parent), *entry.token_ids)


def _by_lookup(self: PrefixCache, token_ids: Sequence[int]) -> list[int]:
    """With the cache's own helpers."""
    found: list[int] = []
    entry = None
    for tokens in self._full_blocks(token_ids):
        entry = self._lookup(entry, tokens)
        if entry is None:
            return found
        found.append(entry.block)
    return found


FIND = Grader(
    cases=[
        _find_case("the third block is not full", [*_ABC[:2], (4, [_A, [2, 3, 4]]), (6, [_B])], [*_A, *_B, 7, 8]),
        _find_case("all is known, to the last token", _ABC, [*_A, *_B, *_C]),
        _find_case("another beginning", _ABC, [*_C, *_A, *_B]),
        _find_case("the second block is another; the third has the tokens of a known one", _ABC, [*_A, *_X, *_C]),
        _find_case("fewer tokens than a block", _ABC, [1, 2]),
        _find_case("the block between is known no more", [_ABC[0], _ABC[2]], [*_A, *_B, *_C]),
        _find_case("two blocks with one hash, which are not the same", _ABC, [*_X, *_B], hash_block=_first_token),
        _find_case(
            "two blocks with one hash and the same tokens, behind different ones",
            [(3, [_C]), (5, [_A]), (2, [_A, _B])],
            [*_C, *_B],
            hash_block=_first_token,
        ),
        _find_case(
            "a block whose parent was lost; another one has that one's hash now",
            [(3, [_X]), (2, [_A, _B])],
            [*_X, *_B],
            hash_block=_first_token,
        ),
        _find_case(
            "the same tokens twice before a block, but not before that",
            [(3, [_X]), (4, [_X, _B]), (8, [_A, _B, _C])],
            [*_X, *_B, *_C],
            hash_block=_first_token,
        ),
        _find_case(
            "the first block was lost and computed again",
            _ABC,
            [*_A, *_B, *_C, 0],
            parents_anew=True,
        ),
    ],
    mutants=[
        Mutant(
            _walk(ok=lambda entry, tokens, last: True),
            "You take an equal hash for proof. Where two prompts collide, one user is answered out of another's text:"
            " compare the tokens, and what is before them.",
        ),
        Mutant(
            _walk(ok=lambda entry, tokens, last: entry.token_ids == tokens),
            "You compare a block's own tokens alone. Its keys and values depend on all tokens before it, and where"
            " hashes collide those may be others: is_same_prefix(entry.parent, the entry found before it).",
        ),
        Mutant(
            _walk(ok=lambda entry, tokens, last: is_same_prefix(entry.parent, last)),
            "You compare what is before the block, and not the block: entry.token_ids must be these tokens.",
        ),
        Mutant(
            _walk(ok=lambda entry, tokens, last: entry.token_ids == tokens and entry.parent is last),
            "You ask for the very same object as parent. Where a block was lost and computed again there are two"
            " entries for the same tokens, and all behind it would not be found: is_same_prefix compares the tokens.",
        ),
        Mutant(
            _walk(
                ok=lambda entry, tokens, last: (
                    entry.token_ids == tokens and (entry.parent.hash if entry.parent else None) == (last and last.hash)
                )
            ),
            "You compare the parents' hashes, and equal hashes are no proof: one of the two may have been lost, and"
            " another with its hash be there now. is_same_prefix compares their tokens.",
        ),
        Mutant(
            _walk(
                ok=lambda entry, tokens, last: (
                    entry.token_ids == tokens
                    and (entry.parent.token_ids if entry.parent else ()) == (last.token_ids if last else ())
                )
            ),
            "You compare one block before this one. What is before that may be different all the same:"
            " is_same_prefix(entry.parent, last) goes back to the start.",
        ),
        Mutant(
            _raising,
            "You raise an error where hashes collide. It is none: the block is another one, so this one is not known,"
            " and the search ends there.",
            begins="InputError",
        ),
        Mutant(
            _walk(parent=lambda last: NO_PARENT, ok=lambda entry, tokens, last: entry.token_ids == tokens),
            "Every block is looked up as if it were the first of its sequence. The hash of the one before it goes in:"
            " self._hash_block(last.hash, tokens).",
        ),
        Mutant(
            _walk(tokens_of=list),
            "Nothing is ever found. A list and a tuple are never equal: compare tuple(token_ids[start : start + size])"
            " with entry.token_ids. And what is_same_prefix compares with the entry found last is entry.parent, not the"
            " entry itself.",
        ),
        Mutant(
            _skipping,
            "You go on behind a block that is not known. What is found then has a hole before it, and a block table"
            " without it would put every token at the wrong place: end at the first that is missing.",
        ),
        Mutant(
            _walk(starts=lambda length, size: range(0, length - size, size)),
            "You leave out a block that ends where the tokens end. It is full, and known. (That the last token is"
            " computed again in any case is the scheduler's business.)",
        ),
        Mutant(
            _walk(starts=lambda length, size: range(0, length - size + 1)),
            "You take a block at every token. Blocks lie one behind the other: start = 0, size, 2 * size, ...",
        ),
        Mutant(
            _walk(starts=lambda length, size: range(0, min(1, length - size + 1))),
            "You come no further than the first block. Go on as long as each is known: the entry found last gives the"
            " parent's hash for the next.",
        ),
        Mutant(
            _walk(result=lambda found: found),
            "You return the entries. The numbers of the blocks are asked for: entry.block.",
        ),
        Mutant(
            _walk(result=lambda found: [entry.hash for entry in found]),
            "You return hashes. The numbers of the blocks are asked for: entry.block.",
        ),
        Mutant(
            _walk(result=len),
            "You return how many blocks there are. Which they are is asked for, in order.",
        ),
        Mutant(
            _walk(result=lambda found: [entry.block for entry in reversed(found)]),
            "The order is turned round: the block of the first tokens comes first.",
        ),
        Mutant(
            _walk(result=lambda found: None if not found else [entry.block for entry in found]),
            "Where nothing is known you return None. It is a list in any case, an empty one then.",
        ),
        Mutant(
            _walk(result=lambda found: sorted(entry.block for entry in found)),
            "You sort the blocks by number. Their order is that of the tokens in them.",
        ),
        Mutant(
            _unknown_key,
            "You index the dict with a hash that it may not know, and that is no error here but the usual end: .get.",
            begins="KeyError",
        ),
        Mutant(
            _no_hash_of_none,
            "The first block has no parent, and None has no hash: give NO_PARENT for it.",
            begins="AttributeError: 'NoneType' object has no attribute 'hash'",
        ),
        Mutant(
            _hash_of_entry,
            "self._hash_block takes the parent's hash, bytes. You give it the entry, or None: last.hash, and NO_PARENT"
            " for the first block.",
            begins="TypeError: unsupported operand type(s) for +",
        ),
    ],
    alternatives=[_walk(), _whole_sequences, _by_lookup],
)
