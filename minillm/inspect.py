"""`python -m minillm.inspect MODEL`: what a model is, from its headers and metadata; nothing is loaded."""

import argparse
import io
import json
import sys
from collections.abc import Sequence

from minillm.cli import Parser, guarded

PROG = "minillm inspect"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is found. Exit code 0 also for a model that this engine does not run, 2 where there is nothing."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _run(args), PROG)


def _run(args: argparse.Namespace) -> int:
    from minillm.inspection.findings import examine
    from minillm.inspection.found import find
    from minillm.inspection.report import as_json, print_report

    findings = examine(find(args.model))
    if args.json:
        print(json.dumps(as_json(findings), indent=2))
        return 0
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a token may have signs that the terminal has not

    print_report(findings, Console(highlight=False), args.template)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog=PROG,
        description="Say what a model is: architecture, parameters by part, dtypes, tokenizer, chat template, KV "
        "cache, what is unusual about it, and whether minillm runs it.",
        epilog="Of a hub model its description, its tokenizer and the headers of its tensors are fetched, not its "
        "weights; a GGUF file of a hub is to be fetched first.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="smollm2-135m",
        help="alias, directory, .gguf file or hub id ORG/NAME; default: smollm2-135m",
    )
    parser.add_argument("--template", action="store_true", help="print the chat template whole")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
