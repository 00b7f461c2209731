"""The Llama transformer: from token ids to hidden states, and from a hidden state to logits.

Read it from the bottom up or from the top down; every line that changes a shape says the new one.

    B batch   T new tokens   S tokens so far   E hidden_size   V vocab_size
    H attention heads   Hkv key/value heads   D head_dim

Source: LLaMA (Touvron et al. 2023), grouped-query attention from Ainslie et al. 2023. Checked against
`LlamaForCausalLM` of transformers on random configs and on real weights.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.config import LENGTH_DEPENDENT, ModelConfig
from minillm.decode_pass import DecodePass, PromptPass
from minillm.kv_cache import Cache
from minillm.linear import Linear
from minillm.quantization import QuantizedWeight, empty_quantized
from minillm.quantized_linear import QuantizedEmbedding, QuantizedLinear, WeightFormats, quantize_modules
from minillm.rope import apply_rope, inverse_frequencies, rope_tables
from minillm.row_kernels import RowKernels


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


def swiglu(gate_up: Float[Tensor, "*rows both"]) -> Float[Tensor, "*rows intermediate"]:
    """silu(gate) * up, of rows that hold first the one, then the other. Source: Shazeer 2020."""
    gate, up = gate_up.chunk(2, dim=-1)  # 2 x [..., intermediate]
    return F.silu(gate) * up


def scaled(x: Float[Tensor, "*shape"], factor: float) -> Float[Tensor, "*shape"]:
    """x, multiplied; by 1, which it is in all models but Granite, at no cost."""
    return x if factor == 1.0 else x * factor


class RMSNorm(nn.Module):
    """`rms_norm` with its learned weight. `kernels`, here and below: what computes in PyTorch's place, if anything."""

    kernels: RowKernels | None = None

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows hidden"]:
        return (self.kernels.rms_norm if self.kernels else rms_norm)(x, self.weight, self.eps)


class QKNorm(nn.Module):
    """Qwen3's norms: every head of queries and keys is brought to the same size before it is turned."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, qk: Float[Tensor, "batch heads q_len head_dim"]) -> Float[Tensor, "batch heads q_len head_dim"]:
        q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]  # [B, H, T, D], [B, Hkv, T, D]
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)  # [B, H + Hkv, T, D]


class Attention(nn.Module):
    """Grouped-query attention over the cache. The three input projections are one matrix: one read, one call."""

    kernels: RowKernels | None = None
    qkv_proj: Linear | QuantizedLinear
    o_proj: Linear | QuantizedLinear

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.sizes = [q_size, kv_size, kv_size]
        self.qkv_proj = Linear(config.hidden_size, sum(self.sizes), bias=config.qkv_bias)
        self.o_proj = Linear(q_size, config.hidden_size, bias=config.output_bias)
        self.qk_norm = QKNorm(config) if config.qk_norm else None
        self.rotates = layer not in config.nope_layers
        # The cache multiplies scores by 1 / sqrt(head_dim): what a model wants beyond that, its queries bring along.
        wanted = config.attention_multiplier
        self.query_scale = 1.0 if wanted is None else wanted * math.sqrt(config.head_dim)

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
        qk, v = qkv[:, : num_heads + num_kv_heads], qkv[:, num_heads + num_kv_heads :]  # v: [B, Hkv, T, D]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)  # [B, H + Hkv, T, D]
        if self.rotates:
            turned = self.kernels.apply_rope if self.kernels else apply_rope
            qk = turned(qk, cos, sin)  # queries and keys are turned alike
        q, k = qk[:, :num_heads], qk[:, num_heads:]  # [B, H, T, D], [B, Hkv, T, D]
        mixed = cache.attend(self.layer, scaled(q, self.query_scale), k, v)  # [B, H, T, D]
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, q_len, -1))  # [B, T, E]


class SwiGLU(nn.Module):
    """The MLP: a gate decides how much of each up-projected feature passes."""

    kernels: RowKernels | None = None
    gate_up_proj: Linear | QuantizedLinear
    down_proj: Linear | QuantizedLinear

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, intermediate, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate_up_proj = Linear(hidden, 2 * intermediate, bias=bias)
        self.down_proj = Linear(intermediate, hidden, bias=bias)

    def forward(self, x: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch q_len hidden"]:
        gate_up = self.gate_up_proj(x)  # [B, T, 2 intermediate]
        return self.down_proj((self.kernels.swiglu if self.kernels else swiglu)(gate_up))  # [B, T, E]


class DecoderLayer(nn.Module):
    """Tokens exchange information (attention), then each thinks alone (MLP); both only add to the residual."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = SwiGLU(config)
        self.multiplier = config.residual_multiplier

    def forward(
        self,
        x: Float[Tensor, "batch q_len hidden"],
        cos: Float[Tensor, "batch 1 q_len half_dim"],
        sin: Float[Tensor, "batch 1 q_len half_dim"],
        cache: Cache,
    ) -> Float[Tensor, "batch q_len hidden"]:
        x = x + scaled(self.self_attn(self.input_layernorm(x), cos, sin, cache), self.multiplier)  # [B, T, E]
        return x + scaled(self.mlp(self.post_attention_layernorm(x)), self.multiplier)  # [B, T, E]


