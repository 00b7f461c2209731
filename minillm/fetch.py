"""`python -m minillm.fetch [MODEL]`: put a model on disk, and print where it lies."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from minillm.cli import Parser, guarded
from minillm.errors import InputError
from minillm.loading.files import existing_path
from minillm.loading.hub import cached, fetch_from_hub
from minillm.loading.hub_errors import in_plain_words
from minillm.loading.hub_id import DEFAULT_REVISION, HubId, parse_hub_id
from minillm.loading.progress import tell_on_stderr
from minillm.loading.registry import (
    ALIASES,
    DEFAULT_MODEL,
    fetch_alias,
    is_fetched,
    resolve,
    weights_directory,
)

PROG = "minillm fetch"


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch a model; its path goes to stdout, everything else to stderr. Returns the exit code."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _print_path(args), PROG)


def _print_path(args: argparse.Namespace) -> int:
    print(_fetch(args.model, args.revision, args.force))
    return 0


def _fetch(model: str, revision: str | None, force: bool) -> str:
    hub_id = None if model in ALIASES or existing_path(model) else parse_hub_id(model)
    if hub_id is not None:
        return _fetch_from_hub(_at(hub_id, revision), force)
    if revision is not None:
        raise InputError(f"--revision is of a hub model (ORG/NAME), and {model!r} is none")
    if model in ALIASES:
        return _fetch_alias(model, force)
    if force:
        raise InputError(
            f"--force fetches an alias ({', '.join(ALIASES)}) or a hub model anew, and {model!r} is neither"
        )
    return str(resolve(model, progress=tell_on_stderr))


def _at(hub_id: HubId, revision: str | None) -> HubId:
    """The model at the revision that the flag names, if it names one."""
    if revision is None:
        return hub_id
    if hub_id.revision not in (DEFAULT_REVISION, revision):
        raise InputError(f"{hub_id} and --revision {revision} name two revisions: give one")
    return replace(hub_id, revision=revision)


def _fetch_from_hub(hub_id: HubId, force: bool) -> str:
    with in_plain_words(hub_id):
        if not force and (found := cached(hub_id)) is not None:
            tell_on_stderr(f"{hub_id} is already there (--force asks the hub for a newer state of it)")
            return str(found)
    path = fetch_from_hub(hub_id, tell_on_stderr, look_again=force)
    tell_on_stderr(f"{hub_id} is in {path}")
    return str(path)


def _fetch_alias(model: str, force: bool) -> str:
    weights = weights_directory()
    if is_fetched(ALIASES[model], weights) and not force:
        tell_on_stderr(f"{model} is already there (--force fetches it anew)")
    return str(fetch_alias(ALIASES[model], weights, tell_on_stderr, force))


def _parser() -> Parser:
    parser = Parser(
        prog=PROG,
        description="Fetch a model and print where it lies.",
        epilog="A hub model goes to the cache of huggingface_hub; HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT "
        "are those of that library. A broken download goes on where it broke off.",
    )
    names = ", ".join(ALIASES)
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        help=f"alias ({names}), path, or hub id: ORG/NAME, ORG/NAME/FILE.gguf, or ORG/NAME:Q4_K_M for the GGUF file "
        f"of that quantization; default: {DEFAULT_MODEL}",
    )
    parser.add_argument("--revision", help=f"branch, tag or commit of a hub model; default: {DEFAULT_REVISION}")
    parser.add_argument("--force", action="store_true", help="fetch an alias anew, or a hub model's newest state")
    return parser


if __name__ == "__main__":
    sys.exit(main())
