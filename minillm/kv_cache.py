"""The KV cache: what passes from the tokens that were computed to the token that comes next.

A new token compares its query with the keys of all tokens before it and mixes their values. Keys and values never
change once computed, because no token attends to what comes after it. So they are kept, and nothing else is.

The model sees a cache through three members of the `Cache` protocol: `length`, `positions(n)` and
`attend(layer, q, k, v)`. How and where keys and values are stored is the cache's own affair, which is why
`model.py` does not change when another kind of cache is added. A cache is made from the model's config, and so knows
which layers see no more than a window of it. The caller owns the cache: the model writes new entries behind `length`,
and only `advance(n)` makes them part of it. A forward pass that is interrupted leaves the cache as it was.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.attention import causal_attention, windowed_attention
from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.placement import Placement


@runtime_checkable
class Cache(Protocol):
    """What the model, `prefill` and `decode` ask of any cache."""

    @property
    def length(self) -> int:
        """How many tokens have been computed and kept: a step computes `token_ids[length:]`."""
        ...

    @property
    def max_seq_len(self) -> int:
        """How many tokens fit."""
        ...

    @property
    def batch_size(self) -> int:
        """How many sequences it holds side by side."""
        ...

    def positions(self, num_tokens: int) -> Int[Tensor, "batch q_len"]:
        """The positions at which the next `num_tokens` tokens stand."""
        ...

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
        v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch num_heads q_len head_dim"]:
        """Write the new k and v of one layer, then attend with q over everything so far, causally."""
        ...

    def advance(self, num_tokens: int) -> None:
        """Every layer has written `num_tokens` new tokens: count them in."""
        ...


def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that one token of one sequence occupies: 2 (K and V) x layers x kv heads x head_dim x element size."""
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize


def cache_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """`kv_bytes_per_token`, and in a cache of 8 bits the two scales of each head, in float32."""
    scales = 2 * config.num_hidden_layers * config.num_key_value_heads * torch.float32.itemsize
    return kv_bytes_per_token(config, dtype) + (scales if dtype == torch.int8 else 0)


def tokens_that_fit(num_bytes: int, config: ModelConfig, dtype: torch.dtype, batch_size: int = 1) -> int:
    """How many tokens each of `batch_size` >= 1 sequences may have before keys and values exceed `num_bytes` >= 0."""
    return num_bytes // (kv_bytes_per_token(config, dtype) * batch_size)


def sliding_windows(config: ModelConfig) -> dict[int, int]:
    """How many of the newest keys a query sees, its own among them, for each layer that has a sliding window."""
    return dict.fromkeys(config.sliding_layers, config.sliding_window or 0)


