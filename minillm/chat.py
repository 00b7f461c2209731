"""`python -m minillm.chat`: talk with the model, turn by turn.

The KV cache is kept between turns: each turn computes only what the conversation did not hold before.
"""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minillm.cli import Parser, add_model_flags, add_sampling_flags, guarded, load_llm, sampling_params
from minillm.errors import InputError
from minillm.generate import print_tables, say, summary, write

if TYPE_CHECKING:
    from minillm.generation import Generation
    from minillm.llm import LLM
    from minillm.sampler import SamplingParams

PROG = "minillm chat"
HELP = "/reset starts anew, /exit or Ctrl-D ends, /help says this, Ctrl-C stops an answer and keeps what was said"


class ChatSession:
    """A conversation with its cache. `start` a turn, iterate over it, `commit` it."""

    def __init__(self, llm: "LLM", system: str | None = None, context: int | None = None) -> None:
        """context: tokens that the conversation may have; None is the model's, at most 8192 (memory is reserved)."""
        self.llm = llm
        self.opening = [{"role": "system", "content": system}] if system is not None else []
        self.messages = list(self.opening)
        if context is not None and not 1 < context <= llm.config.max_position_embeddings:
            limit = llm.config.max_position_embeddings
            raise InputError(f"the context must be 2 to {limit} tokens, the model's own, not {context}")
        self.cache = llm.new_cache(8192 if context is None else context)
        self.cached_ids: tuple[int, ...] = ()

    def start(self, text: str, params: "SamplingParams") -> "Generation":
        """A turn: the answer to `text`. What the cache holds of the conversation is not computed again.

        Raises InputError when the conversation has outgrown the cache; the conversation is then as it was before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        num_tokens = len(self.llm.tokenizer.encode_chat(messages))
        if num_tokens >= self.cache.max_seq_len:
            raise InputError(
                f"the conversation has {num_tokens:,} tokens and there is room for"
                f" {self.cache.max_seq_len:,}: /reset starts anew"
            )
        generation = self.llm.start(messages, params, cache=self.cache, cached_ids=self.cached_ids)
        self.cached_ids = self.cached_ids[: self.cache.length]
        self.messages = messages
        return generation

    def commit(self, generation: "Generation") -> None:
        """Keep the turn (also one that was stopped in the middle): its text, and the ids that the cache now holds."""
        self.messages.append({"role": "assistant", "content": generation.completion().text})
        ids = (*generation.prompt_ids, *(step.token_id for step in generation.steps))
        self.cached_ids = ids[: self.cache.length]

    def reset(self) -> None:
        """Forget the conversation. The cache needs no clearing: the next turn keeps only the start that it shares."""
        self.messages = list(self.opening)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = Parser(prog=PROG, description=f"Talk with the model, turn by turn. {HELP}.")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument("--context", type=int, metavar="N", help="tokens to keep (default: the model's, at most 8192)")
    parser.add_argument("--stats", action="store_true", help="after each answer: times, rates and KV bytes")
    add_model_flags(parser)
    add_sampling_flags(parser)
    args = parser.parse_args(argv)
    return guarded(lambda: _chat(args), PROG)


def _chat(args: argparse.Namespace) -> int:
    params = sampling_params(args)
    llm = load_llm(args)
    if not llm.tokenizer.has_chat_template:
        raise InputError("this model has no chat template: use minillm generate --raw")
    session = ChatSession(llm, args.system, args.context)
    llm.tokenizer.encode_chat([*session.messages, {"role": "user", "content": ""}])  # a system message that is no text
    _edit_lines()
    say(HELP)
    while (text := _read_turn()) is not None:
        command = text.strip()
        if command == "/exit":
            break
        if command == "/help":
            say(HELP)
        elif command == "/reset":
            session.reset()
            say("a new conversation")
        elif text.startswith("/"):
            say(f"there is no command {text.split()[0]!r}: {HELP}")
        elif command:
            _answer(session, text, params, args.stats)
    return 0


def _edit_lines() -> None:
    """Arrow keys and history at the prompt, where the system has readline: importing it is all that `input` needs."""
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")


def _read_turn() -> str | None:
    """The next line of the user's; None at the end of input. Ctrl-C at the prompt clears the line."""
    while True:
        try:
            if sys.stdin.isatty() and sys.stdout.isatty():
                return input("> ")  # readline draws the line anew while it is edited, so it must know the prompt
            # Elsewhere the prompt goes to stderr, so that a pipe on stdout receives the answers alone.
            sys.stderr.write("> ")
            sys.stderr.flush()
            # As bytes: a line that is not UTF-8 must not take those after it along, as a text stream's would.
            if not (line := sys.stdin.buffer.readline()):
                raise EOFError
            return line.decode("utf-8").rstrip("\r\n")
        except EOFError:
            sys.stderr.write("\n")
            return None
        except KeyboardInterrupt:
            sys.stderr.write("\n")
        except UnicodeDecodeError:
            say("that line is not UTF-8 text; it was not sent")


def _answer(session: ChatSession, text: str, params: "SamplingParams", stats: bool) -> None:
    """One turn, streamed. What cannot be answered is said in one sentence, and the conversation goes on."""
    try:
        generation = session.start(text, params)
    except InputError as error:
        say(str(error))
        return
    except KeyboardInterrupt:
        say("stopped before it was sent")
        return
    try:
        for piece in generation:
            write(piece.text)
    except KeyboardInterrupt:
        write(generation.unshown_text())
    write("\n")
    session.commit(generation)
    if stats:
        generation.measure_bandwidth()
    print_tables(generation, stats=stats)
    cached = generation.cached_tokens
    say(f"{summary(generation)}; {cached} tokens were in the cache")


if __name__ == "__main__":
    raise SystemExit(main())
