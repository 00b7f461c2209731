"""`python -m minillm.book`: build the book, chapters and notebooks, into HTML pages that need no network."""

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minillm.cli import Parser, guarded
from minillm.errors import InputError, MissingError

PROG = "minillm book"
ROOT = Path(__file__).parents[1]
BUILD = Path("build") / "book"

# Written into every site that is built here: a folder with it is ours to replace. (Sphinx leaves a mark of its own,
# but in anybody's site.)
MARK = ".minillm-book"


def main(argv: Sequence[str] | None = None) -> int:
    """Build the site; the path of its first page goes to stdout, everything else to stderr. Returns the exit code."""
    parser = Parser(prog=PROG, description="Build the book into HTML, and print where its first page lies.")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help=f"where to (default: {BUILD.as_posix()} in the project)"
    )
    args = parser.parse_args(argv)
    return guarded(lambda: _print_path(ROOT / BUILD if args.out is None else args.out), PROG)


def _print_path(out: Path) -> int:
    print(build(ROOT, out))
    return 0


def build(root: Path, out: Path) -> Path:
    """Build the chapters and notebooks of the project at `root` into `out`; give the path of the first page.

    Every page is made anew, one after the other. A warning (an unknown term, a link to nowhere, an included object
    that is gone) fails the build: Sphinx names file and line on stderr. Raises MissingError where the book or the
    tools are not there, InputError where the book has a mistake or `out` holds something else.
    """
    chapters = root / "chapters"
    if not (chapters / "conf.py").is_file():
        raise MissingError(f"there is no book at {chapters}: run this in a checkout of the project (pip install -e .)")
    if any(importlib.util.find_spec(tool) is None for tool in ("sphinx", "myst_nb", "sphinx_book_theme")):
        raise MissingError('building the book needs the "book" extra: pip install -e ".[book]" -c constraints.txt')
    _check_replaceable(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="minillm-book-", dir=out.parent) as scratch:
        site = Path(scratch) / "site"
        if _sphinx(root, chapters, site, notes=Path(scratch) / "doctrees") != 0:
            raise InputError("the book was not built: mend what is named above, and run this again")
        (site / MARK).write_text("Built by `minillm book`, which replaces this folder whole.\n", encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        site.replace(out)
    return (out / "index.html").resolve()


def _check_replaceable(out: Path) -> None:
    """An earlier build is replaced whole (its pages may be gone from the book); anything else is left alone."""
    if out.is_symlink():
        raise InputError(f"{out} is a link, and the book replaces its folder whole: name the folder itself with --out")
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out} is not an earlier build of the book: choose a new or empty folder with --out")


def _sphinx(root: Path, config: Path, site: Path, notes: Path) -> int:
    """Sphinx's exit status. `notes` is where it keeps what it has read while it builds."""
    from sphinx.cmd.build import main as sphinx_build

    quiet_and_strict = ["--quiet", "--fail-on-warning", "--jobs", "1"]
    folders = ["-d", str(notes), "-c", str(config), str(root), str(site)]
    return sphinx_build(["-b", "html", *quiet_and_strict, *folders])


if __name__ == "__main__":
    sys.exit(main())
