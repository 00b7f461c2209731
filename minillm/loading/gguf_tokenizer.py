"""Build a tokenizer from GGUF metadata: the same `tokenizers` pipeline that the model's tokenizer.json
describes.

Two kinds are understood: "gpt2", byte-level BPE, whose rule for words is only named in the file (see
`gguf_words.py`), and "llama", SentencePiece's pieces and scores (see `sentencepiece.py`). What a file does not state
has llama.cpp's default (src/llama-vocab.cpp).
"""

import math
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, processors

from minillm.errors import InputError
from minillm.loading.gguf_words import words_named
from minillm.loading.sentencepiece import Kind, Piece, add_tokens, sentencepiece_backend

_SPECIAL_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}

_LLAMA_IDS = {"unknown": 0, "bos": 1, "eos": 2}

# Tokens that end a turn, by their spelling: older files state only the token that ends a document, and a model that
# chats would never stop. llama.cpp knows them by their spelling too.
_ENDS_OF_TURN = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|EOT|>", "<end_of_turn>")

# Phi-3's special tokens swallow white space behind them, but for these (its tokenizer.json; GGUF has no word for it).
_PHI3_KEEPING_SPACE = ("<unk>", "<s>", "<|endoftext|>")


def backend_from_gguf(metadata: Mapping[str, Any]) -> Backend:
    """Return the `tokenizers.Tokenizer` that `metadata` describes.

    Args:
        metadata: GGUF keys and their values as Python has them (arrays are lists).

    Raises:
        InputError: the metadata lacks something, contradicts itself, or names a kind of tokenizer that is not
            known.
    """
    model = _require(metadata, "model", str)
    metadata = _with_defaults(metadata)
    tokens = _require(metadata, "tokens", list)
    kinds = _kinds(tokens, metadata)
    if model == "gpt2":
        words = words_named(_require(metadata, "pre", str))
        backend = _byte_level_backend(tokens, metadata, whole_words=words.whole_words)
        words.build_into(backend)
        adds_bos = words.adds_bos
    elif model == "llama":
        pieces = [Piece(*piece) for piece in zip(tokens, _scores(tokens, metadata), kinds.values(), strict=True)]
        backend = sentencepiece_backend(pieces, space_prefix=_flag(metadata, "add_space_prefix", True))
        adds_bos = True
    else:
        raise InputError(
            f"the GGUF tokenizer is of the kind {model!r}; minillm builds 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece); use the model's tokenizer.json"
        )
    named = list(special_tokens_from_gguf(metadata).values())
    add_tokens(backend, kinds, named, rstrip=_swallowing(metadata, kinds))
    _add_bos_and_eos(backend, tokens, metadata, bos_by_default=adds_bos)
    return backend


def special_tokens_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return {"bos_token": "<|im_start|>", ...} for those of bos, eos, unk and pad that the metadata
    states.
    """
    tokens = _require(metadata, "tokens", list)
    metadata = _with_defaults(metadata)
    names = {}
    for name, gguf_name in _SPECIAL_NAMES.items():
        token_id = metadata.get(f"tokenizer.ggml.{gguf_name}_token_id")
        if token_id is not None:
            names[name] = _token_at(tokens, token_id, gguf_name)
    return names


def ends_of_turn_from_gguf(metadata: Mapping[str, Any]) -> list[str]:
    """Return the tokens of the vocabulary that end a turn, whether or not the file says so."""
    kinds = _kinds(_require(metadata, "tokens", list), metadata)
    return [token for token in _ENDS_OF_TURN if kinds.get(token) in (Kind.CONTROL, Kind.USER_DEFINED)]


def chat_templates_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name: `tokenizer.chat_template`, and `tokenizer.chat_template.NAME` for others.

    Raises:
        InputError: one is not text.
    """
    key = "tokenizer.chat_template"
    templates = {"default": metadata[key]} if metadata.get(key) else {}
    templates |= {name.removeprefix(f"{key}."): metadata[name] for name in metadata if name.startswith(f"{key}.")}
    for name, template in templates.items():
        if not isinstance(template, str):
            raise InputError(f"the chat template {name!r} of the GGUF file must be text, not {template!r:.80}")
    return templates


