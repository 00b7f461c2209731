"""What `bench_serve` prints: for each run what was asked for, what came of it, and whether it is as it must be."""

import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from minillm.benchmark.many.summary import percentiles
from minillm.benchmark.report import Report, duration
from minillm.benchmark.serving.ending import Ended
from minillm.benchmark.serving.fuzz import Fuzzed
from minillm.benchmark.serving.leaving import Left
from minillm.benchmark.serving.overhead import Overhead
from minillm.benchmark.serving.slow import Beside
from minillm.benchmark.serving.sustained import Sustained
from minillm.benchmark.serving.target import Still

MB = 1e6
WIDTH = 80
FIRST_FAULTS = 5
FLAT = 1.05
HEALTH_S = 0.1
OVERHEAD = 0.1
SLOWED = 1.1


class ServeReport(Report):
    """Prints each run as it ends, and remembers whether all were as they must be."""

    good = True

    def sustained(self, run: Sustained) -> None:
        """Many clients, for minutes."""
        heard, health = run.heard, run.health_s
        self._title(f"{run.clients} streaming clients for {run.seconds:.0f} s")
        self._line("streams", f"{len(heard):,}, {run.lost} of them not whole", run.lost == 0)
        self._verdicts("texts", run.verdicts)
        tokens = sum(one.tokens for one in heard)
        self._line("tokens", f"{tokens:,}, {run.tokens_per_s:.1f} a second; {run.prefix_hits:.0%} of prompts cached")
        self._line("TTFT", _spread([one.ttft_s for one in heard if one.ttft_s is not None]))
        self._line("TPOT", _spread([one.tpot_s for one in heard if one.tpot_s is not None]))
        p99 = percentiles(health).get(99, float("inf"))
        self._line("/health", f"{_spread(health)}, asked {len(health):,} times", p99 < HEALTH_S)
        if run.growth is not None:
            warm, last = run.resident[-1][1] / run.growth / MB, run.resident[-1][1] / MB
            told = f"{run.resident[0][1] / MB:,.0f} MB at first, {warm:,.0f} warm, {last:,.0f} at the end"
            self._line("memory", told, run.growth < FLAT)
        self._line("at rest", f"{_still(run.before)}; afterwards {_still(run.after)}", run.after.requests == 0)

    def left(self, run: Left) -> None:
        """Clients that disconnect."""
        self._title(f"{run.clients:,} clients that disconnect at random moments")
        self._line("they left", _counts(run.moments))
        self._verdicts("others", run.verdicts)
        self._line("at rest", f"{_still(run.before)}; afterwards {_still(run.after)}", run.nothing_is_left)

    def beside(self, run: Beside) -> None:
        """Slow readers."""
        self._title(f"{run.slow} readers that do not read until the others are done")
        slow, reading = (duration(statistics.median(times)) for times in (run.tpot_slow_s, run.tpot_reading_s))
        told = f"{slow}; beside readers that read, {reading}: {run.ratio:.2f} times as much"
        self._line("TPOT of others", told, run.ratio < SLOWED)
        self._verdicts("others", run.verdicts)
        self._line("slow streams", f"{run.whole} of {run.slow} whole, once they were read", run.whole == run.slow)

    def fuzzed(self, run: Fuzzed) -> None:
        """Wrong bodies."""
        self._title(f"{run.bodies:,} bodies with something wrong in them")
        self._line("answers", ", ".join(f"{count:,} x {status}" for status, count in sorted(run.statuses.items())))
        self._line("200", f"{run.valid:,} were right after all")
        self._line("not in shape", f"{len(run.wrong):,}", not run.wrong)
        for one in run.wrong[:FIRST_FAULTS]:
            self.say(f"  {one}")

    def ended(self, run: Ended) -> None:
        """SIGTERM."""
        self._title(f"SIGTERM under load, with a grace of {run.grace_s:g} s")
        self._line("streams", _counts(run.ends), run.all_told)
        self._verdicts("whole ones", run.verdicts)
        self._line("the process", f"ended after {run.seconds:.1f} s, exit code {run.exit_code}", run.exit_code == 0)

    def overhead(self, run: Overhead) -> None:
        """One request, with and without the server."""
        self._title(f"one request, {len(run.steps_s)} times through the engine alone and through the server, in turns")
        self._line("a step alone", _spread(run.steps_s))
        self._line("in the server", _spread(run.in_server_s))
        self._line("at the client", _spread(run.client_s))
        self._line("added", f"{run.share:.1%} of a step", run.share < OVERHEAD)

    def _title(self, text: str) -> None:
        self.say(f"\n{text}")

    def _verdicts(self, what: str, verdicts: Counter[str]) -> None:
        if verdicts:
            self._line(what, f"{_counts(verdicts)} to what a client gets alone", set(verdicts) <= {"equal", "close"})

    def _line(self, what: str, told: str, good: bool | None = None) -> None:
        """good: None where nothing is demanded of it."""
        self.good = self.good and good is not False
        mark = {None: "  ", True: "ok", False: "NO"}[good]
        self.say(textwrap.fill(told, WIDTH, initial_indent=f"  {mark} {what:<14} ", subsequent_indent=" " * 20))


def _counts(counts: Mapping[str, int] | Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())) or "none"


def _spread(seconds: Sequence[float]) -> str:
    """Median and 99th percentile."""
    found = percentiles(seconds)
    return f"{duration(found[50])} median, {duration(found[99])} p99" if found else "none"


def _still(held: Still) -> str:
    files = "" if held.open_files is None else f", {held.open_files} files"
    return f"{held.requests} requests, {held.blocks_share:.0%} of blocks, {held.tasks} tasks{files}"
