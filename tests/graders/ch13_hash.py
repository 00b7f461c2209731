"""13.5: a block's hash. Any good digest is right, so what is compared is which inputs give the same."""

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

_IDS = [17, 4, 261, 9]  # the tokens of most cases


def _kinds(f: Function, token_ids: Sequence[int]) -> tuple[str, str]:
    """What the hash of a first block is, and that of the block behind it; where they are no digests, in words."""
    first = f(b"", token_ids)
    if hasattr(first, "hexdigest"):
        return "an object of hashlib's", "never made"
    if type(first) is not bytes:
        kind = "None (is there a `return`?)" if first is None else f"of type {type(first).__name__}"
        return kind, "never made"
    second = f(first, token_ids)
    if type(second) is bytes and len(first) != len(second):
        return _GROWING, _GROWING
    return _size(first), _size(second)


def _size(hash: Any) -> str:
    if type(hash) is not bytes:
        return f"of type {type(hash).__name__}"
    return _DIGEST if 16 <= len(hash) <= 64 else f"{len(hash)} bytes"


_GROWING = "bytes, and more of them with each block"
_DIGEST = "16 to 64 bytes"
_SAME, _DIFFERENT = "the same hash", "different hashes"


def _digest_case(given: str, ids: Sequence[int]) -> Case:
    """The first block of a sequence, and the one behind it: what kind of thing their hashes are."""

    def observe(f: Function) -> Observation:
        mine = list(ids)
        first, second = _kinds(f, mine)
        changed = "changed by your code" if mine != list(ids) else "as they were"
        return {"the hash": first, "the hash of the block after it": second, "token_ids": changed}

    return Case(
        given,
        observe,
        lambda: {"the hash": _DIGEST, "the hash of the block after it": _DIGEST, "token_ids": "as they were"},
    )


def _pair_case(given: str, one: Callable[[Function], Any], other: Callable[[Function], Any], want: str) -> Case:
    """Two blocks: whether they have one hash."""

    def observe(f: Function) -> Observation:
        return {"the two have": _SAME if one(f) == other(f) else _DIFFERENT}

    return Case(given, observe, lambda: {"the two have": want})


def _chain(*blocks: Sequence[int]) -> Callable[[Function], Any]:
    """The hash of the last of these blocks, each being the parent of the next."""

    def last(f: Function) -> Any:
        hash = b""
        for block in blocks:
            hash = f(hash, block)
        return hash

    return last


