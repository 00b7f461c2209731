"""TorchDecodePass: the decode step of a Llama over a dense KVCache, compiled once per shape of layer.

One layer is compiled as a function of its weights (`steps.py`), and the code runs for all layers; so does the head.
Everything is compiled when the pass is made, and nothing afterwards: a whole generation, whatever its length and
whatever the cache's, runs the same code.

On a CPU the code is Inductor's C++, and each step reads exactly the keys there are. On CUDA the whole step is recorded
as a CUDA graph (`cuda_graphs.py`). A graph has fixed shapes, so there the keys are read up to a multiple of
KV_BLOCK, masked behind the newest token, and one graph is recorded per multiple. The tests
run all of this on a CPU, the masked blocks included, except for the recording and the replay themselves: those lines
have not been run on a GPU.
"""

import math
import time
from collections.abc import Callable, Hashable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from minillm.decode_pass import require_plain_llama
from minillm.errors import InputError
from minillm.inductor.compile_step import check_compiler, compile_step
from minillm.inductor.cuda_graphs import CudaGraphs
from minillm.inductor.steps import HeadStep, LayerStep
from minillm.inductor.weights import LayerWeights, Matrix, layer_weights, matrix_of
from minillm.kv_cache import Cache, KVCache
from minillm.model import DecoderLayer, Llama

KV_BLOCK = 256
"""On CUDA, keys are read up to the next multiple of this: few graphs to record, and little to read in vain."""


