"""The names of the files of a safetensors checkpoint. No torch, so that fetching needs none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minillm.errors import InputError
from minillm.loading.fields import shown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_map_of(index: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Which file holds which tensor, from the parsed index. Raises InputError unless each is a plain file name."""
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map: it must map each tensor to the file that holds it")
    return {name: _shard_name(index, file) for name, file in weight_map.items()}


def shards_of(index: Path, content: Mapping[str, Any]) -> list[str]:
    """The files that the parsed index names, in their order. Raises InputError as `weight_map_of` does."""
    return sorted(set(weight_map_of(index, content).values()))


def _shard_name(index: Path, file: Any) -> str:
    """A shard is a file beside its index: a name with a path in it could lead anywhere."""
    if not isinstance(file, str) or file in ("", ".", "..") or any(character in file for character in "/\\:\0"):
        raise InputError(f"{index} names the shard {shown(file)}, which is not the plain name of a file beside it")
    return file
