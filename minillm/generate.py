"""`python -m minillm.generate --prompt "..."`: one prompt in, its completion out, as it is made.

Only the completion goes to stdout; everything else goes to stderr.
"""

import argparse
import contextlib
import dataclasses
import io
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.cli import Parser, add_model_flags, add_sampling_flags, guarded, load_llm, sampling_params
from minillm.errors import InputError, MissingError
from minillm.exercises.mine import FINISHED, check_exercises_fit, running_on_mine
from minillm.page import check_destination

if TYPE_CHECKING:
    from minillm.generation import Generation
    from minillm.llm import LLM

PROG = "minillm generate"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    args = _parser().parse_args(argv)
    return guarded(lambda: _generate(args), PROG)


def _parser() -> Parser:
    parser = Parser(
        prog=PROG, description="Answer a prompt, or continue it with --raw, streaming the text as it comes."
    )
    where = parser.add_argument_group("the prompt (default: stdin)")
    where.add_argument("--prompt", metavar="TEXT")
    where.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a UTF-8 file; - is stdin")
    where.add_argument("--raw", action="store_true", help="continue the text as it stands, without the chat template")
    where.add_argument("--system", metavar="TEXT", help="the system message (needs a chat template)")
    add_model_flags(parser)
    add_sampling_flags(parser)
    parser.add_argument(
        "--mine",
        nargs="?",
        const=FINISHED,
        metavar="IDS",
        help="run on your own exercises: all that are finished, or these (5.2,5.3)",
    )
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--logprobs", type=int, metavar="N", help="with --json: log-probabilities, N alternatives each")
    shown.add_argument("--stats", action="store_true", help="TTFT, TPOT, tokens/s and KV bytes, on stderr")
    shown.add_argument("--trace", action="store_true", help="the request's journey, step by step, on stderr")
    shown.add_argument("--trace-html", type=Path, metavar="FILE", help="write the journey as a page that replays it")
    shown.add_argument("--json", action="store_true", help="one JSON object on stdout instead of the text")
    shown.add_argument("--no-cache", action="store_true", help="compute all tokens again at each step (slow)")
    return parser


