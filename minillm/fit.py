"""`python -m minillm.fit MODEL --gpu h100`: how much memory a model needs, whether it is there, what to change if not.

No torch is imported and nothing is loaded, so it answers at once, and on a machine that could never run the model.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from minillm.cli import Parser, guarded
from minillm.errors import InputError
from minillm.machine.describe import DEFAULT_MODEL, Description, describe
from minillm.machine.formats import COMPUTE_DTYPES, DTYPE_BYTES, QUANTIZATIONS, format_of
from minillm.machine.memory import CUDA_CONTEXT_BYTES, Workload, kv_bytes_per_token
from minillm.machine.shape import num_active_params, num_params
from minillm.machine.verdict import Question, gpus_needed, judge, largest_batch, largest_context, smaller_formats

if TYPE_CHECKING:
    from minillm.machine.specs import Accelerator

PROG = "minillm fit"
COMMON_GPUS = ("T4", "L4", "RTX 4090", "RTX 5090", "L40S", "A100 40GB", "A100 80GB", "H100", "H200", "B200")
"""What the verdict is given for where none is asked about."""

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def main(argv: Sequence[str] | None = None) -> int:
    """Answer on stdout, warnings on stderr. Exit code 0 whatever the verdict, 2 for a question that makes no sense."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _run(args), PROG)


def _run(args: argparse.Namespace) -> int:
    if args.models:
        _refuse_others(args, "models")
        return _list_models()
    if args.measure:
        _refuse_others(args, "measure")
        return _measure(args.model)
    args.dtype = args.dtype or ("float32" if _is_cpu(args.gpu) else "bfloat16")
    described = describe(args.model)
    load = _workload(args, described)
    places = _places(args)
    questions = {
        name: Question(
            described.shape, load, place.memory, place.overhead, _stored(args, described), place.vendor, place.note
        )
        for name, place in places.items()
    }
    longest = described.shape.max_position_embeddings
    if load.context > longest:
        made_for = f"the {longest:,} that {described.name} was made for"
        print(
            f"{PROG}: warning: {load.context:,} tokens are more than {made_for}; counted all the same", file=sys.stderr
        )
    if described.quantized and args.quantization is None:
        stored = f"the weights of {described.name} are stored quantized ({described.quantized})"
        print(f"{PROG}: warning: {stored}; counted in {args.dtype}: see --quantization", file=sys.stderr)
    if args.plot is not None:
        from minillm.machine.fit_report import plot

        plot(described, questions, args.plot)
        print(f"{PROG}: the picture is in {args.plot}", file=sys.stderr)
    if args.json:
        print(json.dumps(as_json(described, questions), indent=2))
        return 0
    from minillm.machine.fit_report import print_report

    print_report(described, questions, in_detail=args.gpu is not None or args.memory is not None)
    return 0


def _refuse_others(args: argparse.Namespace, flag: str) -> None:
    """What a flag takes no account of is not to be given with it."""
    parser = _parser()
    for name, value in vars(args).items():
        if name not in ("model", flag) and value != parser.get_default(name):
            raise InputError(f"--{flag} answers another question: leave out --{name.replace('_', '-')}")


def _workload(args: argparse.Namespace, described: Description) -> Workload:
    load = Workload(
        context=args.context,
        batch=args.batch,
        weights=format_of(args.dtype if args.quantization in (None, "none") else args.quantization),
        dtype=args.dtype,
        kv_dtype=args.kv_dtype or args.dtype,
        block_size=args.block_size,
        tokens_per_pass=args.tokens_per_pass,
        gpus=args.gpus,
    )
    stored = described.stored_bytes is not None and args.quantization is None
    return replace(load, weights=replace(load.weights, name="as stored")) if stored else load


def _stored(args: argparse.Namespace, described: Description) -> int | None:
    """A GGUF file's weights are counted as they are stored, unless another format is asked for."""
    return described.stored_bytes if args.quantization is None else None


@dataclass(frozen=True)
class Place:
    """Where a model is to fit: bytes that programs may have of one GPU (or of the machine), bytes that are taken before
    the first tensor, and the rest as in `Question`.
    """

    memory: int
    overhead: int
    vendor: str | None
    note: str = ""


def _places(args: argparse.Namespace) -> dict[str, Place]:
    """The places that are asked about, by their names."""
    if args.memory is not None:
        return {f"memory of {args.memory}": Place(parse_memory(args.memory), CUDA_CONTEXT_BYTES, "NVIDIA")}
    if _is_cpu(args.gpu):
        if args.gpus > 1:
            raise InputError(f"--gpus {args.gpus} shares a model out over GPUs: leave it out for the CPU")
        name, memory = _own_memory()
        return {name: Place(memory, 0, None)}
    from minillm.machine.specs import find

    found = [find(name) for name in ([args.gpu] if args.gpu is not None else COMMON_GPUS)]
    macs = [gpu.name for gpu in found if gpu.vendor == "Apple"]
    if macs and args.gpus > 1:
        raise InputError(f"--gpus {args.gpus} shares a model out over GPUs: leave it out for a Mac ({macs[0]})")
    return {gpu.name: _place(gpu) for gpu in found}


def _place(gpu: "Accelerator") -> Place:
    if gpu.vendor != "Apple":
        return Place(gpu.memory_bytes, CUDA_CONTEXT_BYTES, gpu.vendor)
    lent = f"that is what Metal lends, unless told otherwise, of {gpu.memory_bytes / 2**30:.0f} GiB of unified memory"
    return Place(gpu.usable_bytes, 0, gpu.vendor, f"{lent} ({gpu.usable_bytes / gpu.memory_bytes:.0%})")