class Llama(nn.Module):
    """A Llama-family decoder: embedding, layers, final norm, head. Weights are uninitialised until filled.

    `model(ids, cache)` gives hidden states; `model.logits(hidden)` turns the rows that matter into logits. They
    are two calls because the head is a large matrix and a prompt needs it for its last row only.

    formats: which matrices are kept quantized, by their names here; see `quantized_linear`. `decode_pass` and
    `prompt_pass`, where there are any, compute decode steps and prompts in the model's place.
    """

    embed_tokens: nn.Embedding | QuantizedEmbedding
    lm_head: Linear | QuantizedLinear

    def __init__(
        self,
        config: ModelConfig,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        formats: WeightFormats | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        # Built without storage, then given it in the right dtype and place. The embedding is handed its table:
        # otherwise it would draw random numbers that are about to be overwritten.
        with torch.device("meta"):
            table = torch.empty(config.vocab_size, config.hidden_size)  # [V, E]
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
            self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if formats is not None:
            quantize_modules(self, formats, device)
            self._quantize_embedding(formats, device, dtype)
        self.to(dtype).to_empty(device=device)
        if config.tie_word_embeddings and isinstance(self.embed_tokens, nn.Embedding):
            self.lm_head.weight = self.embed_tokens.weight  # one table for both ends
        self.decode_pass: DecodePass | None = None
        self.prompt_pass: PromptPass | None = None
        # A plain attribute, not a buffer: a buffer would follow `.to(bfloat16)`, and angles need float32.
        self.inv_freq = inverse_frequencies(config).to(device)  # [D/2]
        self.requires_grad_(False).eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are, and so where ids and cache must be."""
        return self.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations, and of all weights that are not quantized."""
        return self.norm.weight.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, tied ones counted once."""
        return sum(parameter.nbytes for parameter in self.parameters()) + sum(w.nbytes for w in self._quantized())

    @property
    def num_parameters(self) -> int:
        """How many numbers the weights are, tied ones counted once."""
        whole = sum(parameter.numel() for parameter in self.parameters())
        return whole + sum(weight.shape[0] * weight.shape[1] for weight in self._quantized())

    def _quantized(self) -> list[QuantizedWeight]:
        """The quantized matrices, a shared one once."""
        found = {}
        for module in self.modules():
            if isinstance(module, QuantizedLinear | QuantizedEmbedding):
                found[id(module.weight)] = module.weight
        return list(found.values())

    def _quantize_embedding(self, formats: WeightFormats, device: torch.device | str, dtype: torch.dtype) -> None:
        """The table of the embedding, where it is quantized: the head's own if the two are tied."""
        if self.config.tie_word_embeddings:
            weight = self.lm_head.weight
        elif format := formats("embed_tokens"):
            weight = empty_quantized(format, self.config.vocab_size, self.config.hidden_size, device)
        else:
            return
        if isinstance(weight, QuantizedWeight):
            self.embed_tokens = QuantizedEmbedding(weight, dtype)

    def use_kernels(self, kernels: RowKernels | None) -> None:
        """Let `kernels` take the steps between the products."""
        for module in self.modules():
            if isinstance(module, RMSNorm | Attention | SwiGLU | QuantizedLinear):
                module.kernels = kernels

    def forward(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
        """Hidden states of the tokens that follow what `cache` holds. The caller then calls `cache.advance`."""
        for stand_in in (self.decode_pass, self.prompt_pass):
            if stand_in is not None and (hidden := stand_in.hidden(ids, cache)) is not None:
                return hidden  # [B, T, E]
        x = scaled(self.embed_tokens(ids), self.config.embedding_multiplier)  # [B, T, E]
        q_len = ids.shape[1]
        cos, sin = self.angles(cache.positions(q_len), cache.length + q_len)  # [B, 1, T, D/2]
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, cache)  # [B, T, E]
        return self.norm(x)  # [B, T, E]

    def angles(
        self, positions: Int[Tensor, "batch q_len"], length: int
    ) -> tuple[Float[Tensor, "batch 1 q_len half_dim"], Float[Tensor, "batch 1 q_len half_dim"]]:
        """`rope_tables` of these positions, as the config's scaling rule has them for a sequence of `length` tokens."""
        scaling = self.config.rope_scaling
        if scaling is None:
            return rope_tables(positions, self.inv_freq)  # [B, 1, T, D/2]
        inv_freq = self.inv_freq  # [D/2]
        if scaling.kind in LENGTH_DEPENDENT:
            inv_freq = inverse_frequencies(self.config, length).to(inv_freq)
        return rope_tables(positions, inv_freq, scaling.attention_factor)  # [B, 1, T, D/2]

    def logits(self, hidden: Float[Tensor, "*rows hidden"]) -> Float[Tensor, "*rows vocab"]:
        """One score per vocabulary entry for the token that would follow each row; always float32."""
        if self.decode_pass is not None and (scores := self.decode_pass.logits(hidden)) is not None:
            return scores  # [..., V]
        return scaled(self.lm_head(hidden).float(), 1 / self.config.logits_scaling)  # [..., V]

    def checkpoint_slots(self, *, fused: bool = False) -> dict[str, Tensor | QuantizedWeight]:
        """Where each tensor of a Hugging Face checkpoint belongs: its name -> a view into our weights.

        Fused matrices offer one slice per original matrix, so that filling the slots fills the model without a
        second copy; or, for a checkpoint that has them `fused` as well, themselves. A tied model has no slot for
        `lm_head.weight`.
        """
        slots: dict[str, Tensor | QuantizedWeight]
        slots = {"model.embed_tokens.weight": self.embed_tokens.weight, "model.norm.weight": self.norm.weight}
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.lm_head.weight
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            slots |= {f"model.layers.{index}.{name}": slot for name, slot in _layer_slots(layer, fused).items()}
        return {name: slot.data if isinstance(slot, Tensor) else slot for name, slot in slots.items()}


PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Our fused matrices, and the checkpoint's that they are made of, unless it has them fused too."""


def _layer_slots(layer: DecoderLayer, fused: bool) -> dict[str, Tensor | QuantizedWeight]:
    """The slots of one decoder layer, by their names inside the layer."""
    attn, mlp = layer.self_attn, layer.mlp
    qkv, gate_up = [(name,) if fused else parts for name, parts in PARTS.items()]
    qkv_sizes, gate_up_sizes = (None, None) if fused else (attn.sizes, [mlp.down_proj.in_features] * 2)
    slots: dict[str, Tensor | QuantizedWeight] = {
        "input_layernorm.weight": layer.input_layernorm.weight,
        "post_attention_layernorm.weight": layer.post_attention_layernorm.weight,
        **_row_slots(attn.qkv_proj, *(f"self_attn.{name}" for name in qkv), sizes=qkv_sizes),
        **_row_slots(attn.o_proj, "self_attn.o_proj"),
        **_row_slots(mlp.gate_up_proj, *(f"mlp.{name}" for name in gate_up), sizes=gate_up_sizes),
        **_row_slots(mlp.down_proj, "mlp.down_proj"),
    }
    if attn.qk_norm is not None:
        slots["self_attn.q_norm.weight"] = attn.qk_norm.q_norm.weight
        slots["self_attn.k_norm.weight"] = attn.qk_norm.k_norm.weight
    return slots


def _row_slots(
    linear: Linear | QuantizedLinear, *names: str, sizes: Sequence[int] | None = None
) -> dict[str, Tensor | QuantizedWeight]:
    """The rows of a projection (and the entries of its bias, if it has one), shared out among `names`."""
    sizes = list(sizes or [linear.out_features])
    slots: dict[str, Tensor | QuantizedWeight] = {}
    for kind, whole in (("weight", linear.weight), ("bias", linear.bias)):
        if whole is not None:
            slots |= {f"{name}.{kind}": rows for name, rows in zip(names, whole.split(sizes), strict=True)}
    return slots


def weight_bytes_per_pass(model: Llama) -> int:
    """Bytes of weights that one forward pass reads: all, except an embedding table of which it only looks rows up."""
    lookup_only = 0 if model.config.tie_word_embeddings else model.embed_tokens.weight.nbytes
    return model.nbytes - lookup_only
