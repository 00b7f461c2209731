"""What the benchmark prints: tables for people, within 80 columns, and everything as JSON for programs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from minillm.benchmark.agreement import Agreement
from minillm.benchmark.engine import MINILLM
from minillm.benchmark.plan import Mode, Plan
from minillm.benchmark.session import Result
from minillm.benchmark.summary import Row
from minillm.benchmark.turns import DECODE, PREFILL
from minillm.benchmark.watch import cautions
from minillm.machine.roofline import Machine
from minillm.metrics import request_seconds

LEGEND = """\
least to most: the spread over the runs. ours/it: our median rate over this engine's.
MFU: operations of the layers / time / measured matmul speed. MBU: bytes of weights as stored, keys and values / time
/ measured bandwidth. TTFT: until the first token is chosen, tokenizing left out. load: until a first pass is over, the
file being in the system's memory. peak: above the process with everything imported."""


class Report:
    """Prints on one stream; where it is no terminal, plainly and 80 columns wide."""

    def __init__(self, stream: TextIO) -> None:
        self.console = Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=False)

    def say(self, text: str) -> None:
        """A paragraph."""
        self.console.print(Text(text))

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
        self.say(f"{result.mode.name}, medians of {plan.runs} runs\n")
        self._rates("prefill", [row for row in rows if row.what == PREFILL])
        self._rates("decode", [row for row in rows if row.what == DECODE])
        self._memory(result)
        if as_request:
            self._request(rows, plan)
        for sentence in cautions(result.looks):
            self.say(f"CAUTION: {sentence}: do not trust these figures")
        self.say("")

    def agreement(self, mode: Mode, found: Mapping[str, Agreement]) -> None:
        """Whether the peers compute the same model."""
        for title, agreed in found.items():
            counts = f"the same likeliest id after {agreed.equal} of {agreed.clear} prompts where ours is clear"
            self.say(f"engines agree: {agreed.verdict}   {title} ({mode.name}): {counts}")

    def _rates(self, what: str, rows: Sequence[Row]) -> None:
        if not rows:
            return
        prefill = what == PREFILL
        table = _table()
        table.add_column(what, no_wrap=True)
        table.add_column("engine", no_wrap=True)
        columns = ("tok/s", "least to most", "TTFT" if prefill else "a pass", "MFU" if prefill else "MBU", "ours/it")
        for title in columns:
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            point = f"{row.tokens:,} tokens" if prefill else f"{row.tokens:,} x {row.batch}"
            table.add_row(
                point if row.engine == MINILLM else "",
                row.engine,
                f"{row.median:,.1f}",
                f"{row.least:,.1f} to {row.most:,.1f}",
                f"{row.seconds_per_pass * 1e3:,.1f} ms",
                f"{row.utilization:.0%}",
                "" if row.ratio is None else f"{row.ratio:.2f}",
            )
        self.console.print(table)
        self.say("" if prefill else "(context x batch; tok/s are of all sequences together)\n")

    def _memory(self, result: Result) -> None:
        table = _table()
        for title in ("memory and loading", "weights", "KV", "peak", "peak/(w+KV)", "load"):
            table.add_column(title, justify="left" if title == "memory and loading" else "right", no_wrap=True)
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
        "cautions": cautions(result.looks),
        "agreement": agreement_json(result.agreement),
    }


def agreement_json(found: Mapping[str, Agreement]) -> dict[str, Any]:
    """By peer."""
    return {title: {"verdict": agreed.verdict, **asdict(agreed)} for title, agreed in found.items()}


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
