"""A command line, run in the tests' own process: quick, and open to what a test replaces."""

from minillm.cli import main as minillm


def call(capsys, *args):
    """`minillm ...`: (exit code, stdout, stderr)."""
    try:
        code = minillm(args)
    except SystemExit as stop:
        code = stop.code
    out = capsys.readouterr()
    return code, out.out, out.err
