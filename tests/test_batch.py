"""`minillm batch`: what is answered, what is refused, and that a killed run loses nothing and does nothing twice."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import call
from tiny import save_tiny_model

from minillm import LLM, SamplingParams
from minillm.batch_file import work
from minillm.batch_file.orders import orders, survey
from minillm.batch_file.output import OutputFile, record
from minillm.engine import Engine
from minillm.errors import InputError
from minillm.loading.scratch import try_lock
from minillm.server.prepare import Served

TEXTS = ["the cat", "the dog sat on", "é", "a much longer text about the cat and the dog on the mat", "x", "on the"]


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), max_position_embeddings=96, num_hidden_layers=1))


@pytest.fixture(scope="module")
def llm(tiny_dir) -> LLM:
    return LLM(tiny_dir, device="cpu", dtype="float32")


@pytest.fixture
def files(tmp_path):
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def completion(custom_id, prompt, **fields) -> dict:
    body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 12, "ignore_eos": True, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def chat(custom_id, content, **fields) -> dict:
    messages = [{"role": "user", "content": content}]
    body = {"model": "tiny", "messages": messages, "temperature": 0, "max_completion_tokens": 9, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def many(count: int) -> list[dict]:
    """Requests of both kinds, of different lengths, some with several choices; every seventh is wrong."""
    lines = []
    for i in range(count):
        name, text = f"id-{i}", TEXTS[i % len(TEXTS)]
        if i % 7 == 3:
            lines.append(chat(name, text, response_format={"type": "json_object"}))
        elif i % 3 == 0:
            lines.append(chat(name, text, max_completion_tokens=1 + i % 9))
        else:
            lines.append(completion(name, text, max_tokens=1 + 5 * i % 12, n=1 + i % 5 // 3))
    return lines


def write(path: Path, lines) -> Path:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def flags(tiny_dir, *more):
    return ("--model", tiny_dir, "--dtype", "float32", "--served-model-name", "tiny", *more)


def run(capsys, tiny_dir, files, *more):
    """(exit code, what was said, the output's lines by custom_id)"""
    code, out, err = call(capsys, "batch", str(files[0]), "-o", str(files[1]), *flags(tiny_dir, *more))
    assert out == ""
    return code, err, by_id(files[1])


def by_id(path: Path) -> dict:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "one line for each custom_id"
    return found


def comparable(lines: dict) -> dict:
    """The answers without what may differ from run to run: the time, and what the prefix cache happened to hold."""
    result = json.loads(json.dumps(lines))
    for line in result.values():
        line["response"]["body"].pop("created", None)
        line["response"]["body"].get("usage", {}).pop("prompt_tokens_details", None)
    return result


def alone(llm: LLM, line: dict) -> list[str]:
    """The texts of a line's choices, as the library makes them of the same request alone."""
    body = line["body"]
    if "messages" in body:
        params = SamplingParams(max_tokens=body["max_completion_tokens"])
        return [llm.chat(body["messages"], params).text]
    params = SamplingParams(max_tokens=body["max_tokens"], ignore_eos=body["ignore_eos"])
    return [llm.generate(body["prompt"], params).text] * body.get("n", 1)


def texts(line: dict) -> list[str]:
    choices = line["response"]["body"]["choices"]
    return [one["message"]["content"] if "message" in one else one["text"] for one in choices]


def test_each_line_is_answered_as_its_request_would_be_alone(tiny_dir, llm, files, capsys):
    lines = [line for line in many(14) if "response_format" not in line["body"]]
    write(files[0], lines)
    code, said, answers = run(capsys, tiny_dir, files)
    assert code == 0
    assert f"has all {len(lines)} answers; " in said
    assert f"{len(lines)}/{len(lines)}" in said, "the bar came to its end"
    assert set(answers) == {line["custom_id"] for line in lines}
    for line in lines:
        answer = answers[line["custom_id"]]
        assert set(answer) == {"id", "custom_id", "response", "error"}
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert set(answer["response"]) == {"status_code", "request_id", "body"}
        assert texts(answer) == alone(llm, line)
        usage = answer["response"]["body"]["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert len({answer["id"] for answer in answers.values()}) == len(lines)


def test_answers_do_not_depend_on_the_batch(tiny_dir, files, tmp_path, capsys):
    """One at a time, and three at a time on a cache of 50 kB, where they lose their blocks to each other."""
    write(files[0], many(14))
    code, _, answers = run(capsys, tiny_dir, files)
    assert code == 1
    for i, more in enumerate([("--max-batch-size", "1"), ("--max-batch-size", "3", "--kv-memory", "50kB")]):
        other_code, _, others = run(capsys, tiny_dir, (files[0], tmp_path / f"{i}.jsonl"), *more)
        assert other_code == 1
        assert comparable(others) == comparable(answers)


WRONG = {
    "unsupported": (chat("unsupported", "x", response_format={"type": "json_object"}), "response_format is not"),
    "stream": (chat("stream", "x", stream=True), "a batch has no streams"),
    "model": (chat("model", "x", model="other"), "there is no model 'other' here"),
    "long": (completion("long", "long " * 99), "the prompt alone has"),
    "too many": (completion("too many", "x", max_tokens=200), "so max_tokens may be"),
    "body": ({**chat("body", "x"), "body": None}, "body is None, but it must be an object"),
    "url": ({**chat("url", "x"), "url": "/v1/embeddings"}, "url is '/v1/embeddings', but it must be"),
    "method": ({**chat("method", "x"), "method": "GET"}, "method is 'GET'"),
    "more": ({**chat("more", "x"), "priority": 1}, "priority is no parameter that is known here"),
    "penalty": (completion("penalty", "x", repetition_penalty=1e-45), "no token left to choose"),
    "second prompt": (completion("second prompt", [[1, 2], [3, 999]]), "token id 999 is outside the vocabulary"),
}


def test_a_wrong_line_gets_its_error_and_the_others_go_on(tiny_dir, llm, files, capsys):
    good = [completion("first", "the cat"), completion("last", "the dog")]
    write(files[0], [good[0], *(line for line, _ in WRONG.values()), b"", good[1]])
    code, said, answers = run(capsys, tiny_dir, files)
    assert code == 1
    assert f"has all {len(WRONG) + 2} answers, {len(WRONG)} of them errors" in said
    for name, (_, told) in WRONG.items():
        response = answers[name]["response"]
        assert response["status_code"] == (404 if name == "model" else 400)
        assert set(response["body"]) == {"error"}
        assert told in response["body"]["error"]["message"]
        assert answers[name]["error"] is None
    assert [texts(answers[line["custom_id"]]) for line in good] == [alone(llm, line) for line in good]


def test_a_line_without_a_custom_id_is_answered_by_its_number(tiny_dir, files, capsys):
    unnamed = [b"{", b"[1]", b"\xff\xfe", b'{"custom_id": 7}', b'{"custom_id": ""}', b'{"a": NaN}', b"[" * 9999]
    write(files[0], [*unnamed, completion("good", "the cat")])
    code, _, _ = call(capsys, "batch", str(files[0]), "-o", str(files[1]), *flags(tiny_dir))
    assert code == 1
    lines = [json.loads(line) for line in files[1].read_bytes().splitlines()]
    wrong = [line for line in lines if line["custom_id"] is None]
    assert sorted(line["response"]["body"]["error"]["message"].split(":")[0].split(" is")[0] for line in wrong) == [
        f"line {i}" for i in range(1, len(unnamed) + 1)
    ]
    assert {line["response"]["status_code"] for line in wrong} == {400}
    before = files[1].read_bytes()
    assert call(capsys, "batch", str(files[0]), "-o", str(files[1]), *flags(tiny_dir))[0] == 1
    assert files[1].read_bytes() == before, "nothing is done twice, also where there is no custom_id"


def test_a_failing_model_is_not_the_request_s_fault(tiny_dir, files, monkeypatch, capsys):
    monkeypatch.setattr(work, "Answer", broken_answer(work.Answer))
    write(files[0], [completion("a", "the cat")])
    code, _, answers = run(capsys, tiny_dir, files)
    assert code == 1
    assert answers["a"]["response"]["status_code"] == 500
    assert answers["a"]["response"]["body"]["error"]["type"] == "server_error"


def broken_answer(real):
    """An Answer whose request meets logits that hold NaN."""

    class Broken(real):
        def take(self, output):
            self.request.finish_reason, self.request.error = "error", "the model's logits hold NaN"
            self._engine.abort(self.request.request_id, "error")
            return type(super().take(output))("", None, "error")

    return Broken


# What is refused as a whole.


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "there is no batch file"),
        (b"", "is empty: a batch has a request in each line"),
        (b"\n  \n", "is empty"),
        (b"hello\nworld\n", "is no batch of requests"),
        (b'{\n  "custom_id": "a"\n}\n', "is no batch of requests"),
        (b"\x00\x01\xff" * 50, "is no batch of requests"),
        (b'[{"custom_id": "a"}]', "is no batch of requests"),
        (b'{"custom_id": "a"}\n{}\n{"custom_id": "a"}\n', "has custom_id 'a' in line 1 and in line 3"),
        (json.dumps(chat("a", "x", model="gpt-4o")).encode(), "they ask for 'gpt-4o'; --served-model-name"),
    ],
)
def test_a_file_that_is_no_batch_is_refused_before_a_model_is_loaded(files, data, told, capsys):
    if data is not None:
        files[0].write_bytes(data)
    code, _, err = call(capsys, "batch", str(files[0]), "-o", str(files[1]), "--model", "no-such-model")
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
    assert not files[1].exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--max-batch-size", "0"), "--max-batch-size must be at least 1, not 0"),
        (("--kv-memory", "much"), "'much' is no amount of memory"),
        (("--kv-memory", "9"), "9 bytes hold no block"),
        (("--kv-dtype", "int4"), "unknown kv_dtype 'int4'"),
    ],
)
def test_wrong_flags_are_refused(tiny_dir, files, more, told, capsys):
    write(files[0], many(2))
    code, said, _ = run(capsys, tiny_dir, files, *more)
    assert code == 2
    assert told in said


