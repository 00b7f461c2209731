"""What a converted directory says of itself: from which file it was made, and by which form of conversion."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minillm.loading.files import read_json_object, write_json

RECORD = "minillm.json"

# Raised when the conversion changes, so that what an older one made is made anew.
FORMAT = 1


def write_record(directory: Path, gguf: str, gguf_sha256: str, more: Mapping[str, Any]) -> None:
    """Write the record of a directory that was made from the file `gguf`."""
    write_json(directory / RECORD, {"format": FORMAT, "gguf": gguf, "gguf_sha256": gguf_sha256, **more})


def has_record(directory: Path) -> bool:
    """Whether the directory was made by this package's conversion."""
    return (directory / RECORD).is_file()


def is_current(directory: Path, gguf_sha256: str) -> bool:
    """Whether the directory was made from this very file, by the conversion as it is now."""
    record = read_json_object(directory / RECORD)
    return record.get("gguf_sha256") == gguf_sha256 and record.get("format") == FORMAT
