"""The README is run, not trusted: its example by hand, the files and verbs that it names."""

import doctest
import json
import re
from pathlib import Path

import httpx
import pytest
from serving import running

from minillm.cli import VERBS, main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.real_model
def test_the_example_by_hand_prints_what_the_readme_says(model_dir):
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ">>>" in block)
    test = doctest.DocTestParser().get_doctest(block, {}, "README", "README.md", 0)
    report: list[str] = []
    results = doctest.DocTestRunner().run(test, out=report.append)
    assert results.attempted > 8
    assert results.failed == 0, "".join(report)


@pytest.mark.real_model
def test_the_example_with_the_library_runs_as_it_stands(model_dir, capsys):
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if ">>>" not in block)
    exec(compile(block, "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 20, "the stream printed a story"


def test_the_map_of_rooms_names_files_that_exist_and_all_of_them():
    section = README.split("## The rooms")[1].split("## Working")[0]
    named = set(re.findall(r"`(\w+\.py)`", section))
    there = {path.name for path in (ROOT / "minillm").glob("*.py")} - {"__init__.py"}
    assert named == there


def test_the_verbs_in_the_readme_exist():
    assert set(re.findall(r"python -m minillm\.(\w+)", README)) <= set(VERBS)


def test_the_gate_finds_the_test_command_of_the_readme():
    """`.ci/run` runs the line that is indented and ends in pytest: it must be there, once."""
    pattern = r'^    (pip install -e "\.\[test\]".*pytest)$'
    assert len(re.findall(pattern, README, re.MULTILINE)) == 1
    assert r"""^    \(pip install -e "\.\[test\]".*pytest\)$""" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


@pytest.mark.real_model
def test_the_batch_in_the_readme_is_answered_as_it_says(model_dir, tmp_path, capsys):
    """All but the time of the answer, which is no part of what it promises."""
    section = README.split("## A file of requests")[1].split("\n## ")[0]
    questions, answers = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    source, target = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    source.write_text(questions, encoding="utf-8")
    assert main(["batch", str(source), "-o", str(target), "--dtype", "float32"]) == 1
    assert _without_times(target.read_text(encoding="utf-8")) == _without_times(answers)
    assert "has all 2 answers, 1 of them errors; 37 tokens in, 8 out, " in capsys.readouterr().err


@pytest.mark.real_model
def test_the_request_to_the_port_in_the_readme_is_answered_as_it_says(llm):
    """All but its name and time, and what the version and the prefix cache add."""
    section = README.split("## On a port")[1].split("\n## ")[0]
    asked = json.loads(re.search(r"-d '(.*)'", section)[1])
    promised = json.loads(re.search(r"```json\n(.*?)```", section, re.DOTALL)[1])
    path = re.search(r"curl http://127.0.0.1:8000(/\S+)", section)[1]
    with running(llm, name="smollm2-135m") as server:
        answer = httpx.post(f"{server.url}{path}", json=asked, timeout=120).json()
    for body in (answer, promised):
        for name in ("id", "created", "system_fingerprint"):
            assert body.pop(name)
    assert answer == promised


def _without_times(lines):
    """The lines in the order of their ids, without what differs from run to run, and from version to version."""
    found = [json.loads(line) for line in lines.splitlines()]
    for line in found:
        for name in ("created", "system_fingerprint"):
            line["response"]["body"].pop(name, None)
    return sorted(found, key=lambda line: line["custom_id"])
