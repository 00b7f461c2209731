"""The Llama transformer: from token ids to hidden states, and from a hidden state to logits.

Read it from the bottom up or from the top down; every line that changes a shape says the new one.

    B batch   T new tokens   S tokens so far   E hidden_size   V vocab_size
    H attention heads   Hkv key/value heads   D head_dim

Source: LLaMA (Touvron et al. 2023), grouped-query attention from Ainslie et al. 2023. Checked against
`LlamaForCausalLM` of transformers on random configs and on real weights.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.config import ModelConfig
from minillm.decode_pass import DecodePass
from minillm.kv_cache import Cache
from minillm.linear import Linear
from minillm.rope import apply_rope, inverse_frequencies, rope_tables


def rms_norm(
    x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], eps: float
) -> Float[Tensor, "*rows hidden"]:
    """Scale each row to a root mean square of 1, then each column by a learned weight.

    The mean of squares is taken in float32: in bfloat16 a sum over hundreds of terms loses most of its digits.
    Source: Zhang and Sennrich 2019.
    """
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)  # [..., 1]
    return (wide * scale).to(x.dtype) * weight


class RMSNorm(nn.Module):
    """`rms_norm` with its learned weight."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.hidden_size))
        self.eps = config.rms_norm_eps

    def forward(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Grouped-query attention over the cache. The three input projections are one matrix: one read, one call."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.sizes = [q_size, kv_size, kv_size]
        self.qkv_proj = Linear(config.hidden_size, sum(self.sizes), bias=config.attention_bias)
        self.o_proj = Linear(q_size, config.hidden_size, bias=config.attention_bias)

    def forward(
        self,
        x: Float[Tensor, "batch q_len hidden"],
        cos: Float[Tensor, "batch 1 q_len half_dim"],
        sin: Float[Tensor, "batch 1 q_len half_dim"],
        cache: Cache,
    ) -> Float[Tensor, "batch q_len hidden"]:
        batch, q_len, _ = x.shape
        num_heads, num_kv_heads = self.num_heads, self.num_kv_heads
        qkv = self.qkv_proj(x).view(batch, q_len, -1, self.head_dim).transpose(1, 2)  # [B, H + 2 Hkv, T, D]
        v = qkv[:, num_heads + num_kv_heads :]  # [B, Hkv, T, D]
        qk = apply_rope(qkv[:, : num_heads + num_kv_heads], cos, sin)  # queries and keys are turned alike
        q, k = qk[:, :num_heads], qk[:, num_heads:]  # [B, H, T, D], [B, Hkv, T, D]
        mixed = cache.attend(self.layer, q, k, v)  # [B, H, T, D]
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, q_len, -1))  # [B, T, E]


class SwiGLU(nn.Module):
    """The MLP: a gate decides how much of each up-projected feature passes. Source: Shazeer 2020."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(hidden, 2 * intermediate, bias=bias)
        self.down_proj = Linear(intermediate, hidden, bias=bias)

    def forward(self, x: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch q_len hidden"]:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)  # 2 x [B, T, intermediate]
        return self.down_proj(F.silu(gate) * up)  # [B, T, E]


class DecoderLayer(nn.Module):
    """Tokens exchange information (attention), then each thinks alone (MLP); both only add to the residual."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config)
        self.mlp = SwiGLU(config)

    def forward(
        self,
        x: Float[Tensor, "batch q_len hidden"],
        cos: Float[Tensor, "batch 1 q_len half_dim"],
        sin: Float[Tensor, "batch 1 q_len half_dim"],
        cache: Cache,
    ) -> Float[Tensor, "batch q_len hidden"]:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, cache)  # [B, T, E]
        return x + self.mlp(self.post_attention_layernorm(x))  # [B, T, E]


