"""A Llama layer in float64, head by head and written from the formulas: what the modules are graded against.

Nothing of the engine's arithmetic is used here: modules only hand over their weights.
"""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jaxtyping
import torch
from torch import Tensor, nn

from graders.ch03_rows import norm_of
from graders.ch03_turns import turned
from graders.common import random
from minillm.config import ModelConfig
from minillm.kv_cache import KVCache

Module = TypeVar("Module", bound=nn.Module)

BATCH, HELD, NEW, ROOM = 2, 4, 5, 11


def config(bias: bool = False) -> ModelConfig:
    """All sizes different; heads times head_dim is not hidden_size."""
    return ModelConfig(
        vocab_size=37,
        hidden_size=20,
        intermediate_size=28,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=8,
        max_position_embeddings=512,
        rms_norm_eps=1e-3,
        rope_theta=100.0,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
    )


def filled(module: Module, seed: int = 1) -> Module:
    """The module in float32, its weights seeded and distinct."""
    module.to(torch.float32).requires_grad_(False)
    for number, parameter in enumerate(module.parameters()):
        parameter.copy_(random(*parameter.shape, seed=100 * seed + number) * 0.3 + 0.02)
    return module


def copied(module: Module) -> Module:
    """A copy with weights of its own: what copy.deepcopy makes of such a module, in a tenth of the time."""
    copy = object.__new__(type(module))
    copy.__dict__.update({name: _copied(value) for name, value in vars(module).items()})
    return copy


def _copied(value: Any) -> Any:
    if isinstance(value, dict):  # its parameters, its modules, its hooks
        return type(value)((name, _copied(each)) for name, each in value.items())
    if isinstance(value, nn.Module):
        return copied(value)
    if isinstance(value, Tensor):
        own = value.detach().clone()
        return nn.Parameter(own, requires_grad=False) if isinstance(value, nn.Parameter) else own
    return list(value) if isinstance(value, list) else value


def warm_cache(
    shape: ModelConfig, held: int, batch: int = BATCH, room: int = ROOM, dtype: torch.dtype = torch.float32
) -> KVCache:
    """A cache that holds random keys and values of `held` tokens, and recognisable scrap behind them."""
    cache = KVCache(shape, room, batch, dtype=dtype)
    cache.keys.copy_(random(*cache.keys.shape, seed=11))
    cache.values.copy_(random(*cache.values.shape, seed=12))
    cache.advance(held)
    return cache


@contextmanager
def without_shape_checks() -> Iterator[None]:
    """Under pytest, the shapes of every call of the engine's are checked against its annotations.

    That is for the engine's own tests: an answer that relies on broadcasting is right.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def counted(calls: Counter[str], **methods: Any) -> None:
    """Count the calls of an object's method, `name=(object, "method")`, from here on."""
    for name, (owner, method) in methods.items():
        setattr(owner, method, _counting(calls, name, getattr(owner, method)))


def _counting(calls: Counter[str], name: str, method: Any) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        calls[name] += 1
        return method(*arguments, **named)

    return call


ONCE = "no part called twice"


def repeated(calls: Counter[str]) -> str:
    """What was called more than once, in words."""
    return ", ".join(f"{name} called {times} times" for name, times in calls.items() if times > 1) or ONCE


def linear(module: nn.Linear, x: Tensor) -> Tensor:
    """The product with the weights, and the bias if there is one, in float64."""
    product = x.double() @ module.weight.double().T
    return product if module.bias is None else product + module.bias.double()


def attention(module: nn.Module, x: Tensor, angles: Tensor, cache: KVCache) -> Tensor:
    """Attention of layer `module.layer`, from its input to what it adds; writes K and V into `cache`, which is float32
    or less: a copy of the reader's.
    """
    shape = config()
    dim, heads, kv_heads = shape.head_dim, shape.num_attention_heads, shape.num_key_value_heads
    batch, new, _ = x.shape
    start, layer = cache.length, int(module.layer)  # type: ignore[arg-type]
    projected = linear(module.qkv_proj, x)  # type: ignore[arg-type]
    columns = projected.unflatten(-1, (heads + 2 * kv_heads, dim))  # [B, T, H + 2 Hkv, D]
    joined = torch.empty(batch, new, heads * dim, dtype=torch.float64)
    for b in range(batch):
        for h in range(kv_heads):
            keys = turned(columns[b, :, heads + h], angles[b, 0])  # [T, D]
            cache.keys[layer, b, h, start : start + new] = keys
            cache.values[layer, b, h, start : start + new] = columns[b, :, heads + kv_heads + h]
        for h in range(heads):
            kept = h // (heads // kv_heads)
            keys = cache.keys[layer, b, kept, : start + new].double()
            values = cache.values[layer, b, kept, : start + new].double()
            queries = turned(columns[b, :, h], angles[b, 0])  # [T, D]
            for t in range(new):
                seen = start + t + 1
                weights = (keys[:seen] @ queries[t] / math.sqrt(dim)).softmax(0)
                joined[b, t, h * dim : (h + 1) * dim] = weights @ values[:seen]
    return linear(module.o_proj, joined)  # type: ignore[arg-type]


def mlp(module: nn.Module, x: Tensor) -> Tensor:
    """down(gate / (1 + exp(-gate)) * up)."""
    both = linear(module.gate_up_proj, x)  # type: ignore[arg-type]
    middle = both.shape[-1] // 2
    gate, up = both[..., :middle], both[..., middle:]
    return linear(module.down_proj, gate / (1 + torch.exp(-gate)) * up)  # type: ignore[arg-type]


def layer(module: nn.Module, x: Tensor, angles: Tensor, cache: KVCache) -> Tensor:
    """The residual stream behind one decoder layer."""
    x = x.double()
    first, second = module.input_layernorm, module.post_attention_layernorm
    x = x + attention(module.self_attn, norm_of(x, first.weight, first.eps), angles, cache)  # type: ignore[arg-type]
    return x + mlp(module.mlp, norm_of(x, second.weight, second.eps))  # type: ignore[arg-type]
