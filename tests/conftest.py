"""Options for the book's exercises, and fixtures shared by the tests: the real SmolLM2, loaded once."""

from pathlib import Path

import jaxtyping
import pytest
import setuptools  # noqa: F401 - it replaces distutils, and refuses to where something has imported that before
from web_pages import start_browser

from minillm.cli import wait_politely
from minillm.errors import InputError
from minillm.exercises.hints import next_hint
from minillm.exercises.manifest import find, select_all

wait_politely()


@pytest.fixture(scope="session", autouse=True)
def _a_cache_directory_of_its_own(tmp_path_factory):
    """What is measured of this machine, while tests run on it, is not remembered for its user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINILLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


EXERCISE_TESTS = Path(__file__).resolve().parent / "test_exercises.py"


def pytest_addoption(parser):
    group = parser.getgroup("the book's exercises")
    group.addoption(
        "--ch",
        metavar="N",
        action="append",
        help="grade your exercises of chapter N (or one, 5.2), and nothing else; several times for several",
    )
    group.addoption("--hint", metavar="ID", nargs="?", const="", help="print the next hint for an exercise")
    group.addoption("--again", action="store_true", help="with --hint: begin with the first hint again")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Answer --hint without running any test; refuse ids that do not exist."""
    chapter, hint = config.getoption("--ch"), config.getoption("--hint")
    others = [given for given in config.option.file_or_dir if Path(given).resolve() != EXERCISE_TESTS]
    if chapter is not None and others:
        raise pytest.UsageError(
            f"--ch {' --ch '.join(chapter)} grades the exercises and runs no other tests:"
            f" leave out {' and '.join(others)}"
        )
    if hint == "":
        raise pytest.UsageError("--hint wants an exercise: pytest --hint 5.2 (`minillm exercises` lists them)")
    try:
        if chapter is not None:
            select_all(chapter)
        exercise = find(hint) if hint is not None else None
    except InputError as error:
        raise pytest.UsageError(str(error)) from None
    if exercise is None:
        if config.getoption("--again"):
            raise pytest.UsageError("--again goes with --hint: pytest --hint 5.1 --again")
        return None
    try:
        print(next_hint(exercise, f"pytest --hint {exercise.id} --again", again=config.getoption("--again")))
    except OSError as error:
        raise pytest.UsageError(f"{error.filename} cannot be written, where --hint counts: {error.strerror}") from None
    return 0


def pytest_configure(config):
    """With --ch, only the exercises are collected, and the table at the end is the summary."""
    if config.getoption("--ch") is not None:
        config.args[:] = [str(EXERCISE_TESTS)]
        config.option.reportchars = ""
        config.option.no_header = True


def pytest_collection_modifyitems(items):
    """Write into the report which tests ran on the real model, so that CI can tell."""
    for item in items:
        if item.get_closest_marker("real_model"):
            item.user_properties.append(("real_model", "yes"))


def pytest_terminal_summary(terminalreporter, config):
    """With --ch, the progress table."""
    if config.getoption("--ch") is not None:
        from minillm.exercises.progress import row_of, table

        terminalreporter.section("your exercises")
        terminalreporter.write_line(table(map(row_of, select_all(config.getoption("--ch")))))


@pytest.fixture(autouse=True)
def _no_shape_checks_on_the_real_model(request):
    """Hundreds of real decode steps take nearly twice as long with every call's shapes checked.

    `pytest tests/test_real_model.py` took 108 s with the checks and 61 s without, on two cores. The same code runs,
    checked, on tiny models in all other tests, so a wrong shape has no way past them.
    """
    if request.node.get_closest_marker("real_model") is None:
        yield
        return
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def two_threads():
    """More than one thread, whatever the environment says."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_dir():
    """The default model's directory; a fresh machine fetches it here (93 MB)."""
    from minillm.loading import DEFAULT_MODEL, resolve

    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def llm(model_dir):
    """The default model on the CPU in float32, the dtype in which its tokens are compared."""
    from minillm import LLM

    return LLM(model_dir, device="cpu", dtype="float32")


@pytest.fixture(scope="session")
def tokenizer(model_dir):
    """The real SmolLM2 tokenizer."""
    from minillm.tokenizer import Tokenizer

    return Tokenizer.from_directory(model_dir)


@pytest.fixture(scope="session")
def oracle_tokenizer(model_dir):
    """What `transformers` makes of the same directory."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium, for all tests of web pages."""
    driver = start_browser(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()
