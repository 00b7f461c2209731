"""The server as plain HTTP: errors in one shape, keys, limits, health, tokens, events as they lie on the wire."""

import contextlib
import json
import threading

import httpx
import pytest
from serving import NAME, running, slow_down, tiny_llm

from minillm import LLM
from minillm.errors import InputError
from minillm.serve import _settings, new_parser
from minillm.server.lifecycle import end
from minillm.server.settings import Settings
from minillm.server.tokenization import tokenize

CHAT = {"model": NAME, "messages": [{"role": "user", "content": "the cat"}], "temperature": 0, "max_tokens": 6}
TEXT = {"model": NAME, "prompt": "the cat", "temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return tiny_llm(tmp_path_factory)


@pytest.fixture(scope="module")
def server(llm):
    with running(llm, Settings(max_body_bytes=20_000)) as here:
        yield here


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def refused(response, status: int, **expected) -> dict:
    """The error's detail: in the one shape that all errors have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert {name: body["error"][name] for name in expected} == expected
    return body["error"]


def test_unknown_paths_and_wrong_methods_have_the_shape_of_all_errors(http) -> None:
    assert "/v1/nothing" in refused(http.get("/v1/nothing"), 404, code="unknown_path")["message"]
    refused(http.post("/v1/completions/", json=TEXT), 404)
    wrong = http.get("/v1/completions")
    refused(wrong, 405, code="wrong_method")
    assert wrong.headers["allow"] == "POST"
    refused(http.delete("/health"), 405)
    refused(http.get("/docs"), 404)


BAD_BODIES = {
    b"": "not JSON",
    b"{": "not JSON",
    b"[1]": "must be a JSON object",
    b'{"model": NaN}': "not JSON",
    b"\xff\xfe": "not JSON",
    b"[" * 10_000: "nested too deeply",
    b'{"model": "tiny"}': "missing",
    b'{"model": "tiny", "\\ud800": 1, "messages": [], "prompt": ""}': "",
    b'{"model": "tiny", "prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}': "",
}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_bodies_that_are_none_are_refused_with_400(http, path, body) -> None:
    if path == "/tokenize" and b"missing" in BAD_BODIES[body].encode():
        body = b'{"model": "tiny", "messages": []}'
    detail = refused(http.post(path, content=body, headers={"content-type": "application/json"}), 400)
    assert BAD_BODIES[body] in detail["message"] if body in BAD_BODIES else detail["message"]


@pytest.mark.parametrize("given", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"])
def test_other_media_types_are_refused(http, given) -> None:
    """A page of another site may send a text or a form to this machine's port unasked: it must not start work."""
    headers = {} if given is None else {"content-type": given}
    content = json.dumps(TEXT).encode()
    refused(http.post("/v1/completions", content=content, headers=headers), 415, code="unsupported_media_type")
    good = {"content-type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/completions", content=content, headers=good).status_code == 200


def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_its_length(http) -> None:
    big = json.dumps({**TEXT, "prompt": "x" * 30_000}).encode()
    kind = {"content-type": "application/json"}
    refused(http.post("/v1/completions", content=big, headers=kind), 413, code="body_too_large")
    parts = (big[i : i + 1000] for i in range(0, len(big), 1000))
    refused(http.post("/v1/completions", content=parts, headers=kind), 413, code="body_too_large")
    small = (part for part in (json.dumps(TEXT)[:9].encode(), json.dumps(TEXT)[9:].encode()))
    assert http.post("/v1/completions", content=small, headers=kind).status_code == 200


def test_events_lie_on_the_wire_as_the_standard_says(http) -> None:
    response = http.post("/v1/completions", json={**TEXT, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert all("usage" not in chunk for chunk in chunks)
    assert response.headers["x-request-id"] in chunks[0]["id"]


def test_a_request_that_is_wrong_for_the_engine_too_is_refused_before_a_stream_begins(http) -> None:
    wide = {**TEXT, "prompt": [[1]] * 200, "n": 2, "stream": True}
    assert "400 choices" in refused(http.post("/v1/completions", json=wide), 400, param="n")["message"]


def test_keys_are_asked_for_everywhere_but_at_the_health(llm) -> None:
    with running(llm, Settings(api_key="s3cret")) as server, httpx.Client(base_url=server.url) as http:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
            response = http.get(path)
            refused(response, 401, code="invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
        for wrong in ("s3cret", "Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer \xe9"):
            headers = {"authorization": wrong.encode("latin-1")}
            refused(http.post("/v1/completions", json=TEXT, headers=headers), 401)
        assert http.get("/health").json() == {"status": "ok"}
        assert http.get("/health/ready").status_code == 200
        headers = {"authorization": "Bearer s3cret"}
        assert http.post("/v1/completions", json=TEXT, headers=headers).status_code == 200


def test_pages_of_other_origins_may_call_only_where_that_was_allowed(llm, http) -> None:
    origin = {"origin": "https://a.example"}
    asking = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    refused(http.options("/v1/completions", headers=asking), 405)
    assert "access-control-allow-origin" not in http.post("/v1/completions", json=TEXT, headers=origin).headers
    settings = Settings(api_key="k", allow_origins=("https://a.example",))
    with running(llm, settings) as server, httpx.Client(base_url=server.url) as other:
        allowed = other.options("/v1/completions", headers=asking)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "https://a.example"
        response = other.post("/v1/completions", json=TEXT, headers=origin)
        refused(response, 401)
        assert response.headers["access-control-allow-origin"] == "https://a.example"
        told = other.get("/health", headers={"origin": "https://b.example"})
        assert "access-control-allow-origin" not in told.headers


def test_a_full_queue_says_when_to_come_back(llm) -> None:
    long = {**TEXT, "max_tokens": 500}
    with running(llm, Settings(max_waiting=1), max_batch_size=1) as server, httpx.Client(timeout=60) as http:
        where = f"{server.url}/v1/completions"
        with contextlib.ExitStack() as stack:
            for _ in range(2):  # one that runs, one that waits
                stack.enter_context(http.stream("POST", where, json={**long, "stream": True}))
            for fields in (long, {**long, "stream": True}):
                response = http.post(where, json=fields)
                refused(response, 429, code="queue_full")
                assert int(response.headers["retry-after"]) > 0
            refused(http.post(where, json={**long, "n": 3}), 400, param="n")  # for which there never is room
        server.wait_until_idle()
        assert http.post(where, json=TEXT).status_code == 200


def test_a_request_that_takes_too_long_is_ended_streamed_or_not(llm) -> None:
    long = {**TEXT, "max_tokens": 500}
    with running(llm, Settings(timeout_s=0.15)) as server, httpx.Client(timeout=60) as http:
        response = http.post(f"{server.url}/v1/completions", json=long)
        refused(response, 504, code="timeout")
        assert response.headers["x-should-retry"] == "false"
        text = http.post(f"{server.url}/v1/completions", json={**long, "stream": True}).text
        events = text.removesuffix("\n\n").split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "timeout"
        assert len(events) > 1, "it had begun"
        server.wait_until_idle()


def test_tokens_and_text_go_both_ways(http, llm) -> None:
    tokenized = http.post("/tokenize", json={"prompt": "the cat<|im_end|>", "return_token_strs": True}).json()
    ids = llm.tokenizer.encode("the cat<|im_end|>")
    strs = [llm.tokenizer.id_to_token(one) for one in ids]
    assert tokenized == {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": strs}
    assert http.post("/detokenize", json={"model": NAME, "tokens": ids}).json() == {"prompt": "the cat<|im_end|>"}
    messages = CHAT["messages"]
    chat = http.post("/tokenize", json={"messages": messages}).json()
    assert chat["tokens"] == llm.tokenizer.encode_chat(messages)
    assert chat["token_strs"] is None
    assert "<|im_start|>user" in http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"]
    bare = http.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert bare["count"] < chat["count"]


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": CHAT["messages"]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "tools": []}, 400, "tools"),
        ("/tokenize", {"messages": CHAT["messages"], "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "model": "gpt-9"}, 404, "model"),
        ("/tokenize", {"prompt": "a", "continue_final_message": True}, 400, "continue_final_message"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
    ],
)
def test_tokenization_refuses_by_name(http, path, body, status, param) -> None:
    refused(http.post(path, json=body), status, param=param)


def test_a_short_text_does_not_wait_for_long_ones(llm, monkeypatch) -> None:
    go_on, long_text = threading.Event(), "x" * 70_000

    def slowly(request, served):
        assert len(request.prompt) < len(long_text) or go_on.wait(30)
        return tokenize(request, served)

    monkeypatch.setattr("minillm.server.app.tokenize", slowly)
    with running(llm) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        counts = []
        clients = [
            threading.Thread(target=lambda: counts.append(http.post("/tokenize", json={"prompt": long_text}).json()))
            for _ in range(40)  # more than there are threads
        ]
        for client in clients:
            client.start()
        server.wait_until(lambda: server.lifecycle.active == 40)
        assert http.post("/tokenize", json={"prompt": "the cat"}).json()["count"] > 0
        assert not counts, "none of the long ones is through"
        go_on.set()
        for client in clients:
            client.join()
        assert len(counts) == 40


def test_an_engine_that_has_died_is_told_to_whoever_watches(llm) -> None:
    with running(llm) as server, httpx.Client(base_url=server.url) as http:
        server.call(server.serving.close()).result(timeout=30)
        refused(http.get("/health"), 500)
        refused(http.get("/health/ready"), 500)
        refused(http.post("/v1/completions", json=TEXT), 503)


def test_the_openapi_document_names_schemas_that_it_has(http) -> None:
    document = http.get("/openapi.json").json()
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(document["components"]["schemas"])
    assert {"ChatCompletionRequest", "CompletionRequest", "ErrorBody", "ChatCompletionChunk"} <= named
    assert {"/v1/chat/completions", "/tokenize", "/metrics", "/health/ready"} <= set(document["paths"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"api_key": ""},
        {"api_key": "é"},
        {"max_body_bytes": 0},
        {"max_waiting": -1},
        {"timeout_s": 0.0},
        {"timeout_s": float("nan")},
        {"grace_s": -1.0},
        {"grace_s": float("inf")},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong) -> None:
    with pytest.raises(InputError, match="must be"):
        Settings(**wrong)


def exchange(server, data: bytes) -> bytes:
    """What comes back for these bytes, until the server closes the connection."""
    with server.connect() as client:
        client.sendall(data)
        answer = b""
        while received := client.recv(65536):
            answer += received
    return answer


def refusal_on_the_wire(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head.lower()
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS's first words
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # HTTP/1.1 demands a host
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET /" + b"a" * 100_000,
    ],
)
def test_what_is_no_http_is_refused_in_the_shape_of_all_errors(server, data) -> None:
    refusal_on_the_wire(exchange(server, data), 400, "invalid_http")
    server.wait_until_idle()


def test_a_broken_body_ends_its_connection_and_no_other(server, http) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    refusal_on_the_wire(
        exchange(server, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{'a':\r\nno length\r\n"), 400, "invalid_http"
    )
    server.wait_until_idle()
    assert http.post("/v1/completions", json=TEXT).status_code == 200


def test_a_head_that_does_not_come_is_not_waited_for(server, monkeypatch) -> None:
    monkeypatch.setattr("minillm.server.connection.HEAD_S", 0.3)
    refusal_on_the_wire(exchange(server, b""), 408, "timeout")
    refusal_on_the_wire(exchange(server, b"GET /health HTTP/1.1\r\nHost: a\r\n"), 408, "timeout")
    whole = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with server.connect() as client:  # kept alive, and then a second head that does not end
        client.sendall(whole)
        first = b""
        while not first.endswith(b"}"):
            first += client.recv(65536)
        assert first.startswith(b"HTTP/1.1 200")
        client.sendall(whole[:20])
        refusal_on_the_wire(b"".join(iter(lambda: client.recv(65536), b"")), 408, "timeout")


def test_a_long_answer_is_not_cut_by_the_time_for_heads(server, http, monkeypatch) -> None:
    monkeypatch.setattr("minillm.server.connection.HEAD_S", 0.05)
    with http.stream("POST", "/v1/completions", json={**TEXT, "max_tokens": 300, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) > 50


@pytest.mark.parametrize("name", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io"])
def test_a_page_that_has_its_own_name_lead_here_is_refused(llm, name) -> None:
    with running(llm, Settings(hosts=frozenset({"box.example"}))) as server, httpx.Client(base_url=server.url) as http:
        models = http.get("/v1/models", headers={"host": name})
        assert "--allow-host" in refused(models, 403, code="wrong_host")["message"]
        refused(http.post("/v1/completions", json=TEXT, headers={"host": name}), 403, code="wrong_host")
        for good in ("localhost:1234", "LOCALHOST.", "127.0.0.1", "[::1]:8000", "10.0.0.7", "box.example:80", ""):
            assert http.get("/v1/models", headers={"host": good}).status_code == 200


def test_names_are_looked_at_where_a_server_is_for_this_machine_alone_and_without_a_key() -> None:
    def hosts(*flags, here=True):
        return _settings(new_parser().parse_args(flags), here).hosts

    assert hosts() == frozenset()
    assert (
        hosts("--allow-host", "Box.Example:80") == {"box.example"} == hosts("--allow-host", "box.example", here=False)
    )
    assert hosts("--api-key", "k") is None
    assert hosts(here=False) is None


def test_a_refused_body_that_does_not_end_is_not_waited_for(llm, monkeypatch) -> None:
    monkeypatch.setattr("minillm.server.connection.HEAD_S", 0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
    with running(llm, Settings(api_key="k")) as server, server.connect() as client:
        client.sendall(head)
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 401")
        client.sendall(b"x")  # takes away the time that uvicorn gives to silence
        while client.recv(65536):
            pass
        server.wait_until(lambda: not server.server.server_state.connections)


def test_more_connections_than_there_is_room_for_are_refused(llm, monkeypatch) -> None:
    monkeypatch.setattr("minillm.server.connection.MAX_CONNECTIONS", 2)
    with running(llm) as server, server.connect(), server.connect():
        server.wait_until(lambda: len(server.server.server_state.connections) == 2)
        refusal_on_the_wire(exchange(server, b""), 503, "too_many_connections")
        server.wait_until(lambda: len(server.server.server_state.connections) == 2)


@pytest.mark.parametrize("behind", [b"\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"x" * 30_000])
def test_a_client_that_sent_more_behind_its_body_is_seen_to_leave(llm, behind) -> None:
    body = json.dumps({**TEXT, "max_tokens": 480}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with running(llm) as server:
        slow_down(server, 0.05)
        with server.connect() as client:
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            server.wait_until(lambda: server.engine.requests)
            (request,) = server.engine.requests.values()
            client.sendall(behind)
        server.wait_until(lambda: not server.engine.requests)
        assert request.finish_reason == "abort"


def test_a_body_that_stalls_at_the_server_s_end_is_told_so(llm) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with running(llm) as server, server.connect() as client:
        client.sendall(head)
        server.wait_until(lambda: server.lifecycle.active == 1)
        server.call(end(server.server, server.serving, server.lifecycle, 0.0)).result(timeout=30)
        refusal = b"".join(iter(lambda: client.recv(65536), b""))
        head, _, told = refusal.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert json.loads(told)["error"]["code"] == "shutting_down"
