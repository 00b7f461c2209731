"""A case of 3.7: a model in bfloat16, far into its context."""

import functools
from typing import Any

import torch
from torch import Tensor

from graders import ch03_oracle as oracle
from graders.ch03_pass import angles_at, hidden_of, model_of, some_ids
from minillm.errors import InputError
from minillm.exercises.grading import Case, Function, Observation
from minillm.kv_cache import KVCache
from minillm.model import Llama

_FAR, _CHUNK = 257, 3  # in bfloat16, position 257 is 256; 258 is there; 259 is 260


def half_case() -> Case:
    """A model in bfloat16, far into its context. Its numbers are coarse, so they are compared in words; but for the
    angles, which tell one mistake from another.
    """
    ids = some_ids(1, _CHUNK)
    angles = angles_at(_FAR, 1, _CHUNK).cos().float(), angles_at(_FAR, 1, _CHUNK).sin().float()

    def cache_of(model: Llama) -> KVCache:
        return oracle.warm_cache(model.config, _FAR, 1, room=_FAR + _CHUNK + 1, dtype=model.dtype)

    def new_keys(cache: KVCache) -> Tensor:
        return cache.keys[0, :, :, _FAR:-1]

    @functools.cache
    def wanted() -> tuple[Tensor, Tensor]:
        model = model_of(torch.bfloat16)
        cache = cache_of(model)
        return hidden_of(model, ids, cache), new_keys(cache)

    def observe(f: Function) -> Observation:
        model = model_of(torch.bfloat16)
        cache = cache_of(model)
        tables = _handed_to(model.layers[0])
        with oracle.without_shape_checks():
            result = _advice_cut(f, model, ids.clone(), cache)
        hidden, keys = wanted()
        cos, sin = (_snapped(*pair) for pair in zip(tables or (None, None), angles, strict=True))
        return {
            "cos, as layer 0 is given it": cos,
            "sin, as layer 0 is given it": sin,
            "the result": f"{_dtype(result)}, {_near(result, hidden)}",
            "the new keys of layer 0": _near(new_keys(cache), keys),
            "the cache's length": cache.length,
        }

    def want() -> Observation:
        return {
            "cos, as layer 0 is given it": angles[0],
            "sin, as layer 0 is given it": angles[1],
            "the result": "bfloat16, near the formula's",
            "the new keys of layer 0": "near the formula's",
            "the cache's length": _FAR,
        }

    return Case(
        f"a model in bfloat16; ids [1, {_CHUNK}], a chunk (a cache in bfloat16 that holds {_FAR} tokens)", observe, want
    )


def _handed_to(layer: Any) -> list[Tensor]:
    """The cos and sin of this layer's calls from now on; the first call's come first."""
    seen: list[Tensor] = []
    forward = layer.forward

    def noting(x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache) -> Tensor:
        if not seen:
            seen.extend((cos, sin))
        return forward(x, cos, sin, cache)

    layer.forward = noting
    return seen


def _advice_cut(f: Function, model: Llama, ids: Tensor, cache: KVCache) -> Any:
    """Call f. What the cache advises when dtypes differ is for who makes a cache, and not for who writes the model."""
    try:
        return f(model, ids, cache)
    except InputError as error:
        error.args = (str(error).partition(": make it with")[0],)
        raise


def _snapped(got: Any, want: Tensor) -> Any:
    """In float32; and where it is as near as bfloat16 can be to what is wanted, that itself."""
    if not isinstance(got, Tensor) or got.shape != want.shape:
        return got
    return torch.where((got.float() - want).abs() < 0.01, want, got.float())


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def _near(value: Any, want: Tensor) -> str:
    if not isinstance(value, Tensor) or value.shape != want.shape:
        return "of another shape"
    error = (value.double() - want.double()).abs().max() / want.double().abs().max()
    return "near the formula's" if error < 0.05 else "far from the formula's"
