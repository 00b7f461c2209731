"""`python -m minillm.quality`: what fewer bits cost, on a text that comes with the package.

The reference is the same model in float32. Each row of the table is one way of keeping its weights, and its keys and
values, in fewer bits.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.cli import Parser, guarded
from minillm.errors import InputError, MissingError

if TYPE_CHECKING:
    from minillm.divergence import Divergence
    from minillm.llm import LLM

PROG = "minillm quality"
HELD_TEXT = "held_text.txt"
UNQUANTIZED = "none"


@dataclass(frozen=True)
class Row:
    """One way of keeping the model: its weights in bytes and bits per weight, and what became of its predictions."""

    weights: str
    kv: str
    weight_bytes: int
    bits_per_weight: float
    result: "Divergence"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _quality(args), PROG)


def _parser() -> Parser:
    parser = Parser(prog=PROG, description="Perplexity and KL divergence of quantized models against float32.")
    parser.add_argument("--model", help="an alias, a directory, a .gguf file or a hub id (default: smollm2-135m)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    parser.add_argument("--dtype", default="float32", help="of what is not quantized (default: float32)")
    parser.add_argument(
        "--quantize",
        nargs="+",
        metavar="BITS",
        default=["int8", "int4"],
        help="int8, int4, file or none, one or several (default: int8 int4)",
    )
    parser.add_argument(
        "--kv-dtype", nargs="+", metavar="DTYPE", default=["auto"], help="auto, int8 or both (default: auto)"
    )
    parser.add_argument("--file", type=Path, metavar="TEXT", help="a UTF-8 text (default: the one in the package)")
    parser.add_argument("--tokens", type=int, metavar="N", help="the first N tokens of it only")
    parser.add_argument(
        "--decode",
        action="store_true",
        help="token by token through the compiled decode pass, as in generation: slower, and what users get",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser


def _quality(args: argparse.Namespace) -> int:
    if args.tokens is not None and args.tokens < 2:
        raise InputError(f"--tokens must be at least 2, not {args.tokens}: the first token is given, not predicted")
    text = held_text() if args.file is None else _read(args.file)
    from minillm.llm import LLM
    from minillm.loading import DEFAULT_MODEL

    model = DEFAULT_MODEL if args.model is None else args.model
    reference = LLM(model, device=args.device, dtype="float32")
    ids = reference.tokenizer.encode(text)[: args.tokens]
    ids = ids[: reference.config.max_position_embeddings + 1]
    if args.json:
        rows = [{**asdict(row), "change": row.result.change} for row in _rows(args, model, reference, ids)]
        weights = reference.model.nbytes
        print(json.dumps({"model": str(model), "tokens": len(ids), "float32_bytes": weights, "rows": rows}, indent=1))
        return 0
    print(f"{model} on {len(ids):,} tokens, {_way(args)}; the reference is the same model in float32\n")
    numbers = f"{'MB':>8}{'bits/weight':>13}{'perplexity':>12}{'change':>9}{'KL':>9}{'same top':>11}"
    print(f"{'weights':<10}{'K and V':<10}{numbers}")
    reference_told = False
    for row in _rows(args, model, reference, ids):
        if not reference_told:
            print(f"{'float32':<10}{'float32':<10}{reference.model.nbytes / 1e6:>8.1f}{32:>13.2f}"
                  f"{row.result.reference_perplexity:>12.3f}")  # fmt: skip
            reference_told = True
        print(_line(row), flush=True)
    print("\nKL: nats per token; same top: positions whose likeliest token is the reference's")
    return 0


def held_text() -> str:
    """The text in the package: some 2,200 tokens of plain prose on several matters, written for this purpose."""
    return files("minillm.data").joinpath(HELD_TEXT).read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingError(f"there is no text file {str(path)!r}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"cannot read the text file {str(path)!r}: {error.strerror}") from None


def _way(args: argparse.Namespace) -> str:
    return "token by token through the decode pass" if args.decode else "many rows at a time"


def _rows(args: argparse.Namespace, name: str, reference: "LLM", ids: Sequence[int]) -> Iterator[Row]:
    """Each row as it is measured. One model beside the reference is in memory at a time."""
    from minillm.device import dtype_name
    from minillm.divergence import compare
    from minillm.llm import LLM

    for quantize in args.quantize:
        for kv_dtype in args.kv_dtype:
            llm = LLM(
                name,
                device=args.device,
                dtype=args.dtype,
                quantize=None if quantize == UNQUANTIZED else quantize,
                kv_dtype=kv_dtype,
                compile=args.decode,
            )
            if args.decode and llm.model.decode_pass is None:
                raise InputError("--decode measures the compiled decode pass, and there is none here: leave it out")
            cache = llm.new_cache(len(ids))
            result = compare(reference.model, llm.model, ids, cache=cache, decode=args.decode)
            weights = dtype_name(llm.model.dtype) if quantize == UNQUANTIZED else quantize
            size = llm.model.nbytes
            yield Row(weights, dtype_name(llm.kv_dtype), size, 8 * size / llm.model.num_parameters, result)


def _line(row: Row) -> str:
    r = row.result
    return (
        f"{row.weights:<10}{row.kv:<10}{row.weight_bytes / 1e6:>8.1f}{row.bits_per_weight:>13.2f}{r.perplexity:>12.3f}"
        f"{r.change:>+9.2%}{r.kl:>9.4f}{r.same_top:>11.1%}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
