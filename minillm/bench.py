"""`python -m minillm.bench`: how fast this engine is, beside the machine's limits and beside other engines.

It first measures what the machine can do at most. Then every engine, each in a process of its own and on the same
weights, takes its turn at the same work, round by round, so that a machine whose speed drifts treats them alike:
compare the ratios, and believe no figure of a busy machine.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from minillm.benchmark.flags import add_subject_flags, check_subject_flags
from minillm.benchmark.plan import NOT_QUANTIZED, QUANTIZATIONS, Plan, modes
from minillm.cli import Parser, guarded
from minillm.errors import InputError

PROG = "minillm bench"
GRID = {"prompt_tokens": [32, 512, 2048], "context": [64, 512, 2048], "batch": [1, 8], "new_tokens": 32, "runs": 3}
QUICK = {"prompt_tokens": [128], "context": [128], "batch": [1], "new_tokens": 16, "runs": 2}

_EPILOG = """\
Without any flags it takes one to two minutes on two cores (SmolLM2-135M): prompts of 32, 512 and 2,048 tokens;
decoding 32 tokens behind 64, 512 and 2,048, for 1 sequence and for 8; 3 rounds after one that is not counted.
A peer adds its own time. Engines choose the likeliest token; tokenizing, sampling and text are not timed.

llama.cpp gets the same weights in a file that is written for it, and quantized by its own quantizer, with as many
bits per weight as ours: float32 is set beside F32, bfloat16 beside BF16, int8 beside Q8_0, int4 beside Q4_1 and Q4_0,
with embedding and head in Q8_0, as in ours. Its keys and values stay in float16, its own default. Each file is
measured twice: with its defaults, and with -fa off, without flash attention, which halves the speed of decoding on
some processors. Such files, and the model of --random (2.5 GB for llama-3.2-1b), lie in $MINILLM_CACHE (default:
~/.cache/minillm) while it runs, and are removed at the end.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(argv)
    return guarded(lambda: _bench(args, argv), PROG)


def _parser() -> Parser:
    parser = Parser(
        prog=PROG,
        description="Measure prefill, decode, memory and loading, beside the limits of the machine and other engines.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = parser.add_argument_group("what is run")
    add_subject_flags(model)
    model.add_argument("--dtype", nargs="+", default=["auto"], help="one or more of float32, bfloat16, float16, auto")
    model.add_argument(
        "--quantize", nargs="+", default=[NOT_QUANTIZED], choices=QUANTIZATIONS, help="one or more (default: none)"
    )
    model.add_argument(
        "--kv-dtype", choices=["auto", "int8"], default="auto", help="our keys and values (default: auto)"
    )
    model.add_argument("--compare", metavar="ENGINES", help="transformers, llama.cpp or both: transformers,llama.cpp")
    work = parser.add_argument_group("what is measured")
    work.add_argument("--prompt-tokens", type=int, nargs="+", metavar="N", help="prefill (default: 32 512 2048)")
    work.add_argument("--context", type=int, nargs="+", metavar="N", help="decode behind (default: 64 512 2048)")
    work.add_argument("--batch", type=int, nargs="+", metavar="N", help="sequences that decode (default: 1 8)")
    work.add_argument("--new-tokens", type=int, metavar="N", help="tokens out of each decoding (default: 32)")
    work.add_argument("--runs", type=int, metavar="N", help="counted rounds, after one that is not (default: 3)")
    work.add_argument(
        "--request", type=int, nargs=2, metavar=("IN", "OUT"), help="one request instead: --request 512 128"
    )
    work.add_argument("--quick", action="store_true", help="a few seconds: a prompt of 128 tokens, batch 1, 2 rounds")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout; the tables go to stderr")
    return parser


def plan_of(args: argparse.Namespace) -> Plan:
    """What the flags ask to measure. Raises InputError where they contradict each other or make no sense."""
    wanted: dict[str, Any] = dict(QUICK if args.quick else GRID)
    if args.request is not None:
        for name in ("prompt_tokens", "context", "batch", "new_tokens"):
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise InputError(f"--request says what is measured: leave out --{flag}")
        tokens_in, tokens_out = args.request
        wanted |= {"prompt_tokens": [tokens_in], "context": [tokens_in], "batch": [1], "new_tokens": tokens_out}
    wanted |= {name: getattr(args, name) for name in wanted if getattr(args, name) is not None}
    return Plan(
        tuple(wanted["prompt_tokens"]),
        tuple(wanted["context"]),
        tuple(wanted["batch"]),
        wanted["new_tokens"],
        wanted["runs"],
    )


def _bench(args: argparse.Namespace, argv: Sequence[str]) -> int:
    plan = plan_of(args)
    check_subject_flags(args)
    from minillm.benchmark.engine import LLAMA_CPP
    from minillm.benchmark.job import Job, run_job
    from minillm.benchmark.peers import parse_peers
    from minillm.benchmark.report import Report
    from minillm.benchmark.subject import random_subject, subject
    from minillm.device import dtype_name, pick_device, pick_dtype

    device = pick_device(args.device)
    wanted = modes([dtype_name(pick_dtype(name, device)) for name in args.dtype], args.quantize)
    peers = parse_peers(args.compare)
    if LLAMA_CPP in peers and device.type != "cpu":
        raise InputError(f"llama.cpp is compared on the CPU, not on {device}: add --device cpu")
    command = shlex.join(["minillm", "bench", *argv])
    job = Job(plan, wanted, peers, device, args.kv_dtype, args.compile, args.request is not None, command)
    opened = (
        subject(args.model, plan, wanted, peers, _tell)
        if args.random is None
        else random_subject(args.random, plan, wanted, _tell)
    )
    with opened as model:
        everything = run_job(job, model, Report(sys.stderr if args.json else sys.stdout), _tell)
    if args.json:
        print(json.dumps(everything, indent=1))
    return 0


def _tell(line: str) -> None:
    print(f"[{line}]", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
