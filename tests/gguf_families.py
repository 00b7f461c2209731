"""Tiny random models of every architecture as GGUF files: the values from a seed, the model by `transformers`.

Nothing of the reading code is used. Names of tensors and keys are those of the `gguf` library, which llama.cpp's
converter uses too; rows are reordered by `checkpoints.permute`. What the converter leaves out is left out here: the
window of a Mistral, the rule of a Phi-3's factors, the layers without rotation of a SmolLM3.
"""

import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from checkpoints import CHAT_TEMPLATE, MERGES, SPECIAL, TOKENS, VOCAB_SIZE, permute, quantize
from gguf import GGMLQuantizationType as QType
from gguf import GGUFWriter

SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
THETA = 10000.0
LONG = 300  # a context of pre-training that llama.cpp's smallest cache, of 256, does not reach


@dataclass(frozen=True)
class Family:
    """One kind of model: its configuration in transformers' words, its architecture and keys in llama.cpp's.

    `interleaved`: its converter reorders the rows of Q and K. `positions`: after which tokens, from 0, logits are
    compared; all of one pass over the last of them. `same_to_llama_cpp`: whether that program computes what
    transformers computes.
    """

    config: Callable[..., Any]
    architecture: gguf.MODEL_ARCH
    changes: Mapping[str, Any] = field(default_factory=dict)
    write: Callable[[GGUFWriter, Any], None] = lambda writer, config: None
    interleaved: bool = False
    tensors: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    positions: tuple[int, ...] = (0, 5, 39)
    same_to_llama_cpp: bool = True


def wide(family: str) -> dict[str, Any]:
    """Changes that make the rows of all matrices whole blocks, whatever the type; of one layer, for speed."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    return {**sizes, "head_dim": 128} if family == "qwen3" else sizes


def rope(kind: str = "default", **more: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": THETA, **more}


def llama3_divisors(config: Any) -> dict[str, np.ndarray]:
    """As the converter computes them: by wavelength."""
    settings, dim = config.rope_parameters, config.head_dim
    original, low, high = 8192, settings["low_freq_factor"], settings["high_freq_factor"]
    divisors = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * settings["rope_theta"] ** (2 * pair / dim)
        smooth = min(1.0, max(0.0, (original / wavelength - low) / (high - low)))
        divisors.append(round(1 / ((1 - smooth) / settings["factor"] + smooth), 6))
    assert len(set(divisors)) > 2, "all pairs are scaled alike: the ramp is not met"
    return {"rope_freqs.weight": np.array(divisors, dtype=np.float32)}


def longrope_factors(config: Any) -> dict[str, np.ndarray]:
    names = {"long_factor": "rope_factors_long.weight", "short_factor": "rope_factors_short.weight"}
    return {ours: np.array(config.rope_parameters[theirs], np.float32) for theirs, ours in names.items()}


def write_linear(writer: GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(config.rope_parameters["factor"])


def write_yarn(writer: GGUFWriter, config: Any) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(config.rope_parameters["factor"])
    writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])


def write_granite(writer: GGUFWriter, config: Any) -> None:
    writer.add_attention_scale(config.attention_multiplier)
    writer.add_embedding_scale(config.embedding_multiplier)
    writer.add_residual_scale(config.residual_multiplier)
    writer.add_logit_scale(config.logits_scaling)


def write_phi3(writer: GGUFWriter, config: Any) -> None:
    """The converter writes the original context always, and 0 for no window; of the rule's name it says nothing."""
    original = config.rope_parameters.get("original_max_position_embeddings", config.max_position_embeddings)
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_sliding_window(config.sliding_window or 0)
    if config.rope_parameters["rope_type"] == "longrope":
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))


def phi3_long(original: int) -> dict[str, Any]:
    return {
        "rope_parameters": rope(
            "longrope",
            original_max_position_embeddings=original,
            short_factor=[1.0 + 0.05 * pair for pair in range(8)],
            long_factor=[1.0 + 0.5 * pair for pair in range(8)],
        ),
        "original_max_position_embeddings": original,
        "max_position_embeddings": 4 * original,
    }


ARCH = gguf.MODEL_ARCH
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
Llama, Qwen2, Phi3 = transformers.LlamaConfig, transformers.Qwen2Config, transformers.Phi3Config

