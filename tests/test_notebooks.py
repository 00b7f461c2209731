"""The committed notebooks are what their sources give when they are run from top to bottom."""

import pytest
from notebook_tool import build_tool

from minillm.exercises import reader_files
from minillm.exercises.manifest import EXERCISES

NAMES = build_tool.notebook_names()


def test_there_are_notebooks():
    assert NAMES


def test_no_notebook_is_without_a_source():
    built = sorted(path.stem for path in build_tool.NOTEBOOKS.glob("*.ipynb"))
    assert built == NAMES, "edit notebooks/src/NAME.py, then run: python notebooks/build.py NAME"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_cells_of_its_source_and_was_run_in_order(name):
    committed, source = build_tool.read_committed(name), build_tool.read_source(name)
    differences = build_tool.source_differences(committed, source)
    assert not differences, f"run: python notebooks/build.py {name}\n" + "\n".join(differences)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_in_the_form_that_the_tool_writes(name):
    text = build_tool.notebook_path(name).read_text(encoding="utf-8")
    assert text == build_tool.as_text(build_tool.read_committed(name)), f"run: python notebooks/build.py {name}"


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)
def test_the_notebook_has_a_cell_with_the_stub_and_its_check(exercise):
    """What readers fill in is the stub of their file, letter by letter, in a cell that can be run as it is."""
    stub = reader_files.cut(reader_files.pristine(exercise.file_name))[1][exercise.id].text
    body = stub.split("\n", 1)[1].strip()
    name = next(name for name in NAMES if name.startswith(f"{exercise.chapter:02}-"))
    cells = {cell.source: cell for cell in build_tool.read_committed(name).cells if cell.cell_type == "code"}
    check = f'check("{exercise.id}", {exercise.name})'
    source = next((source for source in cells if source.startswith(f"{body}\n\n\n{check}")), None)
    assert source, f"notebooks/src/{name}.py: the stub of {exercise.id} as in minillm/exercises/pristine, then {check}"
    told = cells[source].outputs[0].text
    assert f"exercise {exercise.id} is not started" in told
    assert "your cell, line " in told, "where a cell lies differs from run to run"


@pytest.mark.real_model
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_again_and_says_what_it_was_committed_with(name, model_dir):
    differences = build_tool.check(name)
    assert not differences, "\n".join(differences)
