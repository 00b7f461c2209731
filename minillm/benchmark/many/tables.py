"""What `bench_batch` prints: tables for people, within 80 columns."""

from collections.abc import Mapping, Sequence

from minillm.benchmark.many.check import CLOSE, Checked
from minillm.benchmark.many.parts import Curve
from minillm.benchmark.many.serve import Served, Serving, steps_told
from minillm.benchmark.many.step_figures import StepFigures
from minillm.benchmark.many.summary import PERCENTILES, CurveRow, ServedRow
from minillm.benchmark.many.workload import Workload
from minillm.benchmark.report import Report, duration, new_table, rate
from minillm.machine.roofline import Machine

CURVE_LEGEND = """\
tok/s      of all requests together; TPOT: seconds for a token of each of them
x 1        against one request in the same engine
at most    the roofline's: weights once, keys and values of each request, and
           operations of each, at the speeds that were measured in this run
"""

SERVED_LEGEND = """\
tok/s      of output as it was asked for, over the time until all were done
TTFT       from when all requests came in: a wait for a place is part of it
ours/it    our median rate over this engine's: above 1, ours is faster
"""

STEPS_LEGEND = """\
computed   tokens that passes computed; again: those computed before, whose
           blocks had been taken away
waste      slots of reserved blocks that hold no token, averaged over the steps
whole      the same, if every running request had the model's whole context
other      share of the steps' time that was neither pass nor choice of tokens
"""


class BatchReport(Report):
    """Prints each part as it becomes known."""

    def curve(self, rows: Sequence[CurveRow], curve: Curve, machine: Machine, alone_tokens_per_s: float) -> None:
        """Throughput and TPOT by the number of requests."""
        bandwidth, flops = machine.bandwidth_bytes_per_s / 1e9, machine.flops_per_s / 1e9
        self.say(
            f"requests that decode at once, each behind {curve.context:,} tokens, {curve.new_tokens:,} out of each"
        )
        self.say(f"against {bandwidth:.1f} GB/s and {flops:.1f} GFLOP/s, the best seen before and meanwhile\n")
        table = new_table()
        for title in ("N", "tok/s", "least to most", "x 1", "TPOT", "at most", "TPOT least", "limit", "reached"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(
                str(row.batch),
                rate(row.tokens_per_s),
                f"{rate(row.least)} to {rate(row.most)}",
                "" if row.speed_up is None else f"{row.speed_up:.2f}",
                duration(row.tpot_s),
                rate(row.predicted_tokens_per_s),
                duration(row.predicted_tpot_s),
                row.bound_by,
                f"{row.share:.0%}",
            )
        self.console.print(table)
        self.say(f"\none request without the engine (prefill, decode): {rate(alone_tokens_per_s)} tok/s\n")
        self.say(CURVE_LEGEND)

    def served(self, title: str, rows: Sequence[ServedRow]) -> None:
        """A set of requests, engine by engine: rates, and how long requests waited."""
        self.say(f"{title}\n")
        table = new_table()
        table.add_column("engine", no_wrap=True)
        for column in ("tok/s", "least to most", "in all", "ours/it"):
            table.add_column(column, justify="right", no_wrap=True)
        for row in rows:
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            spread = f"{rate(row.least)} to {rate(row.most)}"
            table.add_row(row.engine, rate(row.tokens_per_s), spread, duration(row.total_s), ratio)
        self.console.print(table)
        self.say("")
        self._waits(rows)
        self.say(SERVED_LEGEND)

    def _waits(self, rows: Sequence[ServedRow]) -> None:
        table = new_table()
        table.add_column("percentiles", no_wrap=True)
        for what in ("TTFT", "TPOT"):
            for p in PERCENTILES:
                table.add_column(f"{what} {p}", justify="right", no_wrap=True)
        for row in rows:
            each = [*(row.ttft_s.get(p) for p in PERCENTILES), *(row.tpot_s.get(p) for p in PERCENTILES)]
            table.add_row(row.engine, *("" if seconds is None else duration(seconds) for seconds in each))
        self.console.print(table)
        self.say("")

    def steps(self, figures: Mapping[str, StepFigures], *, timed: bool) -> None:
        """What our engine says of its steps, by policy. timed: whether its seconds mean anything."""
        table = new_table()
        table.add_column("steps of", no_wrap=True)
        titles = ("steps", "computed", "again", "preempted", "waste", "whole", *(("other",) if timed else ()))
        for column in titles:
            table.add_column(column, justify="right", no_wrap=True)
        for name, found in figures.items():
            table.add_row(
                name,
                f"{found.steps:,}",
                f"{found.computed_tokens:,}",
                f"{found.recomputed_tokens:,}",
                f"{found.preemptions:,}",
                f"{found.kv_waste:.1%}",
                f"{found.waste_of_whole_contexts:.1%}",
                *((f"{found.bookkeeping_share:.1%}",) if timed else ()),
            )
        self.console.print(table)
        self.say("")
        self.say(STEPS_LEGEND)

    def prefix(self, workload: Workload, runs: Mapping[str, Served], *, timed: bool) -> None:
        """Prompt tokens computed with the prefix cache and without."""
        self.say(f"{workload.count:,} requests that begin with the same {workload.prefix:,} tokens\n")
        table = new_table()
        table.add_column("prefixes", no_wrap=True)
        for column in ("prompt tokens computed", "found", *(("in all",) if timed else ())):
            table.add_column(column, justify="right", no_wrap=True)
        steps = steps_told(runs)
        for name, found in steps.items():
            seconds = (duration(runs[name].total_s),) if timed else ()
            table.add_row(name, f"{found.prompt_tokens:,}", f"{found.cached_tokens:,}", *seconds)
        self.console.print(table)
        with_it, without = steps.values()
        saved = 1 - with_it.prompt_tokens / without.prompt_tokens
        self.say(f"\nthe prefix cache saves {saved:.1%} of the prompts' work\n")

    def checked(self, found: Checked, serving: Serving) -> None:
        """Whether the engine's tokens are those of each request alone."""
        self.say(
            f"{found.requests:,} requests through {serving.num_blocks:,} blocks of {serving.block_size} tokens: "
            f"{found.preemptions:,} preemptions, {found.recomputed_tokens:,} tokens computed again"
        )
        equal = found.tokens - len(found.differences)
        self.say(f"{equal:,} of {found.tokens:,} tokens are those that each request alone chooses")
        self.say(f"at {found.close:,} places its two best are closer than {CLOSE:g} in logits\n")
        for difference in found.differences:
            how = "WRONG" if difference in found.wrong else "close"
            place = f"request {difference.request}, token {difference.place}"
            self.say(f"{how}: {place}: alone it prefers another by {difference.gap:.2g}")
        self.say(f"tokens equal: {'no' if found.wrong else 'yes'}\n")
