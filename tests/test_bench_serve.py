"""`minillm bench_serve`: its clients against a server of the tests' own, what it makes of them, what it refuses."""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import httpx
import pytest
from in_process import call
from serving import NAME, running, tiny_llm
from tiny import save_tiny_model

from minillm import LLM
from minillm.benchmark.serving.asks import CLOSE, Alone, Ask, answers_alone, asks
from minillm.benchmark.serving.ending import Ended
from minillm.benchmark.serving.fuzz import fuzz
from minillm.benchmark.serving.leaving import Left, leave
from minillm.benchmark.serving.overhead import Overhead
from minillm.benchmark.serving.reader import Heard, listen
from minillm.benchmark.serving.slow import read_beside
from minillm.benchmark.serving.sustained import Sustained, sustain
from minillm.benchmark.serving.tables import ServeReport
from minillm.benchmark.serving.target import Still, Target
from minillm.server.settings import Settings

REST = Still(requests=0, blocks_share=0.0, tasks=3, open_files=20, resident_bytes=100)
GOOD = Heard(asked_s=0.0, status=200, text="ab", times=[0.2, 0.4], tokens=2, complete=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory)


@pytest.fixture(scope="module")
def target(llm):
    with running(llm, Settings(max_waiting=200)) as server:
        yield Target(server.url, NAME)


@pytest.fixture(scope="module")
def alone(target) -> list[Alone]:
    return answers_alone(target, asks(5, (1, 4), (2, 12)))


def test_asks_are_those_of_their_seed_and_within_their_lengths() -> None:
    found = asks(40, (3, 9), (2, 5), seed=1)
    assert found == asks(40, (3, 9), (2, 5), seed=1) != asks(40, (3, 9), (2, 5), seed=2)
    assert {len(one.prompt.split()) for one in found} == set(range(3, 10))
    assert {one.max_tokens for one in found} == {2, 3, 4, 5}


def test_the_answer_alone_is_the_models_own(llm, alone) -> None:
    from minillm import SamplingParams

    for one in alone:
        own = llm.generate(one.ask.prompt, SamplingParams(max_tokens=one.ask.max_tokens, ignore_eos=True))
        assert own.text == one.text
        assert len(one.gaps) == len(one.offsets) <= one.ask.max_tokens
        assert all(gap >= 0 for gap in one.gaps)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("the cat sat", "equal"),
        ("the dog sat", "different"),
        ("the cat ran", "close"),
        ("the cat", "close"),
        ("", "different"),
    ],
)
def test_a_difference_is_close_only_where_the_token_had_a_rival(text, verdict) -> None:
    one = Alone(Ask("x", 3), "the cat sat", offsets=(0, 3, 7), gaps=(1.0, CLOSE, CLOSE / 2))
    assert one.verdict(text) == verdict


def heard_from(content: bytes, status: int = 200) -> Heard:
    async def ask() -> Heard:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, content=content))
        async with httpx.AsyncClient(base_url="http://here", transport=transport) as client:
            return await listen(client, {"model": NAME})

    return asyncio.run(ask())


def event(**data) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def test_a_stream_is_whole_only_with_its_last_word() -> None:
    text = event(choices=[{"text": "a"}]) + event(choices=[{"text": ""}]) + event(choices=[{"text": "b"}])
    usage = event(choices=[], usage={"completion_tokens": 3})
    whole = heard_from(text + usage + b"data: [DONE]\n\n")
    assert (whole.text, whole.tokens, whole.complete, whole.error, len(whole.times)) == ("ab", 3, True, None, 2)
    cut = heard_from(text)
    assert (cut.text, cut.complete) == ("ab", False)
    failed = heard_from(text + event(error={"code": "shutting_down", "message": "m"}))
    assert (failed.complete, failed.error) == (False, "shutting_down")
    refused = heard_from(b"full", 429)
    assert (refused.status, refused.complete, refused.error) == (429, False, "429: full")


def test_many_clients_get_what_each_gets_alone(target, alone) -> None:
    run = asyncio.run(sustain(target, alone, clients=12, seconds=0.5))
    assert len(run.heard) >= 12
    assert run.lost == 0
    assert set(run.verdicts) == {"equal"}
    assert sum(run.verdicts.values()) == len(run.heard)
    assert run.health_s
    assert max(run.health_s) < float("inf")
    assert run.after.requests == 0 == run.after.blocks_share
    assert 0 < run.prefix_hits <= 1


def test_clients_that_leave_leave_nothing(target, alone) -> None:
    run = asyncio.run(leave(target, alone, clients=60))
    assert sum(run.moments.values()) == 60
    assert run.moments["in its own body"] > 0
    assert set(run.verdicts) == {"equal"}
    assert run.after.requests == 0 == run.after.blocks_share
    assert run.nothing_is_left


def test_slow_readers_get_all_in_the_end(target, alone, monkeypatch) -> None:
    monkeypatch.setattr("minillm.benchmark.serving.slow.ROUNDS", 1)
    run = asyncio.run(read_beside(target, alone, slow=2))
    assert run.whole == run.slow == 2
    assert set(run.verdicts) == {"equal"}
    assert len(run.tpot_reading_s) == len(run.tpot_slow_s) == 1


