"""Which files of a hub's repository are fetched, and why a repository is refused before anything large is.

Repositories hold the same weights several times: as safetensors, as pickles, in the form of the lab that trained them,
for other runtimes. This engine reads one of them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from minillm.errors import InputError, MissingError
from minillm.loading.files import read_json_object
from minillm.loading.hub_id import HubId
from minillm.loading.shards import INDEX, SINGLE, gguf_files, shards_of, without_weights

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
DESCRIPTION = (CONFIG, GENERATION_CONFIG, INDEX)
TOKENIZER, SENTENCEPIECE = "tokenizer.json", "tokenizer.model"
# What is read in place of the former, where it is not there: old repositories have nothing else.
INSTEAD_OF_TOKENIZER = (SENTENCEPIECE, "added_tokens.json")
TOKENIZER_FILES = (
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
PART_OF_SEVERAL = re.compile(r"-\d{5}-of-\d{5}$", re.ASCII)


def description_files(names: Collection[str]) -> list[str]:
    """What says how the model is made and where its weights are; small, and read first."""
    unneeded = INDEX if SINGLE in names else None
    return [name for name in DESCRIPTION if name in names and name != unneeded]


def tokenizer_files(names: Collection[str]) -> list[str]:
    """The tokenizer, its settings and its chat templates."""
    patterns = TOKENIZER_FILES if TOKENIZER in names else (*INSTEAD_OF_TOKENIZER, *TOKENIZER_FILES)
    return [name for pattern in patterns for name in sorted(names) if fnmatchcase(name, pattern)]


def weight_files(directory: Path) -> list[str]:
    """The weights' files: the one file, if it is there or no index is; else those that the index names.

    Raises InputError where the index makes no sense.
    """
    if _has(directory, SINGLE) or not _has(directory, INDEX):
        return [SINGLE]
    return shards_of(directory / INDEX, read_json_object(directory / INDEX))


def missing_files(directory: Path) -> list[str]:
    """What a directory lacks to be loaded; nothing if it is whole."""
    has_better = _has(directory, TOKENIZER) or (directory / TOKENIZER).is_symlink()  # also where its content is lost
    tokenizer = SENTENCEPIECE if _has(directory, SENTENCEPIECE) and not has_better else TOKENIZER
    needed = [CONFIG, tokenizer, *weight_files(directory)]
    return [name for name in needed if not _has(directory, name)]


def _has(directory: Path, name: str) -> bool:
    return (directory / name).is_file()  # a link into the library's cache whose target is gone is not there


def check_listing(hub_id: HubId, sizes: Mapping[str, int]) -> None:
    """Raise, in one sentence, if a repository with these files cannot be loaded as a directory."""
    gguf = gguf_files(sizes)
    if INDEX not in sizes and SINGLE not in sizes:
        if gguf:
            raise InputError(
                f"the hub model {hub_id} has its weights as GGUF files: name one, {_choices(hub_id, gguf, sizes)}"
            )
        raise without_weights(f"the hub model {hub_id}", sizes)
    if CONFIG not in sizes:
        raise MissingError(f"the hub model {hub_id} has no {CONFIG}, so its shape is not stated there")
    if TOKENIZER not in sizes and SENTENCEPIECE not in sizes:
        raise MissingError(
            f"the hub model {hub_id} has neither {TOKENIZER} nor {SENTENCEPIECE}, the forms in which minillm reads a "
            "tokenizer: where transformers is installed, AutoTokenizer.from_pretrained(...).save_pretrained(DIRECTORY) "
            f"writes {TOKENIZER}"
        )


def choose_gguf(hub_id: HubId, names: Collection[str], sizes: Mapping[str, int] | None = None) -> str:
    """The one GGUF file that is meant. Raises MissingError where it is not there, InputError where it is not one."""
    files = gguf_files(names)
    meant = [name for name in files if name == hub_id.file or _is_quantized_as(name, hub_id.quantization)]
    if not meant:
        found = f"it has {_choices(hub_id, files, sizes or {})}" if files else "it has none at all"
        raise MissingError(f"there is no such GGUF file in the hub model {hub_id}: {found}")
    if PART_OF_SEVERAL.search(PurePosixPath(meant[0]).stem):
        raise InputError(
            f"{meant[0]} of the hub model {hub_id} is one of several parts: minillm reads GGUF files that are whole; "
            "take a smaller quantization, or join the parts with llama.cpp's `llama-gguf-split --merge`"
        )
    if len(meant) > 1:
        raise InputError(f"{hub_id} may be {_choices(hub_id, meant, sizes or {})}: name one of them")
    return meant[0]


def _is_quantized_as(name: str, quantization: str | None) -> bool:
    """Whether "Q4_K_M", say, stands in the file's name as a word of its own."""
    if quantization is None:
        return False
    stem = PART_OF_SEVERAL.sub("", PurePosixPath(name).stem)
    return re.search(rf"(^|[-._]){re.escape(quantization)}$", stem, re.IGNORECASE) is not None


def _choices(hub_id: HubId, files: Sequence[str], sizes: Mapping[str, Any], most: int = 4) -> str:
    repo = HubId(hub_id.repo, hub_id.revision)
    shown = [f"{repo}/{name}" + (f" ({sizes[name] / 1e9:.2f} GB)" if name in sizes else "") for name in files[:most]]
    more = f" and {len(files) - most} more" if len(files) > most else ""
    return ", ".join(shown) + more
