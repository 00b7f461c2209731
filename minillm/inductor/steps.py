"""The decode step of one layer, and the head, as functions of tensors alone: what the compiler is given.

Nothing here knows a layer's number, a position or a length as a Python number. Weights, cache and position come as
tensors, so that code compiled once is right for every layer and every step:

    position   [1], where the new token stands: it indexes the cache, and masks what lies behind
    seen       [kv_len], the positions 0, 1, ..., kv_len - 1: its *shape* says how much of the cache to read

Only weights and cache are narrow: activations are float32, whatever the model's dtype. There are few of them, and a
loop over a matrix would convert a bfloat16 row again for every output.

Written for Inductor, not for eager mode: sums of products, which it turns into one loop over each matrix without
ever storing the products. Run eagerly, they would fill memory with them.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minillm.config import ModelConfig
from minillm.inductor.weights import LayerWeights, Matrix
from minillm.model import rms_norm
from minillm.rope import apply_rope


def product(x: Float[Tensor, "batch in_features"], matrix: Matrix) -> Float[Tensor, "batch out_features"]:
    """The product x W^T (scaled, and with the bias) in float32, whatever the dtype of the weights.

    One row on a CPU is a sum of products: Inductor fuses conversion, product and sum into one vectorised loop that
    reads each weight once and runs near the memory limit. On a GPU, and for several rows, the library's product.
    """
    weight, scale, bias = matrix
    if x.shape[0] == 1 and x.device.type == "cpu":
        out = (weight.float() * x).sum(dim=-1)[None]  # [1, out]
    elif weight.dtype == torch.float32 and x.device.type == "cpu":
        out = (weight @ x.mT).mT  # [B, out]; this way round the library reads the weights once (see linear.py)
    else:
        if not weight.is_floating_point():
            weight = weight.float()
        out = F.linear(x.to(weight.dtype), weight).float()  # [B, out]
    if scale is not None:
        out = out * scale.float()
    return out if bias is None else out + bias.float()


def attend(
    q: Float[Tensor, "batch num_kv_heads group head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    visible: Bool[Tensor, " kv_len"] | None,
) -> Float[Tensor, "batch num_kv_heads group head_dim"]:
    """softmax(q k^T / sqrt(head_dim)) v, in float32, over the keys that are `visible`; None: over all of them.

    What is not visible was never written, or is left from a text before. It may be NaN, and 0 x NaN is NaN: so the
    values are masked too, not only the scores.
    """
    scores = (q[:, :, :, None] * k.float()[:, :, None]).sum(dim=-1) * q.shape[-1] ** -0.5  # [B, Hkv, G, S]
    v = v.float()
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
        v = torch.where(visible[:, None], v, 0.0)  # [B, Hkv, S, D]
    weights = scores.softmax(dim=-1)  # [B, Hkv, G, S]
    return (weights[..., None] * v[:, :, None]).sum(dim=-2)  # [B, Hkv, G, D]


class LayerStep(torch.nn.Module):
    """One decoder layer for one new token per sequence. A module, because `torch.export` takes nothing less."""

    def __init__(self, config: ModelConfig, *, masked: bool) -> None:
        """Masked: `seen` may reach behind `position`. Otherwise it ends there, and there is nothing to mask."""
        super().__init__()
        self.config = config
        self.masked = masked

    def forward(
        self,
        x: Float[Tensor, "batch hidden"],
        cos: Float[Tensor, "1 1 1 half_dim"],
        sin: Float[Tensor, "1 1 1 half_dim"],
        keys: Float[Tensor, "batch num_kv_heads max_seq_len head_dim"],
        values: Float[Tensor, "batch num_kv_heads max_seq_len head_dim"],
        seen: Int[Tensor, " kv_len"],
        position: Int[Tensor, " 1"],
        weights: LayerWeights,
    ) -> Float[Tensor, "batch hidden"]:
        """The residual stream after this layer. Writes the token's k and v into `keys` and `values` at `position`."""
        config, batch, kv_len = self.config, x.shape[0], seen.shape[0]
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

        h = rms_norm(x, weights.input_norm.float(), config.rms_norm_eps)  # [B, E]
        qkv = product(h, weights.qkv).view(batch, -1, 1, head_dim)  # [B, H + 2 Hkv, 1, D]
        cos, sin = (table.expand(batch, -1, -1, -1) for table in (cos, sin))  # [B, 1, 1, D/2]
        qk = apply_rope(qkv[:, : heads + kv_heads], cos, sin)  # [B, H + Hkv, 1, D]
        keys.index_copy_(2, position, qk[:, heads:].to(keys.dtype))
        values.index_copy_(2, position, qkv[:, heads + kv_heads :].to(values.dtype))

        q = qk[:, :heads].reshape(batch, kv_heads, heads // kv_heads, head_dim)  # [B, Hkv, G, D]
        visible = seen <= position if self.masked else None  # [kv_len]
        mixed = attend(q, keys[:, :, :kv_len], values[:, :, :kv_len], visible)  # [B, Hkv, G, D]
        x = x + product(mixed.reshape(batch, -1), weights.o)  # [B, E]

        h = rms_norm(x, weights.post_attention_norm.float(), config.rms_norm_eps)  # [B, E]
        gate, up = product(h, weights.gate_up).chunk(2, dim=-1)  # 2 x [B, intermediate]
        return x + product(F.silu(gate) * up, weights.down)  # [B, E]


class HeadStep(torch.nn.Module):
    """The head for one row."""

    def forward(self, hidden: Float[Tensor, "1 hidden"], head: Matrix) -> Float[Tensor, "1 vocab"]:
        """Float32 scores."""
        return product(hidden, head)  # [1, V]