def test_wrong_bodies_are_refused(target) -> None:
    run = asyncio.run(fuzz(target, 400))
    assert run.wrong == ()
    assert sum(run.statuses.values()) == run.bodies == 400
    assert run.valid == run.statuses[200] < 80


def test_what_a_server_answers_that_is_no_refusal_is_told() -> None:
    from minillm.benchmark.serving import fuzz as module

    detail = {"message": "m", "type": "t", "param": None, "code": None}
    good, html = {"error": detail}, "<html>"
    assert module._is_refusal(httpx.Response(400, json=good))
    for status, content in ((500, good), (302, good), (400, {"detail": "m"}), (400, {"error": "m"}), (422, [])):
        assert not module._is_refusal(httpx.Response(status, json=content))
    assert not module._is_refusal(httpx.Response(400, text=html))


def sustained(**changes) -> Sustained:
    run = Sustained(
        clients=1,
        seconds=10.0,
        heard=(GOOD,),
        verdicts=Counter(equal=1),
        health_s=(0.01,) * 100,
        resident=((0.0, 100), (5.0, 110), (10.0, 112)),
        prefix_hits=0.5,
        before=REST,
        after=REST,
    )
    return replace(run, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"heard": (replace(GOOD, complete=False),)},
        {"verdicts": Counter(equal=5, different=1)},
        {"health_s": (0.01,) * 90 + (0.2,) * 10},
        {"resident": ((0.0, 100), (5.0, 110), (10.0, 120))},
        {"after": replace(REST, requests=1)},
    ],
)
def test_the_report_says_what_must_not_be(capsys, changes) -> None:
    import sys

    report = ServeReport(sys.stdout)
    report.sustained(sustained())
    assert report.good
    assert "NO" not in capsys.readouterr().out
    report.sustained(sustained(**changes))
    assert not report.good
    assert sum(line.startswith("  NO ") for line in capsys.readouterr().out.splitlines()) == 1


def test_what_is_left_and_how_it_ends_is_judged() -> None:
    left = Left(1, Counter(), Counter(), REST, REST)
    assert left.nothing_is_left
    for after in ({"requests": 1}, {"blocks_share": 0.1}, {"tasks": 4}, {"open_files": 21}):
        assert not replace(left, after=replace(REST, **after)).nothing_is_left
    ended = Ended(30.0, Counter({"whole": 3, "error event": 1, "refused": 1}), Counter(), 1.0, 0)
    assert ended.all_told
    assert not replace(ended, ends=Counter({"whole": 3, "broken: ReadError": 1})).all_told
    assert Overhead((0.1, 0.1, 0.1), (0.1, 0.1, 0.1), (0.11, 0.2, 0.105)).share == pytest.approx(0.1)


def test_a_whole_run_with_a_server_of_its_own(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("minillm.benchmark.serving.slow.ROUNDS", 1)
    model = str(save_tiny_model(tmp_path / "tiny", num_hidden_layers=1, max_position_embeddings=512))
    runs = ["--clients", "3", "--seconds", "0.3", "--disconnect", "5", "--slow", "1", "--fuzz", "20", "--term", "3"]
    asked = ["--prompts", "2", "--words", "1", "2", "--outputs", "2", "4"]
    code, out, _ = call(capsys, "bench_serve", *runs, *asked, "--", "--model", model, "--dtype", "float32")
    assert code in (0, 1), "1 where this machine is too busy for a figure: no time is judged here"
    assert "3 streaming clients" in out
    for told in ("ok streams", "ok texts", "ok slow streams", "ok not in shape", "ok whole ones"):
        assert told in out
    assert out.count("exit code 0") == 2


def test_a_server_of_its_own_with_a_key_is_asked_with_it(capsys, tmp_path, monkeypatch) -> None:
    model = str(save_tiny_model(tmp_path / "tiny", num_hidden_layers=1, max_position_embeddings=512))
    monkeypatch.setenv("MINILLM_API_KEY", "s3cret")
    asked = ["--disconnect", "2", "--prompts", "1", "--words", "1", "1", "--outputs", "2", "2"]
    code, out, _ = call(capsys, "bench_serve", *asked, "--", "--model", model, "--dtype", "float32")
    assert code == 0
    assert "ok others" in out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--clients", "0"], "--clients must be"),
        (["--words", "5", "2"], "--words must be"),
        (["--seconds", "nan"], "--seconds must be"),
        (["--url", "http://127.0.0.1:9", "--fuzz", "1"], "no server answers at"),
        (["--url", "http://127.0.0.1:9", "--term"], "--term and --overhead need"),
        (["--url", "http://127.0.0.1:9", "--", "--model", "x"], "--url names a server"),
        (["--fuzz", "1", "--", "--model", "/no/such/model"], "the server did not start"),
        (["--fuzz", "1", "--", "--no-such-flag"], "the server did not start"),
    ],
)
def test_wrong_calls_get_one_sentence(capsys, flags, told) -> None:
    code, out, err = call(capsys, "bench_serve", *flags)
    assert (code, out) == (2, "")
    assert told in err.splitlines()[-1]