def test_what_cannot_be_an_output_is_refused_and_left_alone(tiny_dir, files, tmp_path, capsys):
    write(files[0], many(2))
    for output, told in (
        (files[0], "is the input"),
        (tmp_path, "is no ordinary file"),
        (tmp_path / "none" / "out.jsonl", "No such file or directory"),
    ):
        code, _, err = call(capsys, "batch", str(files[0]), "-o", str(output), *flags(tiny_dir))
        assert code == 2
        assert told in err
    for content in (b"my notes", b"my notes\n", b'{"id": "x"}\n', b'{"id": "batch_req_1"', b"\n"):
        files[1].write_bytes(content)
        if content == b'{"id": "batch_req_1"':
            continue  # this one could be the beginning of a line of ours
        code, _, err = call(capsys, "batch", str(files[0]), "-o", str(files[1]), *flags(tiny_dir))
        assert code == 2
        assert "name another file for the answers, or remove this one" in err
        assert files[1].read_bytes() == content


def test_an_output_of_another_input_or_model_is_refused_and_left_alone(tiny_dir, files, tmp_path, capsys):
    write(files[0], [completion("a", "the cat")])
    assert run(capsys, tiny_dir, files)[0] == 0
    before = files[1].read_bytes()
    write(files[0], [completion("a", "the dog")])
    code, said, _ = run(capsys, tiny_dir, files)
    assert (code, files[1].read_bytes()) == (2, before)
    assert "an answer for custom_id 'a', which is not of this input" in said
    lines = [completion("a", "the cat"), completion("b", "the dog", model="other")]
    write(files[0], lines)
    args = ("--model", tiny_dir, "--served-model-name", "other")
    code, _, err = call(capsys, "batch", str(files[0]), "-o", str(files[1]), *args)
    assert (code, files[1].read_bytes()) == (2, before)
    assert "answers of the model 'tiny', and this is 'other'" in err


