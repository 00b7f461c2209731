"""Tiny random models: the same weights once in transformers' Llama (the oracle) and once in ours."""

from pathlib import Path

import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from minillm.config import ModelConfig
from minillm.model import Llama

# Every dimension differs from every other, so that a swapped axis cannot go unnoticed.
SIZES = {
    "vocab_size": 107,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 96,
}


def tiny_config(**changes) -> ModelConfig:
    """A small grouped-query config whose head_dim is not hidden_size / num_attention_heads."""
    return ModelConfig(**{**SIZES, "rms_norm_eps": 1e-5, "eos_token_ids": (5,), **changes})


def as_transformers(config: ModelConfig) -> LlamaConfig:
    """The same config, as transformers writes it."""
    rope = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        rope |= {"rope_type": config.rope_scaling.kind, "factor": config.rope_scaling.factor}
        if config.rope_scaling.kind == "llama3":
            rope |= {
                "low_freq_factor": config.rope_scaling.low_freq_factor,
                "high_freq_factor": config.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": config.rope_scaling.original_max_position_embeddings,
            }
    shared = (*SIZES, "rms_norm_eps", "tie_word_embeddings", "mlp_bias")
    bias = config.qkv_bias and config.output_bias
    assert bias == config.qkv_bias == config.output_bias, "a Llama has both or none"
    return LlamaConfig(**{name: getattr(config, name) for name in shared}, attention_bias=bias, rope_parameters=rope)


def oracle_pair(config: ModelConfig, seed: int = 0) -> tuple[LlamaForCausalLM, Llama]:
    """Transformers' model with random weights (biases and norms too, which it would start at 0 and 1) and ours."""
    torch.manual_seed(seed)
    theirs = LlamaForCausalLM(as_transformers(config)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0.0, 0.3).add_(0.02)
    ours = Llama(config)
    state = theirs.state_dict()
    slots = ours.checkpoint_slots()
    assert set(slots) == set(state) - ({"lm_head.weight"} if config.tie_word_embeddings else set())
    for name, slot in slots.items():
        slot.copy_(state[name])
    return theirs, ours


def random_model(config: ModelConfig | None = None, seed: int = 0, std: float = 0.3) -> Llama:
    """Our model alone, with random weights."""
    model = Llama(config or tiny_config())
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.normal_(0.0, std, generator=generator).add_(0.02)
    return model


def random_ids(length: int, vocab_size: int = SIZES["vocab_size"], seed: int = 1, batch: int = 1) -> torch.Tensor:
    """[batch, length] token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (batch, length), generator=generator)


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tiny_model(directory: Path, *, chat_template: str | None = CHAT_TEMPLATE, seed: int = 0, **changes) -> Path:
    """A checkpoint directory as transformers saves it: a random Llama, a byte-level BPE tokenizer of 320 tokens."""
    tokenizer = byte_level_tokenizer()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        bos_token="<|im_start|>",
        pad_token="<|endoftext|>",
    )
    fast.chat_template = chat_template
    fast.save_pretrained(directory)
    config = as_transformers(tiny_config(**{"vocab_size": tokenizer.get_vocab_size(), **changes}))
    config.eos_token_id = tokenizer.token_to_id("<|im_end|>")
    config.bos_token_id = tokenizer.token_to_id("<|im_start|>")
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(directory)
    return directory


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE that knows all bytes, three special tokens and a few merges."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the cat sat on the mat, and the dog sat on the cat"] * 3, trainer)
    return tokenizer
