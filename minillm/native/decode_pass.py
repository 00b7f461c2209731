"""The C++ decode pass as the engine sees it: which addresses go where.

The functions in decode.cpp read the tensors of the model and of the cache where they are; nothing is copied but the
norms' weights, which they want in float32.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.decode_pass import require_plain_llama
from minillm.errors import InputError
from minillm.kv_cache import Cache
from minillm.linear import Linear
from minillm.model import DecoderLayer, Llama
from minillm.native.build import native_library
from minillm.native.matrix import WEIGHT_FORMATS, Matrix, address, in_one_piece, matrix_of
from minillm.placement import Placed, Placement
from minillm.quantized_linear import QuantizedLinear

HEAD_DIM_UNIT = 16
"""A head's numbers are taken 16 at a time."""

MOST_ROWS = 64
"""Sequences at a time. For more, the library's product of whole matrices is as fast."""

MOST_HEAD_DIM = 1024
"""What a head may have: the kernels keep some of its numbers on the stack."""

POSITIONS_AT_A_TIME = 256
"""Of the rotary tables: a few torch calls for 256 steps, in the place of as many for each."""

CACHE_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}

_ADDRESS, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float


class _CacheView(ctypes.Structure):
    _fields_ = [(name, _ADDRESS) for name in ("keys", "values", "key_scale", "value_scale")]


class _Layer(ctypes.Structure):
    _fields_ = [*((name, Matrix) for name in ("qkv", "o", "gate_up", "down")),
                ("input_norm", _ADDRESS), ("post_attention_norm", _ADDRESS), ("cache", _CacheView)]  # fmt: skip


class _Model(ctypes.Structure):
    _fields_ = [("layers", _ADDRESS), ("norm", _ADDRESS),
                *((name, _INT) for name in ("num_layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim",
                                            "cache_format")), ("eps", _FLOAT)]  # fmt: skip


class _Tokens(ctypes.Structure):
    _fields_ = [*((name, _ADDRESS) for name in ("positions", "tables", "cos", "sin")),
                *((name, ctypes.c_int64) for name in ("rows_per_block", "rows_per_position", "rows_per_head")),
                *((name, _INT) for name in ("batch", "blocks_per_table", "block_size", "angles_apart"))]  # fmt: skip


@functools.cache
def _is_placed(kind: type) -> bool:
    """Asked once for each class: to compare one with a protocol takes longer than a layer."""
    return issubclass(kind, Placed)


def _placement(cache: Cache) -> Placement | None:
    """Where a cache's keys and values lie. None for one that has no memory, or not one token per sequence to come."""
    return cast(Placed, cache).placement() if _is_placed(type(cache)) else None


def _projections(layer: DecoderLayer) -> list[Linear | QuantizedLinear]:
    """In the order of `_Layer`."""
    attn, mlp = layer.self_attn, layer.mlp
    return [attn.qkv_proj, attn.o_proj, mlp.gate_up_proj, mlp.down_proj]


def _layer_norms(layer: DecoderLayer) -> tuple[Tensor, Tensor]:
    return layer.input_layernorm.weight.float(), layer.post_attention_layernorm.weight.float()


def _layer_biases(layer: DecoderLayer) -> list[Tensor | None]:
    return [None if linear.bias is None else linear.bias.float() for linear in _projections(layer)]


def _check(model: Llama) -> None:
    """Refuse what the kernels are not made for."""
    config = model.config
    require_plain_llama(config)
    if model.device.type != "cpu":
        raise InputError(f"the C++ decode pass is for the CPU, not for {model.device}")
    if model.dtype not in WEIGHT_FORMATS:
        raise InputError(f"the C++ decode pass knows float32 and bfloat16, not {model.dtype}")
    if config.head_dim % HEAD_DIM_UNIT or config.head_dim > MOST_HEAD_DIM:
        raise InputError(
            f"the C++ decode pass needs a head_dim that is a multiple of {HEAD_DIM_UNIT}, at most"
            f" {MOST_HEAD_DIM:,}, not {config.head_dim}"
        )
    weights = (linear.weight for linear in model.modules() if isinstance(linear, QuantizedLinear))
    if not all(map(in_one_piece, weights)):
        raise InputError("the C++ decode pass needs quantized weights as `empty_quantized` lays them out")