def _blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _wide(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()


def _hashing(of: Callable[[bytes, Sequence[int]], bytes]) -> Function:
    """The digest of whatever bytes `of` makes of a block."""
    return lambda parent, token_ids: _blake(of(parent, token_ids))


def _added(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Parent and tokens mixed in a way that forgets their order."""
    own = _blake(_wide(token_ids))
    return bytes(a ^ b for a, b in zip(parent or bytes(16), own, strict=True))


def _raise(error: Exception) -> Any:
    raise error


def _builtin(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return (hash((parent, tuple(token_ids))) % 2**64).to_bytes(8, "little")


def _random() -> Function:
    count = [0]

    def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
        count[0] += 1
        return _blake(parent + _wide(token_ids) + bytes([count[0] % 256]))

    return block_hash


BLOCK_HASH = Grader(
    cases=[
        _digest_case(f"token_ids = {_IDS}", _IDS),
        _pair_case(f"the block {_IDS}, hashed twice", _chain(_IDS), _chain(list(_IDS)), _SAME),
        _pair_case(
            f"the block {_IDS}, first behind [1, 2, 3, 4] and then behind [1, 2, 3, 5]",
            _chain([1, 2, 3, 4], _IDS),
            _chain([1, 2, 3, 5], _IDS),
            _DIFFERENT,
        ),
        _pair_case("the blocks [1, 2, 3, 4] and [1, 2, 4, 3]", _chain([1, 2, 3, 4]), _chain([1, 2, 4, 3]), _DIFFERENT),
        _pair_case(
            "the blocks [1, 23, 5, 6] and [12, 3, 5, 6]", _chain([1, 23, 5, 6]), _chain([12, 3, 5, 6]), _DIFFERENT
        ),
        _pair_case("the blocks [7, 7, 3, 3] and [7, 3, 3, 3]", _chain([7, 7, 3, 3]), _chain([7, 3, 3, 3]), _DIFFERENT),
        _pair_case("the blocks [1, 2, 3, 4] and [2, 2, 3, 3]", _chain([1, 2, 3, 4]), _chain([2, 2, 3, 3]), _DIFFERENT),
        _pair_case(
            "behind the block [1, 2], [3, 4] and [3, 5]", _chain([1, 2], [3, 4]), _chain([1, 2], [3, 5]), _DIFFERENT
        ),
        _pair_case("the blocks [5, 1] and [261, 1]", _chain([5, 1]), _chain([261, 1]), _DIFFERENT),
        _pair_case("the blocks [5, 1] and [131077, 1]", _chain([5, 1]), _chain([131077, 1]), _DIFFERENT),
        _pair_case(f"the block {_IDS} as a list, and as a tuple", _chain(_IDS), _chain(tuple(_IDS)), _SAME),
        _pair_case(
            "the last of two blocks: [1, 2] and then [3, 4]; [3, 4] and then [1, 2]",
            _chain([1, 2], [3, 4]),
            _chain([3, 4], [1, 2]),
            _DIFFERENT,
        ),
        _pair_case(
            "the last of three blocks that are equal but for the first token of all",
            _chain([8, 2], [3, 4], [5, 6]),
            _chain([9, 2], [3, 4], [5, 6]),
            _DIFFERENT,
        ),
    ],
    mutants=[
        Mutant(
            _hashing(lambda parent, ids: _wide(ids)),
            "You leave the parent out. The same words at another place, behind other text, would be taken for this"
            " block, and their keys and values are others: parent + the bytes of the tokens.",
        ),
        Mutant(
            lambda parent, token_ids: parent or _blake(_wide(token_ids)),
            "Every block has the hash of the first: its own tokens do not count. parent + the bytes of the tokens.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + _wide(sorted(ids))),
            "You sort the tokens. Their order is part of what they say.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + str(sum(ids)).encode()),
            "You hash the sum of the ids. Many blocks have one sum: let every id go in, in order.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + _wide(sorted(set(ids)))),
            "You make a set of the tokens, which forgets their order and how often each occurs.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + "".join(map(str, ids)).encode()),
            "You write the ids one behind the other, with nothing between them: 1, 23 and 12, 3 are then both 123. Give"
            " each id as many bytes, or put something between them.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + bytes(i % 256 for i in ids)),
            "You keep one byte of each id. A vocabulary has 49,152 or 128,256 tokens: 5 and 261 are then the same.",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + b"".join((i % 2**16).to_bytes(2, "little") for i in ids)),
            "You keep two bytes of each id. Vocabularies of today have more than 65,536 tokens: array('q') gives each"
            " id eight.",
        ),
        Mutant(
            lambda parent, token_ids: _blake(parent + bytes(token_ids)),
            "bytes(...) of a list takes numbers below 256, one byte each. Ids are larger: array('q', ids).tobytes().",
            begins="ValueError: bytes must be in range",
        ),
        Mutant(
            lambda parent, token_ids: _blake(parent + token_ids),  # type: ignore[operator]
            "Bytes and a list cannot be added. Make bytes of the ids first: array('q', token_ids).tobytes().",
            begins="TypeError: can't concat",
        ),
        Mutant(
            lambda parent, token_ids: hashlib.sha256(str(parent) + str(token_ids)).digest(),  # type: ignore[arg-type]
            "hashlib hashes bytes, and you give it text: .encode() it. (tuple(token_ids) first: a list and a tuple are"
            " written in other brackets.)",
            begins="TypeError: Strings must be encoded",
        ),
        Mutant(
            lambda parent, token_ids: _blake(parent + _raise(OverflowError("unsigned short is greater than maximum"))),
            "The ids do not fit into the numbers of your array: 'H' has two bytes and 'B' one. Take 'q', which has"
            " eight.",
            begins="OverflowError",
        ),
        Mutant(
            _hashing(lambda parent, ids: parent + repr(ids).encode()),
            "You hash what repr makes of the sequence, and a list is written in other brackets than a tuple: the same"
            " tokens are not found. tuple(ids), or the bytes of the numbers.",
        ),
        Mutant(
            _added,
            "You mix parent and tokens in a way that does not know which came first: two blocks in the other order have"
            " the same hash. Hash them one behind the other, parent + tokens.",
        ),
        Mutant(
            _builtin,
            "Eight bytes are 64 bits, few enough for somebody to look for a collision (and Python's hash(), if you take"
            " it, is made for dicts, and of bytes it is another in each process). Take 16 bytes or more of a digest.",
        ),
        Mutant(
            lambda parent, token_ids: hash((parent, tuple(token_ids))),
            "You return a number, from Python's hash(). bytes are asked for, from a digest of hashlib that nobody can"
            " find collisions of.",
        ),
        Mutant(
            _random(),
            "The same block gives another hash each time: nothing would ever be found again. No salt, no counter, no"
            " id().",
        ),
        Mutant(
            lambda parent, token_ids: hashlib.blake2b(parent + _wide(token_ids), digest_size=16).hexdigest(),
            "You return the digest as text. The next block's `parent + bytes` cannot add to that: .digest().",
        ),
        Mutant(
            lambda parent, token_ids: hashlib.blake2b((parent or b"") + _wide(token_ids), digest_size=16),
            "You return hashlib's object. The hash itself is what its .digest() returns.",
        ),
        Mutant(
            lambda parent, token_ids: parent + _wide(token_ids),
            "The name of a block grows with all that is before it, and the thousandth block of a prompt has one of many"
            " thousand bytes. Put the parent's hash *into* what is hashed, and take a digest, which is always as long.",
        ),
    ],
    alternatives=[
        _hashing(lambda parent, ids: parent + _wide(ids)),
        lambda parent, token_ids: hashlib.sha256(parent + ",".join(map(str, token_ids)).encode()).digest(),
        lambda parent, token_ids: hashlib.sha256(json.dumps([parent.hex(), list(token_ids)]).encode()).digest(),
        lambda parent, token_ids: hashlib.sha512(_wide(token_ids) + parent).digest(),
        _hashing(lambda parent, ids: parent + b"".join(i.to_bytes(3, "big") for i in ids)),
    ],
)