class KVCache:
    """A dense cache: room for `max_seq_len` tokens of `batch_size` equally long sequences, reserved up front.

    `keys` and `values` are [num_layers, batch, num_kv_heads, max_seq_len, head_dim]. Writing in place and reading
    a slice costs no copy; `torch.cat` would copy the whole cache once per token and layer.

    Raises InputError when `max_seq_len` is not between 1 and the model's `max_position_embeddings`: past that,
    positions mean nothing to the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        max_seq_len: int,
        batch_size: int = 1,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 1 <= max_seq_len <= config.max_position_embeddings:
            raise InputError(
                f"a cache of {max_seq_len} tokens is not possible: "
                f"this model's context is 1 to {config.max_position_embeddings} tokens"
            )
        if batch_size < 1:
            raise InputError(f"a cache needs a batch_size of at least 1, not {batch_size}")
        shape = (
            config.num_hidden_layers,
            batch_size,
            config.num_key_value_heads,
            max_seq_len,
            config.head_dim,
        )
        self.bytes_per_token = cache_bytes_per_token(config, dtype)
        self.windows = sliding_windows(config)
        try:
            self.keys = torch.empty(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
            self.values = torch.empty(shape, device=device, dtype=dtype)  # [L, B, Hkv, S, D]
            self.scales = self._new_scales()
        except RuntimeError:  # also torch's out-of-memory error
            size = max_seq_len * batch_size * self.bytes_per_token
            raise InputError(
                f"a cache of {batch_size} x {max_seq_len:,} tokens needs {size / 1e9:,.1f} GB, more than there is:"
                " ask for fewer tokens"
            ) from None
        self._length = 0

    @property
    def length(self) -> int:
        """Tokens held per sequence."""
        return self._length

    @property
    def max_seq_len(self) -> int:
        """Tokens that fit per sequence."""
        return self.keys.shape[3]

    @property
    def batch_size(self) -> int:
        """Sequences held side by side."""
        return self.keys.shape[1]

    @property
    def used_bytes(self) -> int:
        """Bytes occupied by the tokens held, over all sequences."""
        return self.length * self.batch_size * self.bytes_per_token

    @property
    def reserved_bytes(self) -> int:
        """Bytes set aside for `max_seq_len` tokens, used or not."""
        return sum(part.nbytes for part in (self.keys, self.values, *self.scales))

    def positions(self, num_tokens: int) -> Int[Tensor, "batch q_len"]:
        """[B, num_tokens]: the next positions, the same for every sequence."""
        ahead = torch.arange(self.length, self.length + num_tokens, device=self.keys.device)  # [T]
        return ahead.expand(self.batch_size, num_tokens)  # [B, T]

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
        v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch num_heads q_len head_dim"]:
        """Write k and v behind what is held, and attend over both. Raises InputError where they do not fit."""
        keys, values = self.append(layer, k, v)  # [B, Hkv, S, D]
        if layer in self.windows:
            return windowed_attention(q, keys, values, self.windows[layer])  # [B, H, T, D]
        return causal_attention(q, keys, values)  # [B, H, T, D]

    def append(
        self,
        layer: int,
        k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
        v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    ) -> tuple[
        Float[Tensor, "batch num_kv_heads kv_len head_dim"], Float[Tensor, "batch num_kv_heads kv_len head_dim"]
    ]:
        """Write one layer's k and v behind what is held; give the keys and values of all tokens so far, as views.

        Raises InputError where they do not fit. `length` stays: it is one for all layers, and the caller advances it.
        """
        start, end = self.length, self.length + k.shape[2]
        self._check_entries(layer, k, v)
        if (k.dtype, k.device) != (self.keys.dtype, self.keys.device):
            raise InputError(
                f"this cache holds {self.keys.dtype} on {self.keys.device}, and the model computes {k.dtype} on "
                f"{k.device}: make it with KVCache(..., device=model.device, dtype=model.dtype)"
            )
        keys, values = self.keys[layer], self.values[layer]  # [B, Hkv, max_seq_len, D]
        keys[:, :, start:end] = k
        values[:, :, start:end] = v
        return keys[:, :, :end], values[:, :, :end]  # [B, Hkv, S, D]

    def placement(self, num_tokens: int) -> Placement:
        """Where everything lies: for each sequence one block, as long as the cache.

        Raises InputError where there is no room for `num_tokens` more.
        """
        self.check_room(self.length + num_tokens)
        layers, batch, num_kv_heads, room, head_dim = self.keys.shape
        return Placement(
            self.keys,
            self.values,
            self.scales,
            sizes=(layers, num_kv_heads, head_dim),
            ids_shape=(batch, num_tokens),
            positions=[self.length] * batch,
            counts=[num_tokens] * batch,
            tables=[[sequence] for sequence in range(batch)],
            block_size=room,
            rows_per_block=num_kv_heads * room,
            rows_per_position=1,
            rows_per_head=room,
        )

    def _check_entries(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Raise InputError unless k and v are new tokens of one layer, for which there is room."""
        self.check_room(self.length + k.shape[2])
        layers, batch, num_kv_heads, _, head_dim = self.keys.shape
        if k.shape != (batch, num_kv_heads, k.shape[2], head_dim) or v.shape != k.shape or not 0 <= layer < layers:
            # PyTorch would repeat what is too small until it fits.
            raise InputError(
                f"keys of shape {list(k.shape)} and values of shape {list(v.shape)} for layer {layer} do not fit a "
                f"cache of {layers} layers, {batch} sequences, {num_kv_heads} heads and head_dim {head_dim}"
            )

    def _new_scales(self) -> tuple[Tensor, ...]:
        """Numbers need none."""
        return ()

    def advance(self, num_tokens: int) -> None:
        """Count `num_tokens` freshly written tokens in."""
        if num_tokens < 0:
            raise InputError(f"a cache advances by 0 tokens or more, not by {num_tokens}: see truncate")
        self.check_room(self.length + num_tokens)
        self._length += num_tokens

    def truncate(self, length: int) -> None:
        """Forget everything behind the first `length` tokens; what is forgotten will be overwritten."""
        if not 0 <= length <= self.length:
            raise InputError(f"cannot truncate a cache of {self.length} tokens to {length}")
        self._length = length

    def release(self) -> None:
        """Give the memory back; the cache then has room for nothing."""
        self.truncate(0)
        self.keys = self.keys.new_empty((*self.keys.shape[:3], 0, self.keys.shape[4]))
        self.values = self.keys.clone()
        self.scales = self._new_scales()

    def check_room(self, end: int) -> None:
        """Raise InputError if `end` tokens do not fit."""
        if end > self.max_seq_len:
            raise InputError(
                f"{end} tokens do not fit into a cache of {self.max_seq_len}: make the cache longer or the text shorter"
            )


