"""`python -m minillm.bench_serve`: a server under many clients, polite ones and others, from outside.

Streams for minutes, clients that disconnect, readers that do not read, bodies that are wrong, an end in the middle of
all that; and what the server adds to each token. Each run says what must hold; the exit code is 1 where it does not.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minillm.cli import Parser, guarded, load_llm
from minillm.errors import InputError
from minillm.serve import KEY_VARIABLE, check_installed, new_parser

if TYPE_CHECKING:
    from minillm.benchmark.serving.asks import Alone
    from minillm.benchmark.serving.tables import ServeReport
    from minillm.benchmark.serving.target import Target

PROG = "minillm bench_serve"
CLIENTS, SECONDS, LEAVING, SLOW, BODIES, ENDING = 200, 60.0, 1000, 8, 10_000, 24
GRACES_S = (30.0, 1.0)

_EPILOG = """\
What stands behind `--` goes to `minillm serve`, which is started on a free port for the runs and ended after them:

    python -m minillm.bench_serve --clients 200 --seconds 300 -- --model smollm2-135m --dtype float32 --compile

--url names a server that runs already (its API key in $MINILLM_API_KEY). Without a run that is named, all of them run.

The requests are passages of the text that the package ships, greedy. First, each one is asked alone; what a client gets
later must be equal. "close": where it differs first, the two likeliest tokens were within 0.01 of each other.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    at = argv.index("--") if "--" in argv else len(argv)
    args, flags = _parser().parse_args(argv[:at]), argv[at + 1 :]
    return guarded(lambda: _bench(args, flags), PROG)


def _parser() -> Parser:
    parser = Parser(
        prog=PROG,
        usage="minillm bench_serve [options] [-- options of `minillm serve`]",
        description="Measure a server under many clients.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="a server that runs already: http://127.0.0.1:8000, say")
    runs = parser.add_argument_group("the runs")
    runs.add_argument(
        "--clients", type=int, nargs="?", const=CLIENTS, metavar="N", help=f"N clients that stream ({CLIENTS})"
    )
    runs.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"for how long ({SECONDS:g})")
    runs.add_argument(
        "--disconnect", type=int, nargs="?", const=LEAVING, metavar="N", help=f"N clients that go away ({LEAVING})"
    )
    runs.add_argument(
        "--slow", type=int, nargs="?", const=SLOW, metavar="N", help=f"N readers that do not read, N others ({SLOW})"
    )
    runs.add_argument("--fuzz", type=int, nargs="?", const=BODIES, metavar="N", help=f"N wrong bodies ({BODIES:,})")
    runs.add_argument(
        "--term", type=int, nargs="?", const=ENDING, metavar="N", help=f"SIGTERM while N clients stream ({ENDING})"
    )
    runs.add_argument("--overhead", action="store_true", help="what the server adds to each token of one request")
    asks = parser.add_argument_group("the requests")
    asks.add_argument("--prompts", type=int, default=48, metavar="N", help="different ones (default: 48)")
    asks.add_argument("--words", type=int, nargs=2, default=(5, 150), metavar=("LEAST", "MOST"), help="in (5 to 150)")
    asks.add_argument("--outputs", type=int, nargs=2, default=(8, 64), metavar=("LEAST", "MOST"), help="out (8 to 64)")
    asks.add_argument("--seed", type=int, default=0, metavar="N", help="of passages, lengths, moments (default: 0)")
    return parser


def _check(args: argparse.Namespace, flags: Sequence[str]) -> None:
    """Raise InputError for flags that contradict each other, and for numbers of which nothing could come."""
    counts = ("clients", "disconnect", "slow", "fuzz", "term", "prompts")
    for name in counts:
        value = getattr(args, name)
        if value is not None and not 1 <= value <= 1_000_000:
            raise InputError(f"--{name} must be 1 to 1,000,000, not {value}")
    for name in ("words", "outputs"):
        least, most = getattr(args, name)
        if not 1 <= least <= most:
            raise InputError(f"--{name} must be two numbers from 1 on, the smaller one first, not {least} {most}")
    if not 0 < args.seconds < float("inf"):
        raise InputError(f"--seconds must be a number above 0, not {args.seconds}")
    if args.url is not None and flags:
        raise InputError("--url names a server that runs already: what stands behind `--` would start another")
    if args.url is not None and (args.term is not None or args.overhead):
        raise InputError("--term and --overhead need a server of their own: leave out --url")


