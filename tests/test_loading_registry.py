"""From an alias to a model on disk: pip against an index on loopback, and every way in which it can fail."""

import dataclasses
import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import empty_slots, hf_tensors, write_directory
from wheel_index import WHEEL, isolate_pip, make_wheel, serve

from minillm.errors import InputError, MissingError
from minillm.loading import fill, open_checkpoint
from minillm.loading import registry as registry_module
from minillm.loading.files import sha256_of
from minillm.loading.registry import ALIASES, DEFAULT_MODEL, fetch_alias, resolve, weights_directory


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def index(made, monkeypatch):
    server, index = serve(made[0])
    isolate_pip(monkeypatch, index.url)
    yield index
    index.release.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def source(made):
    return made[1]


def fetch(source, weights: Path, **options) -> Path:
    return fetch_alias(source, weights, lambda line: None, **options)


def refused(source, weights: Path, error: type[Exception]) -> str:
    """The sentence of a failed fetch, after which the weights directory must be as it was."""
    before = sorted(weights.iterdir()) if weights.exists() else []
    with pytest.raises(error) as caught:
        fetch(source, weights)
    assert sorted(weights.iterdir()) == before, "something was left behind"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_whole(directory: Path) -> None:
    assert sorted(path.name for path in directory.parent.iterdir() if path.suffix != ".whl") == [directory.name]
    fill(empty_slots(hf_tensors()), open_checkpoint(directory).tensors)


def test_an_alias_is_fetched_once_and_then_found(index, source, tmp_path):
    directory = fetch(source, tmp_path)
    assert directory == tmp_path / "tiny"
    assert_whole(directory)
    asked = list(index.requests)
    assert f"/files/{WHEEL}" in asked
    assert not [path for path in asked if "dependency" in path], "pip asked for a dependency"
    assert fetch(source, tmp_path) == directory
    assert index.requests == asked, "the second call went to the network"
    record = json.loads((directory / "minillm.json").read_text(encoding="utf-8"))
    assert sha256_of(directory / record["gguf"]) == source.gguf_sha256
    assert record["source"] == "tiny-model==1.0"
    assert record["licence"] == "Apache-2.0"


def test_force_fetches_anew(index, source, tmp_path):
    directory = fetch(source, tmp_path)
    (directory / "stale").touch()
    fetch(source, tmp_path, force=True)
    assert not (directory / "stale").exists()
    assert_whole(directory)


def test_a_directory_of_an_older_conversion_is_made_anew(index, source, tmp_path):
    directory = fetch(source, tmp_path)
    record = json.loads((directory / "minillm.json").read_text(encoding="utf-8"))
    (directory / "minillm.json").write_text(json.dumps(record | {"format": 0}), encoding="utf-8")
    (directory / "stale").touch()
    fetch(source, tmp_path)
    assert not (directory / "stale").exists()


def test_a_wheel_placed_by_hand_is_used_without_any_network(made, source, tmp_path, monkeypatch):
    isolate_pip(monkeypatch, "http://127.0.0.1:9/simple/")
    (tmp_path / "weights").mkdir()
    shutil.copy(made[0], tmp_path / "weights" / WHEEL)
    assert_whole(fetch(source, tmp_path / "weights"))
    assert (tmp_path / "weights" / WHEEL).exists(), "the wheel that a person placed was removed"


