"""Clients that go away, that do not read, that send nonsense: nothing stays behind, and nobody else notices."""

import json
import random
import socket
import threading

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from serving import NAME, hold_after, running, tiny_llm

from minillm import LLM, SamplingParams
from minillm.server.schemas import ChatCompletionRequest, CompletionRequest
from minillm.server.settings import Settings
from minillm.server.tokenization import DetokenizeRequest, TokenizeRequest

TEXT = {"model": NAME, "prompt": "the cat", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
LONG = {**TEXT, "max_tokens": 480}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory)


@pytest.fixture(scope="module")
def server(llm):
    with running(llm) as here:
        yield here


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def raw(body: dict, path: str = "/v1/completions") -> bytes:
    """A request as it lies on the wire."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def test_clients_that_go_away_at_any_moment_leave_nothing_behind(server, llm) -> None:
    """Before the body is there, while they wait, while they run, streamed or not, with an end or a reset."""
    server.wait_until_idle()
    tasks, choose = server.tasks(), random.Random(5)
    expected = llm.generate("the cat", SamplingParams(max_tokens=12, ignore_eos=True)).text

    def come_and_go(i: int) -> None:
        body = {**LONG, "prompt": ["the cat", "the dog sat"][i % 2], "stream": i % 3 > 0, "n": 1 + i % 2}
        data = raw(body)
        with server.connect() as client:
            client.sendall(data[: choose.randrange(len(data))] if i % 5 == 0 else data)
            if i % 5 > 1:
                threading.Event().wait(choose.random() * 0.3)
            if i % 5 == 4 and i % 3 > 0:
                client.recv(64)
            if i % 4 == 0:  # closing sends a reset instead of an end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    clients = [threading.Thread(target=come_and_go, args=(i,)) for i in range(40)]
    for client in clients:
        client.start()
    answer = httpx.post(f"{server.url}/v1/completions", json=TEXT, timeout=60).json()
    assert answer["choices"][0]["text"] == expected
    for client in clients:
        client.join()
    server.wait_until_idle()
    server.wait_until(lambda: server.tasks() <= tasks)


def test_a_reader_that_does_not_read_does_not_slow_the_rest(llm) -> None:
    """Its socket is full, its pieces wait; its place in the batch is free when its text is whole."""
    wide = {**LONG, "stream": True, "n": 8, "max_tokens": 100, "logprobs": 5}
    with running(llm, send_buffer=4096) as server, server.connect(4096) as slow:
        slow.sendall(raw(wide))
        server.wait_until(lambda: len(server.engine.requests) == 8)
        answer = httpx.post(f"{server.url}/v1/completions", json=TEXT, timeout=60).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        server.wait_until(lambda: not server.engine.requests)
        server.wait_until(lambda: server.lifecycle.active == 1)  # it still has to read
        data = b""
        while not data.endswith(b"0\r\n\r\n"):
            received = slow.recv(65536)
            assert received
            data += received
        assert b"data: [DONE]" in data
        assert data.count(b'"finish_reason":"length"') == 8


def test_a_reader_that_never_reads_is_left_when_its_time_is_over(llm, monkeypatch) -> None:
    monkeypatch.setattr("minillm.server.service.LAST_EVENT_S", 0.1)
    wide = {**LONG, "stream": True, "n": 8, "max_tokens": 100, "logprobs": 5}
    with running(llm, Settings(timeout_s=1.5), send_buffer=4096) as server, server.connect(4096) as slow:
        slow.sendall(raw(wide))
        server.wait_until(lambda: server.engine.requests)
        server.wait_until_idle()
        data = b""
        while received := slow.recv(65536):
            data += received
        assert data.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in data


def metrics_of(http) -> dict[str, float]:
    """The samples by name; those with a reason or a bucket by name and that."""
    samples = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            if not sample.name.startswith("vllm:"):
                continue
            more = sample.labels.get("finished_reason") or sample.labels.get("le") or ""
            assert sample.labels["model_name"] == NAME
            samples[sample.name + more] = sample.value
    return samples


def test_metrics_after_known_requests(llm) -> None:
    with running(llm, block_size=4) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        before = metrics_of(http)
        assert before["vllm:generation_tokens_total"] == before["vllm:num_requests_running"] == 0
        prompt = llm.tokenizer.encode("the cat sat on the mat, and the dog")
        body = {**TEXT, "prompt": prompt}
        http.post("/v1/completions", json=body)
        http.post("/v1/completions", json={**body, "max_tokens": 5})
        text = llm.generate("the cat", SamplingParams(max_tokens=12, ignore_eos=True)).text
        stopped = http.post("/v1/completions", json={**TEXT, "stop": text[3]}).json()
        go_on = hold_after(server, 4)
        with http.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as stream:
            next(stream.iter_bytes())
            meanwhile = metrics_of(http)
            assert meanwhile["vllm:num_requests_running"] == 1
            assert 0 < meanwhile["vllm:kv_cache_usage_perc"] < 1
        go_on.set()
        server.wait_until_idle()
        http.post("/v1/completions", json={**TEXT, "max_tokens": 1})
        after = metrics_of(http)
    tokens = 12 + 5 + stopped["usage"]["completion_tokens"] + 1
    cat = len(llm.tokenizer.encode("the cat"))
    assert after["vllm:prompt_tokens_total"] == after["vllm:prefix_cache_queries_total"] == 2 * len(prompt) + 3 * cat
    assert after["vllm:prefix_cache_hits_total"] >= (len(prompt) - 1) // 4 * 4
    assert after["vllm:generation_tokens_total"] > tokens
    assert after["vllm:request_success_totallength"] == 3
    assert after["vllm:request_success_totalstop"] == after["vllm:request_success_totalabort"] == 1
    assert after["vllm:request_success_totalerror"] == 0
    assert after["vllm:time_to_first_token_seconds_count"] == after["vllm:request_queue_time_seconds_count"] == 5
    assert after["vllm:request_generation_tokens_sum"] == after["vllm:generation_tokens_total"]
    assert after["vllm:inter_token_latency_seconds_count"] == after["vllm:generation_tokens_total"] - 5
    assert after["vllm:request_time_per_output_token_seconds_count"] == 4
    assert 0 < after["vllm:time_to_first_token_seconds_sum"] < after["vllm:e2e_request_latency_seconds_sum"]
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["tiny", "user", "\ud800", "text", "function", "<|im_end|>", "x" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
VALID = {"model": NAME, "prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1], "max_tokens": 1}


@st.composite
def bodies(draw) -> tuple[str, dict]:
    """A path, and a body that is nearly right for it."""
    path = draw(st.sampled_from(sorted(PATHS)))
    fields = sorted(PATHS[path].model_fields)
    body = {name: value for name, value in VALID.items() if name in fields}
    body |= draw(st.dictionaries(st.sampled_from(fields) | st.text(max_size=4), JSON, min_size=1, max_size=3))
    return path, body


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies())
def test_bodies_that_are_nearly_right_are_answered_or_refused_in_the_one_shape(http, request_body) -> None:
    path, body = request_body
    response = http.post(path, content=json.dumps(body).encode(), headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.json()["error"]["type"] == "invalid_request_error"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(PATHS)), st.binary(max_size=60))
def test_bytes_that_are_no_body_are_refused_in_the_one_shape(http, path, data) -> None:
    response = http.post(path, content=data, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
