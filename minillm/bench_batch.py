"""`python -m minillm.bench_batch`: what many requests at once gain, beside the machine's limits and static batching.

A curve (throughput and time per token against the number of requests, beside the roofline's prediction), a mixed set of
requests through our engine and through static batching, a prefix that many requests share, and a check that each
request gets the tokens that it gets alone. `minillm bench` is the same for one request, or several alike.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.benchmark.flags import add_subject_flags, check_subject_flags
from minillm.benchmark.plan import NOT_QUANTIZED, QUANTIZATIONS, Mode, Plan
from minillm.cli import Parser, guarded
from minillm.errors import InputError

if TYPE_CHECKING:
    from minillm.benchmark.many.parts import BatchJob

PROG = "minillm bench_batch"
MIXED, CHECK, PREFIX = 64, 64, 600

_EPILOG = """\
Without --curve, --mixed, --prefix or --check it measures the curve: a minute or two on two cores (SmolLM2-135M). The
others are sets of requests that are all there at the start, of random ids, with lengths from --seed. An answer has the
length that was asked for, so that all engines do the same work; what static batching computes beyond that is not
counted. The 64 mixed requests are 26,257 tokens in and 6,585 out: some minutes for each engine and run.

--schedule-only computes no model: how many blocks, how much waste, how many preemptions, in a few seconds.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    args = _parser().parse_args(argv)
    return guarded(lambda: _bench(args, argv), PROG)