def test_an_output_has_one_run_at_a_time(tiny_dir, files, capsys):
    write(files[0], many(2))
    with files[1].open("ab") as other:
        assert try_lock(other)
        code, said, _ = run(capsys, tiny_dir, files)
    assert code == 2
    assert "another run is writing to" in said
    assert run(capsys, tiny_dir, files)[0] == 0


# Going on.


def test_lines_that_are_answered_are_not_done_again(tiny_dir, files, monkeypatch, capsys):
    lines = many(12)
    write(files[0], lines)
    run(capsys, tiny_dir, files)
    whole = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join(whole[:7]))
    done = []
    monkeypatch.setattr(work, "record", lambda *args: done.append(args[1]) or record(*args))
    code, said, answers = run(capsys, tiny_dir, files)
    assert code == 1
    assert "has 7 of 12 answers: the rest is done now" in said
    assert sorted(done) == sorted(json.loads(line)["custom_id"] for line in whole[7:])
    assert files[1].read_bytes().startswith(b"".join(whole[:7]))
    assert len(answers) == 12
    code, said, _ = run(capsys, "no-such-model", files)  # nothing is left to do, so no model is loaded
    assert code == 1
    assert "has all 12 answers already" in said


def answered_lines(files, lines) -> dict:
    """An output file of made-up answers to all lines of `files[0]`; the ids and custom_ids of the input."""
    write(files[0], lines)
    ids = survey(files[0]).ids
    body = {"model": "tiny", "system_fingerprint": "fp_1", "text": "é\n\u2028"}
    write(files[1], [record(order_id, custom_id, 200, body) for order_id, custom_id in ids.items()])
    return ids


