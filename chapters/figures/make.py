"""Draw the book's plots: `python chapters/figures/make.py` writes them beside this file.

A plot here is made of arithmetic alone. What is measured belongs in a notebook, on the reader's own machine.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from plots import ch02, ch03, ch04, ch05, ch06, ch07, ch08, ch09, ch10, ch12, ch13, ch14

PLOTS: dict[str, Callable[[], str]] = {
    **ch02.PLOTS,
    **ch03.PLOTS,
    **ch04.PLOTS,
    **ch05.PLOTS,
    **ch06.PLOTS,
    **ch07.PLOTS,
    **ch08.PLOTS,
    **ch09.PLOTS,
    **ch10.PLOTS,
    **ch12.PLOTS,
    **ch13.PLOTS,
    **ch14.PLOTS,
}


def make(folder: Path) -> None:
    """Write every plot into `folder`."""
    for name, draw in PLOTS.items():
        (folder / name).write_bytes(draw().encode("utf-8"))  # bytes: the same line ends on every system


if __name__ == "__main__":
    make(Path(__file__).parent)
    print(*PLOTS, sep="\n", file=sys.stderr)
