"""13.1 and 13.2: methods of a real BlockPool in the middle of its life, whose whole state is looked at afterwards."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from graders.common import REFUSED, refusal
from graders.refusals import refusals
from minillm.engine.block_pool import BlockPool
from minillm.errors import InputError
from minillm.exercises.compare import in_words
from minillm.exercises.grading import EXCEPTION, Case, Function, Grader, Mutant, Observation


class _Told(list[int]):
    """The blocks that the prefix cache was told of."""


def _pool(users: Sequence[int], free: Sequence[int]) -> tuple[BlockPool, _Told]:
    """A pool in which block i has users[i] users, and the free ones wait in this order; and what it tells of."""
    told = _Told()
    pool = BlockPool(len(users), on_reuse=told.append)
    pool._users = list(users)
    pool._free = OrderedDict.fromkeys(free)
    return pool, told


def _state(users: Sequence[int], free: Sequence[int], told: Sequence[int]) -> Observation:
    return {
        "free blocks, the next one first": _row(free),
        "users of each block": _row(users),
        "the prefix cache was told of": _row(told),
    }


def _row(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _seen(pool: BlockPool, told: _Told) -> Observation:
    return _state(pool._users, list(pool._free), told)


def _in_the_state(users: Sequence[int], free: Sequence[int]) -> str:
    return f"users of blocks 0 to {len(users) - 1}: {_row(users)}; free, the next one first: {_row(free)}"


# --- 13.1 ------------------------------------------------------------------------------------------------------------


def _handed_out(users: Sequence[int], free: Sequence[int], times: int = 1) -> Case:
    """Asked for a block `times` times in a row."""

    def observe(f: Function) -> Observation:
        pool, told = _pool(users, free)
        results = [f(pool) for _ in range(times)]
        return {"the result" if times == 1 else "the results": _result(results), **_seen(pool, told)}

    def want() -> Observation:
        taken, left = list(free[:times]), list(free[times:])
        after = [1 if block in taken else count for block, count in enumerate(users)]
        return {
            "the result" if times == 1 else "the results": taken[0] if times == 1 else _row(taken),
            **_state(after, left, taken),
        }

    asked = "" if times == 1 else f"; asked {times} times in a row"
    return Case(_in_the_state(users, free) + asked, observe, want)


def _result(results: Sequence[Any]) -> Any:
    """Blocks as they are, anything else in words."""
    plain = [one if type(one) is int else in_words(one) for one in results]
    return plain[0] if len(plain) == 1 else ", ".join(map(str, plain))


def _none_left(users: Sequence[int]) -> Case:
    def observe(f: Function) -> Observation:
        pool, told = _pool(users, [])
        return {**refusal(f, pool), **_seen(pool, told)}

    return Case(
        _in_the_state(users, []),
        observe,
        lambda: {EXCEPTION: REFUSED, **_state(users, [], [])},
    )


def _allocating(
    *,
    none: Callable[[], Any] = lambda: _raise(InputError("no block is free")),
    take: Callable[[BlockPool], int] = lambda pool: pool._free.popitem(last=False)[0],
    use: Callable[[BlockPool, int], None] = lambda pool, block: pool._users.__setitem__(block, 1),
    tell: Callable[[BlockPool, int], None] = lambda pool, block: pool._on_reuse(block),
    result: Callable[[int], Any] = lambda block: block,
) -> Function:
    """`allocate` with one part of it done otherwise."""

    def allocate(self: BlockPool) -> Any:
        if not self._free:
            return none()
        block = take(self)
        use(self, block)
        tell(self, block)
        return result(block)

    return allocate


def _raise(error: Exception) -> Any:
    raise error


def _take_last(pool: BlockPool) -> int:
    return pool._free.popitem()[0]


def _take_lowest(pool: BlockPool) -> int:
    block = min(pool._free)
    del pool._free[block]
    return block


def _unchecked(self: BlockPool) -> int:
    block, _ = self._free.popitem(last=False)
    self._users[block] = 1
    self._on_reuse(block)
    return block


def _unchecked_next(self: BlockPool) -> int:
    block = next(iter(self._free))
    del self._free[block]
    self._users[block] = 1
    self._on_reuse(block)
    return block


def _pair(self: BlockPool) -> int:
    if not self._free:
        raise InputError("none is free")
    block = self._free.popitem(last=False)
    self._users[block] = 1  # type: ignore[index, call-overload]
    self._on_reuse(block)  # type: ignore[arg-type]
    return block  # type: ignore[return-value]


def _asserting(self: BlockPool) -> int:
    assert self._free
    return _unchecked(self)


def _by_index(self: BlockPool) -> int:
    block = self._free[0]
    del self._free[0]
    self._users[block] = 1  # type: ignore[index, call-overload]
    self._on_reuse(block)  # type: ignore[arg-type]
    return block  # type: ignore[return-value]


def _popped(self: BlockPool) -> int:
    block = self._free.pop()  # type: ignore[call-arg]
    self._users[block] = 1
    self._on_reuse(block)
    return block


def _shared_if_full(self: BlockPool) -> int:
    """Where none is free, take one that is in use."""
    if not self._free:
        self._users[0] += 1
        return 0
    return _unchecked(self)


def _own_steps(self: BlockPool) -> int:
    if len(self._free) < 1:
        raise InputError(f"all of {self.num_blocks} blocks are taken")
    block = next(iter(self._free))
    self._on_reuse(block)
    self._users[block] += 1
    del self._free[block]
    return block


def _through_share(self: BlockPool) -> int:
    if self.num_free == 0:
        raise InputError("there is none")
    block = list(self._free)[0]  # noqa: RUF015
    self.share(block)
    self._on_reuse(block)
    return block


ALLOCATE = Grader(
    cases=[
        _handed_out([1, 0, 2, 0, 0, 1], [4, 1, 3]),
        _handed_out([0, 1, 0, 0, 1], [2, 0, 3], times=2),
        _handed_out([1, 0, 3], [1]),
        _handed_out([0, 0, 0, 0], [0, 1, 2, 3], times=4),
        _none_left([1, 2, 1]),
    ],
    mutants=[
        Mutant(
            _allocating(take=_take_last),
            "You take the last of the free blocks. It was freed most recently, and its contents are the likeliest to be"
            " wanted again; take the first. popitem takes the last unless it is told last=False.",
        ),
        Mutant(
            _allocating(take=_take_lowest),
            "You take the lowest number. The order of self._free is what says which block has been unused the longest:"
            " the first key of it.",
        ),
        Mutant(
            _allocating(take=lambda pool: next(iter(pool._free))),
            "The block is still among the free ones, so that the next request is given it too, and both write into it."
            " Take it out of self._free.",
        ),
        Mutant(
            _allocating(take=lambda pool: pool._users.index(0)),
            "You look for the first block without users, and leave it among the free ones. self._free has the free"
            " blocks in the order in which they are to be handed out: take the first key out of it.",
        ),
        Mutant(
            _allocating(use=lambda pool, block: pool._users.append(block)),
            "You append to self._users. It has a count for each block, so that the one to set is self._users[block].",
        ),
        Mutant(
            _allocating(use=lambda pool, block: None),
            "The block has no user. Whoever frees it is told that it was freed twice, and sharing it counts one too"
            " few: self._users[block] = 1.",
        ),
        Mutant(
            _allocating(use=lambda pool, block: pool._users.__setitem__(block, True)),
            "self._users holds how many use a block: 1, and not True.",
        ),
        Mutant(
            _allocating(tell=lambda pool, block: None),
            "Nobody tells the prefix cache. It goes on finding the block by its old tokens, and another request attends"
            " to whatever is written there now: self._on_reuse(block).",
        ),
        Mutant(
            _allocating(use=lambda pool, block: None, tell=lambda pool, block: None),
            "You take the block out of the free ones, and nothing more. It needs a user (self._users[block] = 1), and"
            " the prefix cache must be told (self._on_reuse(block)).",
        ),
        Mutant(
            _allocating(result=lambda block: None),
            "Nothing is returned: the block is in use, and nobody knows which it is.",
        ),
        Mutant(
            _allocating(result=lambda block: (block, None)),
            "You return the pair that popitem gives. The number of the block is its first part.",
        ),
        Mutant(
            _pair,
            "popitem gives a pair, the key and its value. The block is the key: block, _ = ...",
            begins="TypeError: list indices must be integers or slices, not tuple",
        ),
        Mutant(
            _by_index,
            "You ask self._free for key 0, as if it were a list. Its keys are the blocks themselves, in order: take the"
            " first out with popitem(last=False).",
            begins="KeyError",
        ),
        Mutant(
            _popped,
            "`pop` of a dict wants to know which key. The first key, whatever it is, comes with popitem(last=False).",
            begins="TypeError: pop()",
        ),
        Mutant(
            _unchecked,
            "You do not look whether a block is free. popitem raises a KeyError then, which no caller expects: raise"
            " InputError with a sentence.",
        ),
        Mutant(
            _unchecked_next,
            "You do not look whether a block is free. next raises StopIteration then, which a generator somewhere above"
            " takes for its own end: raise InputError with a sentence.",
        ),
        Mutant(
            _allocating(none=lambda: None),
            "Where no block is free you return something that is none. None or -1 would land in a block table, and the"
            " accident would come later, far from here (as an index, -1 is the last block): raise InputError.",
        ),
        Mutant(
            _shared_if_full,
            "Where no block is free you hand out one that is in use. Two requests would write into it: raise"
            " InputError.",
        ),
        Mutant(
            _asserting,
            "You check with assert. That raises AssertionError, which nobody above expects, and `python -O` leaves it"
            " out: raise InputError with a sentence.",
        ),
        *refusals(lambda refuse: _allocating(none=refuse)),
    ],
    alternatives=[_allocating(), _own_steps, _through_share],
)

# --- 13.2 ------------------------------------------------------------------------------------------------------------


def _given_back(users: Sequence[int], free: Sequence[int], block: int, keep: bool) -> Case:
    def observe(f: Function) -> Observation:
        pool, told = _pool(users, free)
        if keep:
            f(pool, block, keep=True)
        else:
            f(pool, block)
        return _seen(pool, told)

    def want() -> Observation:
        after = [count - (each == block) for each, count in enumerate(users)]
        left = [*free, block] if keep else [block, *free]
        return _state(after, list(free) if after[block] else left, [])

    return Case(
        f"{_in_the_state(users, free)}; block = {block}{', keep=True' if keep else ''}",
        observe,
        want,
    )


def _freed_twice(users: Sequence[int], free: Sequence[int], block: int, keep: bool) -> Case:
    def observe(f: Function) -> Observation:
        pool, told = _pool(users, free)
        return {**refusal(lambda: f(pool, block, keep=keep)), **_seen(pool, told)}

    return Case(
        f"{_in_the_state(users, free)}; block = {block}{', keep=True' if keep else ''}, which nobody uses",
        observe,
        lambda: {EXCEPTION: REFUSED, **_state(users, free, [])},
    )


def _no_user() -> Any:
    raise InputError("this block has no user")


def _freeing(
    *,
    twice: Callable[[], Any] = _no_user,
    count: Callable[[int], int] = lambda users: users - 1,
    still: Callable[[int], bool] = lambda users: users > 0,
    put: Callable[[BlockPool, int, bool], None] | None = None,
    told: bool = False,
) -> Function:
    """`free` with one part of it done otherwise."""

    def free(self: BlockPool, block: int, *, keep: bool = False) -> Any:
        if self._users[block] < 1:
            return twice()
        self._users[block] = count(self._users[block])
        if still(self._users[block]):
            return None
        (put or _put)(self, block, keep)
        if told:
            self._on_reuse(block)
        return None

    return free


def _put(pool: BlockPool, block: int, keep: bool) -> None:
    pool._free[block] = None
    pool._free.move_to_end(block, last=keep)


def _unchecked_free(self: BlockPool, block: int, *, keep: bool = False) -> None:
    self._users[block] -= 1
    if self._users[block] == 0:
        _put(self, block, keep)


def _unchecked_free_anyway(self: BlockPool, block: int, *, keep: bool = False) -> None:
    self._users[block] -= 1
    if self._users[block] <= 0:
        _put(self, block, keep)


def _clamped(self: BlockPool, block: int, *, keep: bool = False) -> None:
    self._users[block] = max(0, self._users[block] - 1)
    if self._users[block] == 0:
        _put(self, block, keep)


def _late_check(self: BlockPool, block: int, *, keep: bool = False) -> None:
    self._users[block] -= 1
    if self._users[block] < 0:
        raise InputError("nobody uses it")
    if self._users[block] == 0:
        _put(self, block, keep)


def _asserting_free(self: BlockPool, block: int, *, keep: bool = False) -> None:
    assert self._users[block] > 0
    _freeing()(self, block, keep=keep)


def _zero_for_all(self: BlockPool, block: int, *, keep: bool = False) -> None:
    if self._users[block] < 1:
        raise InputError("no")
    if self._users[block] == 1:
        _put(self, block, keep)
    self._users[block] = 0


def _refusing_shared(self: BlockPool, block: int, *, keep: bool = False) -> None:
    if self._users[block] != 1:
        raise InputError("no")
    _freeing()(self, block, keep=keep)


def _as_a_list(self: BlockPool, block: int, *, keep: bool = False) -> None:
    if self._users[block] < 1:
        raise InputError("no")
    self._users[block] -= 1
    if not self._users[block]:
        self._free.append(block)  # type: ignore[attr-defined]


def _moved_first(self: BlockPool, block: int, *, keep: bool = False) -> None:
    if self._users[block] < 1:
        raise InputError("no")
    self._users[block] -= 1
    if not self._users[block]:
        self._free.move_to_end(block, last=keep)


def _rebuilt(self: BlockPool, block: int, *, keep: bool = False) -> None:
    """The queue made anew: slow, and right."""
    if block in self._free:
        raise InputError(f"block {block} is free already")
    self._users[block] -= 1
    if self._users[block] == 0:
        order = [*self._free, block] if keep else [block, *self._free]
        self._free = OrderedDict((each, None) for each in order)


FREE = Grader(
    cases=[
        _given_back([1, 0, 2, 0, 1], [3, 1], 4, keep=False),
        _given_back([1, 0, 2, 0, 1], [3, 1], 4, keep=True),
        _given_back([1, 0, 2, 0, 1], [3, 1], 2, keep=False),
        _given_back([1, 0, 3, 0, 1], [3, 1], 2, keep=True),
        _given_back([2, 1, 1], [], 1, keep=False),
        _freed_twice([1, 0, 2, 0], [3, 1], 1, keep=False),
        _freed_twice([1, 0, 2, 0], [3, 1], 3, keep=True),
    ],
    mutants=[
        Mutant(
            _unchecked_free,
            "You do not look whether the block has a user at all. Its count becomes -1, and the next one who is given"
            " it and frees it never gets it back into the pool: raise InputError where there is no user.",
        ),
        Mutant(
            _unchecked_free_anyway,
            "You put a block back that is free already, and its count becomes -1. A double free is a mistake somewhere"
            " else, which nobody will find if it is not told: raise InputError.",
        ),
        Mutant(
            _clamped,
            "You let the count stay at 0, so that a double free passes without a word. In between, another request may"
            " have been given the block, and then it is its block that is freed: raise InputError.",
        ),
        Mutant(
            _late_check,
            "You count down before you look. The error is raised, but the count is -1 now: check first, and change"
            " nothing.",
        ),
        Mutant(
            _freeing(twice=lambda: None),
            "You see that nobody uses the block, and go back without a word. Whoever freed it twice believes that it"
            " gave up something of its own: raise InputError.",
        ),
        Mutant(
            _freeing(still=lambda users: False),
            "You put the block among the free ones while others use it. It would be handed out and overwritten under"
            " them: only when the last user goes is it free.",
        ),
        Mutant(
            _freeing(count=lambda users: 0),
            "You set the count to 0, as if the caller were the only user. Of a shared block it takes one user away:"
            " -= 1.",
        ),
        Mutant(
            _freeing(count=lambda users: 0, put=lambda pool, block, keep: None),
            "You set the count to 0, and do not put the block among the free ones: whoever shared it loses it, and"
            " nobody gets it.",
        ),
        Mutant(
            _zero_for_all,
            "You free the block where the caller is its only user, and take all users away where there are more. Each"
            " frees it once: count down by one.",
        ),
        Mutant(
            _freeing(count=lambda users: users),
            "The count has not changed. One user less: self._users[block] -= 1.",
        ),
        Mutant(
            _freeing(put=lambda pool, block, keep: None),
            "The block has no user and is not among the free ones: it is lost, and with each request the pool gets"
            " smaller. Put it into self._free.",
        ),
        Mutant(
            _freeing(put=lambda pool, block, keep: _put(pool, block, True)),
            "You put every block at the far end. Without `keep` nobody can find its contents: hand it out first, and"
            " spare those that somebody may want again.",
        ),
        Mutant(
            _freeing(put=lambda pool, block, keep: _put(pool, block, False)),
            "You put every block in front. With `keep` its contents may be wanted again, and in front they are"
            " overwritten at once: it is handed out last.",
        ),
        Mutant(
            _freeing(put=lambda pool, block, keep: _put(pool, block, not keep)),
            "The two ends are exchanged: what is to be kept is handed out last, so it goes behind all others.",
        ),
        Mutant(
            _freeing(put=lambda pool, block, keep: None if keep else _put(pool, block, False)),
            "With `keep` you do not put the block back at all. It is free, too, and must be there when nothing else is:"
            " only it comes last.",
        ),
        Mutant(
            _freeing(told=True),
            "You tell the prefix cache that the contents are lost. They are still there, and may be found, until"
            " somebody else is given the block: that is for `allocate`.",
        ),
        Mutant(
            _refusing_shared,
            "You refuse a block that is shared. Each of its users frees it once: the count goes down by one, and the"
            " block stays in use.",
            begins="InputError",
        ),
        Mutant(
            _as_a_list,
            "self._free is an OrderedDict, not a list. A key is put in with self._free[block] = None.",
            begins="AttributeError: 'collections.OrderedDict' object has no attribute",
        ),
        Mutant(
            _moved_first,
            "move_to_end moves a key that is there. Put it in first: self._free[block] = None.",
            begins="KeyError",
        ),
        Mutant(
            _asserting_free,
            "You check with assert. That raises AssertionError, which nobody above expects, and `python -O` leaves it"
            " out: raise InputError with a sentence.",
        ),
        *refusals(lambda refuse: _freeing(twice=refuse)),
    ],
    alternatives=[_freeing(), _rebuilt],
)
