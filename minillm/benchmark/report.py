"""What the benchmark prints: tables for people, within 80 columns, and everything as JSON for programs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minillm.benchmark.agreement import Agreement
from minillm.benchmark.engine import FLASH_OFF, LLAMA_CPP, MINILLM
from minillm.benchmark.plan import Mode, Plan
from minillm.benchmark.session import Result
from minillm.benchmark.summary import Row
from minillm.benchmark.turns import DECODE, PREFILL, limits_of
from minillm.machine.roofline import Machine
from minillm.metrics import request_seconds

LEGEND = """\
decode   behind a context, for a batch ("512 x 8"); tok/s of all sequences
TTFT     time to first token: the prompt's pass, and the choice
MFU      operations of the layers / time / the best matmul speed seen
MBU      bytes of weights as stored, keys and values / time / bandwidth, the
         better of what was read right before the run and right after it
ours/it  our median rate over this engine's: above 1, ours is faster
peak     of memory in one request, above the process with all imported
load     until a first pass is over; the file is in the page cache"""
LLAMA_CPP_LEGEND = f"""\
{FLASH_OFF}  llama.cpp told to do without flash attention; the line above it is the
         same file with its defaults, which use it. Judge by the better one"""


class Report:
    """Prints on one stream; where it is no terminal, plainly and 80 columns wide."""

    def __init__(self, stream: Any) -> None:
        self.console = Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=False)

    def say(self, text: str) -> None:
        """A paragraph."""
        self.console.print(Text(text))

    def caution(self, sentence: str) -> None:
        """Why not to believe what is printed."""
        self.say(f"CAUTION: {sentence}: do not trust these figures\n")

    def ceilings(self, machine: str, by_dtype: Mapping[str, Machine], multiplied_in: Mapping[str, str]) -> None:
        """What this machine can do at most, before anything is set against it.

        `multiplied_in` says for each dtype in which one its numbers were multiplied.
        """
        self.say(f"{machine}\n")
        bandwidth = next(iter(by_dtype.values())).bandwidth_bytes_per_s
        self.say(f"memory     {bandwidth / 1e9:9,.1f} GB/s      measured now: no pass can read faster")
        for dtype, limits in by_dtype.items():
            fast = multiplied_in[dtype]
            how = "in products of large matrices" if fast == dtype else f"in {fast}: no instructions for {dtype}"
            self.say(f"{dtype:<10} {limits.flops_per_s / 1e9:9,.1f} GFLOP/s   {how}")
        self.say("")

    def result(self, result: Result, rows: Sequence[Row], plan: Plan, *, as_request: bool) -> None:
        """The tables of one mode, and whether to believe them."""
        runs = "one run" if plan.runs == 1 else f"medians of {plan.runs} runs"
        compiled = ", our decode compiled" if result.loaded[MINILLM].compiled else ""
        self.say(f"{result.mode.name}{compiled}, {runs}")
        self.say(f"MFU against {result.machine.flops_per_s / 1e9:,.1f} GFLOP/s, the best seen before and meanwhile")
        if reads := limits_of(result.runs, DECODE):
            self.say(f"MBU against {min(reads) / 1e9:.1f} to {max(reads) / 1e9:.1f} GB/s, read beside each run")
        self.say("")
        self._rates("prefill", [row for row in rows if row.what == PREFILL])
        self._rates("decode", [row for row in rows if row.what == DECODE])
        self._memory(result)
        if as_request:
            self._request(rows, plan)
        for sentence in result.cautions:
            self.caution(sentence)

    def legend(self, peers: Collection[str]) -> None:
        """What the words of the tables mean."""
        self.say(f"\n{LEGEND}")
        if LLAMA_CPP in peers:
            self.say(LLAMA_CPP_LEGEND)

    def agreement(self, mode: Mode, found: Mapping[str, Agreement]) -> None:
        """Whether the peers compute the same model."""
        for title, agreed in found.items():
            counts = f"{agreed.equal} of {agreed.clear} clear choices"
            self.say(f"engines agree: {agreed.verdict} ({title} in {mode.name}, {counts})")

    def _rates(self, what: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        prefill = what == PREFILL
        table = new_table(gap=1)  # as many columns as 80 hold beside the longest name of an engine
        table.add_column(what, no_wrap=True)
        table.add_column("engine", no_wrap=True)
        columns = ("tok/s", "least to most", "TTFT" if prefill else "a pass", "MFU" if prefill else "MBU", "ours/it")
        for title in columns:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            point = f"{row.tokens:,}" if prefill else f"{row.tokens:,} x {row.batch}"
            table.add_row(
                point if row.engine == MINILLM else "",
                row.engine,
                rate(row.median),
                f"{rate(row.least)} to {rate(row.most)}",
                duration(row.seconds_per_pass),
                f"{row.utilization:.0%}",
                "" if row.ratio is None else f"{row.ratio:.2f}",
            )
        self.console.print(table)
        self.say("")

    def _memory(self, result: Result) -> None:
        table = new_table()
        for title in ("memory", "weights", "KV", "peak", "peak/(w+KV)", "load"):
            table.add_column(title, justify="left" if title == "memory" else "right", no_wrap=True)
        for title, memory in result.memory.items():
            table.add_row(
                title,
                f"{memory.weights / 1e6:,.1f} MB",
                f"{memory.kv / 1e6:,.1f} MB",
                "unknown" if memory.peak is None else f"{memory.peak / 1e6:,.1f} MB",
                "" if memory.ratio is None else f"{memory.ratio:.2f}",
                f"{result.loaded[title].load_s:.2f} s",
            )
        self.console.print(table)
        self.say("")

    def _request(self, rows: Sequence[Row], plan: Plan) -> None:
        """How long the whole request takes: the prompt, then a pass for each token after the first."""
        prefill = {row.engine: row.seconds_per_pass for row in rows if row.what == PREFILL}
        decode = {row.engine: row.seconds_per_pass for row in rows if row.what == DECODE}
        times = {name: request_seconds(prefill[name], decode[name], plan.new_tokens) for name in prefill}
        each = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
        self.say(f"the whole request ({plan.prompts[0]:,} tokens in, {plan.new_tokens:,} out): {each}\n")


def as_json(result: Result, rows: Sequence[Row]) -> dict[str, Any]:
    """One mode: every run, what was made of them, and what was seen of the machine meanwhile."""
    return {
        "mode": asdict(result.mode),
        "ceilings": asdict(result.machine),
        "engines": {
            title: {**asdict(loaded), "memory": {**asdict(result.memory[title]), "ratio": result.memory[title].ratio}}
            for title, loaded in result.loaded.items()
        },
        "runs": [asdict(run) for run in result.runs],
        "summary": [asdict(row) for row in rows],
        "rounds": [asdict(look) for look in result.looks],
        "cautions": result.cautions,
        "agreement": agreement_json(result.agreement),
    }


def agreement_json(found: Mapping[str, Agreement]) -> dict[str, Any]:
    """By peer."""
    return {title: {"verdict": agreed.verdict, **asdict(agreed)} for title, agreed in found.items()}


def rate(tokens_per_s: float) -> str:
    """Tokens per second, as a figure."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= 1000 else f"{tokens_per_s:.1f}"


def duration(seconds: float) -> str:
    """Seconds or milliseconds, whichever reads better."""
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def new_table(gap: int = 2) -> Table:
    """Columns without lines between them, `gap` spaces apart."""
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
