"""How what takes time is told: lines for whoever listens, and for a long download a bar, or a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

Progress = Callable[[str], None]

LINE_EVERY_S, LINES_APART_S = 30.0, 1.0


def tell_on_stderr(line: str) -> None:
    """What takes time at first use is said where it does not mix with a completion on stdout."""
    print(line, file=sys.stderr, flush=True)


def silent(line: str) -> None:
    """Nobody listens."""


@runtime_checkable
class Meter(Protocol):
    """Is told which file is being read, and of every byte of it that has come."""

    def file(self, name: str) -> None:
        """The next bytes belong to this file."""
        ...

    def add(self, count: int) -> None:
        """`count` more bytes are there; negative where some have to be fetched once more."""
        ...


@contextmanager
def meter(total: int, progress: Progress) -> Iterator[Meter]:
    """A meter of `total` bytes: a bar if lines go to a terminal on stderr, else lines."""
    if progress is tell_on_stderr and sys.stderr is not None and sys.stderr.isatty():
        with _bar(total) as bar:
            yield bar
    else:
        yield LineMeter(total, progress)


class LineMeter:
    """A line for each tenth of the way, of those that come fast not all, and on a slow way one for each half minute.

    `clock` gives seconds.
    """

    def __init__(self, total: int, progress: Progress, clock: Callable[[], float] = time.monotonic):
        self.total, self.progress, self.clock = total, progress, clock
        self.done = self.tenths = 0
        self.started = self.told = clock()
        self.name = ""

    def file(self, name: str) -> None:
        self.name = name

    def add(self, count: int) -> None:
        self.done += count
        now, tenths = self.clock(), 10 * self.done // max(self.total, 1)
        if now - self.told >= (LINES_APART_S if tenths > self.tenths else LINE_EVERY_S):
            self.tenths, self.told = tenths, now
            self.progress(self._line(now - self.started))

    def _line(self, seconds: float) -> str:
        rate = self.done / seconds if seconds > 0 else 0.0
        share = f"{100 * self.done / max(self.total, 1):3.0f} % of {size_text(self.total)}"
        left = f", {_duration((self.total - self.done) / rate)} left" if rate > 0 and self.done < self.total else ""
        return f"  {share}, {size_text(round(rate))}/s{left}  {self.name}"


@contextmanager
def _bar(total: int) -> Iterator[Meter]:
    """A bar of `rich` on stderr, as wide as the terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    narrow = console.width < 60
    columns = [BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    with Bars(*(columns[:2] if narrow else columns), console=console, expand=True) as bars:
        task = bars.add_task("", total=total)
        yield _BarMeter(lambda count: bars.advance(task, count), lambda name: bars.console.print(f"  {name}"))


class _BarMeter:
    def __init__(self, advance: Callable[[int], None], show: Callable[[str], None]):
        self._advance, self._show = advance, show

    def file(self, name: str) -> None:
        self._show(name)

    def add(self, count: int) -> None:
        self._advance(count)


def size_text(count: int) -> str:
    """Bytes as people read them: 1.23 GB, 45.6 MB, 7.8 kB, 9 bytes."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.2f} {unit}" if unit == "GB" else f"{value:.1f} {unit}"
    return f"{count} bytes"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
