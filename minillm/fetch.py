"""`python -m minillm.fetch [MODEL]`: put a model on disk, and print where it lies."""

import sys
from collections.abc import Sequence

from minillm.cli import Parser, guarded
from minillm.errors import InputError
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
    return guarded(lambda: _print_path(args.model, args.force), PROG)


def _print_path(model: str, force: bool) -> int:
    print(_fetch(model, force))
    return 0


def _fetch(model: str, force: bool) -> str:
    source = ALIASES.get(model)
    if source is None:
        if force:
            raise InputError(f"--force fetches an alias anew ({', '.join(ALIASES)}), and {model!r} is none")
        return str(resolve(model, progress=_tell))
    weights = weights_directory()
    if is_fetched(source, weights) and not force:
        _tell(f"{model} is already there (--force fetches it anew)")
    return str(fetch_alias(source, weights, _tell, force))


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="Fetch a model and print where it lies.")
    names = ", ".join(ALIASES)
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        help=f"alias ({names}), hub id or path; default: {DEFAULT_MODEL}",
    )
    parser.add_argument("--force", action="store_true", help="fetch an alias anew although it is there")
    return parser


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
