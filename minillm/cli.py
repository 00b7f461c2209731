"""What the command lines share: subcommands, flags, and the one way in which a bad input is answered."""

import argparse
import contextlib
import dataclasses
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from minillm.errors import InputError, MissingError, NumbersError
from minillm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from minillm.llm import LLM

VERBS = {
    "generate": "answer or continue one prompt",
    "chat": "talk with the model, turn by turn",
    "batch": "answer a file of requests, many at a time",
    "serve": "answer requests on a port, as OpenAI's API does",
    "fetch": "get a model's weights",
    "inspect": "what a model is: shapes, parameters by part, tokenizer, what is unusual",
    "fit": "how much memory a model needs, and whether a GPU has it",
    "doctor": "check this machine, from the GPU's slot up to PyTorch",
    "bench": "measure speed and memory, alone or beside other engines",
    "bench_batch": "measure many requests at once, beside static batching and the machine's limits",
    "bench_serve": "measure a server under many clients, polite ones and others",
    "quality": "what fewer bits cost: perplexity and KL divergence against float32",
    "limits": "what this machine, or a GPU, allows a model at most",
    "exercises": "the book's exercises and how far you are; give a stub back",
    "grade": "grade your exercises of a chapter",
    "hint": "the next hint for an exercise",
    "book": "build the book into HTML pages",
}


def main(argv: Sequence[str] | None = None) -> int:
    """`minillm VERB ...`: the same as `python -m minillm.VERB ...`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and argv[0] in VERBS:
        return importlib.import_module(f"minillm.{argv[0]}").main(argv[1:])
    from importlib.metadata import version  # not at the top: it costs every verb 50 ms

    listing = "\n".join(f"  {verb:<11} {what}" for verb, what in VERBS.items())
    parser = Parser(
        prog="minillm",
        usage="minillm VERB [options]",
        description=f"verbs:\n{listing}\n\n`minillm VERB --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"minillm {version('minillm')}")
    parser.add_argument("verb", choices=VERBS, metavar="VERB", help="one of the above")
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    parser.parse_args(argv[:1])
    return 2


class Parser(argparse.ArgumentParser):
    """An argument parser that answers a wrong argument with one sentence, without the page of usage before it."""

    def error(self, message: str) -> NoReturn:
        """One sentence on stderr, exit code 2."""
        print(f"{self.prog}: error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def wait_politely() -> None:
    """On a busy machine, let idle threads sleep after a short spin. To be called before torch is imported.

    PyTorch's threads (OpenMP) spin while they wait for each other, which is fastest while each has a core. Where
    other programs run, the one that is waited for may be off its core, and every one of the hundred-odd products of
    a decode step then waits for the scheduler. On a quiet machine sleeping is the slower of the two, so it is looked
    at first. A wish of the user's own, in the same environment variables, is left alone.

    On two cores, beside two loops of `yes >/dev/null`, 6.5 tokens/s (spinning) became 7.7 to 12.7 (short spin); with
    nothing else running it was 21.6 against 17.9 (medians of 3):

        for spin in OMP_WAIT_POLICY=active GOMP_SPINCOUNT=1000; do
            env $spin python -m minillm.generate --raw --prompt "The capital of France is" --max-tokens 30; done
    """
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        return
    if all(_others_are_running() for _ in range(3)):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def _others_are_running() -> bool:
    """Whether, after a moment, another thread than this one wants a processor (Linux; elsewhere: no)."""
    time.sleep(0.005)
    try:
        runnable = Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].split("/")[0]
    except (OSError, IndexError):
        return False
    return int(runnable) > 1


def guarded(run: Callable[[], int], prog: str) -> int:
    """Run a command. A bad input becomes one sentence on stderr and exit code 2; Ctrl-C ends with 130.

    Called before torch is imported. Only the errors that a user or the machine can cause are caught: anything else
    is a bug and keeps its traceback.
    """
    wait_politely()
    if sys.stderr is None:  # closed by the caller; without it, `print` would put our remarks on stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is the process's stderr from here on
    if sys.stdout is None:  # closed by the caller: `>&-`
        print(f"{prog}: error: stdout is closed, so there is nowhere to write to", file=sys.stderr)
        return 2
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - it is the process's stdin from here on
    try:
        return run()
    except (InputError, MissingError, NumbersError) as error:
        print(f"{prog}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{prog}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _abandon_stdout()  # the reader of our output went away (`| head`): that is its right
        return 0
    except OSError as error:  # a full disk, a file that went away while it was read
        where = f" {error.filename!r}" if error.filename else ""
        _abandon_stdout()
        with contextlib.suppress(OSError):
            print(f"{prog}: error: the system refused to read or write{where}: {error.strerror}", file=sys.stderr)
        return 2


def _abandon_stdout() -> None:
    """Point stdout at nothing. At exit Python flushes what is left in it, and would complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """--model, --device, --dtype, --quantize, --kv-dtype, --compile."""
    group = parser.add_argument_group("the model")
    group.add_argument("--model", help="an alias, a directory, a .gguf file or a hub id (default: smollm2-135m)")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    group.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto)")
    group.add_argument("--quantize", metavar="BITS", help="int8, int4, or file: as a GGUF file has them (default: not)")
    group.add_argument("--kv-dtype", default="auto", help="auto or int8: how keys and values are kept (default: auto)")
    group.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="by kernels compiled for this machine (default: where the weights are quantized)",
    )