def test_a_directory_of_wheels_can_be_named(made, source, tmp_path, monkeypatch):
    isolate_pip(monkeypatch, "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("MINILLM_WHEEL_DIR", str(made[0].parent))
    assert_whole(fetch(source, tmp_path / "weights"))
    monkeypatch.setenv("MINILLM_WHEEL_DIR", str(tmp_path / "nowhere"))
    message = refused(source, tmp_path / "other", MissingError)
    assert "MINILLM_WHEEL_DIR" in message
    assert WHEEL in message


def test_a_wheel_with_another_checksum_is_refused(index, source, tmp_path):
    other = dataclasses.replace(source, wheel_sha256="0" * 64)
    message = refused(other, tmp_path, InputError)
    assert message.startswith(f"{WHEEL} is not the file that is expected: its SHA-256 is ")
    assert "0" * 64 in message


def test_a_member_with_another_checksum_is_refused(index, source, tmp_path):
    other = dataclasses.replace(source, gguf_sha256="0" * 64)
    assert "tiny.gguf is not the file that is expected" in refused(other, tmp_path, InputError)


def test_a_placed_wheel_with_another_checksum_is_refused_but_kept(made, source, tmp_path):
    (tmp_path / WHEEL).write_bytes(made[0].read_bytes()[:-1])
    assert "if you placed the file yourself, replace it" in refused(source, tmp_path, InputError)


def test_a_server_that_dies_midway_leaves_nothing_and_the_next_try_succeeds(index, source, tmp_path):
    index.cut = len(index.content) // 2
    message = refused(source, tmp_path, MissingError)
    assert "could not download tiny-model==1.0 (pip says: " in message
    index.cut = None
    assert_whole(fetch(source, tmp_path))


def test_no_network_says_what_to_do(source, tmp_path, monkeypatch):
    isolate_pip(monkeypatch, "http://127.0.0.1:9/simple/")
    message = refused(source, tmp_path, MissingError)
    assert "check the network" in message
    assert f"pip download --no-deps {source.requirement}" in message
    assert str(tmp_path) in message


def test_a_python_without_pip_says_how_to_get_it(source, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "-m ensurepip" in refused(source, tmp_path, MissingError)


def test_a_full_disk_is_seen_before_anything_is_downloaded(index, source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    big = dataclasses.replace(source, wheel_bytes=93_000_000, gguf_bytes=98_000_000, converted_bytes=538_000_000)
    message = refused(big, tmp_path, InputError)
    assert "needs 729 MB" in message
    assert "1 MB are free" in message
    assert index.requests == []


def test_a_weights_directory_that_cannot_be_written_gets_one_sentence(index, source, tmp_path):
    (tmp_path / "file").write_text("not a directory", encoding="utf-8")
    with pytest.raises(InputError, match="MINILLM_WEIGHTS"):
        fetch(source, tmp_path / "file")


def test_a_directory_that_is_not_ours_is_not_replaced(index, source, tmp_path):
    write_directory(tmp_path / "tiny", hf_tensors())
    assert "was not made by minillm" in refused(source, tmp_path, InputError)


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from minillm.loading.registry import fetch_alias
from minillm.loading.wheel import ModelSource
source = ModelSource(**eval(sys.argv[2]))
fetch_alias(source, Path(sys.argv[3]), print)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_process_that_is_ended_midway_leaves_no_model_and_the_next_succeeds(index, source, tmp_path, how):
    index.cut, index.hold = len(index.content) // 2, True
    repository = str(Path(registry_module.__file__).parents[2])
    arguments = [repository, repr(dataclasses.asdict(source)), str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert index.reached_hold.wait(60), "the download never began"
    child.send_signal(how)
    assert child.wait(60) != 0
    index.release.set()
    assert not (tmp_path / "tiny").exists(), "a half-fetched model has the name of a whole one"
    if how == signal.SIGINT:
        assert list(tmp_path.iterdir()) == [], "Ctrl-C left something behind"
    index.cut, index.hold = None, False
    assert_whole(fetch(source, tmp_path))


def _fetch_in_child(source, weights: Path) -> None:
    fetch(source, weights)


def test_two_processes_that_fetch_at_once_both_succeed(index, source, tmp_path):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fetch_in_child, args=(source, tmp_path)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert_whole(tmp_path / "tiny")


def test_resolve_prefers_an_alias_and_a_path_can_still_be_meant(tmp_path, monkeypatch):
    fetched = []
    monkeypatch.setattr(registry_module, "fetch_alias", lambda source, *rest: fetched.append(source.alias) or tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT_MODEL).mkdir()
    resolve(DEFAULT_MODEL)
    assert fetched == [DEFAULT_MODEL]
    assert resolve(f"./{DEFAULT_MODEL}") == Path(DEFAULT_MODEL)
    assert resolve(Path(DEFAULT_MODEL)) == Path(DEFAULT_MODEL)
    assert fetched == [DEFAULT_MODEL]


def test_resolve_takes_an_existing_path_before_it_asks_a_hub(tmp_path, monkeypatch):
    monkeypatch.setattr(registry_module, "fetch_from_hub", lambda hub_id, progress: Path("hub") / str(hub_id))
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name") == Path("hub/org/name")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve("org/name") == Path("org/name")


@pytest.mark.parametrize(
    "name", ["smollm3", "", "a/b/c", "/no/such", "./org/name", "org/file.gguf", "../x", "a/", "x\n/y"]
)
def test_an_unknown_model_lists_what_there_is(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingError) as caught:
        resolve(name)
    assert DEFAULT_MODEL in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_lie_where_the_environment_says_or_in_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLM_WEIGHTS", str(tmp_path))
    assert weights_directory() == tmp_path
    monkeypatch.delenv("MINILLM_WEIGHTS")
    assert weights_directory() == Path(registry_module.__file__).parents[2] / "weights"
    package = tmp_path / "site-packages" / "minillm"
    monkeypatch.setattr("minillm.__file__", str(package / "__init__.py"))
    assert weights_directory() == Path.home() / ".cache" / "minillm"
    package.mkdir(parents=True)
    (package.parent / "pyproject.toml").write_text('[project]\nname = "another"\n', encoding="utf-8")
    assert weights_directory() == Path.home() / ".cache" / "minillm"


def test_the_pinned_checksums_are_checksums():
    for alias, source in ALIASES.items():
        assert alias == source.alias
        assert len(bytes.fromhex(source.wheel_sha256)) == len(bytes.fromhex(source.gguf_sha256)) == 32
        assert source.requirement.split("==")[1] in source.wheel
