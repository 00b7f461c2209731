"""The flags that the benchmarks share: what is run."""

import argparse
from typing import Any

from minillm.errors import InputError


def add_subject_flags(group: Any) -> None:
    """--model, --random, --device, --compile, to a group of a parser's flags."""
    group.add_argument("--model", help="an alias, a directory, a .gguf file or a hub id (default: smollm2-135m)")
    group.add_argument("--random", metavar="SHAPE", help="random weights of a well-known shape: llama-3.2-1b, say")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="by kernels compiled for this machine (default: where the weights are quantized)",
    )


def check_subject_flags(args: argparse.Namespace) -> None:
    """Raise InputError where two models are named."""
    if args.random is not None and args.model is not None:
        raise InputError("--random and --model name two models: give one of them")
