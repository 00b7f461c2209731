"""`minillm exercises`: where you are, and `minillm exercises reset 5.1`."""

from collections.abc import Sequence

from minillm.cli import Parser, guarded
from minillm.exercises.manifest import EXERCISES

PROG = "minillm exercises"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = Parser(prog=PROG, description="List the exercises and how far you are, or give a stub back.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    verbs.add_parser("list", help="the exercises and their state (the default)")
    reset = verbs.add_parser("reset", help="give a stub back; your version is kept beside it")
    reset.add_argument("what", metavar="ID", nargs="+", help="exercises (5.1 5.3), or a chapter for its whole file (5)")
    args = parser.parse_args(argv)
    return guarded(lambda: _reset(args.what) if args.verb == "reset" else _list(), PROG)


def _list() -> int:
    from minillm.exercises.progress import row_of, table

    print(table(map(row_of, EXERCISES)))
    return 0


def _reset(what: Sequence[str]) -> int:
    from minillm.exercises.manifest import select
    from minillm.exercises.reset import reset

    for each in what:
        select(each)  # a wrong one is refused before any stub is given back
    for each in what:
        print(reset(each))
    return 0
