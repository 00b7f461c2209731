"""Was the machine quiet while it was measured? If not, its figures are not to be believed, and the report says so.

Two signs: processor time that neither this program nor the engines used, and a speed of memory or of arithmetic that is
not the same from run to run.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

BUSY_SHARE = 0.1
"""Of the processors' time, what other programs may use: a tenth of two cores is a fifth of one."""

DRIFT = 0.15
"""By how much a speed may fall below the best that was seen: a quiet machine repeats within a few percent."""


@dataclass(frozen=True)
class Ticks:
    """Processor time since boot, of all processors together, in the system's clock ticks."""

    busy: int
    total: int


@dataclass(frozen=True)
class Look:
    """What was seen since the last look: the bandwidth now, and the share of processor time that others used.

    The share is None where the system does not say (it is read from /proc).
    """

    bandwidth_bytes_per_s: float
    share_of_others: float | None


def read_ticks(stat: Path = Path("/proc/stat")) -> Ticks | None:
    """The ticks until now; None where the system does not say."""
    try:
        first = stat.read_text(encoding="utf-8").split("\n")[0]
        user, nice, system, idle, iowait, *rest = map(int, first.split()[1:])
    except (OSError, ValueError):
        return None
    busy = user + nice + system + sum(rest[:3])  # rest: interrupts, soft interrupts, time stolen by the hypervisor
    return Ticks(busy, busy + idle + iowait)


def process_seconds(process_id: int) -> float:
    """Processor seconds that a process has used, all threads together; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()  # behind the name, which may hold anything: from the state on
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share_of_others(before: Ticks | None, after: Ticks | None, own_s: float, ticks_per_s: int) -> float | None:
    """The share of all processor time between two readings that others than we (`own_s` seconds) used; at least 0."""
    if before is None or after is None or after.total <= before.total:
        return None
    others = after.busy - before.busy - own_s * ticks_per_s
    return max(0.0, others / (after.total - before.total))


class Watch:
    """Looks at the machine between rounds. `engines` are the process ids of those that are measured."""

    def __init__(self, bandwidth: Callable[[], float], engines: Sequence[int] = ()) -> None:
        self.bandwidth, self.engines = bandwidth, engines
        self.looks: list[Look] = []
        self._start()

    def look(self) -> Look:
        """What happened since the last look; noted."""
        share = share_of_others(self._ticks, read_ticks(), self._own_seconds() - self._own_s, _ticks_per_s())
        self.looks.append(Look(self.bandwidth(), share))
        self._start()
        return self.looks[-1]

    def _start(self) -> None:
        self._ticks, self._own_s = read_ticks(), self._own_seconds()

    def _own_seconds(self) -> float:
        return time.process_time() + sum(process_seconds(engine) for engine in self.engines)


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def machine_is_busy(watched_s: float = 0.5) -> str | None:
    """A sentence if other programs used more than BUSY_SHARE of the processors while this one slept (Linux only)."""
    before = read_ticks()
    time.sleep(watched_s)
    return _busy(share_of_others(before, read_ticks(), 0.0, _ticks_per_s()), "before anything was measured")


def cautions(looks: Sequence[Look], reads: Sequence[float] = (), products: Sequence[float] = ()) -> list[str]:
    """A sentence for each sign that these looks, one per round, were not at a quiet machine.

    reads, products: bytes and operations per second, as they were measured beside single runs.
    """
    shares = [look.share_of_others for look in looks if look.share_of_others is not None]
    found = [_busy(max(shares, default=None), "in a round")]
    speeds = [*(look.bandwidth_bytes_per_s for look in looks), *reads]
    for what, unit, seen in (("memory read", "GB/s", speeds), ("products ran at", "GFLOP/s", products)):
        if seen and min(seen) < (1 - DRIFT) * max(seen):
            found.append(f"{what} {min(seen) / 1e9:,.1f} to {max(seen) / 1e9:,.1f} {unit} from run to run")
    return [sentence for sentence in found if sentence]


def _busy(share: float | None, when: str) -> str | None:
    if share is None or share <= BUSY_SHARE:
        return None
    return f"other programs used {share:.0%} of the processors {when}"
