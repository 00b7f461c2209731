"""A model and a cache as the functions in C++ get them: `Model` and `Tokens` in pass.h.

The functions read the tensors where they are; nothing is copied but the norms' weights and the biases, which they want
in float32.
"""

import ctypes
import functools
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.decode_pass import require_plain_llama
from minillm.errors import InputError
from minillm.kv_cache import Cache
from minillm.linear import Linear
from minillm.model import DecoderLayer, Llama
from minillm.native.build import native_library
from minillm.native.matrix import WEIGHT_FORMATS, Matrix, address, in_one_piece, matrix_of
from minillm.placement import Placed, Placement
from minillm.quantized_linear import QuantizedEmbedding, QuantizedLinear

HEAD_DIM_UNIT = 16
"""A head's numbers are taken 16 at a time."""

MOST_HEAD_DIM = 1024
"""What a head may have: the kernels keep some of its numbers on the stack."""

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
                                            "cache_format", "has_tiles")), ("eps", _FLOAT)]  # fmt: skip


class _Tokens(ctypes.Structure):
    _fields_ = [*((name, _ADDRESS) for name in ("positions", "counts", "tables", "cos", "sin")),
                *((name, ctypes.c_int64) for name in ("rows_per_block", "rows_per_position", "rows_per_head")),
                *((name, _INT) for name in ("batch", "blocks_per_table", "block_size", "angles_apart"))]  # fmt: skip


def has_tiles() -> bool:
    """Whether this processor multiplies tiles of bfloat16 numbers, and the system lets us; asked for at first use."""
    return bool(native_library().has_tiles())


@functools.cache
def _is_placed(kind: type) -> bool:
    """Asked once for each class: to compare one with a protocol takes longer than a layer."""
    return issubclass(kind, Placed)


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
        raise InputError(f"the C++ passes are for the CPU, not for {model.device}")
    if model.dtype not in WEIGHT_FORMATS:
        raise InputError(f"the C++ passes know float32 and bfloat16, not {model.dtype}")
    if config.head_dim % HEAD_DIM_UNIT or config.head_dim > MOST_HEAD_DIM:
        raise InputError(
            f"the C++ passes need a head_dim that is a multiple of {HEAD_DIM_UNIT}, at most"
            f" {MOST_HEAD_DIM:,}, not {config.head_dim}"
        )
    modules = list(model.modules())
    weights = (module.weight for module in modules if isinstance(module, QuantizedLinear | QuantizedEmbedding))
    if not all(map(in_one_piece, weights)):
        raise InputError("the C++ passes need quantized weights as `empty_quantized` lays them out")
    if any(module.weight.stride(-1) != 1 for module in modules if isinstance(module, Linear | nn.Embedding)):
        raise InputError("the C++ passes need weights whose rows lie in one piece")


class DescribedModel:
    """Where a model's tensors lie, for the passes in C++. Raises InputError for a model that they are not made for."""

    def __init__(self, model: Llama) -> None:
        _check(model)
        self.model = model
        layers = [layer for layer in model.layers if isinstance(layer, DecoderLayer)]
        # The kernels want these in float32; where they are not, the copies must live as long as this.
        self._norms = [_layer_norms(layer) for layer in layers]
        self._biases = [_layer_biases(layer) for layer in layers]
        self._norm = model.norm.weight.float()
        self._described: _Model | None = None  # the model with the cache that it ran on last
        self._described_for: tuple[object, ...] = ()
        self._layers: Any = None

    def placement(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Placement | None:
        """Where keys and values of these tokens lie, if in memory of float32, bfloat16 or int8 made for this model.

        That is not left to trust: the kernels write where they are told to.
        """
        where = cast(Placed, cache).placement(ids.shape[1]) if _is_placed(type(cache)) else None
        if where is None or tuple(ids.shape) != where.ids_shape:
            return None
        config = self.model.config
        sizes = (config.num_hidden_layers, config.num_key_value_heads, config.head_dim)
        fits = where.sizes == sizes and where.keys.dtype in CACHE_FORMATS and where.keys.device.type == "cpu"
        return where if fits else None

    def run(
        self,
        layers: Any,
        where: Placement,
        x: Float[Tensor, "batch q_len hidden"],
        angles: tuple[ctypes.c_void_p, ctypes.c_void_p, int],
    ) -> None:
        """Call `layers`, a function of the library, on the embeddings x of the tokens; what it computes is put into x.

        angles: where the tokens' cosines and sines lie, and how far apart those of two tokens are.
        """
        cos, sin, angles_apart = angles
        longest = max(map(len, where.tables))
        padded = [block for table in where.tables for block in (*table, *[0] * (longest - len(table)))]
        # Not as tensors: those take longer to make.
        positions, counts, tables = ((_INT * len(each))(*each) for each in (where.positions, where.counts, padded))
        tokens = _Tokens(
            ctypes.addressof(positions), ctypes.addressof(counts), ctypes.addressof(tables), cos, sin,
            where.rows_per_block, where.rows_per_position, where.rows_per_head,
            len(where.positions), longest, where.block_size, angles_apart,
        )  # fmt: skip
        layers(ctypes.byref(self._describe(where)), ctypes.byref(tokens), address(x))

    def _describe(self, where: Placement) -> _Model:
        """The addresses of model and cache; made anew only when the cache is another one, or has been released."""
        tensors = (where.keys, where.values, *where.scales)
        # Memory is used again: an address alone does not say what lies there.
        key = (*(tensor.data_ptr() for tensor in tensors), where.keys.shape, where.keys.dtype)
        if self._described is not None and key == self._described_for:
            return self._described
        config, model = self.model.config, self.model
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
            CACHE_FORMATS[where.keys.dtype], has_tiles(), config.rms_norm_eps,
        )  # fmt: skip
        return self._described
