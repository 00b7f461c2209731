"""`python -m minillm.bench`: how fast this engine is, beside the machine's limits and beside other engines.

It first measures what the machine can do at most. Then every engine, each in a process of its own and on the same
weights, takes its turn at the same work, round by round, so that a machine whose speed drifts treats them alike:
compare the ratios, and believe no figure of a busy machine.
"""

import argparse
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.benchmark.plan import NOT_QUANTIZED, QUANTIZATIONS, Mode, Plan, modes
from minillm.cli import Parser, guarded
from minillm.errors import InputError

if TYPE_CHECKING:
    import torch

    from minillm.loading import Checkpoint

PROG = "minillm bench"
GRID = {"prompt_tokens": [32, 512, 2048], "context": [64, 512, 2048], "batch": [1, 8], "new_tokens": 32, "runs": 3}
QUICK = {"prompt_tokens": [128], "context": [128], "batch": [1], "new_tokens": 16, "runs": 2}
LIBRARIES = ("minillm", "torch", "numpy", "transformers", "llama_cpp_python")

_EPILOG = """\
Without any flags it takes one to two minutes on two cores (SmolLM2-135M): prompts of 32, 512 and 2,048 tokens;
decoding 32 tokens behind 64, 512 and 2,048, for 1 sequence and for 8; 3 rounds after one that is not counted.
A peer adds its own time. Engines choose the likeliest token; tokenizing, sampling and text are not timed.

llama.cpp gets the same weights in a file that is written for it, and quantized by its own quantizer, every matrix
in one format: float32 is set beside F32, bfloat16 beside BF16, int8 beside Q8_0, int4 beside Q4_1 and Q4_0. Its
keys and values stay in float16, its own default. Such files, and the model of --random (2.5 GB for llama-3.2-1b),
lie in $MINILLM_CACHE (default: ~/.cache/minillm) while it runs, and are removed at the end.
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
    model.add_argument("--model", help="an alias, a directory, a .gguf file or a hub id (default: smollm2-135m)")
    model.add_argument("--random", metavar="SHAPE", help="random weights of a well-known shape: llama-3.2-1b, say")
    model.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    model.add_argument("--dtype", nargs="+", default=["auto"], help="one or more of float32, bfloat16, float16, auto")
    model.add_argument(
        "--quantize", nargs="+", default=[NOT_QUANTIZED], choices=QUANTIZATIONS, help="one or more (default: none)"
    )
    model.add_argument("--kv-dtype", metavar="DTYPE", help="of our keys and values: int8, float32, bfloat16")
    model.add_argument("--compile", action="store_true", help="compile our decode step")
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
    if args.random is not None and args.model is not None:
        raise InputError("--random and --model name two models: give one of them")
    from minillm.benchmark.peers import parse_peers
    from minillm.device import dtype_name, pick_device, pick_dtype

    device = pick_device(args.device)
    wanted = modes([dtype_name(pick_dtype(name, device)) for name in args.dtype], args.quantize)
    peers = parse_peers(args.compare)
    if "llama.cpp" in peers and device.type != "cpu":
        raise InputError(f"llama.cpp is compared on the CPU, not on {device}: add --device cpu")
    with _checkpoint(args, plan, wanted, peers) as (name, checkpoint, scratch):
        return _measure(args, argv, plan, wanted, peers, device, name, checkpoint, scratch)


@contextmanager
def _checkpoint(
    args: argparse.Namespace, plan: Plan, wanted: Sequence[Mode], peers: Sequence[str]
) -> "Iterator[tuple[str, Checkpoint, Path]]":
    """The model's name, the model on disk, and a directory for files that are gone afterwards."""
    from minillm.loading import DEFAULT_MODEL, open_checkpoint, resolve
    from minillm.loading.scratch import scratch_directory
    from minillm.machine.limits import limits_file

    reads_file = any(mode.quantize == "file" for mode in wanted)
    if args.random is not None:
        from minillm.benchmark.random_model import random_config, write_random_model

        if reads_file:
            raise InputError("--quantize file takes the weights as a .gguf file stores them: give one with --model")
        config = random_config(args.random)
        plan.check_context(config.max_position_embeddings)
        with scratch_directory(limits_file().parent) as scratch:
            _tell(f"writing random weights of the shape of {args.random}")
            write_random_model(config, scratch / "random")
            yield f"random weights, {args.random}", open_checkpoint(scratch / "random"), scratch
        return
    name = DEFAULT_MODEL if args.model is None else args.model
    path = resolve(name)
    if "transformers" in peers and path.is_file():
        raise InputError(f"--compare transformers needs a directory with safetensors, not {path}")
    if reads_file and not path.is_file():
        raise InputError(f"--quantize file takes the weights as a .gguf file stores them, and {path} is a directory")
    checkpoint = open_checkpoint(path)
    plan.check_context(checkpoint.config.max_position_embeddings)
    with scratch_directory(limits_file().parent) as scratch:
        yield name, checkpoint, scratch


