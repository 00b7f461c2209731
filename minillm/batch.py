"""`python -m minillm.batch in.jsonl -o out.jsonl`: a file of requests in OpenAI's batch format, many at a time.

Only the output file gets answers; everything that is said goes to stderr.
"""

import argparse
import time
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.cli import (
    Parser,
    add_model_flags,
    add_serving_flags,
    checked_kv_bytes,
    guarded,
    load_llm,
    served_name,
)
from minillm.errors import InputError
from minillm.generate import say
from minillm.page import check_destination

if TYPE_CHECKING:
    from minillm.batch_file.orders import Survey
    from minillm.batch_file.output import Answered, OutputFile
    from minillm.batch_file.work import Totals, Work
    from minillm.engine.log import StepLog

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
    add_serving_flags(parser)
    parser.add_argument(
        "--timeline", type=Path, metavar="FILE", help="write a page that shows who was computed when (a short batch's)"
    )
    add_model_flags(parser)
    return parser


def _batch(args: argparse.Namespace) -> int:
    kv_bytes = _checked(args)
    from minillm.batch_file.orders import survey
    from minillm.batch_file.output import OutputFile

    seen, name = survey(args.input), served_name(args)
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
        return _answer(args, name, kv_bytes, seen, output, before)


def _checked(args: argparse.Namespace) -> int | None:
    """Refuse what the flags alone show to be wrong. The bytes that the KV cache may take, if they were given."""
    kv_bytes = checked_kv_bytes(args)
    if args.input.exists() and args.output.exists() and args.output.samefile(args.input):
        raise InputError(f"{args.output} is the input: name another file for the answers")
    if args.timeline is not None:
        check_destination(args.timeline)
    return kv_bytes


def _answer(
    args: argparse.Namespace, name: str, kv_bytes: int | None, seen: "Survey", output: "OutputFile", before: "Answered"
) -> int:
    """Answer the rest, and say what became of it; the exit code."""
    from minillm.engine.log import StepLog
    from minillm.engine.timeline import write_timeline

    log = StepLog()
    work = _work(args, name, kv_bytes, output, log)
    if before.fingerprints - {work.fingerprint}:
        say(f"some answers in {args.output} were made with other settings than these (see their system_fingerprint)")
    started = time.monotonic()
    interrupted, totals = _run(args, work, seen, before), work.totals
    rate = totals.completion_tokens / (time.monotonic() - started)
    if args.timeline is not None:
        write_timeline(args.timeline, log, work.titles)
        say(f"who was computed when is in {args.timeline}: open it in a browser")
    answered, failed = len(before.ids) + totals.lines, before.failed + totals.failed
    if interrupted:
        say(f"stopped: {args.output} has {answered:,} of {len(seen.ids):,} answers, and the same command goes on there")
        return 130
    tokens = f"{totals.prompt_tokens:,} tokens in, {totals.completion_tokens:,} out, {rate:,.1f} tokens/s"
    say(f"{args.output} has all {answered:,} answers{_of_them(failed)}; {tokens}")
    return WRONG_LINES if failed else 0


def _run(args: argparse.Namespace, work: "Work", seen: "Survey", before: "Answered") -> bool:
    """Answer what has no answer yet, with a bar. True if Ctrl-C ended it: what was answered is in the file."""
    from minillm.batch_file.orders import orders
    from minillm.engine.offline import progress_bar

    left = filterfalse(lambda order: order.id in before.ids, orders(args.input, seen))
    with progress_bar(enabled=True) as bar:
        done = bar.add_task("requests", total=len(seen.ids), completed=len(before.ids), tokens=0)

        def tell(totals: "Totals", tokens: int) -> None:
            bar.update(done, completed=len(before.ids) + totals.lines, tokens=tokens)

        try:
            work.run(left, tell)
        except KeyboardInterrupt:
            return True
    return False


def _work(args: argparse.Namespace, name: str, kv_bytes: int | None, output: "OutputFile", log: "StepLog") -> "Work":
    """The model on an engine, ready to work."""
    from minillm.batch_file.work import Work
    from minillm.server.load import fingerprint, new_engine
    from minillm.server.prepare import Served

    llm, drawn = load_llm(args), args.timeline is not None
    engine = new_engine(llm, args.max_batch_size, kv_bytes, observer=log.append if drawn else None)
    served = Served.on(engine, name, llm.tokenizer)
    return Work(engine, served, output, fingerprint=fingerprint(args, llm), keep_titles=drawn)


def _of_them(failed: int) -> str:
    """, 3 of them errors"""
    return f", {failed:,} of them errors" if failed else ""


if __name__ == "__main__":
    raise SystemExit(main())
