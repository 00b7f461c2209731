"""The weights of a layer as plain tensors: a compiled function takes them as arguments, so one serves all layers."""

from typing import NamedTuple

from jaxtyping import Float, Int8
from torch import Tensor, nn

from minillm.errors import InputError
from minillm.model import DecoderLayer
from minillm.quantized_linear import QuantizedLinear


class Matrix(NamedTuple):
    """A projection y = x W^T * scale + bias. An int8 weight has a scale per output channel; a float one has none."""

    weight: Float[Tensor, "out_features in_features"] | Int8[Tensor, "out_features in_features"]
    scale: Float[Tensor, " out_features"] | None = None
    bias: Float[Tensor, " out_features"] | None = None


class LayerWeights(NamedTuple):
    """All that tells one decoder layer from another."""

    input_norm: Float[Tensor, " hidden"]
    qkv: Matrix
    o: Matrix
    post_attention_norm: Float[Tensor, " hidden"]
    gate_up: Matrix
    down: Matrix


def matrix_of(linear: nn.Module) -> Matrix:
    """The tensors of a projection; views of the very same memory. Raises InputError for a format not compiled here."""
    if isinstance(linear, QuantizedLinear):
        weight = linear.weight
        if weight.format != "int8":
            raise InputError(
                f"decoding compiled by Inductor knows weights in float and int8, not {weight.format!r}: "
                "quantize to int8, or leave --compile out"
            )
        return Matrix(weight.codes, weight.scale, None if linear.bias is None else linear.bias.data)
    assert isinstance(linear, nn.Linear)
    return Matrix(linear.weight.data, None, None if linear.bias is None else linear.bias.data)


def layer_weights(layer: DecoderLayer) -> LayerWeights:
    """The tensors of a decoder layer; views of the very same memory."""
    return LayerWeights(
        layer.input_layernorm.weight.data,
        matrix_of(layer.self_attn.qkv_proj),
        matrix_of(layer.self_attn.o_proj),
        layer.post_attention_layernorm.weight.data,
        matrix_of(layer.mlp.gate_up_proj),
        matrix_of(layer.mlp.down_proj),
    )
