"""The notebook tool, on small notebooks that need no model: what it writes, and every difference that it must see."""

import os

import nbformat
import pytest
from notebook_tool import build_tool

SOURCE = """\
# %% [markdown]
# # A title
#
# A text.

# %%
import os, sys, time
print("one")
sys.stdout.flush()
time.sleep(0.5)  # long enough for the kernel to send what there is
print("two", object())

# %% tags=["measured"]
print(time.perf_counter_ns())

# %%
{"a": 1, "object": object()}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder with the notebook `small`, built."""
    folder = tmp_path_factory.mktemp("notebooks")
    write_source(folder, "small", SOURCE)
    build_tool.build("small", folder)
    return folder


def write_source(folder, name, text):
    (folder / "src").mkdir(exist_ok=True)
    build_tool.source_path(name, folder).write_text(text, encoding="utf-8")


@pytest.fixture
def built(root):
    """A copy of the built notebook, to be spoilt."""
    return build_tool.read_committed("small", root)


@pytest.fixture
def source(root):
    """Its source, not run."""
    return build_tool.read_source("small", root)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_texts_and_cells_come_from_the_percent_script(built):
    assert [cell.cell_type for cell in built.cells] == ["markdown", "code", "code", "code"]
    assert built.cells[0].source == "# A title\n\nA text."
    assert built.cells[2].metadata == {"tags": ["measured"]}


def test_what_one_cell_prints_is_one_output(built):
    (output,) = code_cells(built)[0].outputs
    assert (output.name, output.text) == ("stdout", "one\ntwo <object object at 0x...>\n")


def test_addresses_are_scrubbed_from_values_too(built):
    (output,) = code_cells(built)[2].outputs
    assert output.data["text/plain"] == "{'a': 1, 'object': <object at 0x...>}"


def test_short_hexadecimal_numbers_are_not_taken_for_addresses():
    assert build_tool._without_addresses("0x7f and 0x7f3a5c001d30") == "0x7f and 0x..."


def test_cells_are_counted_from_one(built):
    assert [cell.execution_count for cell in code_cells(built)] == [1, 2, 3]
    assert code_cells(built)[2].outputs[0].execution_count == 3


def test_a_run_in_a_kernel_that_counted_on_is_counted_from_one_too():
    value = nbformat.v4.new_output("execute_result", {"text/plain": "1"}, execution_count=9)
    cell = nbformat.v4.new_code_cell("1", execution_count=9, outputs=[value])
    notebook = build_tool.normalise(nbformat.v4.new_notebook(cells=[cell]))
    assert notebook.cells[0].execution_count == notebook.cells[0].outputs[0].execution_count == 1


def test_metadata_hold_neither_times_nor_the_version_of_the_kernel(built):
    assert built.metadata == build_tool.METADATA
    assert all(set(cell.metadata) <= {"tags"} for cell in built.cells)


def test_building_twice_gives_the_same_bytes_except_in_measured_cells(root, built):
    build_tool.build("small", root)
    again = build_tool.read_committed("small", root)
    assert again.cells[2].outputs != built.cells[2].outputs, "a measured cell is measured again"
    again.cells[2].outputs = built.cells[2].outputs
    assert build_tool.as_text(again) == build_tool.as_text(built)


def test_what_a_measured_cell_said_can_be_kept_as_long_as_the_cell_is_the_same(root, built):
    write_source(root, "small", SOURCE.replace("# A text.", "# Another text."))
    build_tool.build("small", root, keep_measured=True)
    again = build_tool.read_committed("small", root)
    assert "Another" in again.cells[0].source
    assert again.cells[2].outputs == built.cells[2].outputs
    write_source(root, "small", SOURCE.replace("perf_counter_ns()", "perf_counter_ns() + 1"))
    build_tool.build("small", root, keep_measured=True)
    assert build_tool.read_committed("small", root).cells[2].outputs != built.cells[2].outputs, (
        "it measures another thing"
    )
    write_source(root, "small", SOURCE)
    build_tool.build("small", root)


def test_a_new_cell_leaves_the_ids_of_the_others_alone(root, built):
    write_source(root, "longer", SOURCE.replace("# %%\nimport", "# %%\n1 + 1\n\n# %%\nimport"))
    ids = {cell.id for cell in build_tool.read_source("longer", root).cells}
    assert {cell.id for cell in built.cells} < ids
    build_tool.source_path("longer", root).unlink()


def test_equal_cells_have_different_ids(root):
    write_source(root, "twins", "# %%\n1\n\n# %%\n1\n")
    first, second = build_tool.read_source("twins", root).cells
    assert first.source == second.source
    assert first.id != second.id
    build_tool.source_path("twins", root).unlink()


def test_an_untouched_notebook_passes_the_check(root, capsys):
    assert build_tool.main(["--check"], root) == 0
    assert capsys.readouterr().out == "small: as committed\n"


def test_a_changed_output_fails_the_check_and_is_shown(root, built, capsys):
    path = build_tool.notebook_path("small", root)
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace("two <", "three <"), encoding="utf-8")
    try:
        assert build_tool.main(["small", "--check"], root) == 1
    finally:
        path.write_text(original, encoding="utf-8")
    shown = capsys.readouterr().out
    assert "cell 2: outputs differ" in shown
    assert "-three <object" in shown
    assert "+two <object" in shown


