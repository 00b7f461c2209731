"""Build a tokenizer from GGUF metadata: the same `tokenizers` pipeline that the model's tokenizer.json
describes.

A GGUF file carries vocabulary, merges and token types, but names its pre-tokenizer (the rule that cuts text
into words before merging) only by a short name. What each name means is stated in llama.cpp,
src/llama-vocab.cpp (the `tokenizer_pre` names and `regex_exprs` of each). Only names whose published
tokenizer.json is known to say the same are accepted:

- "smollm": digits one by one, then GPT-2's words (as in SmolLM2's tokenizer.json: Digits(individual_digits),
  ByteLevel).
- "gpt-2": GPT-2's words.
- "llama-bpe", "llama3", "llama-v3": Llama 3's words, digits by threes; a whole word that is in the vocabulary
  skips merging.
- "qwen2": Qwen2's words, digits one by one, text in Unicode's NFC form first.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from minillm.errors import InputError

# gguf.TokenType: 2 is the unknown token, 3 control tokens, 4 tokens that the model's makers added to the
# vocabulary.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Contractions, then letters with one leading symbol, digits, symbols with their line ends, line ends, other
# white space.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

_SPECIAL_NAMES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def backend_from_gguf(metadata: Mapping[str, Any]) -> Backend:
    """Return the `tokenizers.Tokenizer` that `metadata` describes.

    Args:
        metadata: GGUF keys and their values as Python has them (arrays are lists).

    Raises:
        InputError: the metadata lacks something, contradicts itself, or names a kind of tokenizer that is not
            known.
    """
    model, pre = _require(metadata, "model", str), _require(metadata, "pre", str)
    if model != "gpt2":
        raise InputError(
            f"the GGUF tokenizer is of the kind {model!r}; minillm builds 'gpt2' (byte-level BPE); "
            "use the model's tokenizer.json"
        )
    pre_tokenizer = _pre_tokenizer(pre)
    tokens = _require(metadata, "tokens", list)
    merges = [_merge(pair) for pair in _require(metadata, "merges", list)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise InputError("tokenizer.ggml.tokens of the GGUF file holds the same token twice; the file is damaged")
    try:
        backend = Backend(models.BPE(vocabulary, merges, ignore_merges=pre in _LLAMA3_NAMES))
    except Exception as error:  # the library raises plain Exception
        raise InputError(f"the vocabulary and merges of the GGUF file do not fit each other: {error}") from error
    backend.pre_tokenizer = pre_tokenizer
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, tokens, metadata)
    _add_bos_and_eos(backend, tokens, metadata, bos_by_default=pre in _LLAMA3_NAMES)
    return backend


def special_tokens_from_gguf(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return {"bos_token": "<|im_start|>", ...} for those of bos, eos, unk and pad that the metadata
    states.
    """
    tokens = _require(metadata, "tokens", list)
    names = {}
    for name, gguf_name in _SPECIAL_NAMES.items():
        token_id = metadata.get(f"tokenizer.ggml.{gguf_name}_token_id")
        if token_id is not None:
            names[name] = _token_at(tokens, token_id, gguf_name)
    return names


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    gpt2_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return gpt2_words
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_words])
    if name in _LLAMA3_NAMES or name == "qwen2":
        words = Regex(_QWEN2_WORDS if name == "qwen2" else _LLAMA3_WORDS)
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), bytes_only])
    known = ", ".join(["smollm", "gpt-2", "qwen2", *_LLAMA3_NAMES])
    raise InputError(
        f"the GGUF pre-tokenizer {name!r} is not known; minillm builds {known}; use the model's tokenizer.json"
    )


def _merge(pair: Any) -> tuple[str, str]:
    left, _, right = str(pair).partition(" ")
    if not left or not right:
        raise InputError(f"tokenizer.ggml.merges of the GGUF file holds {pair!r}, which is not two tokens")
    return left, right


def _add_tokens(backend: Backend, tokens: list[str], metadata: Mapping[str, Any]) -> None:
    """Tell the backend which tokens are matched whole in a text: control tokens (special) and user-defined
    ones.
    """
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise InputError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types; it is damaged")
    named = set(special_tokens_from_gguf(metadata).values())
    kinds = list(zip(tokens, types, strict=True))
    special = [token for token, kind in kinds if kind in (_CONTROL, _UNKNOWN) or token in named]
    user_defined = [token for token, kind in kinds if kind == _USER_DEFINED and token not in named]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in user_defined])


def _add_bos_and_eos(backend: Backend, tokens: list[str], metadata: Mapping[str, Any], *, bos_by_default: bool) -> None:
    """Have the backend put the beginning-of-sequence and end-of-sequence tokens around each text where the
    file says so.
    """
    before, after = [], []
    if metadata.get("tokenizer.ggml.add_bos_token", bos_by_default):
        before = [_token_at(tokens, metadata.get("tokenizer.ggml.bos_token_id"), "bos")]
    if metadata.get("tokenizer.ggml.add_eos_token", False):
        after = [_token_at(tokens, metadata.get("tokenizer.ggml.eos_token_id"), "eos")]
    if before or after:
        backend.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after],
            special_tokens=[(token, tokens.index(token)) for token in dict.fromkeys([*before, *after])],
        )


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