FAMILIES: dict[str, Family] = {
    "llama 2": Family(Llama, ARCH.LLAMA, {"num_key_value_heads": 4}, interleaved=True),
    "llama 3.1": Family(Llama, ARCH.LLAMA, {"rope_parameters": LLAMA3}, tensors=llama3_divisors, interleaved=True),
    "smollm2": Family(Llama, ARCH.LLAMA, {"tie_word_embeddings": True}, interleaved=True),
    "llama with linear scaling": Family(
        Llama, ARCH.LLAMA, {"rope_parameters": rope("linear", factor=4.0)}, write_linear, interleaved=True
    ),
    "llama with biases": Family(Llama, ARCH.LLAMA, {"attention_bias": True, "mlp_bias": True}, interleaved=True),
    "llama with yarn": Family(
        Llama, ARCH.LLAMA, {"rope_parameters": YARN, "max_position_embeddings": 128}, write_yarn, interleaved=True
    ),
    "mistral": Family(transformers.MistralConfig, ARCH.LLAMA, {"sliding_window": None}, interleaved=True),
    "mistral nemo": Family(
        transformers.MistralConfig, ARCH.LLAMA, {"head_dim": 24, "sliding_window": None}, interleaved=True
    ),
    "mistral with a window": Family(
        transformers.MistralConfig,
        ARCH.LLAMA,
        {"sliding_window": 9},
        lambda writer, config: writer.add_sliding_window(config.sliding_window),
        interleaved=True,
        same_to_llama_cpp=False,
    ),
    "qwen2": Family(Qwen2, ARCH.QWEN2, {"tie_word_embeddings": True}),
    "qwen2 with yarn": Family(Qwen2, ARCH.QWEN2, {"rope_parameters": YARN, "max_position_embeddings": 128}, write_yarn),
    "qwen3": Family(transformers.Qwen3Config, ARCH.QWEN3, {"head_dim": 24, "tie_word_embeddings": True}),
    "granite": Family(
        transformers.GraniteConfig,
        ARCH.GRANITE,
        {
            "attention_multiplier": 0.1,
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "logits_scaling": 0.5,
            "tie_word_embeddings": True,
        },
        write_granite,
        interleaved=True,
    ),
    "smollm3": Family(
        transformers.SmolLM3Config,
        ARCH.SMOLLM3,
        {"num_hidden_layers": 5, "use_sliding_window": False},
        interleaved=True,
    ),
    "phi3 4k": Family(Phi3, ARCH.PHI3, {"sliding_window": 9}, write_phi3, same_to_llama_cpp=False),
    "phi3 within its window": Family(Phi3, ARCH.PHI3, {"sliding_window": 64}, write_phi3),
    "phi3 128k, short": Family(Phi3, ARCH.PHI3, phi3_long(LONG), write_phi3, tensors=longrope_factors),
    "phi3 128k, long": Family(
        Phi3, ARCH.PHI3, phi3_long(LONG), write_phi3, tensors=longrope_factors, positions=(0, 5, LONG)
    ),
}


def make_model(name: str, seed: int = 0, **changes: Any) -> Any:
    """The model of a family as transformers has it, with random weights, the same wherever it is made."""
    family = FAMILIES[name]
    settings = {"rope_parameters": rope(), **SIZES, "tie_word_embeddings": False, **family.changes, **changes}
    config = family.config(**settings)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    random = np.random.RandomState(seed)  # its numbers are the same in every version of numpy, on every machine
    with torch.no_grad():
        for parameter_name, parameter in sorted(model.named_parameters()):
            values = random.random_sample(tuple(parameter.shape)) - 0.5
            values = 1 + 0.5 * values if "norm" in parameter_name else 0.5 * values
            parameter.copy_(torch.from_numpy(values))
    return model