def _byte_level_backend(tokens: list[str], metadata: Mapping[str, Any], *, whole_words: bool) -> Backend:
    merges = [_merge(pair) for pair in _require(metadata, "merges", list)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=whole_words))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"the vocabulary and merges of the GGUF file do not fit each other: {error}") from error
    backend.decoder = decoders.ByteLevel()
    return backend


def _merge(pair: Any) -> tuple[str, str]:
    left, _, right = str(pair).partition(" ")
    if not left or not right:
        raise InputError(f"tokenizer.ggml.merges of the GGUF file holds {pair!r}, which is not two tokens")
    return left, right


def _kinds(tokens: list[Any], metadata: Mapping[str, Any]) -> dict[str, int]:
    """What each token is; a file without types has normal ones only."""
    if not all(isinstance(token, str) for token in tokens):
        raise InputError("tokenizer.ggml.tokens of the GGUF file holds what is not text; the file is damaged")
    types = metadata.get("tokenizer.ggml.token_type") or [Kind.NORMAL] * len(tokens)
    kinds = dict(zip(tokens, _of_each_token(tokens, types, "token types"), strict=True))
    if len(kinds) != len(tokens):
        raise InputError("tokenizer.ggml.tokens of the GGUF file holds the same token twice; the file is damaged")
    return kinds


def _of_each_token(tokens: list[str], values: list[Any], what: str) -> list[Any]:
    if len(values) != len(tokens):
        raise InputError(f"the GGUF file has {len(tokens)} tokens but {len(values)} {what}; it is damaged")
    return values


def _scores(tokens: list[str], metadata: Mapping[str, Any]) -> list[float]:
    scores = _of_each_token(tokens, _require(metadata, "scores", list), "scores")
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise InputError("tokenizer.ggml.scores of the GGUF file holds what is not a number; the file is damaged")
    return [float(score) for score in scores]


def _with_defaults(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """SentencePiece's special tokens have the ids of Llama 1 where the file does not state theirs."""
    if metadata.get("tokenizer.ggml.model") != "llama":
        return metadata
    return {f"tokenizer.ggml.{name}_token_id": token_id for name, token_id in _LLAMA_IDS.items()} | dict(metadata)


def _swallowing(metadata: Mapping[str, Any], kinds: Mapping[str, int]) -> frozenset[str]:
    """The tokens that swallow the white space behind them: Phi-3's, where they are SentencePiece's."""
    is_phi3 = metadata.get("general.architecture") == "phi3" and metadata["tokenizer.ggml.model"] == "llama"
    return frozenset(kinds) - frozenset(_PHI3_KEEPING_SPACE) if is_phi3 else frozenset()


def _add_bos_and_eos(backend: Backend, tokens: list[str], metadata: Mapping[str, Any], *, bos_by_default: bool) -> None:
    """Have the backend put the beginning-of-sequence and end-of-sequence tokens around each text where the
    file says so.
    """
    before, after = [], []
    if _flag(metadata, "add_bos_token", bos_by_default):
        before = [_token_at(tokens, metadata.get("tokenizer.ggml.bos_token_id"), "bos")]
    if _flag(metadata, "add_eos_token", False):
        after = [_token_at(tokens, metadata.get("tokenizer.ggml.eos_token_id"), "eos")]
    if before or after:
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys([*before, *after])],
        )


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise InputError(f"tokenizer.ggml.{name} of the GGUF file must be true or false, not {value!r}")
    return value


def _require(metadata: Mapping[str, Any], name: str, kind: type) -> Any:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, kind):
        raise InputError(f"the GGUF file has no usable tokenizer.ggml.{name} ({kind.__name__} expected)")
    return value


def _token_at(tokens: list[str], token_id: Any, name: str) -> str:
    if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
        raise InputError(
            f"tokenizer.ggml.{name}_token_id of the GGUF file is {token_id}; the vocabulary has {len(tokens)} tokens"
        )
    return tokens[token_id]
