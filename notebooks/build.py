"""The notebook tool: run the sources under `notebooks/src/` and write the notebooks that are committed.

    python notebooks/build.py                      # all of them
    python notebooks/build.py 05-the-kv-cache      # one
    python notebooks/build.py --keep-measured      # what measured cells printed stays, as chapters quote it
    python notebooks/build.py --check              # write nothing; say per cell what is not as committed

A source is a script in percent format (`# %%` starts a cell, `# %% [markdown]` a text). It is read by jupytext, run
from top to bottom in a new kernel by nbclient, and brought into one normal form, so that building twice gives the
same bytes. Only a cell tagged `measured` (`# %% tags=["measured"]`) may print something else each time: it holds times.
"""

import argparse
import difflib
import hashlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

from minillm.cli import wait_politely

NOTEBOOKS = Path(__file__).resolve().parent
SECONDS_PER_CELL = 120

# Nothing of the machine that built it: a kernel's own answer would name the version of its Python.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}


class BuildError(Exception):
    """A notebook that cannot be built, in words for its author."""


def source_path(name: str, root: Path = NOTEBOOKS) -> Path:
    """Where the script of notebook `name` is."""
    return root / "src" / f"{name}.py"


def notebook_path(name: str, root: Path = NOTEBOOKS) -> Path:
    """Where the committed notebook `name` is."""
    return root / f"{name}.ipynb"


def notebook_names(root: Path = NOTEBOOKS) -> list[str]:
    """All notebooks that have a source, in reading order."""
    return sorted(path.stem for path in (root / "src").glob("*.py"))


def read_source(name: str, root: Path = NOTEBOOKS) -> NotebookNode:
    """The script as a notebook that has not been run: cells, their tags and ids, and no outputs."""
    text = source_path(name, root).read_text(encoding="utf-8")
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        cell.id = _cell_id(cell.source, seen[cell.source])
        seen[cell.source] += 1
    return notebook


def _cell_id(source: str, earlier: int) -> str:
    """Made from the source and the number of `earlier` cells that are equal: a new cell leaves the other ids alone."""
    return hashlib.sha256(f"{earlier}\n{source}".encode()).hexdigest()[:12]


def execute(notebook: NotebookNode, root: Path = NOTEBOOKS) -> NotebookNode:
    """The notebook with the outputs of a run in a new kernel, normalised.

    The kernel works in `root` and imports the package that lies beside it. Raises BuildError for a cell that
    raises, takes longer than SECONDS_PER_CELL, or ends its kernel.
    """
    package = os.pathsep.join([str(NOTEBOOKS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="nb") as sockets:
        client = NotebookClient(
            notebook,
            timeout=SECONDS_PER_CELL,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(root)}},
            config=_transport(Path(sockets)),
        )
        try:
            client.execute(env={**os.environ, "PYTHONPATH": package})
        except (CellExecutionError, DeadKernelError, TimeoutError) as error:
            raise BuildError(_without_colours(str(error)).strip()) from None
    if any(output.output_type == "error" for cell in notebook.cells for output in cell.get("outputs", ())):
        raise BuildError("a cell raises, and its tag lets it pass: readers would take it for a mistake")
    return normalise(notebook)


def _transport(sockets: Path) -> Config:
    """How the kernel is talked to: through files in `sockets`, where there are such (all but Windows).

    A kernel that listens on TCP warns about it at every start. The address is spelled out, because by default it
    is relative, and the kernel works in another directory than this program.
    """
    if os.name == "nt":
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "ip": str(sockets / "kernel")}})


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Take out of an executed notebook what differs from run to run without meaning anything.

    What was written to stderr goes to this program's own: a progress bar of the first run is no part of a notebook,
    and a warning is for its author to mend.
    """
    notebook.metadata = nbformat.from_dict(METADATA)
    count = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        count += 1
        cell.execution_count = count
        for output in cell.outputs:
            if output.get("name") == "stderr":
                print(f"code cell {count} wrote to stderr:\n{output.text}", file=sys.stderr)
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
            _scrub(output)
    return notebook


def _scrub(output: NotebookNode) -> None:
    """Objects print where they lie in memory, which is elsewhere each time."""
    if "text" in output:
        output.text = _without_addresses(output.text)
    for kind, value in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = _without_addresses(value)


def _without_addresses(text: str) -> str:
    return re.sub(r"\b0x[0-9a-fA-F]{6,}\b", "0x...", text)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def as_text(notebook: NotebookNode) -> str:
    """The file's content: JSON, one newline at its end."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def read_committed(name: str, root: Path = NOTEBOOKS) -> NotebookNode:
    """The notebook as it lies on disk. Raises BuildError when it does not."""
    path = notebook_path(name, root)
    if not path.is_file():
        raise BuildError(f"{path.name} has not been built")
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, UnicodeDecodeError) as error:
        raise BuildError(f"{path.name} is not a notebook ({type(error).__name__}): build it anew") from None