def _is_cpu(gpu: str | None) -> bool:
    return gpu is not None and gpu.lower() == "cpu"


def parse_memory(text: str) -> int:
    """Bytes of "24GB" (10^9), "24GiB" (2^30) or a bare number of bytes. Raises InputError for anything else."""
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise InputError(f"{text!r} is no amount of memory: write 24GB (10^9 bytes), 24GiB (2^30 bytes) or the bytes")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise InputError(f"{text!r} is no memory at all")
    return size


def _own_memory() -> tuple[str, int]:
    """What this process may use: the machine's memory, or the narrower limit of its control group (a container's,
    a batch job's), beyond which the kernel kills it.
    """
    machine = _machine_memory()
    from minillm.machine.doctor import probe
    from minillm.machine.doctor.system import System

    _, limit, _ = probe.cgroup_limits(System())
    if limit is None or limit >= machine:
        return "this machine's memory", machine
    return "this container's memory", limit


def _machine_memory() -> int:
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        raise InputError("this system does not say how much memory it has: give it with --memory 16GiB") from None


def as_json(described: Description, questions: dict[str, Question]) -> dict:
    """Everything that the report says, for programs; all sizes in bytes."""
    any_question = next(iter(questions.values()))
    shape, load = described.shape, any_question.load
    return {
        "model": {
            "name": described.name,
            "origin": described.origin,
            "parameters": num_params(shape),
            "active_parameters": num_active_params(shape),
            "dense": shape.is_dense,
            "max_context": shape.max_position_embeddings,
            "shape": asdict(shape),
        },
        "workload": {**asdict(load), "weights": load.weights.name},
        "kv_bytes_per_token": kv_bytes_per_token(shape, load.kv_dtype),
        "verdicts": [_verdict_json(name, question) for name, question in questions.items()],
    }


def _verdict_json(name: str, question: Question) -> dict:
    need = question.demand()
    return {
        "where": name,
        "memory_bytes": question.memory,
        "note": question.note or None,
        "per_gpu": {**asdict(need), "total": need.total, "rule_of_thumb": need.rule_of_thumb},
        "verdict": judge(need.total, question.memory),
        "left_bytes": question.memory - need.total,
        "largest_context": largest_context(question),
        "largest_batch": largest_batch(question),
        "smaller_formats_that_fit": smaller_formats(question),
        "gpus_needed": gpus_needed(question),
    }


def _list_models() -> int:
    from minillm.machine.well_known import WELL_KNOWN

    for model in WELL_KNOWN:
        experts = "" if model.shape.is_dense else f"  not dense: {num_active_params(model.shape):,} per token"
        print(f"{model.name:<16} {num_params(model.shape):>15,} parameters  {model.hub_id}{experts}")
    return 0


def _measure(model: str) -> int:
    from minillm.machine.fit_report import print_footprints
    from minillm.machine.footprint import POINTS, measure

    shape = describe(model).shape
    print_footprints(measure(model, shape, context, batch) for context, batch in POINTS)
    return 0


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="How much memory a model needs, whether it is there, what to change if not.")
    parser.add_argument(
        "model",
        nargs="?",
        default=DEFAULT_MODEL,
        help=f"a well-known name, a directory, a .gguf file or a hub id (default: {DEFAULT_MODEL})",
    )
    where = parser.add_argument_group("where").add_mutually_exclusive_group()
    where.add_argument(
        "--gpu",
        help="a GPU's name (h100, a100 40gb, rtx 4090), or cpu for this machine's memory (its container's, if less)",
    )
    where.add_argument("--memory", help="instead of a GPU's name: its memory, 24GB (10^9 bytes) or 24GiB (2^30 bytes)")
    what = parser.add_argument_group("what")
    what.add_argument("--context", type=int, default=4096, help="tokens per sequence (default: 4096)")
    what.add_argument("--batch", type=int, default=1, help="sequences at the same time (default: 1)")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--dtype",
        choices=COMPUTE_DTYPES,
        help="of all numbers (default: bfloat16; with --gpu cpu float32, as this engine computes in it on a CPU that "
        "has no instructions for bfloat16)",
    )
    how.add_argument(
        "--quantization",
        choices=("none", *QUANTIZATIONS),
        help="of the weights (default: none; the weights of a .gguf file: as they are stored)",
    )
    how.add_argument("--kv-dtype", choices=tuple(DTYPE_BYTES), help="of keys and values (default: as --dtype)")
    how.add_argument("--gpus", type=int, default=1, help="share the model out, by tensor parallelism (default: 1)")
    how.add_argument(
        "--block-size", type=int, default=16, help="tokens per block of a paged cache; 1: no blocks (default: 16)"
    )
    how.add_argument(
        "--tokens-per-pass", type=int, default=2048, help="prompt tokens per forward pass at most (default: 2048)"
    )
    parser.add_argument("--json", action="store_true", help="for programs; all sizes in bytes")
    parser.add_argument("--plot", metavar="FILE", help="also draw the bars into a .png, .svg or .pdf file")
    parser.add_argument("--models", action="store_true", help="list the well-known models")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run the model on this machine's CPU in float32, at two contexts and two batch sizes, and compare the "
        "peak of its memory with the prediction (Linux; about a minute for smollm2-135m)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
