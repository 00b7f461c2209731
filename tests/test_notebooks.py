"""Every notebook is executed again, from top to bottom, and was committed with the outputs of such a run."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def text_outputs(notebook) -> list[str]:
    """What each code cell printed or returned, as text."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs) for cell in cells]


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.real_model
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom_and_prints_what_it_was_committed_with(path, model_dir):
    committed = nbformat.read(path, as_version=4)
    counts = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "committed without outputs, or executed out of order"
    rerun = nbformat.read(path, as_version=4)
    NotebookClient(
        rerun, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    assert text_outputs(rerun) == text_outputs(committed)
