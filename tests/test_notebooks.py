"""The committed notebooks are what their sources give when they are run from top to bottom."""

import pytest
from notebook_tool import build_tool

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


@pytest.mark.real_model
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_again_and_says_what_it_was_committed_with(name, model_dir):
    differences = build_tool.check(name)
    assert not differences, "\n".join(differences)
