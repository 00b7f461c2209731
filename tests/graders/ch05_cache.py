"""5.2 and 5.6: methods of a real KVCache of a tiny model, whose whole memory is looked at before and after."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graders.ch05_bytes import WIDE_HEADS
from graders.common import REFUSED, UNTOUCHED, random, refusal, touched
from graders.refusals import refusals
from minillm.errors import InputError
from minillm.exercises.grading import EXCEPTION, Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache

# --- the oracle's own picture of a cache -----------------------------------------------------------------------------

_LAYERS, _BATCH, _HEADS, _ROOM, _DIM = 3, 4, 2, 7, 10
_SHAPE = (_LAYERS, _BATCH, _HEADS, _ROOM, _DIM)


def _cache(length: int) -> tuple[KVCache, Tensor, Tensor]:
    """A cache with `length` tokens and recognisable scrap behind them; copies of its keys and values."""
    cache = KVCache(WIDE_HEADS, _ROOM, _BATCH)
    before = random(*_SHAPE, seed=11), random(*_SHAPE, seed=12)
    cache.keys.copy_(before[0])
    cache.values.copy_(before[1])
    cache.advance(length)
    return cache, *before


def _new_tokens(count: int, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values as the model hands them over: views with the axes of tokens and heads swapped."""
    k = random(_BATCH, count, _HEADS, _DIM, seed=20 + layer).transpose(1, 2)  # [B, Hkv, T, D]
    v = random(_BATCH, count, _HEADS, _DIM, seed=30 + layer).transpose(1, 2)
    return k, v


def _written(before: Tensor, layer: int, new: Tensor, start: int) -> Tensor:
    """What the memory must look like after the write, token by token."""
    after = before.clone()
    for token in range(new.shape[2]):
        for head in range(_HEADS):
            after[layer, :, head, start + token] = new[:, head, token]
    return after


def _shares(piece: Any, whole: Tensor) -> str:
    same = isinstance(piece, Tensor) and piece.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return VIEW if same else "a copy"


def _memory(cache: KVCache, keys: Tensor, values: Tensor) -> str:
    """Whether the cache still has the tensors that it had. (They are kept alive: freed memory is given out again.)"""
    same = (cache.keys.data_ptr(), cache.values.data_ptr()) == (keys.data_ptr(), values.data_ptr())
    return SAME if same else "another"


VIEW, SAME = "a view of the cache", "the same as before"


def _pair(result: Any) -> tuple[Any, Any]:
    """The two tensors that `append` gives back, or the answer itself in both places."""
    return tuple(result) if isinstance(result, tuple | list) and len(result) == 2 else (result, result)  # type: ignore[return-value]


# --- 5.2 -------------------------------------------------------------------------------------------------------------


def _append_case(given: str, *, held: int, new: int, layers: tuple[int, ...] = (1,)) -> Case:
    """`new` tokens behind `held`, appended in each of `layers` in turn; the last layer's answer is looked at."""

    def observe(f: Function) -> Observation:
        cache, *_ = _cache(held)
        kept = cache.keys, cache.values
        result, arguments = None, {}
        for layer in layers:
            k, v = _new_tokens(new, layer)
            arguments = {"k": (k, k.clone()), "v": (v, v.clone())}
            result = f(cache, layer, k, v)
        keys, values = _pair(result)
        return {
            "the cache's length": cache.length,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the keys given back": keys,
            "the values given back": values,
            "the cache's memory is": _memory(cache, *kept),
            "the keys given back are": _shares(keys, cache.keys) if keys is not None else "nothing",
            "the values given back are": _shares(values, cache.values) if values is not None else "nothing",
            "k and v afterwards": touched(**arguments),
        }

    def want() -> Observation:
        _, keys, values = _cache(held)
        for layer in layers:
            k, v = _new_tokens(new, layer)
            keys, values = _written(keys, layer, k, held), _written(values, layer, v, held)
        return {
            "the cache's length": held,
            "cache.keys": keys,
            "cache.values": values,
            "the keys given back": keys[layers[-1], :, :, : held + new],
            "the values given back": values[layers[-1], :, :, : held + new],
            "the cache's memory is": SAME,
            "the keys given back are": VIEW,
            "the values given back are": VIEW,
            "k and v afterwards": UNTOUCHED,
        }

    return Case(given, observe, want)


