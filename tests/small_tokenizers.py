"""Small tokenizers made by hand, for the tests of text."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minillm.token_bytes import byte_level_alphabet
from minillm.tokenizer import Tokenizer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>")


@cache
def byte_level_pipeline() -> str:
    """A byte-level tokenizer in JSON: four special tokens, all 256 bytes, a few merges, one added word."""
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("Ã", "©"), ("i", "m")]
    tokens = [*SPECIALS, *byte_level_alphabet(), *(left + right for left, right in merges)]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend.to_str()


def byte_level_backend() -> Backend:
    """A fresh backend of `byte_level_pipeline`, to change at will."""
    return Backend.from_str(byte_level_pipeline())


def small_tokenizer(chat_template: str | None = None, **special_tokens: str) -> Tokenizer:
    """A complete byte-level tokenizer with `chat_template`."""
    named = {"bos_token": "<s>", "eos_token": "<|im_end|>", **special_tokens}
    return Tokenizer(byte_level_backend(), named, {"default": chat_template} if chat_template else None)


def sentencepiece_backend(prepend_scheme: str = "first", spaces_stripped: int = 1) -> Backend:
    """A SentencePiece-like pipeline: "▁" for spaces, bytes for unknown characters, <s> before each text."""
    merges = [("▁", "h"), ("▁h", "i"), ("l", "o"), ("▁", "lo")]
    letters = ["▁", *"abcdehilnorstuwy", "é", ".", "<", ">", "/", "|", "_", "\n"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", "<|user|>", *raw, *letters, *(left + right for left, right in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prepend_scheme, split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", spaces_stripped, 0),
        ]
    )
    specials = ["<unk>", "<s>", "</s>", "<|user|>"]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def write_model(directory: Path, backend: Backend, config: dict[str, Any] | None = None) -> Path:
    """Write tokenizer.json, and `config` as tokenizer_config.json."""
    backend.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def gguf_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata of a small byte-level vocabulary; `changes` replace values (None removes one)."""
    alphabet = list(byte_level_alphabet())
    tokens = ["<unk>", "<bos>", "<eos>", "<tool>", *alphabet, "he", "12"]
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [2, 3, 3, 4] + [1] * (len(tokens) - 4),
        "merges": ["h e", "1 2"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in values.items() if value is not None}