def _parser() -> Parser:
    parser = Parser(
        prog=PROG,
        description="Measure many requests at once, beside the limits of the machine and static batching.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    model = parser.add_argument_group("what is run")
    add_subject_flags(model)
    model.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or auto (default: auto)")
    model.add_argument("--quantize", default=NOT_QUANTIZED, choices=QUANTIZATIONS, help="(default: none)")
    model.add_argument("--compare", metavar="ENGINE", help="transformers: its static batching, on the mixed set")

    parts = parser.add_argument_group("what is measured")
    parts.add_argument("--curve", action="store_true", help="requests that decode at once: throughput and TPOT")
    parts.add_argument("--mixed", type=int, nargs="?", const=MIXED, metavar="N", help="N mixed requests (64)")
    parts.add_argument(
        "--prefix", type=int, nargs="?", const=PREFIX, metavar="N", help="32 requests with N tokens in common (600)"
    )
    parts.add_argument(
        "--check", type=int, nargs="?", const=CHECK, metavar="N", help="do N mixed requests get their own tokens? (64)"
    )
    parts.add_argument("--schedule-only", action="store_true", help="of --mixed and --prefix, what needs no model")

    curve = parser.add_argument_group("the curve")
    curve.add_argument("--batch", type=int, nargs="+", metavar="N", help="requests at once (default: 1 2 4 ... 64)")
    curve.add_argument("--context", type=int, default=256, metavar="N", help="tokens behind which each decodes (256)")
    curve.add_argument("--new-tokens", type=int, default=32, metavar="N", help="tokens out of each (default: 32)")
    curve.add_argument("--plot", type=Path, metavar="FILE", help="a picture of it: curve.svg, say")

    sets = parser.add_argument_group("the sets of requests")
    sets.add_argument("--prompts", type=int, nargs=2, metavar=("LEAST", "MOST"), help="mixed: tokens in (5 to 800)")
    sets.add_argument("--outputs", type=int, nargs=2, metavar=("LEAST", "MOST"), help="mixed: tokens out (1 to 200)")
    sets.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths and ids (default: 0)")
    sets.add_argument("--max-batch-size", type=int, default=16, metavar="N", help="requests that run (default: 16)")
    sets.add_argument(
        "--blocks", type=int, metavar="N", help="blocks of 16 tokens (default: enough; --check: so few that some wait)"
    )

    parser.add_argument("--runs", type=int, default=3, metavar="N", help="counted rounds of each part (default: 3)")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout; the tables go to stderr")
    return parser


def job_of(args: argparse.Namespace, argv: Sequence[str] = ()) -> "BatchJob":
    """What the flags ask to measure. Raises InputError where they contradict each other or make no sense."""
    from minillm.benchmark.engine import TRANSFORMERS
    from minillm.benchmark.many.parts import CURVE, PREFIX_OUTPUTS, PREFIX_PROMPTS, PREFIX_REQUESTS, BatchJob, Curve
    from minillm.benchmark.many.plot import require_plot
    from minillm.benchmark.many.serve import Serving
    from minillm.benchmark.many.workload import Workload
    from minillm.benchmark.peers import parse_peers
    from minillm.device import dtype_name, pick_device, pick_dtype

    device = pick_device(args.device)
    mode = Mode(dtype_name(pick_dtype(args.dtype, device)), args.quantize)
    _check_flags(args, mode)
    if args.compare not in (None, TRANSFORMERS):
        raise InputError(f"--compare sets {TRANSFORMERS} beside our engine here, and not {args.compare[:100]!r}")
    peers = parse_peers(args.compare)
    wants_sets = any(part is not None for part in (args.mixed, args.prefix, args.check))
    curve = None
    if args.curve or args.plot is not None or args.batch is not None or not wants_sets:
        plan = Plan((1,), (args.context,), tuple(args.batch or CURVE), args.new_tokens, args.runs)
        curve = Curve(plan.batches, args.context, plan.new_tokens)
    if args.plot is not None:
        require_plot(args.plot)
    (shortest, longest), (least, most) = args.prompts or Workload.prompt, args.outputs or Workload.output

    def mixed(count: int | None) -> Workload | None:
        return None if count is None else Workload(count, (shortest, longest), (least, most), seed=args.seed)

    prefix = None
    if args.prefix is not None:
        prefix = Workload(PREFIX_REQUESTS, PREFIX_PROMPTS, PREFIX_OUTPUTS, args.prefix, args.seed)
    return BatchJob(
        curve=curve,
        mixed=mixed(args.mixed),
        prefix=prefix,
        check=mixed(args.check),
        serving=Serving(max_batch_size=args.max_batch_size, num_blocks=args.blocks),
        runs=args.runs,
        schedule_only=args.schedule_only,
        peers=peers,
        mode=mode,
        device=device,
        compile=args.compile,
        plot=args.plot,
        command=shlex.join(["minillm", "bench_batch", *argv]),
    )


def _check_flags(args: argparse.Namespace, mode: Mode) -> None:
    """Raise InputError for flags that contradict each other, and for numbers that no part could use."""
    check_subject_flags(args)
    for flag, value, most in (
        ("--runs", args.runs, 2**31),
        ("--max-batch-size", args.max_batch_size, 512),
        ("--blocks", args.blocks, 2**31),
        ("--prefix", args.prefix, 2**31),
    ):
        if value is not None and not 1 <= value <= most:
            raise InputError(f"{flag} must be from 1 to {most:,}, not {value}")
    if args.compare is not None and args.mixed is None:
        raise InputError("--compare sets another engine beside ours on the mixed set: add --mixed")
    if args.compare is not None and args.quantize != NOT_QUANTIZED:
        raise InputError("--compare needs weights that both engines can read: leave out --quantize")
    if args.check is not None and (mode.dtype != "float32" or mode.quantize != NOT_QUANTIZED):
        raise InputError(
            f"--check compares tokens in float32, where sums in another order change little, not in {mode.name}: "
            "add --dtype float32, and leave out --quantize"
        )
    if args.schedule_only:
        if args.mixed is None and args.prefix is None:
            raise InputError("--schedule-only is about sets of requests: add --mixed or --prefix")
        for flag in ("curve", "check", "batch", "plot", "compare"):
            if getattr(args, flag):
                raise InputError(f"--schedule-only computes no model: leave out --{flag}")


def _bench(args: argparse.Namespace, argv: Sequence[str]) -> int:
    job = job_of(args, argv)
    from minillm.benchmark.many.job import run_batch_job, run_schedule_only
    from minillm.benchmark.many.tables import BatchReport
    from minillm.benchmark.random_model import random_config
    from minillm.benchmark.subject import random_subject, subject

    report = BatchReport(sys.stderr if args.json else sys.stdout)
    if args.random is not None and job.schedule_only:  # nothing is computed: no weights are written
        everything = run_schedule_only(job, args.random, random_config(args.random), report)
    else:
        opened = (
            subject(args.model, job, [job.mode], job.peers, _tell)
            if args.random is None
            else random_subject(args.random, job, [job.mode], _tell)
        )
        with opened as model:
            if job.schedule_only:
                everything = run_schedule_only(job, model.name, model.checkpoint.config, report)
            else:
                everything = run_batch_job(job, model, report, _tell)
    if args.json:
        print(json.dumps(everything, indent=1))
    wrong = job.check is not None and not everything["check"]["equal"]
    return 1 if wrong else 0


def _tell(line: str) -> None:
    print(f"[{line}]", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