def write_family(
    path: Path,
    name: str,
    model: Any,
    kind: QType = QType.F32,
    only: str = "",
    fuse_qkv: bool = False,
) -> Path:
    """The model as a GGUF file: matrices whose names there have `only` in them as `kind`, all else in float32. A type
    that the library cannot write is random blocks (see `checkpoints.quantize`), and another model. `fuse_qkv`: as the
    converter writes with its option of this name.
    """
    family, config = FAMILIES[name], model.config
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[family.architecture])
    write_keys(writer, config)
    family.write(writer, config)
    write_tokenizer(writer)
    for tensor_name, values in family.tensors(config).items():
        writer.add_tensor(tensor_name, values)
    tensors = gguf_tensors(name, model)
    for tensor_name, values in (with_fused_qkv(tensors) if fuse_qkv else tensors).items():
        stored = kind if values.ndim > 1 and only in tensor_name else QType.F32
        writer.add_tensor(tensor_name, quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_keys(writer: GGUFWriter, config: Any) -> None:
    """What the converter writes for every architecture."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if head_dim * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)


def metadata_of(config: Any) -> dict[str, Any]:
    """The keys that the converter writes for a model with this configuration, numbers as a file holds them."""
    architecture = {"mistral": ARCH.LLAMA}.get(config.model_type) or gguf.MODEL_ARCH[config.model_type.upper()]
    writer = GGUFWriter(None, gguf.MODEL_ARCH_NAMES[architecture])
    write_keys(writer, config)
    kind = config.rope_parameters["rope_type"]
    for applies, write in (
        (kind == "linear", write_linear),
        (kind == "yarn", write_yarn),
        (architecture == ARCH.GRANITE, write_granite),
        (architecture == ARCH.PHI3, write_phi3),
    ):
        if applies:
            write(writer, config)
    values = {key: stored.value for key, stored in writer.kv_data[0].items()}
    return {key: float(np.float32(each)) if isinstance(each, float) else each for key, each in values.items()}


def factor_tensors_of(config: Any) -> dict[str, list[float]]:
    """The divisors that the converter writes beside them."""
    makers = {"llama3": llama3_divisors, "longrope": longrope_factors}
    make = makers.get(config.rope_parameters["rope_type"], lambda config: {})
    return {name: values.tolist() for name, values in make(config).items()}


def write_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (VOCAB_SIZE - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def gguf_tensors(name: str, model: Any) -> dict[str, np.ndarray]:
    """The model's tensors under llama.cpp's names, in its order of rows."""
    family, config = FAMILIES[name], model.config
    names = gguf.get_tensor_name_map(family.architecture, config.num_hidden_layers)
    tensors = {}
    for hf_name, tensor in model.state_dict().items():
        if hf_name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if family.interleaved and ".q_proj." in hf_name:
            values = permute(values, config.num_attention_heads)
        if family.interleaved and ".k_proj." in hf_name:
            values = permute(values, config.num_key_value_heads)
        gguf_name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, f"llama.cpp has no name for {hf_name}"
        tensors[gguf_name] = values
    return tensors


def with_fused_qkv(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Queries, keys and values of each layer under one name, weights and biases."""
    fused = {}
    for name, values in tensors.items():
        if ".attn_q." in name:
            parts = (values, tensors[name.replace("_q.", "_k.")], tensors[name.replace("_q.", "_v.")])
            fused[name.replace("_q.", "_qkv.")] = np.concatenate(parts)
        elif ".attn_k." not in name and ".attn_v." not in name:
            fused[name] = values
    return fused


def content_of(path: Path) -> str:
    """A checksum of what a GGUF file says, whatever the order and the padding in which it says it."""
    reader, digest = gguf.GGUFReader(path), hashlib.sha256()
    for key in sorted(key for key in reader.fields if not key.startswith("GGUF.")):
        digest.update(f"{key} {reader.fields[key].contents()!r}\n".encode())
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.name} {tensor.tensor_type.name} {tensor.shape.tolist()}\n".encode())
        digest.update(np.ascontiguousarray(tensor.data).tobytes())
    return digest.hexdigest()


def random_ids(length: int, seed: int = 1) -> list[int]:
    """[length] token ids, none of them special."""
    return np.random.RandomState(seed).randint(len(SPECIAL), VOCAB_SIZE, length).tolist()


@torch.no_grad()
def largest_difference(name: str) -> float:
    """Between the logits of transformers and those that we compute from the family's file, in one pass over `ids`."""
    from minillm.kv_cache import NoCache
    from minillm.loading.checkpoint import open_checkpoint
    from minillm.loading.loader import load_model

    model, ids = make_model(name), torch.tensor([random_ids(FAMILIES[name].positions[-1] + 1)])  # [1, T]
    with tempfile.TemporaryDirectory() as scratch:
        ours = load_model(open_checkpoint(write_family(Path(scratch) / "model.gguf", name, model)))
    return float((ours.logits(ours(ids, NoCache(ours.config))) - model(ids).logits).abs().max())
