"""What each `general.architecture` of a GGUF file means: its fixed features, its tensors, the keys it has no use for.

GGUF says less than `config.json`: much of what a model is lies in the program that reads the file. Source: the loaders
and graphs of llama.cpp (`src/llama-model.cpp`, `src/models/`), and what its converter writes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.loading.fields import shown


@dataclass(frozen=True)
class GGUFArchitecture:
    """One `general.architecture`.

    `interleaved`: llama.cpp rotates neighbouring rows of a head, so the converter has reordered those of Q and K; else
    it rotates halves, as Hugging Face does, and rows are where they were. `windowed`: a sliding window, if one is
    stated, holds in every layer; elsewhere the file cannot say in which layers it does. `nope_interval`: every
    so-manieth layer has no rotary embedding. `multipliers`: Granite's. `tensors`: names inside a layer beyond those
    that all share, or that mean something else here.
    """

    interleaved: bool = False
    windowed: bool = False
    qk_norm: bool = False
    nope_interval: int | None = None
    multipliers: bool = False
    tensors: Mapping[str, str] = field(default_factory=dict)


ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    # "llama" is also Mistral, Yi, TinyLlama, SmolLM2 and the DeepSeek distillations of Llama
    "llama": GGUFArchitecture(interleaved=True, windowed=True),
    "qwen2": GGUFArchitecture(),
    "qwen3": GGUFArchitecture(
        qk_norm=True, tensors={"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    ),
    "granite": GGUFArchitecture(interleaved=True, multipliers=True),
    "smollm3": GGUFArchitecture(interleaved=True, nope_interval=4),
    "phi3": GGUFArchitecture(windowed=True, tensors={"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}),
}

# The tensors that every file may have.
TOP_LEVEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(gguf_name: str, kind: GGUFArchitecture = ARCHITECTURES["llama"]) -> str:
    """Hugging Face's name of a tensor; one that the architecture has not stays as it is, and is reported by `fill`."""
    stem, _, suffix = gguf_name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in TOP_LEVEL:
            return f"{TOP_LEVEL[stem]}.{suffix}"
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        in_layer = {**IN_LAYER, **kind.tensors}
        if match and match[2] in in_layer:
            return f"model.layers.{match[1]}.{in_layer[match[2]]}.{suffix}"
    return gguf_name


# Keys of features that no model here has: only the values that switch them off are accepted. The names are those
# behind the architecture's: "llama.expert_count".
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "use_parallel_residual": (False,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    # An early converter's name for the layout that all files of "llama" have: Q and K rows permuted.
    "tensor_data_layout": ("Meta AI original pth",),
}


def architecture_of(name: Any) -> tuple[str, GGUFArchitecture]:
    """A `general.architecture` and what it means. Raises InputError for one that this engine does not run."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise InputError(
            f"architecture {shown(name)} is not supported; supported: {', '.join(ARCHITECTURES)}"
            " (dense text models of the Llama family)"
        )
    return name, ARCHITECTURES[name]


@dataclass(frozen=True)
class Part:
    """Some rows of a GGUF tensor, and the name that they have in Hugging Face's checkpoints."""

    name: str
    start: int
    rows: int


def parts_of(name: str, rows: int, config: ModelConfig, kind: GGUFArchitecture) -> list[Part]:
    """A tensor under its name; or in three. The converter can fuse queries, keys and values of any architecture
    (`--fuse-qkv`); where only the file has them fused (Phi-3's checkpoints do too), they are taken apart.
    """
    match = re.fullmatch(r"(blk\.\d+\.attn_)qkv(\.weight|\.bias)", name)
    q_size, kv_size = (n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    if match is None or "attn_qkv" in kind.tensors or rows != q_size + 2 * kv_size:
        return [Part(hf_name(name, kind), 0, rows)]
    places = (("q", 0, q_size), ("k", q_size, kv_size), ("v", q_size + kv_size, kv_size))
    return [Part(hf_name(f"{match[1]}{part}{match[2]}", kind), start, size) for part, start, size in places]