def rounded_to_codes(
    x: Float[Tensor, "*rows head_dim"],
) -> tuple[Int[Tensor, "*rows head_dim"], Float[Tensor, "*rows"]]:
    """int8 codes of keys or values, and for each row of head_dim the scale that they are multiplied with."""
    wide = x.float()  # [..., D]
    scale = wide.abs().amax(dim=-1) / 127  # [...]
    steps = wide / torch.where(scale == 0, 1.0, scale)[..., None]  # [..., D]
    return steps.round().to(torch.int8), scale


class Int8KVCache(KVCache):
    """A `KVCache` in 8 bits: half the bytes of bfloat16, so twice the tokens in the same memory.

    Each key and each value of a head has a scale of its own (its largest magnitude is 127), for new tokens come one at
    a time. `scales` are those of keys and of values, float32 [num_layers, batch, num_kv_heads, max_seq_len]. The
    model's queries meet the rounded keys at once, also in the pass that wrote them: chunks then change nothing.
    """

    def __init__(
        self, config: ModelConfig, max_seq_len: int, batch_size: int = 1, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(config, max_seq_len, batch_size, device=device, dtype=torch.int8)

    def append(
        self,
        layer: int,
        k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
        v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    ) -> tuple[
        Float[Tensor, "batch num_kv_heads kv_len head_dim"], Float[Tensor, "batch num_kv_heads kv_len head_dim"]
    ]:
        """Round and write; widen all tokens so far for attention in PyTorch. The decode pass in C++ reads the codes."""
        self._check_entries(layer, k, v)
        start, end = self.length, self.length + k.shape[2]
        widened = []
        for codes, scales, new in zip((self.keys, self.values), self.scales, (k, v), strict=True):
            codes[layer][:, :, start:end], scales[layer][:, :, start:end] = rounded_to_codes(new)
            widened.append((codes[layer][:, :, :end] * scales[layer][:, :, :end, None]).to(new.dtype))
        return widened[0], widened[1]  # [B, Hkv, S, D]

    def _new_scales(self) -> tuple[Tensor, ...]:
        shape, device = self.keys.shape[:4], self.keys.device
        return tuple(torch.empty(shape, device=device, dtype=torch.float32) for _ in range(2))


def new_kv_cache(
    config: ModelConfig, max_seq_len: int, batch_size: int = 1, *, device: torch.device | str, dtype: torch.dtype
) -> KVCache:
    """An empty cache that keeps its numbers in `dtype`: for int8, the one that keeps them as codes and scales."""
    if dtype == torch.int8:
        return Int8KVCache(config, max_seq_len, batch_size, device=device)
    return KVCache(config, max_seq_len, batch_size, device=device, dtype=dtype)


class NoCache:
    """Keeps nothing, so every step computes every token again: the picture before the cache, and its oracle.

    `length` stays 0. The decode loop computes `token_ids[length:]`, which here is the whole sequence: same
    loop, same tokens in float32, and work that grows with the square of the length. (In half precision the two
    round differently, and two nearly equal logits may change places.) For one sequence.
    """

    length = 0
    batch_size = 1

    def __init__(self, config: ModelConfig, device: torch.device | str = "cpu") -> None:
        self.max_seq_len = config.max_position_embeddings
        self.windows = sliding_windows(config)
        self._device = device

    def positions(self, num_tokens: int) -> Int[Tensor, "1 q_len"]:
        """[1, num_tokens]: always from the start."""
        if num_tokens > self.max_seq_len:
            raise InputError(f"{num_tokens} tokens are more than this model's context of {self.max_seq_len}")
        return torch.arange(num_tokens, device=self._device)[None]  # [1, T]

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "batch num_heads q_len head_dim"],
        k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
        v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch num_heads q_len head_dim"]:
        """Attend over the tokens of this very pass."""
        if layer in self.windows:
            return windowed_attention(q, k, v, self.windows[layer])  # [B, H, T, D]
        return causal_attention(q, k, v)  # [B, H, T, D]

    def advance(self, num_tokens: int) -> None:
        """Keep nothing."""