class TorchDecodePass:
    """A `DecodePass` by Inductor. Making one compiles: one layer per batch size, and the head.

    batch_sizes: how many sequences side by side it takes; each costs one more compile. kv_block: tokens, see
    KV_BLOCK; None chooses for the device. `compile_s` is how long compiling took, in seconds.

    Raises InputError for a model beyond a plain Llama, where there is no compiler, for batch sizes below 1 or none at
    all, and for weights in formats that are not compiled here or differ between layers.
    """

    def __init__(self, model: Llama, batch_sizes: Sequence[int] = (1,), *, kv_block: int | None = None) -> None:
        if not batch_sizes or min(batch_sizes) < 1:
            raise InputError(f"a compiled decode pass needs batch sizes of at least 1, not {list(batch_sizes)}")
        require_plain_llama(model.config)
        check_compiler(model.device)
        started = time.perf_counter()
        on_cuda = model.device.type == "cuda"
        self.model = model
        self.kv_block = kv_block or (KV_BLOCK if on_cuda else 1)
        layers = [layer_weights(layer) for layer in model.layers if isinstance(layer, DecoderLayer)]
        head = matrix_of(model.lm_head)
        if len({tuple(_kind(leaf) for leaf in tree_leaves(layer)) for layer in layers}) > 1:
            raise InputError(
                "decoding compiled by Inductor needs all layers in the same formats, and these differ: "
                "quantize all alike, or leave --compile out"
            )
        self._layers = [tree_leaves(layer) for layer in layers]
        self._head = tree_leaves(head)
        self._run_layer = {
            batch: compile_layer(LayerStep(model.config, masked=self.kv_block > 1), layers[0], batch)
            for batch in set(batch_sizes)
        }
        self._run_head = compile_head(head)
        self._positions = torch.arange(model.config.max_position_embeddings, device=model.device)  # [max]
        # What changes from step to step, at addresses that do not: a CUDA graph reads these.
        self._position = torch.zeros(1, dtype=torch.int64, device=model.device)
        self._ids = {batch: torch.zeros(batch, 1, dtype=torch.int64, device=model.device) for batch in batch_sizes}
        self._graphs = CudaGraphs() if on_cuda else None
        self.compile_s = time.perf_counter() - started

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"] | None:
        """Hidden states after the final norm; k and v are in the cache, which is left to the caller to advance.

        It takes one new token behind at least one other, for a batch size compiled for, with room in a plain KVCache.
        """
        if not (
            type(cache) is KVCache
            and ids.shape[1] == 1
            and ids.shape[0] == cache.batch_size
            and cache.batch_size in self._run_layer
            and 1 <= cache.length < cache.max_seq_len
            and (cache.keys.dtype, cache.keys.device) == (self.model.dtype, self.model.device)
        ):
            return None
        self._position.fill_(cache.length)
        self._ids[cache.batch_size].copy_(ids)
        kv_len = min(math.ceil((cache.length + 1) / self.kv_block) * self.kv_block, cache.max_seq_len)
        return self._maybe_graphed(_graph_key(cache, kv_len), lambda: self._step(cache.keys, cache.values, kv_len))

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"] | None:
        """Float32 scores of a single row; None for several."""
        if hidden.numel() != hidden.shape[-1]:
            return None
        row = hidden.reshape(1, -1).float()  # [1, E]
        return self._run_head(row, *self._head).view(*hidden.shape[:-1], -1)  # [..., V]

    def _step(
        self,
        keys: Float[Tensor, "layers batch num_kv_heads max_seq_len head_dim"],
        values: Float[Tensor, "layers batch num_kv_heads max_seq_len head_dim"],
        kv_len: int,
    ) -> Float[Tensor, "batch 1 hidden"]:
        """All layers, for the ids and the position that lie ready. Does the same when it runs twice."""
        model, batch = self.model, keys.shape[1]
        run_layer, seen = self._run_layer[batch], self._positions[:kv_len]
        x = model.embed_tokens(self._ids[batch])[:, 0].float()  # [B, E]
        cos, sin = model.angles(self._position[None], kv_len)  # [1, 1, 1, D/2]
        for layer_keys, layer_values, weights in zip(keys, values, self._layers, strict=True):
            x = run_layer(x, cos, sin, layer_keys, layer_values, seen, self._position, *weights)  # [B, E]
        return model.norm(x.to(model.dtype))[:, None]  # [B, 1, E]

    def _maybe_graphed(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        return step() if self._graphs is None else self._graphs.run(key, step)


def compile_layer(step: LayerStep, weights: LayerWeights, batch: int) -> Callable[..., Tensor]:
    """Code for a layer with weights like these, for any length of the cache and of what is read of it (from 2 on)."""
    config, norm = step.config, weights.input_norm
    narrow = {"dtype": norm.dtype, "device": norm.device}  # the cache's
    wide = {"dtype": torch.float32, "device": norm.device}  # the activations'
    # Example shapes: the lengths stand for all lengths, and differ, lest they be taken for one.
    keys = torch.zeros(batch, config.num_key_value_heads, 24, config.head_dim, **narrow)  # [B, Hkv, S, D]
    angles = torch.zeros(1, 1, 1, config.head_dim // 2, **wide)  # [1, 1, 1, D/2]
    seen = torch.arange(16, device=norm.device)  # [kv_len]
    x = torch.zeros(batch, config.hidden_size, **wide)  # [B, E]
    args = (x, angles, angles.clone(), keys, keys.clone(), seen, seen[:1].clone(), weights)
    length = torch.export.Dim.AUTO
    fixed = tree_map(lambda _: None, weights)
    return compile_step(step, args, (None, None, None, {2: length}, {2: length}, {0: length}, None, fixed))


def compile_head(head: Matrix) -> Callable[..., Tensor]:
    """Code for the head and one row."""
    row = torch.zeros(1, head.weight.shape[1], device=head.weight.device)  # [1, E]
    return compile_step(HeadStep(), (row, head), None)


def _kind(leaf: Tensor | None) -> object:
    """What code compiled for one tensor presumes of another."""
    return None if leaf is None else (leaf.shape, leaf.stride(), leaf.dtype)


def _graph_key(cache: KVCache, kv_len: int) -> Hashable:
    """All that a recorded step depends on and that may change: where the cache lies, its shape, how much is read."""
    return cache.keys.data_ptr(), cache.values.data_ptr(), cache.keys.shape, kv_len
