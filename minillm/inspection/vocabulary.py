"""A model's tokenizer and chat templates, from its files: what kind it is, without building it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.loading.fields import is_integer
from minillm.loading.files import read_json_object
from minillm.tokenizer_files import (
    add_declared_tokens,
    chat_templates_in,
    read_backend,
    read_settings,
    special_tokens_in,
)

GGUF_KINDS = {
    "gpt2": "byte-level BPE",
    "llama": "BPE with byte fallback, as SentencePiece makes it",
    "t5": "Unigram, as SentencePiece makes it",
    "bert": "WordPiece",
    "rwkv": "RWKV's",
}
CONTROL, USER_DEFINED = 3, 4  # token types of GGUF


@dataclass(frozen=True)
class AddedToken:
    """A token that was added to the vocabulary as a whole; `is_special`: a user's text cannot write it."""

    id: int
    text: str
    is_special: bool


@dataclass(frozen=True)
class Vocabulary:
    """`size` counts ids from 0 to the highest. `adds_bos`: whether a text begins with BOS by itself."""

    kind: str
    size: int | None
    pre_tokenizer: str | None = None
    merges: int | None = None
    bos: AddedToken | None = None
    eos: AddedToken | None = None
    adds_bos: bool = False
    added: tuple[AddedToken, ...] = ()
    templates: Mapping[str, str] = field(default_factory=dict)

    def text_of(self, token_id: int) -> str | None:
        """The text of an added token."""
        return next((token.text for token in self.added if token.id == token_id), None)


def read_directory(directory: Path) -> Vocabulary | None:
    """The tokenizer of a directory; None without tokenizer.json and tokenizer.model. Raises InputError for files that
    make no sense.
    """
    file, settings = directory / "tokenizer.json", read_settings(directory)
    if file.is_file():
        content = read_json_object(file)
    elif (directory / "tokenizer.model").is_file():
        backend = read_backend(directory, settings)  # says in `settings` what it knows of special tokens
        add_declared_tokens(backend, settings, directory)
        content = json.loads(backend.to_str())
    else:
        return None
    try:
        return _described(content, settings, directory)
    except (AttributeError, TypeError) as error:  # something in it is of another kind than the library writes
        raise InputError(f"{file} is not a tokenizer that can be read: {error}") from None


def _described(content: Mapping[str, Any], settings: Mapping[str, Any], directory: Path) -> Vocabulary:
    model = content.get("model")
    if not isinstance(model, dict):
        raise TypeError("it has no model")
    added = _added_tokens(content)
    entries = model.get("vocab") or {}
    ids = list(entries.values()) if isinstance(entries, dict) else list(range(len(entries)))
    highest = max([-1, *(i for i in ids if is_integer(i)), *(token.id for token in added)])
    named = special_tokens_in(settings, directory)

    def token(name: str) -> AddedToken | None:
        text = named.get(name)
        found = next((one for one in added if one.text == text), None)
        token_id: Any = entries.get(text) if isinstance(entries, dict) else None
        return found or (AddedToken(token_id, text, True) if text is not None and is_integer(token_id) else None)

    return Vocabulary(
        kind=_kind(model, content),
        size=highest + 1,
        pre_tokenizer=_steps(content.get("pre_tokenizer")),
        merges=len(model["merges"]) if isinstance(model.get("merges"), list) else None,
        bos=token("bos_token"),
        eos=token("eos_token"),
        adds_bos=_adds(content.get("post_processor"), named.get("bos_token")) or _is_flagged(settings),
        added=added,
        templates=chat_templates_in(settings, directory),
    )


def _added_tokens(content: Mapping[str, Any]) -> tuple[AddedToken, ...]:
    entries = [entry for entry in content.get("added_tokens") or [] if isinstance(entry, dict)]
    return tuple(
        AddedToken(entry["id"], str(entry.get("content")), entry.get("special") is True)
        for entry in entries
        if is_integer(entry.get("id"))
    )


def _kind(model: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    kind = str(model.get("type", "BPE"))
    if kind == "BPE" and model.get("byte_fallback"):
        return "BPE with byte fallback, as SentencePiece makes it"
    if kind == "BPE" and "ByteLevel" in json.dumps([content.get("pre_tokenizer"), content.get("decoder")]):
        return "byte-level BPE"
    return "Unigram, as SentencePiece makes it" if kind == "Unigram" else kind


def _steps(step: Any) -> str | None:
    """A pre-tokenizer in words: "digits one by one, then words by GPT-2's pattern"."""
    if not isinstance(step, dict):
        return None
    kind = step.get("type")
    if kind == "Sequence":
        return ", then ".join(filter(None, map(_steps, step.get("pretokenizers") or []))) or None
    if kind == "ByteLevel":
        return "words by GPT-2's pattern" if step.get("use_regex", True) else "bytes as characters"
    if kind == "Digits":
        return "digits one by one" if step.get("individual_digits") else "numbers apart"
    if kind == "Metaspace":
        return "words, each with its space as ▁"
    if kind == "Split" and isinstance(step.get("pattern"), dict):
        return f"words by the pattern {next(iter(step['pattern'].values()), '')}"
    return str(kind)


def _adds(post_processor: Any, bos: str | None) -> bool:
    """Whether a template of the post-processor puts BOS before a text."""
    if not isinstance(post_processor, dict) or bos is None:
        return False
    pieces = post_processor.get("single") or []
    if any(isinstance(piece, dict) and (piece.get("SpecialToken") or {}).get("id") == bos for piece in pieces):
        return True
    return any(_adds(processor, bos) for processor in post_processor.get("processors") or [])


def _is_flagged(settings: Mapping[str, Any]) -> bool:
    is_llama = str(settings.get("tokenizer_class")).startswith("LlamaTokenizer")
    return is_llama and settings.get("add_bos_token") is True


def read_gguf(metadata: Mapping[str, Any]) -> Vocabulary | None:
    """The tokenizer in the metadata of a GGUF file, arrays as lists; None if there is none."""
    model, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not isinstance(model, str) or not isinstance(tokens, list):
        return None
    types, merges = metadata.get("tokenizer.ggml.token_type"), metadata.get("tokenizer.ggml.merges")
    template = metadata.get("tokenizer.chat_template")

    def token(name: str) -> AddedToken | None:
        token_id: Any = metadata.get(f"tokenizer.ggml.{name}_token_id")
        known = is_integer(token_id) and 0 <= token_id < len(tokens)
        return AddedToken(token_id, str(tokens[token_id]), True) if known else None

    return Vocabulary(
        kind=GGUF_KINDS.get(model, model),
        size=len(tokens),
        pre_tokenizer=_text_or_none(metadata.get("tokenizer.ggml.pre")),
        merges=len(merges) if isinstance(merges, list) else None,
        bos=token("bos"),
        eos=token("eos"),
        adds_bos=metadata.get("tokenizer.ggml.add_bos_token", model == "llama") is True,
        added=tuple(
            AddedToken(i, str(tokens[i]), kind == CONTROL)
            for i, kind in enumerate(types[: len(tokens)] if isinstance(types, list) else [])
            if kind in (CONTROL, USER_DEFINED)
        ),
        templates={"default": template} if isinstance(template, str) and template else {},
    )


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def speaks_of(template: str, name: str) -> bool:
    """Whether a chat template reads a variable of this name."""
    return re.search(rf"\b{name}\b", template) is not None
