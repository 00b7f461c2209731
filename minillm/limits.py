"""`python -m minillm.limits [MODEL]`: what this machine, or a GPU by its datasheet, allows a model at most.

This machine is measured once (some seconds) and the figures are remembered with their date. With --gpu nothing is
measured, and nothing but arithmetic runs.
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from minillm.cli import Parser, guarded
from minillm.errors import InputError
from minillm.machine.describe import DEFAULT_MODEL, describe
from minillm.machine.formats import DTYPE_BYTES
from minillm.machine.roofline import (
    Machine,
    Work,
    bound_by,
    decode_work,
    prefill_work,
    shortest_seconds,
    smallest_compute_bound_batch,
    smallest_compute_bound_prompt,
)
from minillm.machine.shape import ModelShape

PROG = "minillm limits"
DEFAULT_PROMPT = 512


@dataclass(frozen=True)
class Place:
    """A machine with a name: its speeds by dtype, and where they come from."""

    name: str
    origin: str
    bandwidth_bytes_per_s: float
    flops_per_s: dict[str, float]


@dataclass(frozen=True)
class Bound:
    """One kind of pass, and what the machine allows it. `bound_by` is None where no more than the bandwidth is known:
    then it may well take longer.
    """

    name: str
    flops: float
    bytes: float
    flops_per_byte: float
    bound_by: str | None
    seconds: float
    tokens_per_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _limits(args), PROG)


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="What this machine, or a GPU by its datasheet, allows a model at most.")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"as for fit (default: {DEFAULT_MODEL})")
    where = parser.add_argument_group("the machine (default: this one, measured)")
    where.add_argument("--gpu", metavar="NAME", help="a GPU by its datasheet instead: h100, a100, rtx 4090 ...")
    where.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    where.add_argument("--again", action="store_true", help="measure again; the better of old and new is kept")
    where.add_argument("--check", action="store_true", help="set the bandwidth beside that of a loop in numpy")
    what = parser.add_argument_group("the passes")
    what.add_argument("--dtype", help="of weights and cache (default: bfloat16; on a CPU float32)")
    what.add_argument(
        "--prompt", type=int, metavar="N", help="tokens of a prefill (default: 512); also says where its limit turns"
    )
    what.add_argument("--context", type=int, default=512, metavar="N", help="tokens at a decode step (default: 512)")
    what.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], metavar="N", help="default: 1 8 32")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    return parser


def _limits(args: argparse.Namespace) -> int:
    prompt = DEFAULT_PROMPT if args.prompt is None else args.prompt
    for name, values in (("--prompt", [prompt]), ("--context", [args.context]), ("--batch", args.batch)):
        for value in values:
            if not 1 <= value < 2**31:
                raise InputError(f"{name} must be at least 1 and below 2^31, not {value}")
    described = describe(args.model)
    place, dtype = _datasheet(args) if args.gpu is not None else _this_machine(args)
    if dtype not in (place.flops_per_s or DTYPE_BYTES):
        known = ", ".join(place.flops_per_s or DTYPE_BYTES)
        raise InputError(f"there is no figure for {dtype!r} on {place.name}; there are some for {known}")
    size = float(DTYPE_BYTES[dtype])
    machine = Machine(place.bandwidth_bytes_per_s, place.flops_per_s[dtype]) if place.flops_per_s else None
    limit = machine or place.bandwidth_bytes_per_s
    bounds = bounds_of(described.shape, limit, size, prompt, args.context, args.batch)
    knee = turns = None
    if machine is not None:
        knee = smallest_compute_bound_prompt(described.shape, machine, size, size)
    if machine is not None and described.shape.is_dense:
        turns = smallest_compute_bound_batch(described.shape, args.context, machine, size, size)
    if args.json:
        result = {"machine": asdict(place), "model": described.name, "dtype": dtype, "context": args.context}
        turning = {"compute_bound_from_prompt": knee, "compute_bound_from_batch": turns}
        print(json.dumps({**result, "passes": [asdict(b) for b in bounds], **turning}, indent=1))
        return 0
    _print_place(place)
    if args.check:
        _print_check()
    _print_bounds(described.name, dtype, bounds)
    if machine is None:
        print(_NO_FLOPS)
        return 0
    if args.prompt is not None:
        print(f"\nPrefill is compute-bound from a prompt of {knee:,} tokens on.")
    if described.shape.is_dense:
        print(_turning_sentence(turns, args.context))
    return 0


def bounds_of(
    shape: ModelShape, machine: Machine | float, itemsize: float, prompt: int, context: int, batches: Sequence[int]
) -> list[Bound]:
    """A prefill, and a decode step for each batch. `machine` is its bytes per second where no more is known of it,
    `itemsize` the bytes of a number of weights and of cache.
    """
    prefill = prefill_work(shape, prompt, itemsize, itemsize)
    steps = [(f"decode, batch {b}", b, decode_work(shape, b, context, itemsize, itemsize)) for b in batches]
    return [
        _bound(name, tokens, work, machine)
        for name, tokens, work in [(f"prefill, {prompt:,} tokens", prompt, prefill), *steps]
    ]


def _bound(name: str, tokens: int, work: Work, machine: Machine | float) -> Bound:
    whole = isinstance(machine, Machine)
    seconds = shortest_seconds(work, machine) if whole else work.bytes / machine
    limited_by = bound_by(work, machine) if whole else None
    return Bound(name, work.flops, work.bytes, work.intensity, limited_by, seconds, tokens / seconds)


def _datasheet(args: argparse.Namespace) -> tuple[Place, str]:
    """A GPU's peaks, and the dtype that is asked for."""
    if args.again or args.check or args.device != "auto":
        raise InputError(
            "--gpu takes a datasheet's figures, so nothing is measured: leave --again, --check, --device out"
        )
    from minillm.machine.specs import find

    gpu, dtype = find(args.gpu), "bfloat16" if args.dtype is None else args.dtype
    flops = {name: gpu.flops(name) for name in DTYPE_BYTES} if gpu.dense_flops else {}
    return Place(gpu.name, gpu.source, gpu.bandwidth_bytes_per_s, flops), dtype