def _measure(
    args: argparse.Namespace,
    argv: Sequence[str],
    plan: Plan,
    wanted: Sequence[Mode],
    peers: Sequence[str],
    device: "torch.device",
    name: str,
    checkpoint: "Checkpoint",
    scratch: Path,
) -> int:
    """Ceilings, then mode by mode."""
    import torch

    from minillm.benchmark.ceilings import measure_ceilings, multiplied_in
    from minillm.benchmark.engine import MINILLM, EngineSpec
    from minillm.benchmark.peers import Lineup
    from minillm.benchmark.report import LEGEND, Report, agreement_json, as_json
    from minillm.benchmark.session import compare_outputs, measure_mode
    from minillm.benchmark.summary import summarize
    from minillm.benchmark.watch import machine_is_busy
    from minillm.machine.limits import device_title
    from minillm.machine.measure import read_bandwidth
    from minillm.machine.shape import num_params, shape_of

    report = Report(sys.stderr if args.json else sys.stdout)
    busy = machine_is_busy()
    if busy:
        report.say(f"CAUTION: {busy}: do not trust these figures\n")
    bandwidth = read_bandwidth(device)
    ceilings = {
        dtype: measure_ceilings(dtype, device, bandwidth) for dtype in dict.fromkeys(mode.dtype for mode in wanted)
    }
    report.ceilings(device_title(device), ceilings, {dtype: multiplied_in(dtype, device) for dtype in ceilings})
    shape = shape_of(checkpoint.config)
    report.say(f"{name}: {num_params(shape):,} parameters\n")
    ours = EngineSpec(
        MINILLM,
        str(checkpoint.path),
        str(device),
        wanted[0].dtype,
        torch.get_num_threads(),
        kv_dtype=args.kv_dtype,
        compile=args.compile,
    )
    lineup = Lineup(ours, checkpoint, peers, scratch)
    measured, agreed = [], {}
    for mode in wanted:
        result = measure_mode(mode, lineup.specs(mode), plan, ceilings[mode.dtype], _tell)
        rows = summarize(result.runs, result.loaded, shape, result.machine)
        report.result(result, rows, plan, as_request=args.request is not None)
        measured.append(as_json(result, rows))
        agreed[mode] = result.agreement
        plain = lineup.unquantized(mode)
        if peers and plain not in agreed and plain not in wanted:
            agreed[plain] = compare_outputs(lineup.specs(plain))
    for mode, found in agreed.items():
        report.agreement(mode, found)
    report.say(f"\n{LEGEND}")
    if args.json:
        cautions = [*([busy] if busy else []), *(sentence for mode in measured for sentence in mode["cautions"])]
        everything = {
            "command": shlex.join(["minillm", "bench", *argv]),
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "machine": {"name": device_title(device), "device": str(device), "threads": torch.get_num_threads()},
            "versions": _versions(),
            "model": {"name": name, "parameters": num_params(shape)},
            "trusted": not cautions,
            "cautions": cautions,
            "modes": measured,
            "agreement": {mode.name: agreement_json(found) for mode, found in agreed.items()},
        }
        print(json.dumps(everything, indent=1))
    return 0


def _versions() -> dict[str, str]:
    """Of Python and of the libraries that are there."""
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _tell(line: str) -> None:
    print(f"[{line}]", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
