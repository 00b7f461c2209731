"""The files beside tokenizer.json: which texts are special tokens, whether a text begins with one, and what the chat
templates are.

Hugging Face repositories state them in several places that grew over the years; the order of precedence is
that of `transformers`. One field is knowingly not obeyed: `clean_up_tokenization_spaces` (Llama 3 has it) would take
spaces out of what the model wrote; `transformers` does not obey it either for these vocabularies.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from minillm.errors import InputError, MissingError
from minillm.special_text import check_text

_LLAMA_CLASSES = ("LlamaTokenizer", "LlamaTokenizerFast")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_settings(path: Path) -> dict[str, Any]:
    """Return tokenizer_config.json of the directory `path`, over special_tokens_map.json; {} where neither is
    there.

    Raises:
        InputError: a file is not a JSON object.
    """
    return _read_json(path / "special_tokens_map.json") | _read_json(path / "tokenizer_config.json")


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object in `file`, or {} where there is no such file."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise InputError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file} must hold a JSON object, not {type(content).__name__}")
    return content


def read_backend(path: Path, settings: dict[str, Any]) -> Backend:
    """Return the pipeline of the directory `path`: tokenizer.json, or what SentencePiece's tokenizer.model means.

    In the latter case `settings` gets what that file and its companion added_tokens.json say of special and added
    tokens, where the settings do not.

    Raises:
        MissingError: neither is there.
        InputError: the file cannot be read.
    """
    file, model = path / "tokenizer.json", path / "tokenizer.model"
    if file.is_file():
        try:
            return Backend.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise InputError(f"{file} is not a tokenizer that can be read: {error}") from error
    if not model.is_file():
        raise MissingError(
            f"{path} has no tokenizer.json (nor SentencePiece's tokenizer.model); "
            "give a directory in Hugging Face's format"
        )
    from minillm.loading.sentencepiece import add_tokens, sentencepiece_backend
    from minillm.loading.sentencepiece_model import read_sentencepiece_model

    content = read_sentencepiece_model(model)
    for name, value in {**content.named, "add_bos_token": True}.items():
        settings[name] = value if settings.get(name) is None else settings[name]
    settings["tokenizer_class"] = _LLAMA_CLASSES[0]
    added = {i: {"content": token} for token, i in _read_json(path / "added_tokens.json").items()}
    declared = settings.get("added_tokens_decoder") or added
    # Matched in the text as it stands, so that what is between two of them begins with a space of its own.
    settings["added_tokens_decoder"] = {i: {**token, "normalized": False} for i, token in declared.items()}
    backend = sentencepiece_backend(content.pieces, space_prefix=content.space_prefix)
    add_tokens(backend, {piece.text: piece.kind for piece in content.pieces}, list(content.named.values()))
    return backend


def special_tokens_in(settings: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Pick the named special tokens, each written as text or as {"content": text, ...}."""
    named = {}
    for name in _NAMED_TOKENS:
        value = settings.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if text is None:
            continue
        if not isinstance(text, str):
            raise InputError(f"{name} in {path / 'tokenizer_config.json'} is {value!r}; it must be a token's text")
        check_text(text, f"{name} in {path / 'tokenizer_config.json'}")
        named[name] = text
    return named


def add_declared_tokens(backend: Backend, settings: Mapping[str, Any], path: Path) -> None:
    """Add the tokens of `added_tokens_decoder` in tokenizer_config.json that tokenizer.json lacks, or declares
    otherwise (as special, as swallowing white space): the config's word holds.

    Raises:
        InputError: one is not described as it should be, or would get another id than the config says.
    """
    declared = settings.get("added_tokens_decoder") or {}
    file = path / "tokenizer_config.json"
    try:
        tokens = {int(token_id): AddedToken(**fields) for token_id, fields in declared.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"added_tokens_decoder in {file} must map ids to descriptions of tokens: {error}") from error
    present = backend.get_added_tokens_decoder()
    for token_id, token in sorted(tokens.items()):
        if token_id in present and present[token_id].__getstate__() == token.__getstate__():
            continue
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != token_id:
            raise InputError(
                f"{file} gives the token {token.content!r} the id {token_id}, but by tokenizer.json it has "
                f"{backend.token_to_id(token.content)}: the two files do not belong together"
            )


def add_flagged_bos(backend: Backend, settings: Mapping[str, Any], named: Mapping[str, str], path: Path) -> None:
    """Have `backend` begin each text with bos_token where only the flag of tokenizer_config.json says so.

    The post-processor in tokenizer.json holds what is added to a text, and what it adds stays. But repositories
    of Llama's tokenizer class may have one that adds nothing, beside "add_bos_token": true: that class built its own
    from the flags (DeepSeek Coder was trained so).

    Raises:
        InputError: the flag asks for a token that is not there.
    """
    flagged = settings.get("add_bos_token") is True and settings.get("tokenizer_class") in _LLAMA_CLASSES
    adds = backend.post_processor.num_special_tokens_to_add(False) if backend.post_processor else 0
    if not flagged or adds:
        return
    bos = named.get("bos_token")
    bos_id = backend.token_to_id(bos) if bos is not None else None
    if bos is None or bos_id is None:
        raise InputError(f"add_bos_token is true in {path / 'tokenizer_config.json'}, but bos_token is {bos!r}")
    backend.post_processor = processors.TemplateProcessing(single=[bos, "$A"], special_tokens=[(bos, bos_id)])


def chat_templates_in(settings: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the templates by name. Files of their own take precedence over tokenizer_config.json, as in
    `transformers`; chat_template.json, of which multimodal models keep theirs, comes last.
    """
    files = {file.stem: file for file in sorted((path / "additional_chat_templates").glob("*.jinja"))}
    if (path / "chat_template.jinja").is_file():
        files["default"] = path / "chat_template.jinja"
    if files:
        return {name: _read_text(file) for name, file in files.items()}
    where = path / ("chat_template.json" if settings.get("chat_template") is None else "tokenizer_config.json")
    stated = settings.get("chat_template") or _read_json(path / "chat_template.json").get("chat_template")
    if not stated:
        return {}
    if isinstance(stated, str):
        return {"default": stated}
    return _named_templates(stated, where)


def _named_templates(stated: Any, where: Path) -> dict[str, str]:
    """Read [{"name": "default", "template": source}, ...]."""
    entries = stated if isinstance(stated, list) and all(isinstance(entry, dict) for entry in stated) else [{}]
    templates = {entry.get("name"): entry.get("template") for entry in entries}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise InputError(f"chat_template in {where} must be text, or a list of names and templates")
    return templates  # type: ignore[return-value]  # all were found to be str


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error}") from error