def test_a_changed_picture_is_a_difference(built):
    fresh, committed = (nbformat.from_dict(built) for _ in range(2))
    for notebook, picture in ((fresh, "AAAA"), (committed, "BBBB")):
        notebook.cells[1].outputs = [nbformat.v4.new_output("display_data", {"image/png": picture})]
    (difference,) = build_tool.output_differences(committed, fresh)
    assert difference.startswith("cell 2: outputs differ")


def test_a_measured_cell_may_say_something_else_but_not_nothing(built):
    fresh = nbformat.from_dict(built)
    fresh.cells[2].outputs[0].text = "another time"
    assert build_tool.output_differences(built, fresh) == []
    built.cells[2].outputs = []
    assert build_tool.output_differences(built, fresh) == ["cell 3 (measured): outputs in one run only"]


def test_a_committed_error_is_a_difference_in_a_measured_cell_too(built):
    fresh = nbformat.from_dict(built)
    built.cells[2].outputs = [nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])]
    assert build_tool.output_differences(built, fresh) == ["cell 3: committed with an error"]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda notebook: notebook.cells[1].update(source="print(3)"), "cell 2 (code): not as in the source"),
        (lambda notebook: notebook.cells.pop(), "the notebook has 3 cells, its source 4"),
        (lambda notebook: notebook.cells[3].update(execution_count=7), "execution count 7, not 3"),
        (lambda notebook: notebook.cells[3].update(execution_count=None), "execution count None, not 3"),
        (lambda notebook: notebook.cells[2].metadata.clear(), "cell 3 (code): id or metadata differ"),
        (lambda notebook: notebook.cells[0].update(id="mine"), "cell 1 (markdown): id or metadata differ"),
        (lambda notebook: notebook.metadata.update(version=1), "the notebook's metadata differ"),
        (lambda notebook: notebook.update(nbformat_minor=4), "the notebook's metadata differ"),
        (lambda notebook: notebook.update(extra=1), "the notebook's metadata differ"),
    ],
)
def test_what_was_edited_in_the_notebook_instead_of_its_source_is_seen(built, source, spoil, expected):
    assert build_tool.source_differences(built, source) == []
    spoil(built)
    assert expected in "\n".join(build_tool.source_differences(built, source))


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(1)", "Kernel died"),
        ('# %% tags=["raises-exception"]\n1 / 0', "a cell raises, and its tag lets it pass"),
    ],
)
def test_a_cell_that_fails_or_kills_its_kernel_writes_no_notebook(tmp_path, capsys, cell, expected):
    write_source(tmp_path, "bad", f"# %%\n{cell}\n")
    assert build_tool.main(["bad"], tmp_path) == 1
    assert expected in capsys.readouterr().out
    assert not build_tool.notebook_path("bad", tmp_path).exists()


def test_a_warning_is_shown_to_the_author_and_not_committed(tmp_path, capsys):
    write_source(tmp_path, "warns", "# %%\nimport sys\nprint('beware', file=sys.stderr)\nprint('on')\n")
    build_tool.build("warns", tmp_path)
    assert "code cell 1 wrote to stderr:\nbeware" in capsys.readouterr().err
    (output,) = build_tool.read_committed("warns", tmp_path).cells[0].outputs
    assert (output.name, output.text) == ("stdout", "on\n")


def test_a_cell_without_end_is_stopped_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(build_tool, "SECONDS_PER_CELL", 1)
    write_source(tmp_path, "slow", "# %%\nwhile True: pass\n")
    with pytest.raises(build_tool.BuildError, match=r"timed out .* after 1 seconds"):
        build_tool.build("slow", tmp_path)


def test_cells_run_in_the_notebooks_folder_on_the_package_beside_them(tmp_path, capsys):
    write_source(tmp_path, "where", "# %%\nimport os, minillm\nprint(os.getcwd(), minillm.__file__, sep='\\n')\n")
    build_tool.build("where", tmp_path)
    folder, package = build_tool.read_committed("where", tmp_path).cells[0].outputs[0].text.split()
    assert os.path.samefile(folder, tmp_path)
    assert os.path.samefile(package, build_tool.NOTEBOOKS.parent / "minillm" / "__init__.py")


def test_a_notebook_that_was_never_built_fails_the_check(tmp_path, capsys):
    write_source(tmp_path, "new", "# %%\n1\n")
    assert build_tool.main(["--check"], tmp_path) == 1
    assert "new.ipynb has not been built" in capsys.readouterr().out


def test_an_unknown_name_is_refused_with_those_that_there_are(root, capsys):
    with pytest.raises(SystemExit) as stopped:
        build_tool.main(["smal"], root)
    assert stopped.value.code == 2
    assert "there is no notebook smal: there are small" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"no JSON", b"\xff\xfe", b"{}"])
def test_a_file_that_is_no_notebook_fails_the_check_in_one_line(tmp_path, capsys, content):
    write_source(tmp_path, "small", SOURCE)
    build_tool.notebook_path("small", tmp_path).write_bytes(content)
    assert build_tool.main(["small", "--check"], tmp_path) == 1
    assert "small.ipynb is not a notebook" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../small", "src/small.py"])
def test_a_path_is_no_name(root, name):
    with pytest.raises(SystemExit):
        build_tool.main([name], root)