def recovered(path, ids):
    with OutputFile(path) as output:
        return output.recover(ids, "tiny")


def test_a_line_that_broke_off_anywhere_is_dropped_and_no_other(files):
    ids = answered_lines(files, many(4))
    whole = files[1].read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole) - 1):
        files[1].write_bytes(whole[:cut])
        assert recovered(files[1], ids).ids == set(list(ids)[:3]), cut
        assert files[1].read_bytes() == whole[:last]
    files[1].write_bytes(whole[:-1])  # only the line's end is missing: its answer stays
    assert recovered(files[1], ids).ids == set(ids)
    assert files[1].read_bytes() == whole


def test_what_was_answered_is_counted(files):
    ids = answered_lines(files, many(3))
    with OutputFile(files[1]) as output:
        output.recover(ids, "tiny")
    (wrong,) = set(survey(write(files[0], many(4))).ids) - set(ids)
    with files[1].open("ab") as file:
        file.write(json.dumps(record(wrong, "id-3", 400, {"error": {}})).encode() + b"\n")
    found = recovered(files[1], survey(files[0]).ids)
    assert (len(found.ids), found.failed, found.fingerprints) == (4, 1, {"fp_1"})


def test_lines_may_be_added_to_an_input_that_is_answered(tiny_dir, files, capsys):
    write(files[0], many(3))
    run(capsys, tiny_dir, files)
    before = files[1].read_bytes()
    write(files[0], many(5))
    assert len(run(capsys, tiny_dir, files)[2]) == 5
    assert files[1].read_bytes().startswith(before)


def test_other_settings_than_those_of_earlier_answers_are_told(tiny_dir, files, capsys):
    write(files[0], many(2))
    run(capsys, tiny_dir, files)
    write(files[0], many(3))
    assert "made with other settings" not in run(capsys, tiny_dir, files)[1]
    write(files[0], many(5))
    args = ("--model", tiny_dir, "--dtype", "bfloat16", "--served-model-name", "tiny")
    code, _, err = call(capsys, "batch", str(files[0]), "-o", str(files[1]), *args)
    assert code == 1
    assert "made with other settings" in err


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(tiny_dir, files, monkeypatch, capsys):
    write(files[0], many(12))
    step, steps = Engine.step, []

    def interrupted(engine):
        steps.append(1)
        if len(steps) == 9:
            raise KeyboardInterrupt
        return step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", interrupted)
        code, said, answers = run(capsys, tiny_dir, files, "--max-batch-size", "2")
    assert code == 130
    assert 0 < len(answers) < 12
    assert f"has {len(answers)} of 12 answers, and the same command goes on there" in " ".join(said.split())
    assert len(run(capsys, tiny_dir, files)[2]) == 12


def test_a_timeline_names_the_requests_by_their_lines(tiny_dir, files, tmp_path, capsys):
    write(files[0], [completion("alone", "the cat", max_tokens=2), completion("twins", "the dog", max_tokens=2, n=2)])
    page = tmp_path / "timeline.html"
    code, said, _ = run(capsys, tiny_dir, files, "--timeline", str(page))
    assert code == 0
    assert "timeline.html: open it in a browser" in " ".join(said.split())
    html = page.read_text(encoding="utf-8")
    assert all(f'"{title}"' in html for title in ("alone", "twins 0", "twins 1"))
    code, said, _ = run(capsys, tiny_dir, files, "--timeline", str(tmp_path))
    assert code == 2
    assert "it is a directory" in said