def _this_machine(args: argparse.Namespace) -> tuple[Place, str]:
    """What is known of this machine, measured if need be, and the dtype that is asked for or suits it."""
    from minillm.device import DTYPES, dtype_name, pick_device, pick_dtype
    from minillm.generate import say
    from minillm.machine.limits import known_limits, limits_file, measure_limits

    limits_file()  # before anything is measured: where the figures could not be kept, that is said
    device = pick_device(args.device)
    if args.check and device.type != "cpu":
        raise InputError("--check reads this machine's own memory in numpy: it goes with --device cpu")
    known = known_limits(device)
    if known is None or args.again or not set(DTYPES) <= set(known.flops_per_s):
        say("measuring this machine, which takes some seconds")
        known = measure_limits(device)
    dtype = dtype_name(pick_dtype("auto", device)) if args.dtype is None else args.dtype
    place = Place(known.device, f"measured {known.measured_on}", known.bandwidth_bytes_per_s, known.flops_per_s)
    return place, dtype


def _print_place(place: Place) -> None:
    print(f"{place.name}\n{textwrap.fill(place.origin, 100, break_on_hyphens=False)}\n")
    print(f"memory     {place.bandwidth_bytes_per_s / 1e9:12,.1f} GB/s")
    for dtype, flops in place.flops_per_s.items():
        ridge = flops / place.bandwidth_bytes_per_s
        print(f"{dtype:<10} {flops / 1e9:12,.1f} GFLOP/s    ridge at {ridge:,.3g} FLOP per byte")


def _print_check() -> None:
    from minillm.machine.measure import compare_reads

    ours, independent = compare_reads()
    print(
        f"\nchecked in one run, alternating: {ours / 1e9:.1f} GB/s here, {independent / 1e9:.1f} GB/s by a loop in"
        f" numpy, ratio {ours / independent:.2f}"
    )


def _print_bounds(model: str, dtype: str, bounds: Sequence[Bound]) -> None:
    print(f"\n{model} in {dtype}: what a pass needs at least, and what that allows at most\n")
    if any(b.bound_by is None for b in bounds):
        print(f"{'pass':<20}{'GB read':>10}{'time':>12}{'tokens/s':>12}")
        for b in bounds:
            print(f"{b.name:<20}{b.bytes / 1e9:>10,.3f}{b.seconds * 1e3:>9,.2f} ms{b.tokens_per_s:>12,.1f}")
        return
    print(f"{'pass':<20}{'GFLOP':>11}{'GB read':>10}{'FLOP/byte':>11}  {'bound by':<9}{'time':>12}{'tokens/s':>12}")
    for b in bounds:
        print(
            f"{b.name:<20}{b.flops / 1e9:>11,.4g}{b.bytes / 1e9:>10,.3f}{b.flops_per_byte:>11,.1f}  {b.bound_by:<9}"
            f"{b.seconds * 1e3:>9,.2f} ms{b.tokens_per_s:>12,.1f}"
        )


_NO_FLOPS = (
    "\nThis is what its memory allows. No FLOP/s are published for it, so what its arithmetic allows is not known: a\n"
    "prefill, and a decode step of many sequences, may well take longer."
)


def _turning_sentence(batch: int | None, context: int) -> str:
    if batch is None:
        return (
            f"\nNo batch makes decode compute-bound at a context of {context:,}: each sequence's own keys and values"
            " keep memory busier than its operations keep the arithmetic."
        )
    return f"\nDecode is compute-bound from a batch of {batch:,} on, at a context of {context:,}."


if __name__ == "__main__":
    raise SystemExit(main())
