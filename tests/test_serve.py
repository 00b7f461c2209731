"""`minillm serve` as a process: what it says, what it refuses, and how it ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from in_process import call
from tiny import save_tiny_model

from minillm import LLM, SamplingParams

TEXT = {"model": "tiny", "prompt": "the cat", "temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def tiny_dir(tmp_path_factory):
    changes = {"max_position_embeddings": 4096, "num_hidden_layers": 1}
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny"), **changes))


@contextlib.contextmanager
def process(tiny_dir, *flags):
    """The process, and its address."""
    command = [sys.executable, "-m", "minillm.serve", "--model", tiny_dir, "--served-model-name", "tiny", "--port", "0"]
    with subprocess.Popen(
        [*command, "--dtype", "float32", *flags], stderr=subprocess.PIPE, encoding="utf-8", env={**os.environ}
    ) as server:
        try:
            line = next(line for line in server.stderr if "is served at" in line)
            yield server, line.split()[-1].strip("]")
        finally:
            server.kill()


def streams(url, count, body):
    """As many clients: their threads, and the events that each has got, the last of them b"" at the stream's end."""
    found: list[list[str]] = [[] for _ in range(count)]

    def read(i: int) -> None:
        with (
            contextlib.suppress(httpx.TransportError),
            httpx.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}, timeout=60) as response,
        ):
            assert response.status_code == 200
            found[i].extend(line.removeprefix("data: ") for line in response.iter_lines() if line)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


def busy(url, waiting: int = 0) -> None:
    """Wait until four requests are at work and `waiting` more are there: a server that ends refuses who comes later."""
    gauges = {"running": 4, "waiting": waiting}
    lines = [f'vllm:num_requests_{name}{{model_name="tiny"}} {count}.0' for name, count in gauges.items()]
    deadline = time.monotonic() + 60
    while not all(line in (told := httpx.get(f"{url}/metrics").text) for line in lines):
        assert time.monotonic() < deadline, told
        time.sleep(0.01)


def test_told_to_end_it_finishes_what_runs_and_takes_nothing_new(tiny_dir) -> None:
    body = {**TEXT, "max_tokens": 400}
    with process(tiny_dir, "--max-batch-size", "4") as (server, url), httpx.Client() as kept:
        kept.get(f"{url}/health")
        threads, found = streams(url, 6, body)  # four run, two wait
        busy(url, waiting=2)
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while kept.get(f"{url}/health").json() != {"status": "draining"}:
            assert time.monotonic() < deadline
        assert kept.get(f"{url}/health/ready").status_code == 503
        refused = kept.post(f"{url}/v1/completions", json=TEXT)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        for thread in threads:
            thread.join()
        assert server.wait(30) == 0
    alone = LLM(tiny_dir, dtype="float32").generate("the cat", SamplingParams(max_tokens=400, ignore_eos=True)).text
    for events in found:
        assert events[-1] == "[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1]) == alone


def test_what_the_grace_is_too_short_for_ends_with_an_error_event(tiny_dir) -> None:
    with process(tiny_dir, "--max-batch-size", "4", "--grace", "0.2") as (server, url):
        threads, found = streams(url, 6, {**TEXT, "max_tokens": 4000})
        busy(url, waiting=2)
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0
        for thread in threads:
            thread.join()
    for events in found:
        assert json.loads(events[-1])["error"]["code"] == "shutting_down"
        assert "[DONE]" not in events


def test_a_second_signal_ends_it_at_once(tiny_dir) -> None:
    with process(tiny_dir, "--max-batch-size", "4", "--grace", "600") as (server, url):
        streams(url, 4, {**TEXT, "max_tokens": 4000})
        busy(url)
        server.send_signal(signal.SIGTERM)
        with httpx.Client() as kept:
            while kept.get(f"{url}/health").json() != {"status": "draining"}:
                assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 128 + signal.SIGTERM


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(capsys) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = call(capsys, "serve", "--model", "/no/such/model", "--port", str(port))
    assert code == 2
    assert err.startswith(f"minillm serve: error: cannot listen on 127.0.0.1, port {port}: ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--port", "70000"], "--port must be 0 to 65535"),
        (["--host", "no.such.host.invalid"], "'no.such.host.invalid' is no address"),
        (["--api-key", ""], "the API key must be"),
        (["--timeout", "0"], "--timeout must be"),
        (["--max-waiting", "-1"], "--max-waiting must be"),
        (["--max-batch-size", "0"], "--max-batch-size must be at least 1"),
        (["--kv-memory", "lots"], "lots"),
    ],
)
def test_wrong_calls_get_one_sentence(capsys, tiny_dir, flags, told) -> None:
    code, out, err = call(capsys, "serve", "--model", tiny_dir, "--port", "0", *flags)
    assert (code, out) == (2, "")
    assert told in err.splitlines()[-1]
    assert len([line for line in err.splitlines() if line.startswith("minillm serve: error")]) == 1