class Llama(nn.Module):
    """A Llama-family decoder: embedding, layers, final norm, head. Weights are uninitialised until filled.

    `model(ids, cache)` gives hidden states; `model.logits(hidden)` turns the rows that matter into logits. They
    are two calls because the head is a large matrix and a prompt needs it for its last row only.
    """

    def __init__(
        self, config: ModelConfig, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
        # Built without storage, then given it in the right dtype and place. The embedding is handed its table:
        # otherwise it would draw random numbers that are about to be overwritten.
        with torch.device("meta"):
            table = torch.empty(config.vocab_size, config.hidden_size)  # [V, E]
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
            self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
            self.norm = RMSNorm(config)
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.to(dtype).to_empty(device=device)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight  # to_empty gives each module a weight of its own
        # A plain attribute, not a buffer: a buffer would follow `.to(bfloat16)`, and angles need float32.
        self.inv_freq = inverse_frequencies(config).to(device)  # [D/2]
        self.decode_pass: DecodePass | None = None  # a faster way for decode steps, if there is one
        self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are, and so where ids and cache must be."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embed_tokens.weight.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, tied ones counted once."""
        return sum(parameter.nbytes for parameter in self.parameters())

    def forward(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
        """Hidden states of the tokens that follow what `cache` holds. The caller then calls `cache.advance`."""
        if self.decode_pass is not None and self.decode_pass.takes(ids, cache):
            return self.decode_pass(ids, cache)  # [B, 1, E]
        x = self.embed_tokens(ids)  # [B, T, E]
        cos, sin = rope_tables(cache.positions(ids.shape[1]), self.inv_freq)  # [B, 1, T, D/2]
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)  # [B, T, E]
        return self.norm(x)  # [B, T, E]

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        """One score per vocabulary entry for the token that would follow each row; always float32."""
        if self.decode_pass is not None and hidden.numel() == hidden.shape[-1]:
            return self.decode_pass.logits(hidden)  # [..., V]
        return self.lm_head(hidden).float()  # [..., V]

    def checkpoint_slots(self) -> dict[str, Tensor]:
        """Where each tensor of a Hugging Face checkpoint belongs: its name -> a view into our weights.

        Fused matrices offer one slice per original matrix, so that filling the slots fills the model without a
        second copy. A tied model has no slot for `lm_head.weight`.
        """
        slots = {"model.embed_tokens.weight": self.embed_tokens.weight, "model.norm.weight": self.norm.weight}
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.lm_head.weight
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            slots |= {f"model.layers.{index}.{name}": slot for name, slot in _layer_slots(layer).items()}
        return {name: slot.data for name, slot in slots.items()}


def _layer_slots(layer: DecoderLayer) -> dict[str, Tensor]:
    """The slots of one decoder layer, by their names inside the layer."""
    attn, mlp = layer.self_attn, layer.mlp
    return {
        "input_layernorm.weight": layer.input_layernorm.weight,
        "post_attention_layernorm.weight": layer.post_attention_layernorm.weight,
        **_row_slots(attn.qkv_proj, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", sizes=attn.sizes),
        **_row_slots(attn.o_proj, "self_attn.o_proj"),
        **_row_slots(mlp.gate_up_proj, "mlp.gate_proj", "mlp.up_proj", sizes=[mlp.down_proj.in_features] * 2),
        **_row_slots(mlp.down_proj, "mlp.down_proj"),
    }


def _row_slots(linear: Linear, *names: str, sizes: Sequence[int] | None = None) -> dict[str, Tensor]:
    """The rows of a projection (and the entries of its bias, if it has one), shared out among `names`."""
    sizes = list(sizes or [linear.out_features])
    slots: dict[str, Tensor] = {}
    for kind, tensor in linear.named_parameters():  # "weight", and "bias" if there is one
        slots |= {f"{name}.{kind}": rows for name, rows in zip(names, tensor.split(sizes), strict=True)}
    return slots


def weight_bytes_per_pass(model: Llama) -> int:
    """Bytes of weights that one forward pass reads: all, except an embedding table of which it only looks rows up."""
    lookup_only = 0 if model.config.tie_word_embeddings else model.embed_tokens.weight.nbytes
    return model.nbytes - lookup_only
