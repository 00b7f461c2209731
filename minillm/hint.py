"""`minillm hint 5.2`: the next hint for an exercise, as `pytest --hint 5.2` gives it, from any directory."""

from collections.abc import Sequence

from minillm.cli import Parser, guarded

PROG = "minillm hint"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    parser = Parser(prog=PROG, description="Print the next hint for an exercise; each gives away a little more.")
    parser.add_argument("exercise", metavar="ID", help="an exercise (5.2)")
    parser.add_argument("--again", action="store_true", help="begin with the first hint again")
    args = parser.parse_args(argv)
    return guarded(lambda: _hint(args.exercise, again=args.again), PROG)


def _hint(exercise_id: str, *, again: bool) -> int:
    from minillm.exercises.hints import next_hint
    from minillm.exercises.manifest import find

    print(next_hint(find(exercise_id), f"{PROG} {exercise_id} --again", again=again))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
