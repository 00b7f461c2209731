"""The server that is measured: one that runs already, or a process of its own."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import httpx
from prometheus_client.parser import text_string_to_metric_families

from minillm.errors import InputError
from minillm.serve import KEY_VARIABLE

START_S = 600.0
"""For a server to load its model."""

ANSWER_S = 600.0
"""For an answer: as long as a server gives one."""

QUIET_S = 60.0
"""For a server to be done with what nobody waits for any more."""

LAST_LINES = 20


@dataclass(frozen=True)
class Still:
    """What a server has when nothing is asked of it. Bytes and files are None where its system does not tell."""

    requests: int
    blocks_share: float
    tasks: int
    open_files: int | None
    resident_bytes: int | None


@dataclass(frozen=True)
class Target:
    """A server. key: its API key. process: None where somebody else has started it."""

    url: str
    model: str
    key: str | None = None
    process: "subprocess.Popen[str] | None" = None

    @property
    def headers(self) -> dict[str, str]:
        """What each request carries."""
        return _headers(self.key)

    def client(self, timeout_s: float = ANSWER_S) -> httpx.AsyncClient:
        """For as many requests at a time as there are."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return httpx.AsyncClient(base_url=self.url, headers=self.headers, timeout=timeout_s, limits=limits)

    def samples(self) -> dict[str, float]:
        """What /metrics says, by name; of a histogram its sum and count."""
        text = httpx.get(f"{self.url}/metrics", headers=self.headers, timeout=60).text
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels and "finished_reason" not in sample.labels
        }

    def still(self) -> Still:
        """What the server holds now."""
        samples = self.samples()
        files, resident = samples.get("process_open_fds"), samples.get("process_resident_memory_bytes")
        return Still(
            requests=int(samples["vllm:num_requests_running"] + samples["vllm:num_requests_waiting"]),
            blocks_share=samples["vllm:kv_cache_usage_perc"],
            tasks=int(samples["minillm:event_loop_tasks"]),
            open_files=None if files is None else int(files),
            resident_bytes=None if resident is None else int(resident),
        )

    def when(self, holds: Callable[[Still], bool], seconds: float = QUIET_S) -> Still:
        """What it holds once that `holds`, or when the time is over."""
        deadline = time.monotonic() + seconds
        while not holds(now := self.still()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return now

    def at_rest(self) -> Still:
        """What it holds when it has nothing to do; or after a minute, if that does not come."""
        return self.when(lambda now: not now.requests)


def running(url: str, key: str | None = None) -> Target:
    """A server that answers at `url`. Raises InputError where none does."""
    url = url.rstrip("/").removesuffix("/v1")
    try:
        answer = httpx.get(f"{url}/v1/models", headers=_headers(key), timeout=10)
        answer.raise_for_status()
        return Target(url, answer.json()["data"][0]["id"], key)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, IndexError) as error:
        raise InputError(f"no server answers at {url!r}: {error}") from None


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@contextlib.contextmanager
def started(flags: Sequence[str]) -> Iterator[Target]:
    """A server of its own, `minillm serve` with these flags on a free port; it has ended afterwards.

    Raises InputError, with what the server said, where it does not start.
    """
    command = [sys.executable, "-m", "minillm.serve", *flags, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8", errors="replace") as process:
        try:
            yield replace(running(_address(process), os.environ.get(KEY_VARIABLE)), process=process)
        finally:
            process.send_signal(signal.SIGKILL)


def _address(process: "subprocess.Popen[str]") -> str:
    """Where it listens, once it says so. What it says later is read too, so that it never waits for a reader."""
    assert process.stderr is not None, "it was asked for"
    said: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    killer = threading.Timer(START_S, process.kill)
    killer.start()
    try:
        for line in process.stderr:
            said.append(line.strip())
            if " is served at " in line:
                threading.Thread(target=process.stderr.read, daemon=True).start()
                return line.rsplit(" ", 1)[-1].strip().rstrip("]")
    finally:
        killer.cancel()
    raise InputError(f"the server did not start: {' '.join(said) or 'it said nothing'}")
