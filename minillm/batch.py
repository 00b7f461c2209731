"""`python -m minillm.batch in.jsonl -o out.jsonl`: a file of requests in OpenAI's batch format, many at a time.

Only the output file gets answers; everything that is said goes to stderr.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.cli import Parser, add_model_flags, guarded, load_llm
from minillm.errors import InputError
from minillm.generate import say

if TYPE_CHECKING:
    from minillm.batch_file.orders import Survey
    from minillm.batch_file.output import Answered, OutputFile
    from minillm.batch_file.work import Totals
    from minillm.llm import LLM

PROG = "minillm batch"
DESCRIPTION = """\
Answer a file of requests in the batch format of OpenAI's API: a JSON object in each line of the input, and one in each
line of the output, in the order in which they come to their ends.

  in:   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "smollm2-135m", ...}}
  out:  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": ...}, "error": null}

A request that is wrong gets a line with its error; the others go on. Stopped or killed, the same command goes on where
it was. Exit code: 0 if all lines are answered, 1 if some of them are errors, 2 for a wrong call, 130 for Ctrl-C.
"""
WRONG_LINES = 1


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _batch(args), PROG)


def _parser() -> Parser:
    parser = Parser(prog=PROG, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", type=Path, metavar="IN.jsonl", help="the requests")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT.jsonl", required=True, help="the answers")
    parser.add_argument("--max-batch-size", type=int, metavar="N", help="requests computed at a time (default: 16)")
    parser.add_argument("--kv-memory", metavar="SIZE", help="what their keys and values may take (default: 1GiB)")
    parser.add_argument("--served-model-name", metavar="NAME", help="the requests' name for it (default: --model's)")
    add_model_flags(parser)
    return parser


def _batch(args: argparse.Namespace) -> int:
    kv_bytes = _checked(args)
    from minillm.batch_file.orders import survey
    from minillm.batch_file.output import OutputFile
    from minillm.loading.registry import DEFAULT_MODEL

    seen = survey(args.input)
    name = args.served_model_name or args.model or DEFAULT_MODEL
    if seen.models and name not in seen.models:
        asked = min(seen.models)
        raise InputError(
            f"no request of {args.input} is for {name!r}: they ask for {asked!r:.80}; --served-model-name says in whose"
            " name a model answers"
        )
    with OutputFile(args.output) as output:
        before = output.recover(seen.ids, name)
        if len(before.ids) == len(seen.ids):
            say(f"{args.output} has all {len(seen.ids):,} answers already{_of_them(before.failed)}")
            return WRONG_LINES if before.failed else 0
        if before.ids:
            say(f"{args.output} has {len(before.ids):,} of {len(seen.ids):,} answers: the rest is done now")
        return _run(args, load_llm(args), name, kv_bytes, seen, output, before)


def _checked(args: argparse.Namespace) -> int | None:
    """Refuse what the flags alone show to be wrong. The bytes that the KV cache may take, if they were given."""
    from minillm.fit import parse_memory

    if args.max_batch_size is not None and args.max_batch_size < 1:
        raise InputError(f"--max-batch-size must be at least 1, not {args.max_batch_size}")
    if args.input.exists() and args.output.exists() and args.output.samefile(args.input):
        raise InputError(f"{args.output} is the input: name another file for the answers")
    return None if args.kv_memory is None else parse_memory(args.kv_memory)


def _run(
    args: argparse.Namespace,
    llm: "LLM",
    name: str,
    kv_bytes: int | None,
    seen: "Survey",
    output: "OutputFile",
    before: "Answered",
) -> int:
    """Answer what has no answer yet."""
    from minillm.batch_file.orders import orders
    from minillm.batch_file.work import Work
    from minillm.engine.offline import progress_bar
    from minillm.server.load import fingerprint, new_engine, served_by

    engine = new_engine(llm, args.max_batch_size, kv_bytes)
    made_by = fingerprint(args, llm)
    if before.fingerprints - {made_by}:
        say(f"some answers in {args.output} were made with other settings than these (see their system_fingerprint)")
    started, interrupted = time.monotonic(), False
    with progress_bar(enabled=True) as bar:
        done = bar.add_task("requests", total=len(seen.ids), completed=len(before.ids), tokens=0)

        def tell(totals: "Totals", tokens: int) -> None:
            bar.update(done, completed=len(before.ids) + totals.lines, tokens=tokens)

        work = Work(engine, served_by(engine, llm, name), output, fingerprint=made_by, tell=tell)
        try:
            work.run(filterfalse(lambda order: order.id in before.ids, orders(args.input, seen)))
        except KeyboardInterrupt:
            interrupted = True
    totals, seconds = work.totals, time.monotonic() - started
    answered, failed = len(before.ids) + totals.lines, before.failed + totals.failed
    if interrupted:
        say(f"stopped: {args.output} has {answered:,} of {len(seen.ids):,} answers, and the same command goes on there")
        return 130
    rate = totals.completion_tokens / seconds if seconds else 0.0
    say(f"{args.output} has all {answered:,} answers{_of_them(failed)}; {totals.prompt_tokens:,} tokens in, "
        f"{totals.completion_tokens:,} out, {rate:,.1f} tokens/s")  # fmt: skip
    return WRONG_LINES if failed else 0


def _of_them(failed: int) -> str:
    """, 3 of them errors"""
    return f", {failed:,} of them errors" if failed else ""


if __name__ == "__main__":
    raise SystemExit(main())
