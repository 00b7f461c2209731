"""Tiny random models that the C++ decode pass takes, in every format; and what their numbers ought to be."""

from collections.abc import Mapping, Sequence

import gguf
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as QType
from tiny import tiny_config
from torch import Tensor

from minillm.config import ModelConfig
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span
from minillm.kv_cache import Int8KVCache, KVCache
from minillm.model import Llama
from minillm.quantization import QuantizedWeight, from_gguf_blocks, quantize
from minillm.quantized_linear import QuantizedLinear

FORMATS = ("int8", "q8_0", "q4_0", "q4_1")


def native_config(**changes) -> ModelConfig:
    """Sizes that the kernels take: head_dim 16. Every size differs from every other."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "head_dim": 16,
    }
    return tiny_config(**{**sizes, "max_position_embeddings": 512, **changes})


def in_format(weight: Tensor, format: str) -> QuantizedWeight:
    """A matrix quantized; to q4_0, which this engine only reads, by the `gguf` library."""
    if format != "q4_0":
        return quantize(weight, format)
    blocks = gguf.quantize(weight.numpy(), QType.Q4_0)
    return from_gguf_blocks(torch.from_numpy(blocks), "q4_0")


def model_in(
    formats: str | None, config: ModelConfig, *, dtype: torch.dtype = torch.float32, seed: int = 0, std: float = 0.3
) -> Llama:
    """A model with random weights, all matrices in one format (None: plain numbers of `dtype`)."""
    model = Llama(config, dtype=dtype, formats=None if formats is None else lambda name: formats)
    generator = torch.Generator().manual_seed(seed)
    for slot in model.checkpoint_slots().values():
        values = torch.randn(tuple(slot.shape), generator=generator) * std + 0.02
        if isinstance(slot, QuantizedWeight):
            slot.write(0, in_format(values, slot.format))
        else:
            slot.copy_(values)
    return model


def widened(model: Llama) -> Llama:
    """The same numbers in a float32 model."""
    wide = Llama(model.config)
    slots = model.checkpoint_slots()
    for name, slot in wide.checkpoint_slots().items():
        given = slots[name]
        slot.copy_(given.dequantized() if isinstance(given, QuantizedWeight) else given.float())
    return wide


def rounded_for(format: str, x: Tensor) -> Tensor:
    """What the kernels for quantized weights see of x: whole numbers of 16 bits for weights of 8, of 8 bits for 4."""
    together, most = (128, 32767) if format in ("int8", "q8_0") else (32, 127)
    return torch.cat([_rounded(part, most) for part in x.float().split(together, dim=-1)], dim=-1)


def _rounded(x: Tensor, most: int) -> Tensor:
    """Whole numbers up to `most` times a scale."""
    scale = x.abs().amax(dim=-1, keepdim=True) / most
    return (x / torch.where(scale == 0, 1.0, scale)).round() * scale


def with_rounded_inputs(monkeypatch, model: Llama) -> Llama:
    """The model in plain PyTorch, each quantized matrix multiplied with rounded inputs, in float32."""

    def forward(self: QuantizedLinear, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return F.linear(rounded_for(self.weight.format, input), self.weight.dequantized(), bias)

    monkeypatch.setattr(QuantizedLinear, "forward", forward)
    return model


class RoundedCache(KVCache):
    """Keys and values as a bfloat16 cache keeps them, for a model that computes in float32."""

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return super().append(layer, k.bfloat16().float(), v.bfloat16().float())


def random_cache(
    config: ModelConfig, dtype: torch.dtype, length: int, batch: int = 1, room: int | None = None
) -> KVCache:
    """A cache that holds `length` random tokens; what is behind them is NaN, or garbage in int8."""
    room = room or length + 3
    cache = Int8KVCache(config, room, batch) if dtype == torch.int8 else KVCache(config, room, batch, dtype=dtype)
    generator = torch.Generator().manual_seed(length)
    for codes in (cache.keys, cache.values):
        numbers = torch.randn(codes.shape, generator=generator)
        codes.copy_((numbers * 40).round().clamp(-127, 127) if dtype == torch.int8 else numbers)
        if dtype != torch.int8:
            codes[:, :, :, length:] = torch.nan
    for scales in cache.scales:
        scales.copy_(torch.rand(scales.shape, generator=generator) / 40)
        scales[..., length:] = torch.nan
    cache.advance(length)
    return cache


def paged(model: Llama, lengths: Sequence[int], dtype: torch.dtype, block_size: int) -> tuple[PagedKVCache, PagedBatch]:
    """A paged cache of random numbers, and requests that have `lengths` tokens in it, their blocks in no order."""
    tables = [length // block_size + 1 for length in lengths]
    cache = PagedKVCache(model.config, sum(tables) + 2, block_size, dtype=dtype)
    generator = torch.Generator().manual_seed(sum(lengths))
    for codes in (cache.keys, cache.values):
        numbers = torch.randn(codes.shape, generator=generator)
        codes.copy_((numbers * 40).round().clamp(-127, 127) if dtype == torch.int8 else numbers)
    for scales in cache.scales:
        scales.copy_(torch.rand(scales.shape, generator=generator) / 40)
    blocks = iter(torch.randperm(cache.num_blocks, generator=generator).tolist())
    spans = [
        Span([next(blocks) for _ in range(count)], length, 1) for count, length in zip(tables, lengths, strict=True)
    ]
    return cache, PagedBatch(cache, spans)


def copied(cache: KVCache, config: ModelConfig) -> KVCache:
    """The same tokens in a cache of its own; those of bfloat16 in one that a float32 model can use."""
    sizes = (config, cache.max_seq_len, cache.batch_size)
    new = Int8KVCache(*sizes) if cache.scales else RoundedCache(*sizes) if _half(cache) else KVCache(*sizes)
    for to, given in zip((new.keys, new.values, *new.scales), (cache.keys, cache.values, *cache.scales), strict=True):
        to.copy_(given)
    new.advance(cache.length)
    return new


def _half(cache: KVCache) -> bool:
    return cache.keys.dtype == torch.bfloat16


def step(model: Llama, ids: Tensor, cache: KVCache) -> Tensor:
    """The logits behind one new token per sequence, [B, V]."""
    return model.logits(model(ids, cache)[:, -1])


def changed(tensors: Mapping[str, Tensor | QuantizedWeight], name: str) -> Tensor:
    """Where to write to break a model: the numbers of a slot, or the scales of a quantized one."""
    slot = tensors[name]
    return slot.scale if isinstance(slot, QuantizedWeight) else slot