def add_serving_flags(group: Any) -> None:
    """--max-batch-size, --kv-memory, --served-model-name, to a parser or a group of its flags."""
    group.add_argument("--max-batch-size", type=int, metavar="N", help="requests computed at a time (default: 16)")
    group.add_argument("--kv-memory", metavar="SIZE", help="what their keys and values may take (default: 1GiB)")
    group.add_argument("--served-model-name", metavar="NAME", help="the requests' name for it (default: --model's)")


def checked_kv_bytes(args: argparse.Namespace) -> int | None:
    """What the KV cache may take, if that was said. Raises InputError where the serving flags are wrong; no model is
    needed to see that.
    """
    from minillm.fit import parse_memory

    if args.max_batch_size is not None and args.max_batch_size < 1:
        raise InputError(f"--max-batch-size must be at least 1, not {args.max_batch_size}")
    return None if args.kv_memory is None else parse_memory(args.kv_memory)


def served_name(args: argparse.Namespace) -> str:
    """The name that requests have for the model."""
    from minillm.loading.registry import DEFAULT_MODEL

    return args.served_model_name or args.model or DEFAULT_MODEL


# Flag, type, help: each is the SamplingParams field of the same name; its default is that field's.
_SAMPLING_FLAGS: tuple[tuple[str, type, str], ...] = (
    ("max_tokens", int, "stop after this many tokens"),
    ("temperature", float, "0: always the likeliest token; higher: more varied"),
    ("top_k", int, "keep the k likeliest tokens only; 0: keep all"),
    ("top_p", float, "keep the likeliest tokens that together have this probability"),
    ("min_p", float, "keep tokens with at least this share of the likeliest one's probability"),
    ("repetition_penalty", float, "above 1: tokens that have appeared become less likely"),
    ("presence_penalty", float, "subtracted from the logit of each token generated before"),
    ("frequency_penalty", float, "subtracted once per time that the token was generated"),
    ("seed", int, "makes sampling repeatable"),
)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """One flag per SamplingParams field that makes sense on a command line."""
    group = parser.add_argument_group("choosing tokens")
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    for name, kind, what in _SAMPLING_FLAGS:
        default = "" if defaults[name] is None else f" (default: {defaults[name]})"
        group.add_argument(f"--{name.replace('_', '-')}", type=kind, help=what + default)
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; may be repeated")
    group.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-sequence token")


def sampling_params(args: argparse.Namespace, logprobs: int | None = None) -> SamplingParams:
    """The SamplingParams that the flags of `add_sampling_flags` ask for."""
    given = {name: getattr(args, name) for name, _, _ in _SAMPLING_FLAGS if getattr(args, name) is not None}
    return SamplingParams(**given, stop=tuple(args.stop or ()), ignore_eos=args.ignore_eos, logprobs=logprobs)


def load_llm(args: argparse.Namespace) -> "LLM":
    """The LLM that the flags of `add_model_flags` ask for."""
    from minillm.llm import LLM
    from minillm.loading import DEFAULT_MODEL

    model = DEFAULT_MODEL if args.model is None else args.model
    return LLM(
        model,
        device=args.device,
        dtype=args.dtype,
        quantize=args.quantize,
        kv_dtype=args.kv_dtype,
        compile=args.compile,
    )
