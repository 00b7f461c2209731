"""Models of a hub: the real `huggingface_hub` against a stand-in for its service on loopback."""

import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_stand_in import (
    COMMIT,
    CONFIG,
    FETCH,
    FILES,
    REPOSITORY,
    STRAY,
    Here,
    Hub,
    environment,
    fetch,
    refused,
    run,
    serve,
)
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.errors import InputError, MissingError
from minillm.loading.hub import fetch_from_hub
from minillm.loading.hub_files import check_listing, choose_gguf, tokenizer_files
from minillm.loading.hub_id import HubId, parse_hub_id
from minillm.loading.progress import LineMeter

INDEX = "model.safetensors.index.json"
SHARDS = {f"model-0000{number}-of-00002.safetensors": bytes([number]) * 3000 for number in (1, 2)}
SHARDED = {name: content for name, content in FILES.items() if name != "model.safetensors"} | {
    **SHARDS,
    INDEX: json.dumps({"weight_map": {f"tensor {name}": name for name in SHARDS}}).encode(),
}
NEXT_COMMIT = "b" * 40


@pytest.fixture
def here(monkeypatch, capsys, tmp_path):
    return Here(monkeypatch, capsys, tmp_path)


def directory_of(done: subprocess.CompletedProcess[str]) -> Path:
    """Where a fetch that succeeded has put the model: the only line on stdout."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    return Path(done.stdout.strip())


def names_in(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


def parts_in(home: Path) -> list[Path]:
    return sorted(home.rglob("*.incomplete"))


# What is fetched.


def test_only_the_files_that_are_read_are_fetched(here):
    with serve(Hub()) as hub:
        directory = directory_of(here.fetch(hub))
    assert names_in(directory) == set(FILES)
    assert all((directory / name).read_bytes() == content for name, content in FILES.items())
    assert not set(hub.downloads()) & set(STRAY)


def test_of_a_sharded_model_the_shards_that_the_index_names_are_fetched(here):
    with serve(Hub(files={**SHARDED, **STRAY})) as hub:
        directory = directory_of(here.fetch(hub))
    assert names_in(directory) == set(SHARDED)
    assert all((directory / name).read_bytes() == content for name, content in SHARDS.items())


def test_an_old_repository_whose_tokenizer_is_sentencepieces_file_is_fetched_with_it(here):
    files = {name: content for name, content in FILES.items() if name != "tokenizer.json"}
    files |= {"tokenizer.model": b"pieces", "added_tokens.json": b"{}"}
    with serve(Hub(files={**files, **STRAY})) as hub:
        directory = directory_of(here.fetch(hub))
        assert names_in(directory) == set(files)
        assert directory_of(here.fetch(None, offline=True)) == directory
        (directory / "tokenizer.model").resolve().unlink()
        assert "HF_HUB_OFFLINE forbids" in refused(here.fetch(None, offline=True))


def test_where_there_is_a_tokenizer_json_the_older_file_is_left_alone(here):
    with serve(Hub(files={**FILES, "tokenizer.model": b"pieces"})) as hub:
        assert names_in(directory_of(here.fetch(hub))) == set(FILES)


def test_where_one_file_has_all_weights_the_shards_beside_it_are_left_alone(here):
    with serve(Hub(files={**SHARDED, **FILES})) as hub:
        assert names_in(directory_of(here.fetch(hub))) == set(FILES)


def test_the_size_is_told_before_and_lines_go_to_stderr(here):
    with serve(Hub()) as hub:
        done = here.fetch(hub)
    first, *_, last = done.stderr.splitlines()
    assert first.startswith(f"fetching org/tiny, commit {COMMIT[:12]}: 6 files, 8.3 kB")
    assert "are free" in first
    assert last == f"org/tiny is in {directory_of(done)}"


def test_a_model_is_fetched_at_first_use_and_runs(here, tmp_path, capsys):
    made = save_tiny_model(tmp_path / "made")
    with serve(Hub(files={path.name: path.read_bytes() for path in made.iterdir()})) as hub:
        here.fetch(hub, "org/another-one")  # sets who is asked
        capsys.readouterr()
        llm = LLM("org/tiny", dtype="float32", device="cpu")
    assert "fetching org/tiny" in capsys.readouterr().err
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    assert (
        llm.generate("the cat", params).text
        == LLM(made, dtype="float32", device="cpu").generate("the cat", params).text
    )


def test_tokenizer_model_is_fetched_where_there_is_no_tokenizer_json(here):
    alone = {name: content for name, content in SHARDED.items() if name != "tokenizer.json"}
    beside = {"tokenizer.model": b"SentencePiece's", "added_tokens.json": b"{}"}
    with serve(Hub(files=alone | beside)) as hub:
        directory = Path(directory_of(here.fetch(hub)))
        assert {name: (directory / name).read_bytes() for name in beside} == beside
        assert directory_of(here.fetch(None, offline=True)) == directory
    assert not set(tokenizer_files(SHARDED | beside)) & set(beside), "of two forms, one is fetched"


def test_the_library_that_reads_the_same_cache_finds_the_model_there(here, tmp_path):
    with serve(Hub()) as hub:
        directory = directory_of(here.fetch(hub))
    code = "import huggingface_hub; print(huggingface_hub.snapshot_download('org/tiny', local_files_only=True))"
    assert directory_of(run(code, hub=None, home=tmp_path)) == directory


# What is in the cache.


@pytest.mark.parametrize("changes", [{}, {"offline": True}])
def test_a_model_that_is_in_the_cache_is_used_without_asking_the_hub(here, changes):
    with serve(Hub()) as hub:
        directory = directory_of(here.fetch(hub))
        asked = len(hub.requests)
        done = here.fetch(hub, **changes)
        assert directory_of(done) == directory
        assert len(hub.requests) == asked
    assert "already there" in done.stderr
    assert directory_of(here.fetch(None, **changes)) == directory


def test_a_model_of_which_a_file_is_lost_is_not_taken_for_whole(here):
    with serve(Hub(files=SHARDED)) as hub:
        directory = directory_of(here.fetch(hub))
        for lost in [*SHARDS, INDEX, "config.json", "tokenizer.json"]:
            (directory / lost).resolve().unlink()  # the content: a link that leads nowhere stays
            assert "HF_HUB_OFFLINE forbids" in refused(here.fetch(None, offline=True)), lost
            assert (directory_of(here.fetch(hub)) / lost).read_bytes() == SHARDED[lost], lost


def test_force_asks_for_a_newer_state_and_fetches_what_has_changed(here):
    with serve(Hub()) as hub:
        first = directory_of(here.fetch(hub))
        assert directory_of(here.fetch(hub, "org/tiny", "--force")) == first, "nothing has changed"
        hub.files["chat_template.jinja"] = b"another"
        hub.commits["main"] = NEXT_COMMIT
        assert directory_of(here.fetch(hub)) == first, "it is not looked for unasked"
        hub.requests.clear()
        second = directory_of(here.fetch(hub, "org/tiny", "--force"))
    assert second.name == NEXT_COMMIT
    assert (second / "chat_template.jinja").read_bytes() == b"another"
    assert hub.downloads() == ["chat_template.jinja"]
    assert directory_of(here.fetch(None)) == second


def test_a_newer_state_that_was_not_fetched_to_its_end_leaves_the_older_one_in_use(here):
    with serve(Hub()) as hub:
        first = directory_of(here.fetch(hub))
        hub.files["model.safetensors"] = b"longer " * 2000
        hub.commits["main"] = NEXT_COMMIT
        hub.cuts = 10**6
        refused(here.fetch(hub, "org/tiny", "--force"))
    assert directory_of(here.fetch(None)) == first


@pytest.mark.parametrize("how", [("org/tiny", "--revision", "v1.0"), ("org/tiny@v1.0",), (f"org/tiny@{NEXT_COMMIT}",)])
def test_a_revision_is_a_branch_a_tag_or_a_commit(here, how):
    with serve(Hub(commits={"main": COMMIT, "v1.0": NEXT_COMMIT})) as hub:
        directory = directory_of(here.fetch(hub, *how))
    assert directory.name == NEXT_COMMIT
    assert directory_of(here.fetch(None, *how)) == directory
    assert "not reached" in refused(here.fetch(None)), "main is another one"


def test_the_environment_says_where_things_lie_who_asks_whom_and_whether_at_all(tmp_path):
    with serve(Hub(token="hf_mine")) as hub:
        directory = directory_of(fetch(hub, tmp_path, HF_TOKEN="hf_mine"))
        assert directory.is_relative_to(tmp_path / "hub")
        asked = len(hub.requests)
        assert "HF_HUB_OFFLINE forbids" in refused(fetch(hub, tmp_path / "elsewhere", HF_HUB_OFFLINE="1"))
        assert directory_of(fetch(hub, tmp_path, HF_HUB_OFFLINE="1")) == directory
        assert len(hub.requests) == asked


# Broken downloads.


def test_a_connection_that_breaks_is_taken_up_where_it_broke(here):
    with serve(Hub(cuts=3)) as hub:
        directory = directory_of(here.fetch(hub))
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    starts = [int(line.split("bytes=")[1].rstrip("-")) for line in hub.requests if "bytes=" in line]
    assert starts == [0, 4000, 6000, 7000]


def test_a_fetch_that_was_interrupted_is_taken_up_by_the_next_one(here, tmp_path):
    command = [sys.executable, "-c", FETCH, "org/tiny"]
    with serve(Hub(speed=1500.0)) as hub:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment(hub, tmp_path),
            stderr=subprocess.PIPE,
            # Who starts the tests in the background may ignore SIGINT, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        wait_for(lambda: any(part.stat().st_size >= 1000 for part in parts_in(tmp_path)))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        (part,) = parts_in(tmp_path)
        kept = part.stat().st_size
        hub.speed, done = None, here.fetch(hub)
    assert (directory_of(done) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert f"bytes={kept}-" in hub.requests[-3], "the rest only"
    assert "already here" in done.stderr
    assert parts_in(tmp_path) == []


def test_two_programs_that_fetch_at_once_fetch_a_large_file_once(tmp_path):
    command = [sys.executable, "-c", FETCH, "org/tiny"]
    with serve(Hub(speed=16_000.0)) as hub:
        settings = environment(hub, tmp_path)
        both = [
            subprocess.Popen(
                command, cwd=REPOSITORY, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        for process in both:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
    assert hub.downloads().count("model.safetensors") == 1


def wait_for(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 20 seconds")


def test_a_server_that_falls_silent_is_not_waited_for_for_ever(here, monkeypatch):
    monkeypatch.setattr("minillm.loading.download.TIMEOUT_S", 0.2)
    with serve(Hub(stalls=1)) as hub:
        directory = directory_of(here.fetch(hub))
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert hub.requests[-3].endswith("bytes=4000-")
    monkeypatch.setattr("minillm.loading.hub_transfer.ASK_TIMEOUT_S", 0.1)
    with serve(Hub(answers_after_s=0.5)) as hub:
        assert "(did not answer in time)" in refused(here.fetch(hub, "org/tiny", "--force"))


def test_large_files_may_come_from_elsewhere_and_the_token_stays_at_the_hub(here):
    """As on the real hub, which sends requests for large files on to its store."""
    with serve(Hub(cuts=2)) as store, serve(Hub(token="hf_mine", content_at=store.url)) as hub:
        directory = directory_of(here.fetch(hub, token="hf_mine"))
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    starts = [line.partition("bytes=")[2] for line in store.requests]
    assert starts == ["0-", "4000-", "6000-"]
    assert store.authorized == []
    assert hub.authorized


def test_a_hub_that_knows_no_ranges_sends_all_of_it_again(here):
    with serve(Hub(cuts=1, ranges=False)) as hub:
        directory = directory_of(here.fetch(hub))
    assert (directory / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_a_connection_that_breaks_for_ever_ends_in_a_sentence_and_nothing_is_lost(here, tmp_path):
    with serve(Hub(cuts=10**6)) as hub:
        assert "what has come is kept" in refused(here.fetch(hub))
        (part,) = parts_in(tmp_path)
        assert FILES["model.safetensors"].startswith(part.read_bytes())
        hub.cuts = 0
        assert names_in(directory_of(here.fetch(hub))) == set(FILES)


def test_content_that_is_not_what_the_hub_lists_is_thrown_away(here, tmp_path):
    with serve(Hub(corrupt=True)) as hub:
        assert "is not the file that it lists" in refused(here.fetch(hub))
    assert parts_in(tmp_path) == []
    assert not list(tmp_path.rglob("model.safetensors"))


# Refusals.


@pytest.mark.parametrize(
    ("hub", "changes", "words"),
    [
        (Hub(refusal=(404, "RepoNotFound", "Repository not found")), {}, "no hub model of this name that somebody who"),
        (Hub(refusal=(401, "RepoNotFound", "")), {"token": "hf_mine"}, "that the account of your token may see"),
        (Hub(gated=True), {}, "is gated: accept its terms at http://127.0.0.1"),
        (Hub(gated=True), {"token": "hf_mine"}, "the account of your token has not been let in: ask for access"),
        (
            Hub(refusal=(401, "", "Invalid credentials in Authorization header")),
            {"token": "x"},
            "not accept your to",
        ),
        (Hub(refusal=(403, "", "")), {}, "does not let somebody who is not logged in read org/tiny"),
        (Hub(refusal=(429, "", "")), {}, "too many requests"),
        (Hub(refusal=(500, "", "")), {}, "(it answered 500): try again later"),
        (Hub(commits={"master": COMMIT}), {}, "has no revision 'main'"),
        (None, {}, "could not be asked for it (not reached: ConnectError): check the network"),
        (None, {"offline": True}, "HF_HUB_OFFLINE forbids to fetch it: unset it"),
    ],
)
def test_each_refusal_of_the_hub_has_its_sentence(here, hub, changes, words):
    if hub is None:
        assert words in refused(here.fetch(None, **changes))
    else:
        with serve(dataclasses.replace(hub, requests=[])) as served:
            assert words in refused(here.fetch(served, **changes))


def test_a_token_opens_what_is_closed_to_others(here):
    with serve(Hub(token="hf_mine")) as hub:
        assert "no hub model of this name" in refused(here.fetch(hub))
        assert names_in(directory_of(here.fetch(hub, token="hf_mine"))) == set(FILES)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**CONFIG, "model_type": "mamba"}, "architecture 'mamba'"),
        ({**CONFIG, "quantization_config": {"quant_method": "awq"}}, "quantization_config"),
        ([], "must hold a JSON object"),
    ],
)
def test_what_this_engine_does_not_run_is_refused_before_its_weights_are_fetched(here, config, words):
    with serve(Hub(files={**FILES, "config.json": json.dumps(config).encode()})) as hub:
        assert words in refused(here.fetch(hub))
    assert set(hub.downloads()) == {"config.json", "generation_config.json"}


def test_an_index_that_leads_elsewhere_is_refused_before_anything_large_is_fetched(here):
    with serve(Hub(files={**SHARDED, INDEX: b'{"weight_map": {"a": "../../evil"}}'})) as hub:
        assert "not the plain name of a file beside it" in refused(here.fetch(hub))
        hub.files[INDEX] = b'{"weight_map": {"a": "model-7.safetensors"}}'
        hub.commits["main"] = NEXT_COMMIT
        assert "lacks model-7.safetensors, which its own index names" in refused(here.fetch(hub))
    assert not set(hub.downloads()) & set(SHARDS)


def test_a_disk_without_room_is_said_before_the_download_and_during_it(tmp_path):
    nearly_full = "import shutil; shutil.disk_usage = lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 999, 999)\n"
    with serve(Hub()) as hub:
        done = run(nearly_full + FETCH, "org/tiny", hub=hub, home=tmp_path)
        assert "takes 8.0 kB in" in refused(done)
        assert "where 999 bytes are free" in refused(done)
        assert "model.safetensors" not in hub.downloads()
        limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        assert "could not keep org/tiny" in refused(run(limit + FETCH, "org/tiny", hub=hub, home=tmp_path))


def test_a_full_disk_has_its_sentence(tmp_path):
    full = """