def _full_case(given: str, *, held: int, new: int) -> Case:
    def observe(f: Function) -> Observation:
        cache, *_ = _cache(held)
        k, v = _new_tokens(new, 1)
        return {
            **refusal(f, cache, 1, k, v),
            "cache.keys": cache.keys,
            "cache.values": cache.values,
            "the cache's length": cache.length,
        }

    def want() -> Observation:
        _, keys, values = _cache(held)
        return {EXCEPTION: REFUSED, "cache.keys": keys, "cache.values": values, "the cache's length": held}

    return Case(given, observe, want)


_IN_OWN_WORDS = "InputError"  # a refusal out of place: everybody words it in another way

_KV = "k, v [4, 2, {}, 10]"


def _checked_append(write: Callable[[KVCache, int, Tensor, Tensor, int, int], Any]) -> Function:
    """An answer whose check for room is right, and whose writing is `write`."""

    def append(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
        start, end = self.length, self.length + k.shape[2]
        if end > self.max_seq_len:
            raise InputError("full")
        return write(self, layer, k, v, start, end)

    return append


def _in_place(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    self.keys[layer, :, :, start:end] = k
    self.values[layer, :, :, start:end] = v
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _at_the_front(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return _in_place(self, layer, k, v, 0, k.shape[2])


def _into_all_layers(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    self.keys[:, :, :, start:end] = k
    self.values[:, :, :, start:end] = v
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _advancing(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    result = _in_place(self, layer, k, v, start, end)
    self._length = end
    return result


def _setting_length(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    result = _in_place(self, layer, k, v, start, end)
    self.length = end  # pyright: ignore[reportAttributeAccessIssue] - a property without a setter
    return result


def _new_only(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return tuple(kept[:, :, start:] for kept in _in_place(self, layer, k, v, start, end))


def _arguments_back(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    _in_place(self, layer, k, v, start, end)
    return k, v


def _old_only(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return tuple(kept[:, :, :start] for kept in _in_place(self, layer, k, v, start, end))


def _whole_room(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    _in_place(self, layer, k, v, start, end)
    return self.keys[layer], self.values[layer]


def _one_early(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    early = max(0, start - 1)
    _in_place(self, layer, k, v, early, early + k.shape[2])
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _values_forgotten(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    self.keys[layer, :, :, start:end] = k
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _keys_twice(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return _in_place(self, layer, k, k, start, end)


def _nothing_back(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    _in_place(self, layer, k, v, start, end)


def _copies_back(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return tuple(kept.clone() for kept in _in_place(self, layer, k, v, start, end))


def _copied_values_back(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    keys, values = _in_place(self, layer, k, v, start, end)
    return keys, values.clone()


def _new_tensors(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return _in_place(self, layer, k, v, start, end)


def _scattered(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    """As `_new_tensors` does, in other words."""
    keys = self.keys[layer].slice_scatter(k, dim=2, start=start, end=end)
    values = self.values[layer].slice_scatter(v, dim=2, start=start, end=end)
    self.keys, self.values = self.keys.select_scatter(keys, 0, layer), self.values.select_scatter(values, 0, layer)
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _cat(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return torch.cat([self.keys[layer, :, :, :start], k], dim=2), torch.cat(
        [self.values[layer, :, :, :start], v], dim=2
    )


def _cat_behind_the_room(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    return torch.cat([self.keys[layer], k], 2), torch.cat([self.values[layer], v], 2)


def _heads_for_places(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    self.keys[layer, :, start:end] = k
    self.values[layer, :, start:end] = v
    return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


def _no_check(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
    return _in_place(self, layer, k, v, self.length, self.length + k.shape[2])


def _axis_for_tokens(axis: int) -> Function:
    """An answer that takes the size of another axis of k for the number of new tokens."""

    def append(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
        end = self.length + k.shape[axis]
        if end > self.max_seq_len:
            raise InputError("full")
        return _in_place(self, layer, k, v, self.length, end)

    return append


def _late_check(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
    start, end = self.length, self.length + k.shape[2]
    fits = max(0, self.max_seq_len - start)
    result = _in_place(self, layer, k[:, :, :fits], v[:, :, :fits], start, min(end, self.max_seq_len))
    if end > self.max_seq_len:
        raise InputError("full")
    return result


def _append_refusing(refuse: Callable[[], Any]) -> Function:
    """An answer that is right but for its refusal."""

    def append(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
        return refuse() if self.length + k.shape[2] > self.max_seq_len else _no_check(self, layer, k, v)

    return append


class _FullError(InputError):
    """A kind of InputError: as good as the thing itself."""


def _kind_of_error(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
    if self.length + k.shape[2] > self.max_seq_len:
        raise _FullError("there is no room")
    return _no_check(self, layer, k, v)


def _strict_check(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
    if self.length + k.shape[2] >= self.max_seq_len:
        raise InputError("full")
    return _no_check(self, layer, k, v)


def _assertion(self: KVCache, layer: int, k: Tensor, v: Tensor) -> Any:
    assert self.length + k.shape[2] <= self.max_seq_len
    return _no_check(self, layer, k, v)


def _token_by_token(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    for offset in range(end - start):
        self.keys[layer].select(2, start + offset).copy_(k[:, :, offset])
        self.values[layer].select(2, start + offset).copy_(v[:, :, offset])
    return self.keys[layer].narrow(2, 0, end), self.values[layer].narrow(2, 0, end)


def _index_copy(self: KVCache, layer: int, k: Tensor, v: Tensor, start: int, end: int) -> Any:
    where = torch.arange(start, end)
    self.keys[layer].index_copy_(2, where, k)
    self.values[layer].index_copy_(2, where, v)
    return [self.keys[layer][:, :, :end], self.values[layer][:, :, :end]]


APPEND = Grader(
    cases=[
        _append_case(f"an empty cache with room for 7 tokens; layer 1; {_KV.format(5)}: a prompt", held=0, new=5),
        _append_case(f"a cache that holds 3 of 7 tokens; layer 1; {_KV.format(1)}: a decode step", held=3, new=1),
        _append_case(
            f"a cache that holds 3 of 7 tokens; layer 2; {_KV.format(2)}: a chunk", held=3, new=2, layers=(2,)
        ),
        _append_case(
            f"a cache that holds 2 of 7 tokens; layers 0, 1, 2 in turn; {_KV.format(2)} each",
            held=2,
            new=2,
            layers=(0, 1, 2),
        ),
        _append_case(f"a cache that holds 3 of 7 tokens; {_KV.format(4)}: exactly full afterwards", held=3, new=4),
        _full_case(f"a cache that holds 5 of 7 tokens; {_KV.format(3)}: one more than fit", held=5, new=3),
        _full_case(f"a full cache, 7 of 7 tokens; {_KV.format(1)}: one more than fits", held=7, new=1),
    ],
    mutants=[
        Mutant(
            _checked_append(_setting_length),
            "You set self.length. It cannot be set, and it is not yours to move: all layers append at the same place,"
            " and the caller advances the length once, when the last has written.",
        ),
        Mutant(
            _checked_append(_at_the_front),
            "You write at the front of the cache, over the tokens that it holds. The new ones go behind them, at"
            " self.length. (With an empty cache that is the same place, so a prompt alone does not show it.)",
        ),
        Mutant(
            _checked_append(_into_all_layers),
            "You write into every layer. Each layer has keys and values of its own: index with [layer] first.",
        ),
        Mutant(
            _checked_append(_advancing),
            "You advance the length. The next layer then writes its part of the same tokens further back: the caller"
            " advances once, when all layers have appended.",
        ),
        Mutant(
            _checked_append(_new_only),
            "You give back only the part that is new. Attention needs the keys and values of *all* tokens so far, from"
            " the first one to the end of the new ones.",
        ),
        Mutant(
            _checked_append(_arguments_back),
            "You give back k and v themselves. Attention needs the keys and values of *all* tokens so far, read from"
            " the cache.",
        ),
        Mutant(
            _checked_append(_old_only),
            "You give back what was there before. A token attends to itself too: the slice ends behind the new tokens.",
        ),
        Mutant(
            _checked_append(_whole_room),
            "You give back the whole room. What lies behind the tokens is scrap, and attention would take it for"
            " tokens: slice to [:, :, :end].",
        ),
        Mutant(
            _checked_append(_one_early),
            "You start one place early and overwrite the last token. Positions count from 0, so the first free one is"
            " self.length, not self.length - 1.",
        ),
        Mutant(
            _checked_append(_values_forgotten),
            "You write the keys and forget the values.",
        ),
        Mutant(
            _checked_append(_keys_twice),
            "You write k into the values too: v is what belongs there.",
        ),
        Mutant(
            _checked_append(_nothing_back),
            "You write, and give nothing back. The caller attends over what you return: (keys, values) of this layer.",
        ),
        Mutant(
            _checked_append(_copies_back),
            "You give back copies. The numbers are right, and the price is wrong: each decode step would copy the whole"
            " cache, layer by layer. Slice, and do not clone.",
        ),
        Mutant(
            _checked_append(_copied_values_back),
            "You give back a view of the keys, and a copy of the values. Each decode step would copy half of the cache,"
            " layer by layer: slice both.",
        ),
        Mutant(
            _checked_append(_new_tensors),
            "You put new tensors into the place of self.keys and self.values. The numbers are right, and each layer of"
            " each step copies the whole cache (clone, slice_scatter and the like do). Write into the tensors that are"
            " there: self.keys[layer][:, :, start:end] = k.",
        ),
        Mutant(
            _checked_append(_cat),
            "You join old and new with torch.cat and keep nothing: the cache itself has not changed, and joining copies"
            " all of it each time. Write into self.keys[layer], in place.",
        ),
        Mutant(
            _checked_append(_cat_behind_the_room),
            "You join the new tokens to the whole room with torch.cat: behind its last place, not behind the last"
            " token, and in a copy that nobody keeps. Write into self.keys[layer], from self.length on.",
        ),
        Mutant(
            _checked_append(_heads_for_places),
            "Your slice runs along the heads. self.keys[layer] is [B, Hkv, max_seq_len, D], so the places are its third"
            " axis: self.keys[layer, :, :, start:end].",
        ),
        Mutant(
            _no_check,
            "You do not check for room. Slicing past the end of a tensor is no error: a single token assigned there"
            " vanishes, and with several PyTorch complains in its own words. Raise InputError first.",
        ),
        Mutant(
            _axis_for_tokens(1),
            "You take k.shape[1] for the number of new tokens. k is [B, Hkv, T, D]: that one counts the heads, and"
            " k.shape[2] the tokens.",
        ),
        Mutant(
            _axis_for_tokens(0),
            "You take len(k), or k.shape[0], for the number of new tokens. k is [B, Hkv, T, D]: that one counts the"
            " sequences, and k.shape[2] the tokens.",
        ),
        Mutant(
            _late_check,
            "You check for room after you have written a part. A refusal must leave the cache as it was: check first.",
        ),
        Mutant(
            _strict_check,
            "You refuse to fill the last place. A cache of 7 tokens has room for 7: only *more* is too many.",
            begins=_IN_OWN_WORDS,
        ),
        Mutant(
            _assertion,
            "You check with assert. That raises AssertionError, which nobody above expects, and `python -O` leaves it"
            " out: raise InputError with a sentence.",
        ),
        *refusals(_append_refusing),
        Mutant(
            _append_refusing(lambda: None),
            "You see that the tokens do not fit, and go back without a word. The caller attends over what it was given:"
            " raise InputError.",
        ),
    ],
    alternatives=[_checked_append(_token_by_token), _checked_append(_index_copy), _kind_of_error],
)

# --- 5.6 -------------------------------------------------------------------------------------------------------------


def _truncate_case(given: str, *, held: int, length: int) -> Case:
    """Truncate, then append two tokens at what the cache says is its end, as the engine would."""

    def observe(f: Function) -> Observation:
        cache, *_ = _cache(held)
        kept = cache.keys, cache.values
        f(cache, length)
        at = cache.length
        room = cache.max_seq_len
        memory = _memory(cache, *kept)
        keys, values = cache.keys.clone(), cache.values.clone()
        k, v = _new_tokens(2, 1)
        cache.keys[1, :, :, at : at + 2] = k
        cache.values[1, :, :, at : at + 2] = v
        return {
            "the cache's length": at,
            "the cache's max_seq_len": room,
            "cache.keys": keys,
            "cache.values": values,
            "cache.keys once two more tokens are appended": cache.keys,
            "cache.values once two more tokens are appended": cache.values,
            "the cache's memory is": memory,
        }

    def want() -> Observation:
        _, keys, values = _cache(held)
        k, v = _new_tokens(2, 1)
        return {
            "the cache's length": length,
            "the cache's max_seq_len": _ROOM,
            "cache.keys": keys,
            "cache.values": values,
            "cache.keys once two more tokens are appended": _written(keys, 1, k, length),
            "cache.values once two more tokens are appended": _written(values, 1, v, length),
            "the cache's memory is": SAME,
        }

    return Case(given, observe, want)


def _refused_case(given: str, *, held: int, length: int) -> Case:
    def observe(f: Function) -> Observation:
        cache, *_ = _cache(held)
        return {
            **refusal(f, cache, length),
            "the cache's length": cache.length,
            "cache.keys": cache.keys,
            "cache.values": cache.values,
        }

    def want() -> Observation:
        _, keys, values = _cache(held)
        return {EXCEPTION: REFUSED, "the cache's length": held, "cache.keys": keys, "cache.values": values}

    return Case(given, observe, want)


def _checked_truncate(forget: Callable[[KVCache, int], Any]) -> Function:
    """An answer whose refusals are right, and whose forgetting is `forget`."""

    def truncate(self: KVCache, length: int) -> None:
        if length < 0 or length > self.length:
            raise InputError("no")
        forget(self, length)

    return truncate


def _set(self: KVCache, length: int) -> None:
    self._length = length


def _set_the_property(self: KVCache, length: int) -> None:
    self.length = length  # pyright: ignore[reportAttributeAccessIssue] - a property without a setter


def _step_back(self: KVCache, length: int) -> None:
    self._length -= self._length - length


def _clear(self: KVCache, length: int) -> None:
    self.keys[:, :, :, length:] = 0
    self.values[:, :, :, length:] = 0
    self._length = length


def _clear_forgotten(self: KVCache, length: int) -> None:
    self.keys[:, :, :, length : self._length] = 0
    self.values[:, :, :, length : self._length] = 0
    self._length = length


def _slice(self: KVCache, length: int) -> None:
    self.keys, self.values = self.keys[:, :, :, :length], self.values[:, :, :, :length]
    self._length = length


def _copy(self: KVCache, length: int) -> None:
    keys, values = torch.zeros_like(self.keys), torch.zeros_like(self.values)
    keys[:, :, :, :length] = self.keys[:, :, :, :length]
    values[:, :, :, :length] = self.values[:, :, :, :length]
    self.keys, self.values, self._length = keys, values, length


def _clone(self: KVCache, length: int) -> None:
    self.keys, self.values, self._length = self.keys.clone(), self.values.clone(), length


def _drop(self: KVCache, length: int) -> None:
    self._length -= length


def _keep_last(self: KVCache, length: int) -> None:
    shift = self._length - length
    self.keys.copy_(self.keys.roll(-shift, dims=3))
    self.values.copy_(self.values.roll(-shift, dims=3))
    self._length = length


def _nothing(self: KVCache, length: int) -> None:
    """Forget nothing."""


def _clip(self: KVCache, length: int) -> None:
    self._length = max(0, min(length, self._length))


def _may_grow(self: KVCache, length: int) -> None:
    if length < 0:
        raise InputError("no")
    self._length = length


def _grow_in_room(self: KVCache, length: int) -> None:
    if not 0 <= length <= self.max_seq_len:
        raise InputError("no")
    self._length = length


def _from_the_end(self: KVCache, length: int) -> None:
    if length > self._length:
        raise InputError("no")
    self._length = length if length >= 0 else self._length + length


def _negative(self: KVCache, length: int) -> None:
    if length > self._length:
        raise InputError("no")
    self._length = length


def _truncate_refusing(refuse: Callable[[], Any]) -> Function:
    """An answer that is right but for its refusal."""

    def truncate(self: KVCache, length: int) -> Any:
        if not 0 <= length <= self._length:
            return refuse()
        self._length = length
        return None

    return truncate


def _kind_of_error_range(self: KVCache, length: int) -> None:
    if not 0 <= length <= self._length:
        raise _FullError("there are fewer")
    self._length = length


def _not_to_nothing(self: KVCache, length: int) -> None:
    if not 0 < length <= self._length:
        raise InputError("no")
    self._length = length


def _not_the_same(self: KVCache, length: int) -> None:
    if not 0 <= length < self._length:
        raise InputError("no")
    self._length = length


def _only_below(self: KVCache, length: int) -> None:
    if not length < self._length:
        raise InputError("no")
    self._length = length


def _neither_end(self: KVCache, length: int) -> None:
    if not 0 < length < self._length:
        raise InputError("no")
    self._length = length


def _assert_range(self: KVCache, length: int) -> None:
    assert 0 <= length <= self._length
    self._length = length


TRUNCATE = Grader(
    cases=[
        _truncate_case("a cache that holds 5 of 7 tokens; length = 3", held=5, length=3),
        _truncate_case("a cache that holds 5 of 7 tokens; length = 0: everything is forgotten", held=5, length=0),
        _truncate_case("a cache that holds 4 of 7 tokens; length = 4: nothing is forgotten", held=4, length=4),
        _truncate_case("an empty cache; length = 0", held=0, length=0),
        _refused_case("a cache that holds 5 of 7 tokens; length = 6: more than it holds", held=5, length=6),
        _refused_case("a cache that holds 5 of 7 tokens; length = 8: more than it has room for", held=5, length=8),
        _refused_case("a cache that holds 5 of 7 tokens; length = -2", held=5, length=-2),
    ],
    mutants=[
        Mutant(
            _checked_truncate(_set_the_property),
            "`length` is a property that only reads: what it reads, and what you may set, is `self._length`.",
        ),
        Mutant(
            _checked_truncate(_clear),
            "You erase what is forgotten. Nothing reads it, and the next append overwrites it: the work grows with the"
            " cache, and buys nothing.",
        ),
        Mutant(
            _checked_truncate(_clear_forgotten),
            "You erase the tokens that are forgotten. Nothing reads them any more, and the next append overwrites them:"
            " set the length, and leave the numbers where they are.",
        ),
        Mutant(
            _checked_truncate(_slice),
            "You cut the tensors themselves. The room is gone with them: the cache can never grow again past this"
            " length. Set the length, and leave the tensors alone.",
        ),
        Mutant(
            _checked_truncate(_copy),
            "You copy what stays into new tensors. On a GPU that is gigabytes moved, and both copies must fit for a"
            " moment. What stays is where it should be already.",
        ),
        Mutant(
            _checked_truncate(_clone),
            "You clone the tensors. Nothing in them has to change, so nothing has to be copied.",
        ),
        Mutant(
            _checked_truncate(_drop),
            "You take `length` for the number of tokens to drop. It is the number to keep.",
        ),
        Mutant(
            _checked_truncate(_keep_last),
            "You keep the last tokens and drop the first. Truncation forgets the newest; and the keys of those you"
            " moved were rotated for their old positions.",
        ),
        Mutant(
            _checked_truncate(_nothing),
            "The length has not changed. It is what makes a token part of the cache: set self._length.",
        ),
        Mutant(
            _truncate_refusing(lambda: None),
            "You leave the cache as it is, and nobody hears of it. The caller believes that the cache holds what it"
            " asked for: raise InputError.",
        ),
        Mutant(
            _clip,
            "You set the length to the nearest one that can be, without a word. The caller believes that the"
            " cache holds what it asked for: raise InputError.",
        ),
        Mutant(
            _may_grow,
            "You let the cache grow. Behind self.length there is only scrap, and attention would take it for tokens:"
            " refuse what is more than the cache *holds*.",
        ),
        Mutant(
            _grow_in_room,
            "You compare with max_seq_len, which is the room. The places between self.length and max_seq_len hold"
            " scrap, and attention would take it for tokens: refuse what is more than the cache *holds*.",
        ),
        Mutant(
            _from_the_end,
            "You count a negative length from the end, as Python's slices do. Here it is a mistake of the caller's that"
            " would go unnoticed: raise InputError.",
        ),
        Mutant(
            _negative,
            "You accept a negative length. The next append would then write at a negative index, from the end of the"
            " room: raise InputError.",
        ),
        Mutant(
            _not_to_nothing,
            "You refuse 0. An empty cache is a good cache: a new conversation starts with it.",
            begins=_IN_OWN_WORDS,
        ),
        Mutant(
            _not_the_same,
            "You refuse the length that the cache has. Forgetting nothing is allowed: a prompt that shares all of its"
            " tokens with the last one asks for that.",
            begins=_IN_OWN_WORDS,
        ),
        Mutant(
            _only_below,
            "You ask for length < self.length. The length that the cache has is allowed too (forgetting nothing), and a"
            " negative one is not: 0 <= length <= self.length.",
            begins=_IN_OWN_WORDS,
        ),
        Mutant(
            _neither_end,
            "You refuse both 0 and the length that the cache has. Forgetting everything and forgetting nothing are both"
            " allowed: 0 <= length <= self.length.",
            begins=_IN_OWN_WORDS,
        ),
        Mutant(
            _assert_range,
            "You check with assert. That raises AssertionError, which nobody above expects, and `python -O` leaves it"
            " out: raise InputError with a sentence.",
        ),
        *refusals(_truncate_refusing),
    ],
    alternatives=[_checked_truncate(_set), _checked_truncate(_step_back), _kind_of_error_range],
)
