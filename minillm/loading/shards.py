"""Which files of a directory, or of a hub's repository, are its weights. No torch, so that fetching needs none.

Directories hold more than one model's worth of files: the same weights as pickles or in the form of the lab that
trained them, adapters, an optimizer's state, shards of an older upload. What counts is `model.safetensors`, or, where
there is none, what the index names; so it is in `transformers`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from minillm.errors import InputError, MissingError
from minillm.loading.fields import shown

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = (".bin", ".pth", ".pt", ".ckpt")
# GGUF files that are no language model: a vision encoder, statistics for quantizing.
NO_MODEL = ("mmproj", "imatrix")


def weight_map_of(index: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """Which file holds which tensor, from the parsed index. Raises InputError unless each is a plain file name."""
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{index} has no weight_map: it must map each tensor to the file that holds it")
    return {name: _shard_name(index, file) for name, file in weight_map.items()}


def shards_of(index: Path, content: Mapping[str, Any]) -> list[str]:
    """The files that the parsed index names, in their order. Raises InputError as `weight_map_of` does."""
    return sorted(set(weight_map_of(index, content).values()))


def gguf_files(names: Collection[str]) -> list[str]:
    """The GGUF files that are language models."""
    files = (name for name in names if name.endswith(".gguf"))
    return sorted(name for name in files if not PurePosixPath(name).name.startswith(NO_MODEL))


def without_weights(what: str, names: Collection[str]) -> InputError | MissingError:
    """Why there is nothing to load among these files of `what` ("the directory x"), and what to do about it."""
    pickles = sorted(name for name in names if PurePosixPath(name).suffix in PICKLES)
    others = sorted(name for name in names if name.endswith(".safetensors"))
    if any(name.startswith("adapter_model.") for name in names):
        return InputError(
            f"{what} is an adapter (LoRA), which changes another model's weights: merge it into that one and save the "
            "result as safetensors (merge_and_unload of the peft library)"
        )
    if others and re.fullmatch(r"model-\d+-of-\d+\.safetensors", others[0], re.ASCII):
        return MissingError(f"{what} has the shard {others[0]}, but not their list, {INDEX}: fetch that too")
    if others:
        return InputError(
            f"{what} has safetensors only under another name ({others[0]}): minillm reads {SINGLE}, or the shards that "
            f"{INDEX} names, in the form in which transformers saves them"
        )
    if pickles:
        return InputError(
            f"{what} has its weights only as {pickles[0]}, a pickle, which can run code when it is read: look for its "
            "safetensors files, or, where you trust its authors, convert it: transformers loads it, and "
            "save_pretrained(DIRECTORY) writes safetensors"
        )
    return MissingError(f"{what} has no weights: neither {SINGLE} nor {INDEX}")


def _shard_name(index: Path, file: Any) -> str:
    """A shard is a file beside its index: a name with a path in it could lead anywhere."""
    if not isinstance(file, str) or file in ("", ".", "..") or any(character in file for character in "/\\:\0"):
        raise InputError(f"{index} names the shard {shown(file)}, which is not the plain name of a file beside it")
    return file
