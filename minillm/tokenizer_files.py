"""The files beside tokenizer.json: which texts are the named special tokens, and what the chat templates are.

Hugging Face repositories state them in several places that grew over the years; the order of precedence is
that of `transformers`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minillm.errors import InputError

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
        named[name] = text
    return named


def chat_templates_in(settings: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Return the templates by name. Files of their own take precedence over tokenizer_config.json, as in
    `transformers`.
    """
    files = {file.stem: file for file in sorted((path / "chat_templates").glob("*.jinja"))}
    if (path / "chat_template.jinja").is_file():
        files["default"] = path / "chat_template.jinja"
    if files:
        return {name: _read_text(file) for name, file in files.items()}
    stated = settings.get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        return {"default": stated}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in stated}
    except (TypeError, KeyError) as error:
        raise InputError(
            f"chat_template in {path / 'tokenizer_config.json'} must be text, or a list of names and templates"
        ) from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text: {error}") from error
