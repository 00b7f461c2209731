"""`python -m minillm.doctor`: what this machine has for the engine, from the GPU's slot up to PyTorch."""

import sys
from collections.abc import Sequence

from minillm.cli import Parser, guarded

PROG = "minillm doctor"


def main(argv: Sequence[str] | None = None) -> int:
    """Check the machine, bottom to top. Returns the exit code: 0 if nothing failed, 1 if something did."""
    parser = Parser(
        prog=PROG,
        description="Check the stack in the order in which a GPU box is brought up, and the CPU path.",
        epilog="Exit code: 0 if nothing failed (warnings are no failure), 1 if something failed, 2 for a wrong call.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    args = parser.parse_args(argv)
    return guarded(lambda: _report(args.json), PROG)


def _report(json: bool) -> int:
    from minillm.machine.doctor.diagnosis import findings
    from minillm.machine.doctor.finding import first_failure
    from minillm.machine.doctor.probe import examine
    from minillm.machine.doctor.report import as_json, print_report
    from minillm.machine.doctor.system import System

    found = findings(examine(System()))
    if json:
        print(as_json(found))
    else:
        from rich.console import Console

        print_report(found, Console())
    return 0 if first_failure(found) is None else 1


if __name__ == "__main__":
    sys.exit(main())
