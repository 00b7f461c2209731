"""GGUF file -> safetensors directory, as `transformers` and this package load it.

The weights become float32: what a quantized format stands for, to the last bit. They are streamed, a piece at
a time, so converting takes little memory. The directory appears under its name only when it is whole.
"""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minillm.config import ModelConfig
from minillm.loading.checkpoint import TensorSource, has_fused_projections, open_checkpoint
from minillm.loading.files import sha256_of, write_json
from minillm.loading.hf_config import write_hf_config
from minillm.loading.record import write_record
from minillm.loading.safetensors import SINGLE
from minillm.loading.scratch import scratch_directory


def convert_gguf(
    file: Path,
    directory: Path,
    origin: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
    keep_file: bool = False,
) -> None:
    """Convert a GGUF file; `directory` is replaced if it exists, in one step, when the new one is whole.

    `origin` (where the file came from, its licence) is recorded in the directory beside the file's name and
    SHA-256; `keep_file` moves the file itself there (from the same file system). Raises InputError for a file
    that cannot be read, OSError where the result cannot be written.
    """
    checkpoint = open_checkpoint(file)
    metadata = checkpoint.gguf_metadata
    assert metadata is not None, "a GGUF file has metadata"
    with scratch_directory(directory.parent) as scratch:
        model = scratch / "model"
        model.mkdir()
        progress(f"converting {file.name} to float32")
        write_float32(checkpoint.tensors, model / SINGLE)
        stated = _write_tokenizer(checkpoint.config, metadata, model)
        config = write_hf_config(stated, fused=has_fused_projections(checkpoint.tensors))
        write_json(model / "config.json", config)
        ids = {key: config[key] for key in ("bos_token_id", "eos_token_id") if config[key] is not None}
        write_json(model / "generation_config.json", ids)
        more = {"licence": metadata.get("general.license"), **(origin or {})}
        write_record(model, file.name, sha256_of(file), more)
        if keep_file:
            file.rename(model / file.name)
        publish(model, directory, scratch / "replaced")


def _write_tokenizer(config: ModelConfig, metadata: Mapping[str, Any], directory: Path) -> ModelConfig:
    """Write the tokenizer; return the config with the tokens that end a turn, for which its files have no field."""
    from minillm.loading.reconcile import reconcile  # imports the `tokenizers` library
    from minillm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_gguf(metadata)
    tokenizer.save(directory)
    return reconcile(config, tokenizer)


def write_float32(source: TensorSource, file: Path) -> None:
    """Write all tensors of a source into one safetensors file as float32.

    The format: the length of the header (u64, little-endian), the header (JSON: dtype, shape and byte range
    of each tensor), the values. Written here because the library's writer wants all tensors in memory at
    once.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in source.names():
        begin, end = end, end + 4 * math.prod(source.shape(name))
        header[name] = {"dtype": "F32", "shape": list(source.shape(name)), "data_offsets": [begin, end]}
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)  # the values begin at a multiple of 8 bytes
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in source.names():
            for piece in source.pieces(name):
                out.write(piece.float().contiguous().numpy().astype("<f4", copy=False).data)


def publish(model: Path, directory: Path, replaced: Path) -> None:
    """Move a whole model to its name; what lay there goes to `replaced`.

    Another process may do the same at the same moment: then one of the two stays, and both are content.
    """
    for _ in range(100):  # each turn can only fail because another process has just finished
        if directory.exists():
            try:
                directory.rename(replaced)
            except FileNotFoundError:
                continue
        try:
            model.rename(directory)
            return
        except OSError:
            if not directory.exists():
                raise
            if replaced.exists():  # ours to replace is away, and the other's model is as new as ours
                return
    raise FileExistsError(f"other processes keep replacing {directory}")