class NativeDecodePass:
    """A `DecodePass` on the CPU; see there. One pass runs at a time, on all of torch's threads.

    The model's tensors must stay where they are. Raises MissingError where the kernels cannot be compiled, InputError
    for a model that they are not made for; the sentence says why.
    """

    def __init__(self, model: Llama) -> None:
        _check(model)
        self._library = native_library()
        self._model = model
        layers = [layer for layer in model.layers if isinstance(layer, DecoderLayer)]
        # The kernels want these in float32; where they are not, the copies must live as long as the pass.
        self._norms = [_layer_norms(layer) for layer in layers]
        self._biases = [_layer_biases(layer) for layer in layers]
        self._norm = model.norm.weight.float()
        self._head = matrix_of(model.lm_head.weight)
        self._described: _Model | None = None  # the model with the cache that it ran on last
        self._described_for: tuple[object, ...] = ()
        self._layers: Any = None
        self._angles_of: Sequence[int] = ()  # the positions that `_cos` and `_sin` are for

    def takes(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> bool:
        """One token each for up to 64 sequences, on a cache of float32, bfloat16 or int8 made for this model.

        The last is not left to trust: the kernels write where they are told to.
        """
        where = _placement(cache)
        if where is None or len(where.positions) > MOST_ROWS or tuple(ids.shape) != where.ids_shape:
            return False
        config = self._model.config
        sizes = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        return where.sizes == sizes and where.keys.dtype in CACHE_FORMATS and where.keys.device.type == "cpu"

    def hidden(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
        """Hidden states after the final norm, float32."""
        where = _placement(cache)
        assert where is not None, "see takes"
        x = self._model.embed_tokens(ids).float().contiguous()  # [B, T, E]; float() copies nothing that is float32
        cos, sin, angles_apart = self._angles(where.positions)
        longest = max(map(len, where.tables))
        padded = [[*table, *[0] * (longest - len(table))] for table in where.tables]
        positions, tables = (torch.tensor(numbers, dtype=torch.int32) for numbers in (where.positions, padded))
        tokens = _Tokens(
            address(positions), address(tables), cos, sin,
            where.rows_per_block, where.rows_per_position, where.rows_per_head,
            len(where.positions), longest, where.block_size, angles_apart,
        )  # fmt: skip
        self._library.decode_layers(ctypes.byref(self._describe(where)), ctypes.byref(tokens), address(x))
        return x

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"] | None:
        """The scores of up to 64 rows, float32."""
        width = hidden.shape[-1]
        rows = hidden.numel() // width
        if rows > MOST_ROWS or width != self._head.columns:
            return None
        x = hidden.reshape(rows, width).float().contiguous()  # [rows, E]
        scores = torch.empty(*hidden.shape[:-1], self._head.rows, dtype=torch.float32)  # [..., V]
        self._library.multiply_rows(ctypes.byref(self._head), address(x), rows, address(scores))
        return scores

    def _angles(self, positions: Sequence[int]) -> tuple[ctypes.c_void_p, ctypes.c_void_p, int]:
        """Where the cosines and the sines of the positions lie, [head_dim / 2] each, and how far apart they are.

        Where all are the same, as in a sequence alone, tables for many steps are made at a time.
        """
        position = positions[0]
        row, apart = 0, self._model.config.head_dim // 2
        if all(other == position for other in positions):
            row, apart = position % POSITIONS_AT_A_TIME, 0
            start = position - row
            positions = range(start, start + POSITIONS_AT_A_TIME)
        if positions != self._angles_of:
            cos, sin = self._model.angles(torch.tensor([positions]), max(positions) + 1)  # [1, 1, positions, D/2]
            self._cos, self._sin, self._angles_of = cos.contiguous(), sin.contiguous(), positions
        offset = row * self._cos.stride(2) * self._cos.itemsize
        return _ADDRESS(self._cos.data_ptr() + offset), _ADDRESS(self._sin.data_ptr() + offset), apart

    def _describe(self, where: Placement) -> _Model:
        """The addresses of model and cache; made anew only when the cache is another one, or has been released."""
        tensors = (where.keys, where.values, *where.scales)
        # Memory is used again: an address alone does not say what lies there.
        key = (*(tensor.data_ptr() for tensor in tensors), where.keys.shape, where.keys.dtype)
        if self._described is not None and key == self._described_for:
            return self._described
        config, model = self._model.config, self._model
        self._layers = (_Layer * config.num_hidden_layers)()
        for index, (layer, norms, biases) in enumerate(zip(model.layers, self._norms, self._biases, strict=True)):
            assert isinstance(layer, DecoderLayer)
            here = [address(tensor[index]) for tensor in tensors]
            matrices = map(matrix_of, (linear.weight for linear in _projections(layer)), biases)
            self._layers[index] = _Layer(*matrices, *map(address, norms), _CacheView(*here))
        self._described_for = key
        self._described = _Model(
            ctypes.cast(self._layers, _ADDRESS), address(self._norm), config.num_hidden_layers, config.hidden_size,
            config.intermediate_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
            CACHE_FORMATS[where.keys.dtype], config.rms_norm_eps,
        )  # fmt: skip
        return self._described
