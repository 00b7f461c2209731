"""The weights of a layer as plain tensors: a compiled function takes them as arguments, so one serves all layers."""

from typing import NamedTuple

from jaxtyping import Float, Int8
from torch import Tensor, nn

from minillm.model import DecoderLayer


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


def matrix_of(linear: nn.Linear) -> Matrix:
    """The tensors of a projection; views of the very same memory."""
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
