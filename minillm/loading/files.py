"""Reading small files whose content nobody has vouched for."""

import hashlib
import json
from pathlib import Path
from typing import Any

from minillm.errors import InputError, MissingError

HASH_BLOCK_BYTES = 1 << 20


def existing_path(name: str | Path) -> Path | None:
    """What lies at `name` ("~" is the home directory); None if nothing does, or no file can have this name."""
    if not str(name):
        return None
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # nobody's home directory: then no "~" is meant
        path = Path(name)
    try:
        return path if path.exists() else None
    except (OSError, ValueError):  # too long, or with a zero byte
        return None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file (UTF-8, with or without a byte order mark).

    Raises MissingError where there is no such file, InputError where its content is not one JSON object.
    """
    try:
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise MissingError(f"there is no {path.name} in {path.parent}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} is not usable: its JSON is nested too deeply") from None
    except ValueError as error:  # wrong encoding, wrong JSON, a number of thousands of digits
        raise InputError(f"{path} is not valid JSON in UTF-8: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(value).__name__}")
    return value


def read_description(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A model's config.json, and its generation_config.json, empty where there is none.

    Raises as `read_json_object` does, and says of a directory without config.json what may have been meant.
    """
    config, generation = directory / "config.json", directory / "generation_config.json"
    if not config.is_file():
        gguf_files = sorted(directory.glob("*.gguf"))
        hint = f"; did you mean the file {gguf_files[0]}?" if gguf_files else ""
        raise MissingError(f"the directory {directory} has no config.json, so it is not a model{hint}")
    return read_json_object(config), read_json_object(generation) if generation.is_file() else {}


def write_json(path: Path, value: Any) -> None:
    """Write JSON that people can read, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