def _bench(args: argparse.Namespace, flags: Sequence[str]) -> int:
    _check(args, flags)
    check_installed("bench_serve", "httpx", "prometheus_client")
    from minillm.benchmark.serving.tables import ServeReport
    from minillm.benchmark.serving.target import running, started

    names = ("clients", "disconnect", "slow", "fuzz", "term")
    if not any(getattr(args, name) is not None for name in names) and not args.overhead:
        args.clients, args.disconnect, args.slow, args.fuzz, args.term = CLIENTS, LEAVING, SLOW, BODIES, ENDING
        args.overhead = True
        if args.url is not None:
            args.term, args.overhead = None, False
    report = ServeReport(sys.stdout)
    with contextlib.ExitStack() as stack:
        if args.url is not None:
            target = running(args.url, os.environ.get(KEY_VARIABLE))
        else:
            target = stack.enter_context(started(flags))
        alone = _alone(args, target, report)
        if args.overhead:
            _overhead(flags, target, report)
        _outside(args, target, alone, report)
    for grace_s in GRACES_S if args.term is not None else ():
        _end(args, flags, alone, grace_s, report)
    return 0 if report.good else 1


def _alone(args: argparse.Namespace, target: "Target", report: "ServeReport") -> "list[Alone]":
    from minillm.benchmark.serving.asks import answers_alone, asks

    wanted = asks(args.prompts, tuple(args.words), tuple(args.outputs), args.seed)
    report.say(f"{target.model} at {target.url}: {len(wanted)} requests, each alone")
    return answers_alone(target, wanted)


def _outside(args: argparse.Namespace, target: "Target", alone: "list[Alone]", report: "ServeReport") -> None:
    """The runs that need nothing but the address."""
    from minillm.benchmark.serving.fuzz import fuzz
    from minillm.benchmark.serving.leaving import leave
    from minillm.benchmark.serving.slow import read_beside
    from minillm.benchmark.serving.sustained import sustain

    if args.fuzz is not None:
        report.fuzzed(asyncio.run(fuzz(target, args.fuzz, args.seed)))
    if args.slow is not None:
        report.beside(asyncio.run(read_beside(target, alone, args.slow)))
    if args.disconnect is not None:
        report.left(asyncio.run(leave(target, alone, args.disconnect, args.seed)))
    if args.clients is not None:
        report.sustained(asyncio.run(sustain(target, alone, args.clients, args.seconds)))


def _overhead(flags: Sequence[str], target: "Target", report: "ServeReport") -> None:
    from minillm.benchmark.serving.asks import asks
    from minillm.benchmark.serving.overhead import measure_overhead
    from minillm.cli import checked_kv_bytes
    from minillm.server.load import new_engine

    served = new_parser().parse_args(list(flags))
    llm = load_llm(served)
    engine = new_engine(llm, served.max_batch_size, checked_kv_bytes(served))
    ask = asks(1, (100, 100), (128, 128))[0]
    report.overhead(measure_overhead(target, llm, engine, ask))


def _end(
    args: argparse.Namespace, flags: Sequence[str], alone: "list[Alone]", grace_s: float, report: "ServeReport"
) -> None:
    from minillm.benchmark.serving.ending import end
    from minillm.benchmark.serving.target import started

    longest = max(one.ask.max_tokens for one in alone)
    with started([*flags, "--grace", str(grace_s)]) as target:
        report.ended(asyncio.run(end(target, alone, args.term, grace_s, longest)))


if __name__ == "__main__":
    raise SystemExit(main())
