"""A model's name -> its shape, without loading the model: a well-known name, a directory, a GGUF file, a hub id."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from minillm.errors import InputError, MissingError
from minillm.loading.files import existing_path, read_json_object
from minillm.loading.hub import fetch_config_from_hub
from minillm.loading.hub_id import parse_hub_id
from minillm.machine.shape import ModelShape
from minillm.machine.shape_files import read_config, read_gguf
from minillm.machine.well_known import BY_NAME, WELL_KNOWN

DEFAULT_MODEL = "smollm2-135m"
"""What is described where no model is named: the alias of `loading.registry`, whose import would cost more than the
answer does.
"""


@dataclass(frozen=True)
class Description:
    """A model as it was found: `origin` says where; `stored_bytes` are the weights' as a GGUF file stores them;
    `quantized` is the method by which a directory's weights are quantized, if its config states one.
    """

    name: str
    shape: ModelShape
    origin: str
    stored_bytes: int | None = None
    quantized: str | None = None


def describe(model: str) -> Description:
    """The shape of the model that is meant.

    The order: a well-known name or hub id (nothing is fetched: the shape is built in), an existing directory or file,
    a hub id, of which `config.json` alone is fetched. "./llama-3-8b" is the directory where both exist.

    Raises MissingError where there is no such model, InputError where its description cannot be read.
    """
    known = BY_NAME.get(model.lower())
    if known is not None:
        return Description(known.name, known.shape, f"built in, from {known.hub_id}")
    path = existing_path(model)
    if path is not None:
        return _describe_path(model, path)
    hub_id = parse_hub_id(model)
    if hub_id is not None:
        if hub_id.wants_gguf:  # its header is at the beginning of gigabytes
            raise MissingError(f"there is no file {model}: if a hub has it, `minillm fetch {model}` fetches it")
        return _from_config(model, fetch_config_from_hub(hub_id), "from the config.json on the hub")
    raise MissingError(f"there is no model {model[:200]!r}{_near(model)}: {_WAYS}")


_WAYS = (
    "give a well-known name (`minillm fit --models` lists them), a directory with config.json, a .gguf file, or a hub"
    " id org/name"
)


def _near(model: str) -> str:
    near = difflib.get_close_matches(model.lower(), [known.name for known in WELL_KNOWN], n=3)
    return f" (near: {', '.join(near)})" if near else ""


def _describe_path(model: str, path: Path) -> Description:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MissingError(f"the directory {path} has no config.json, so it says nothing about a model's shape")
        return _from_config(model, path / "config.json", "from its config.json")
    if not path.is_file():  # a pipe would be waited for, a device read for ever
        raise InputError(f"{path} is neither a directory nor a regular file")
    if path.suffix == ".json":
        return _from_config(model, path, "a config.json")
    shape, stored_bytes = read_gguf(path)
    return Description(model, shape, "from its header", stored_bytes)


def _from_config(model: str, file: Path, origin: str) -> Description:
    config = read_json_object(file)
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    return Description(model, read_config(config, str(file)), origin, quantized=None if method is None else str(method))