import builtins, errno, minillm.loading.download as download
def refuse(*args): raise OSError(errno.ENOSPC, "No space left on device")
download._fill = refuse
"""
    with serve(Hub()) as hub:
        assert "the disk is full: make room in" in refused(run(full + FETCH, "org/tiny", hub=hub, home=tmp_path))


def test_a_cache_that_may_not_be_written_is_named(here, tmp_path):
    (tmp_path / "hub").write_text("in the way", encoding="utf-8")
    with serve(Hub()) as hub:
        assert f"in {tmp_path / 'hub'}" in refused(here.fetch(hub))


def test_a_malformed_id_is_refused_before_anything_is_asked():
    for name in ("org/--name", "org/name..x", "orgname"):
        with pytest.raises(InputError, match="is neither a path nor a hub id"):
            fetch_from_hub(name)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingError, match=r"pip install \"minillm\[hub\]\""):
        fetch_from_hub("org/tiny")


def sizes(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 2_500_000_000)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("config.json", "pytorch_model-00001-of-00002.bin"), "only as pytorch_model-00001-of-00002.bin, a pickle"),
        (("params.json", "consolidated.00.pth"), "only as consolidated.00.pth, a pickle"),
        (("a-Q4_0.gguf", "a-Q8_0.gguf"), r"name one, org/tiny/a-Q4_0.gguf \(2.50 GB\), org/tiny/a-Q8_0.gguf"),
        (("adapter_config.json", "adapter_model.safetensors"), "is an adapter"),
        (("params.json", "consolidated.safetensors"), r"under another name \(consolidated.safetensors\)"),
        (("README.md",), "has no weights: neither model.safetensors nor"),
        ((), "has no weights"),
        (("model.safetensors", "tokenizer.json"), "has no config.json"),
        (("model.safetensors", "config.json", "vocab.json"), "has neither tokenizer.json nor tokenizer.model"),
    ],
)
def test_a_repository_that_cannot_be_loaded_is_refused_by_its_list_of_files(names, words):
    with pytest.raises((InputError, MissingError), match=words) as caught:
        check_listing(HubId("org/tiny"), sizes(*names))
    assert "\n" not in str(caught.value)


# GGUF files.

GGUF = {
    "tiny-Q4_K_M.gguf": b"GGUF four bits" * 100,
    "sub/tiny.Q8_0.gguf": b"GGUF eight",
    "mmproj-Q8_0.gguf": b"a camera",
}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("org/tiny:Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("org/tiny:q8_0", "sub/tiny.Q8_0.gguf"),
        ("org/tiny/sub/tiny.Q8_0.gguf", "sub/tiny.Q8_0.gguf"),
    ],
)
def test_of_a_gguf_repository_the_one_file_that_is_named_is_fetched(here, name, file):
    with serve(Hub(files={**GGUF, "README.md": b""})) as hub:
        path = directory_of(here.fetch(hub, name))
        assert path.read_bytes() == GGUF[file]
        assert set(hub.downloads()) == {file}
    assert directory_of(here.fetch(None, name)) == path
    assert directory_of(here.fetch(None, name, offline=True)) == path


def test_a_gguf_file_that_is_not_there_or_not_one_is_refused_by_name():
    with pytest.raises(MissingError, match=r"no such GGUF file in .*:Q2_K: it has org/tiny/a-Q4_0.gguf \(2.50 GB\)"):
        choose_gguf(HubId("org/tiny", quantization="Q2_K"), sizes("a-Q4_0.gguf"), sizes("a-Q4_0.gguf"))
    with pytest.raises(MissingError, match="it has none at all"):
        choose_gguf(HubId("org/tiny", quantization="Q4_K"), sizes("model.safetensors"))
    with pytest.raises(MissingError, match="no such GGUF file"):  # Q4_K is another format than Q4_K_M
        choose_gguf(HubId("org/tiny", quantization="Q4_K"), sizes("a-Q4_K_M.gguf"))
    with pytest.raises(InputError, match=r"may be org/tiny/a-Q4_0.gguf, org/tiny/b-Q4_0.gguf: name one of them"):
        choose_gguf(HubId("org/tiny", quantization="Q4_0"), sizes("a-Q4_0.gguf", "b-Q4_0.gguf"))
    with pytest.raises(InputError, match="one of several parts"):
        choose_gguf(HubId("org/tiny", quantization="F16"), sizes("F16/a-F16-00001-of-00002.gguf"))


@pytest.mark.parametrize(
    ("text", "hub_id"),
    [
        ("org/name", HubId("org/name")),
        ("Org-1/na.me_2", HubId("Org-1/na.me_2")),
        ("org/name@v1", HubId("org/name", "v1")),
        ("org/name@refs/pr/3", HubId("org/name", "refs/pr/3")),
        ("org/name:Q4_K_M", HubId("org/name", quantization="Q4_K_M")),
        ("org/name@v1:Q8_0", HubId("org/name", "v1", quantization="Q8_0")),
        ("org/name/x.gguf", HubId("org/name", file="x.gguf")),
        ("org/name@v1/a/x.gguf", HubId("org/name", "v1", file="a/x.gguf")),
        ("models/x.gguf", None),
        ("org/name/config.json", None),
        ("org/name/../x.gguf", None),
        ("../org/name", None),
        ("/org/name", None),
        ("org/name/", None),
        ("org/name:", None),
        ("org/name@", None),
        ("name", None),
        ("", None),
    ],
)
def test_what_a_hub_id_is(text, hub_id):
    assert parse_hub_id(text) == hub_id
    if hub_id is not None:
        assert str(hub_id) == text


def test_lines_about_a_long_download_say_how_far_how_fast_and_how_long_yet():
    now, lines = [0.0], []
    meter = LineMeter(1000, lines.append, lambda: now[0])
    meter.file("x.safetensors")
    for now[0], count in ((0.5, 200), (2.0, 100), (2.1, 100), (40.0, 50), (41.0, 10), (100.0, 540)):
        meter.add(count)
    assert lines == [
        "   30 % of 1.0 kB, 150 bytes/s, 5 s left  x.safetensors",
        "   45 % of 1.0 kB, 11 bytes/s, 49 s left  x.safetensors",
        "  100 % of 1.0 kB, 10 bytes/s  x.safetensors",
    ]