def test_a_file_is_fed_as_there_is_room_for_it(llm, files):
    """However long the file, the engine holds no more requests than twice what it runs at a time."""
    write(files[0], [completion(f"id-{i}", TEXTS[i % 6], max_tokens=1 + i % 3) for i in range(60)])
    seen = survey(files[0])
    engine = Engine(llm.model, num_blocks=40, max_batch_size=3)
    most = []
    with OutputFile(files[1]) as output:
        served = Served.on(engine, "tiny", llm.tokenizer)
        assert served.max_length == 96, "the model's context: the cache holds more"
        doing = work.Work(engine, served, output)
        doing.run(orders(files[0], seen), lambda totals, tokens: most.append(len(engine.requests)))
    assert doing.totals.lines == 60
    assert max(most) <= 6
    assert engine.scheduler.pool.num_used == 0


def test_a_line_that_the_engine_refuses_in_part_leaves_nothing_in_it(llm, files):
    """The second prompt needs more than the whole cache; the first one, which is in the engine by then, goes too."""
    write(files[0], [completion("half", ["x", "the cat sat on the mat " * 2]), completion("good", "x")])
    engine = Engine(llm.model, num_blocks=1, block_size=16)
    with OutputFile(files[1]) as output:
        doing = work.Work(engine, Served("tiny", llm.tokenizer, llm.config, max_length=96), output)
        doing.run(orders(files[0], survey(files[0])))
    answers = by_id(files[1])
    assert answers["half"]["response"]["status_code"] == 400
    assert "needs" in answers["half"]["response"]["body"]["error"]["message"]
    assert texts(answers["good"]) == alone(llm, completion("good", "x"))
    assert not engine.has_work
    assert engine.scheduler.pool.num_used == 0


def test_an_input_that_changes_meanwhile_is_noticed(files):
    write(files[0], many(3))
    seen = survey(files[0])
    write(files[0], [*many(2), chat("new", "x")])
    with pytest.raises(InputError, match="has changed since this run began, in line 3"):
        list(orders(files[0], seen))


def test_a_byte_order_mark_and_windows_line_ends_are_read(tiny_dir, files, capsys):
    files[0].write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(line).encode() for line in many(3)))
    assert run(capsys, tiny_dir, files)[0] == 0


KILLED = """
import os, random, signal, sys, time
import torch, minillm.batch_file.work
from minillm.batch_file.output import OutputFile
from minillm.cli import main

out, args = sys.argv[1], sys.argv[2:]
write = OutputFile._write

def child(left, cut):
    # Answers lines, and dies when `left` are written, in the midst of the next one.
    def dying(output, data):
        nonlocal left
        left -= 1
        if left < 0:
            os.write(output._file.fileno(), data[: int(len(data) * cut)])
            os.kill(os.getpid(), signal.SIGKILL)
        write(output, data)

    OutputFile._write = dying
    os._exit(main(args))

def lines():
    return open(out, "rb").read().count(b"\\n") if os.path.exists(out) else 0

for left, cut in ((3, 0.5), (0, 0.01), (4, 0.999), (1, 0.0), (99, 0.0)):
    had = lines()
    pid = os.fork()
    if not pid:
        child(left, cut)
    if left == 99:  # from outside, at no moment in particular
        while lines() < had + 3:
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if left < 99:  # on a busy machine, the other one may have come to its end first
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    assert lines() >= had + min(left, 3), "what was answered stays"
    print(lines())
"""


def test_a_run_that_is_killed_at_any_moment_is_gone_on_with(tiny_dir, files, tmp_path, capsys):
    """SIGKILL in the midst of writing a line, four times, and once from outside."""
    write(files[0], many(24))
    _, _, expected = run(capsys, tiny_dir, (files[0], tmp_path / "uninterrupted.jsonl"))
    args = ["batch", str(files[0]), "-o", str(files[1]), *flags(tiny_dir, "--max-batch-size", "4")]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(files[1]), *args], capture_output=True, check=False)
    assert killed.returncode == 0, killed.stderr.decode()
    has = int(killed.stdout.split()[-1])
    assert 11 <= has <= 24
    code, said, answers = run(capsys, tiny_dir, files)
    assert code == 1
    assert f"has {has} of 24 answers" in said or has == 24
    assert comparable(answers) == comparable(expected)
