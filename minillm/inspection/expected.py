"""The tensors that a config asks for: what `Llama.checkpoint_slots` offers, without the model and without torch."""

from collections.abc import Iterable, Sequence

from minillm.config import ModelConfig
from minillm.inspection.stored import StoredTensor
from minillm.loading.fields import shown

FUSED = ("self_attn.qkv_proj", "mlp.gate_up_proj", ".attn_qkv.")  # the last one is GGUF's
# Old checkpoints also store what is computed from the configuration: the loader leaves it alone.
COMPUTED = ".rotary_emb.inv_freq"
HEAD = "lm_head.weight"


def expected_shapes(config: ModelConfig, fused: bool = False) -> dict[str, tuple[int, ...]]:
    """Hugging Face's name and shape of every tensor; `fused`: with Phi-3's fused projections."""
    c = config
    q_size, kv_size = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    hidden, middle = c.hidden_size, c.intermediate_size
    linears = {  # [outputs, inputs], whether there is a bias
        "self_attn.q_proj": (q_size, hidden, c.qkv_bias),
        "self_attn.k_proj": (kv_size, hidden, c.qkv_bias),
        "self_attn.v_proj": (kv_size, hidden, c.qkv_bias),
        "self_attn.qkv_proj": (q_size + 2 * kv_size, hidden, c.qkv_bias),
        "self_attn.o_proj": (hidden, q_size, c.output_bias),
        "mlp.gate_proj": (middle, hidden, c.mlp_bias),
        "mlp.up_proj": (middle, hidden, c.mlp_bias),
        "mlp.gate_up_proj": (2 * middle, hidden, c.mlp_bias),
        "mlp.down_proj": (hidden, middle, c.mlp_bias),
    }
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    layer: dict[str, tuple[int, ...]] = {}
    for name, (outputs, inputs, has_bias) in linears.items():
        if name in (parts if fused else FUSED):
            continue
        layer[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            layer[f"{name}.bias"] = (outputs,)
    if c.qk_norm:
        layer |= {f"self_attn.{name}.weight": (c.head_dim,) for name in ("q_norm", "k_norm")}
    layer |= {f"{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.vocab_size, hidden)}
    for index in range(c.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not c.tie_word_embeddings:
        shapes[HEAD] = (c.vocab_size, hidden)
    return shapes


def is_fused(tensors: Iterable[StoredTensor]) -> bool:
    """Whether projections are stored fused."""
    return any(part in tensor.name for tensor in tensors for part in FUSED)


def mismatch(config: ModelConfig, tensors: Sequence[StoredTensor]) -> str | None:
    """How the stored tensors differ from those that the config asks for, in a sentence; None if they do not."""
    stored = {tensor.name: tensor.shape for tensor in tensors if not tensor.name.endswith(COMPUTED)}
    expected = expected_shapes(config, is_fused(tensors))
    if config.tie_word_embeddings:
        stored.pop(HEAD, None)  # whether it equals the embedding is seen when it is loaded
    problems = {"lacks": expected.keys() - stored, "has, beyond what the config asks for,": stored.keys() - expected}
    for problem, names in problems.items():
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            return f"the checkpoint {problem} the tensor {min(names)}{more}"
    for name, shape in expected.items():
        if stored[name] != shape:
            return f"the tensor {name} is {shown(list(stored[name]))}, and the config asks for {list(shape)}"
    return None