def _generate(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise InputError("--logprobs are printed with --json only: add --json")
    if args.raw and args.system is not None:
        raise InputError("--raw continues text as it stands and --system needs the chat template: use one of them")
    params = sampling_params(args, logprobs=args.logprobs)
    text = _read_prompt(args)
    if args.trace_html is not None:
        check_destination(args.trace_html)
        from minillm.trace_html import with_alternatives

        params = with_alternatives(params)
    with running_on_mine(args.mine, say):  # the model is made within, for that too may run on the reader's code
        llm = load_llm(args)
        if args.mine is not None:
            check_exercises_fit(llm.config)
        generation = llm.start(_prompt_for(llm, args, text), params, use_cache=not args.no_cache)
        interrupted = _run(generation, quiet=args.json)
        _report(generation, args)
    return 130 if interrupted else 0


def _read_prompt(args: argparse.Namespace) -> str:
    """The text of --prompt, of --prompt-file, or of stdin when it is not a terminal."""
    if args.prompt is not None and args.prompt_file is not None:
        raise InputError("--prompt and --prompt-file are two prompts: use one of them")
    if args.prompt is not None:
        return args.prompt
    if args.prompt_file is None and sys.stdin.isatty():
        raise InputError('there is no prompt: use --prompt "..." or --prompt-file FILE, or pipe text in')
    source = "stdin" if args.prompt_file in (None, "-") else args.prompt_file
    try:
        data = sys.stdin.buffer.read() if source == "stdin" else Path(source).read_bytes()
    except FileNotFoundError:
        raise MissingError(f"there is no prompt file {source!r}") from None
    except OSError as error:
        raise InputError(f"cannot read the prompt file {source!r}: {error.strerror}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"the prompt from {source} is not UTF-8 text") from None


def _prompt_for(llm: "LLM", args: argparse.Namespace, text: str) -> str | list[dict[str, str]]:
    """The text itself, or the messages that carry it where the model has a chat template."""
    if args.raw:
        return text
    if not llm.tokenizer.has_chat_template:
        if args.system is not None:
            raise InputError("--system needs a chat template, and this model has none")
        say("this model has no chat template: the prompt is continued as it stands")
        return text
    if not text.strip():
        raise InputError("the prompt is empty: give at least one character")
    say("the prompt is sent as a user's message in the model's chat template; --raw continues it as it stands")
    system = [{"role": "system", "content": args.system}] if args.system is not None else []
    return [*system, {"role": "user", "content": text}]


def _run(generation: "Generation", quiet: bool) -> bool:
    """Stream the completion to stdout (unless quiet). True if Ctrl-C ended it: what was made is kept."""
    interrupted = False
    try:
        for piece in generation:
            if piece.text and not quiet:
                write(piece.text)
    except KeyboardInterrupt:
        interrupted = True
    if not quiet:
        write((generation.unshown_text() if interrupted else "") + "\n")
    return interrupted


def write(text: str) -> None:
    """Text to stdout, at once; characters that the terminal's encoding lacks become question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, errors="replace").decode(encoding))
    sys.stdout.flush()


def _report(generation: "Generation", args: argparse.Namespace) -> None:
    """After the completion: JSON if asked for, then the trace, the statistics, and one line of summary."""
    if args.json:
        completion = generation.completion()
        if args.logprobs is None:  # the page's own wish, if any, is not the user's
            completion = dataclasses.replace(completion, logprobs=None)
        print(json.dumps(dataclasses.asdict(completion), ensure_ascii=True))
    if args.stats or args.trace or args.trace_html is not None:
        generation.measure_bandwidth()
    print_tables(generation, trace=args.trace, stats=args.stats)
    say(summary(generation))
    if args.trace_html is not None:
        from minillm.loading import DEFAULT_MODEL
        from minillm.trace_html import write_trace

        write_trace(args.trace_html, generation, args.model or DEFAULT_MODEL)
        say(f"the journey is in {args.trace_html}: open it in a browser")


def print_tables(generation: "Generation", *, trace: bool = False, stats: bool = False) -> None:
    """The trace and the statistics, on stderr: as wide as a terminal, or, elsewhere, with no line cut or padded."""
    if not (trace or stats):
        return
    from rich.console import Console

    from minillm.trace import print_stats, print_trace

    plain = None if sys.stderr.isatty() else io.StringIO()
    console = Console(stderr=True, highlight=False) if plain is None else Console(file=plain, width=400)
    if trace:
        print_trace(generation, console)
    if stats:
        print_stats(generation, console)
    if plain is not None:
        print("\n".join(line.rstrip() for line in plain.getvalue().splitlines()), file=sys.stderr)


def summary(generation: "Generation") -> str:
    """One line: how much came out, how fast, and why it ended."""
    m = generation.metrics()
    ended = {"stop": "stopped by itself", "length": "length limit reached", "abort": "interrupted"}
    reason = ended[generation.finish_reason]
    if generation.finish_reason == "stop" and generation.steps[-1].finish_reason != "stop":
        reason = "stop string found"  # the model's own last step did not end it
    first = "" if m.ttft_s is None else f", first after {m.ttft_s:.2f} s"
    speed = f", {m.decode_tokens_per_s:.1f} tokens/s" if m.decode_tokens_per_s else ""
    return f"{m.prompt_tokens} tokens in, {m.completion_tokens} out{first}{speed}; {reason}"


def say(sentence: str) -> None:
    """A remark about the run, on stderr, in brackets."""
    # Whoever reads our remarks may have gone away: that must not end the answer on stdout.
    text = f"[{sentence}]"
    if sys.stderr.isatty():  # broken between words, which the terminal itself would not do
        text = textwrap.fill(text, shutil.get_terminal_size().columns)
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