def build(name: str, root: Path = NOTEBOOKS, *, keep_measured: bool = False) -> None:
    """Run one source and write its notebook. The outputs of measured cells are new ones, or, with `keep_measured`,
    those that are committed, where the cell is still the same.
    """
    fresh = execute(read_source(name, root), root)
    if keep_measured:
        recorded = {cell.id: cell for cell in read_committed(name, root).cells}
        for cell in fresh.cells:
            if "measured" in cell.metadata.get("tags", ()) and cell.id in recorded:
                cell.outputs = recorded[cell.id].outputs
    text = as_text(fresh)
    with notebook_path(name, root).open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)


def check(name: str, root: Path = NOTEBOOKS) -> list[str]:
    """How the committed notebook differs from its source and from a new run: a line or a few for each cell."""
    committed, fresh = read_committed(name, root), read_source(name, root)
    stale = source_differences(committed, fresh)
    return stale or output_differences(committed, execute(fresh, root))


def source_differences(committed: NotebookNode, fresh: NotebookNode) -> list[str]:
    """What is in the notebook but not in its source, or the other way round. Runs nothing."""
    found = []
    kept = ("nbformat", "nbformat_minor", "metadata")
    if set(committed) != set(fresh) or any(committed[key] != fresh[key] for key in kept):
        found.append("the notebook's metadata differ: it was saved by another program")
    if len(committed.cells) != len(fresh.cells):
        found.append(f"the notebook has {len(committed.cells)} cells, its source {len(fresh.cells)}")
    count = 0
    for number, (old, new) in enumerate(zip(committed.cells, fresh.cells, strict=False), start=1):
        where = f"cell {number} ({new.cell_type})"
        if (old.cell_type, old.source) != (new.cell_type, new.source):
            found.append(f"{where}: not as in the source\n{_diff(old.source, new.source)}")
            break  # what follows one missing cell is shifted, and would all differ
        if (old.id, old.metadata) != (new.id, new.metadata):
            found.append(f"{where}: id or metadata differ")
        if old.cell_type == "code":
            count += 1
            if old.execution_count != count:
                found.append(f"{where}: execution count {old.execution_count}, not {count}: not run from top to bottom")
    return found


def output_differences(committed: NotebookNode, fresh: NotebookNode) -> list[str]:
    """Where two runs of the same cells say different things. Of a measured cell, only that it says something."""
    found = []
    for number, (old, new) in enumerate(zip(committed.cells, fresh.cells, strict=True), start=1):
        if new.cell_type != "code":
            continue
        if any(output.output_type == "error" for output in old.outputs):
            found.append(f"cell {number}: committed with an error")
        elif "measured" in new.metadata.get("tags", ()):
            if bool(old.outputs) != bool(new.outputs):
                found.append(f"cell {number} (measured): outputs in one run only")
        elif old.outputs != new.outputs:
            found.append(f"cell {number}: outputs differ\n{_diff(_output_text(old), _output_text(new))}")
    return found


def _output_text(cell: NotebookNode) -> str:
    """Outputs as lines that can be compared by eye: text as it is, a picture by its kind and a digest."""
    lines = []
    for output in cell.outputs:
        if "text" in output:
            lines.append(output.text)
        for kind, value in output.get("data", {}).items():
            plain = kind == "text/plain"
            lines.append(value if plain else f"[{kind} {hashlib.sha256(str(value).encode()).hexdigest()[:12]}]")
    return "\n".join(lines)


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "committed", "now", lineterm="", n=1)
    return "\n".join(f"    {line}" for line in lines) or "    (the same text in other parts)"


def main(arguments: Sequence[str] | None = None, root: Path = NOTEBOOKS) -> int:
    """The command line; 0 when all is well, 1 for a notebook that differs or fails, 2 for a wrong name."""
    parser = argparse.ArgumentParser(description="Run notebook sources and write the notebooks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="e.g. 05-the-kv-cache; all of them if none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; say per cell what is not as committed")
    parser.add_argument("--keep-measured", action="store_true", help="keep the outputs of unchanged measured cells")
    options = parser.parse_args(arguments)
    if options.check and options.keep_measured:
        parser.error("--check writes nothing, so there is nothing to keep: leave out --keep-measured")
    known = notebook_names(root)
    names = [name.removesuffix(".py").removesuffix(".ipynb") for name in options.names] or known
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no notebook {', '.join(unknown)}: there are {', '.join(known)}")
    wait_politely()  # kernels inherit the environment in which it leaves its wish
    failed = False
    for name in names:
        try:
            differences = check(name, root) if options.check else build(name, root, keep_measured=options.keep_measured)
        except BuildError as error:
            differences = [str(error)]
        failed = failed or bool(differences)
        done = "as committed" if options.check else "built"
        print(f"{name}: {'FAILED' if differences else done}", *(differences or ()), sep="\n  ", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
