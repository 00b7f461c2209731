"""A model hub on loopback: of the hub's HTTP API what `huggingface_hub` asks for when it lists and downloads a model.

The library reads its settings from the environment when it is imported. `run` and `fetch` therefore use processes of
their own; `Here` sets in this process what the library has read, which is quicker.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

import minillm
from minillm import fetch as command

REPOSITORY = Path(minillm.__file__).parents[1]
COMMIT = "a" * 40
LARGE_BYTES = 1000  # files of this size and more are "LFS" files, whose checksum is a SHA-256

CONFIG = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}

FILES: dict[str, bytes] = {
    "config.json": json.dumps(CONFIG).encode(),
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "model.safetensors": b"weights " * 1000,
}
STRAY = {
    "README.md": b"never asked for",
    "pytorch_model.bin": b"never asked for",
    "consolidated.safetensors": b"never asked for",
    "adapter_config.json": b"never asked for",
    "optimizer.pt": b"never asked for",
    "onnx/model.onnx": b"never asked for",
    "original/consolidated.00.pth": b"never asked for",
    "model-00009-of-00009.safetensors": b"an old shard that no index names",
}


@dataclass
class Hub:
    """What the stand-in has and how it behaves; and every request that came, "METHOD path" with its Range header.

    commits: by revision. refusal: (status, X-Error-Code, X-Error-Message) for everything. gated: files are refused,
    the listing is not. token: only this one may read. cuts: how many answers to requests for large files break off
    half way. stalls: how many of them say nothing more half way, for a second. answers_after_s: how long everything
    takes. speed: bytes per second of large files. ranges: whether Range is understood. content_at: the address of
    another server, to which requests for large files are sent on (the real hub does so). authorized: the paths of
    requests that brought a token.
    """

    files: dict[str, bytes] = field(default_factory=lambda: {**FILES, **STRAY})
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    refusal: tuple[int, str, str] | None = None
    gated: bool = False
    token: str | None = None
    cuts: int = 0
    stalls: int = 0
    answers_after_s: float = 0.0
    speed: float | None = None
    ranges: bool = True
    corrupt: bool = False
    requests: list[str] = field(default_factory=list)
    authorized: list[str] = field(default_factory=list)
    content_at: str = ""
    url: str = ""

    def downloads(self) -> list[str]:
        """The files whose content was asked for, in order."""
        return [match[1] for line in self.requests if (match := re.match(r"GET /org/tiny/resolve/\w+/(\S+)", line))]


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """The hub, at `hub.url`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        range_header = self.headers.get("Range")
        self.hub.requests.append(f"{self.command} {self.path}" + (f" {range_header}" if range_header else ""))
        time.sleep(self.hub.answers_after_s)
        if "Authorization" in self.headers:
            self.hub.authorized.append(self.path)
        if match := re.fullmatch(r"/content/(\S+)", self.path):
            return self._content(self.hub.files[match[1]], {})
        if self.hub.refusal is not None:
            return self._refuse(*self.hub.refusal)
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._refuse(401, "RepoNotFound", "Repository not found")
        if match := re.match(r"/api/models/org/tiny(?:/(?:revision|tree)/([\w.%-]+))?(\?|$)", self.path):
            return self._list(match[1] or "main", is_tree="/tree/" in self.path)
        if match := re.match(r"/org/tiny/resolve/([\w.%-]+)/(\S+)", self.path):
            return self._file(match[1], match[2])
        return self._refuse(404, "RepoNotFound", "Repository not found")

    do_HEAD = do_GET  # noqa: N815

    def _commit(self, revision: str) -> str | None:
        revision = revision.replace("%2F", "/")
        return revision if revision in self.hub.commits.values() else self.hub.commits.get(revision)

    def _list(self, revision: str, is_tree: bool) -> None:
        commit = self._commit(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        entries = [_entry(name, content) for name, content in self.hub.files.items()]
        if is_tree:
            return self._json(
                [{"type": "file", "path": e.pop("rfilename"), "oid": e.pop("blobId"), **e} for e in entries]
            )
        return self._json({"id": "org/tiny", "sha": commit, "siblings": entries})

    def _file(self, revision: str, name: str) -> None:
        commit = self._commit(revision)
        if commit is None:
            return self._refuse(404, "RevisionNotFound", "Invalid rev id")
        if self.hub.gated:
            return self._refuse(403, "GatedRepo", "Access to model org/tiny is restricted")
        if name not in self.hub.files:
            return self._refuse(404, "EntryNotFound", "Entry not found")
        content = self.hub.files[name]
        headers = {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if _is_large(content):
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{_etag(content)}"'}
            if self.hub.content_at:
                return self._send(302, b"", {**headers, "Location": f"{self.hub.content_at}/content/{name}"})
        return self._content(content, headers)

    def _content(self, content: bytes, headers: dict[str, str]) -> None:
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start and self.hub.ranges:
            first = int(start[1])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self._send(206, content[first:], headers, is_large=_is_large(content))
        return self._send(200, content, headers, is_large=_is_large(content))

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], is_large: bool = False) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if is_large and self.hub.corrupt:
            content = bytes(len(content))
        if is_large and self.hub.stalls + self.hub.cuts > 0:
            self._write(content[: len(content) // 2])
            if self.hub.stalls > 0:
                self.hub.stalls -= 1
                time.sleep(1.0)
            else:
                self.hub.cuts -= 1
            self.close_connection = True
            self.connection.shutdown(2)
            return
        self._write(content, self.hub.speed if is_large else None)

    def _write(self, content: bytes, speed: float | None = None) -> None:
        step = len(content) if speed is None else max(1, round(speed / 20))
        for start in range(0, len(content), step or 1):
            try:
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
            except OSError:  # whoever asked is gone
                return
            if speed is not None:
                time.sleep(0.05)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _is_large(content: bytes) -> bool:
    return len(content) >= LARGE_BYTES


def _etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if _is_large(content) else git_checksum(content)


def git_checksum(content: bytes) -> str:
    """Git's name for a small file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git_checksum(content)}
    if _is_large(content):
        entry["lfs"] = {"sha256": _etag(content), "oid": _etag(content), "size": len(content), "pointerSize": 130}
    return entry


def environment(hub: Hub | None, home: Path, **changes: str) -> dict[str, str]:
    """The environment of a process that is to talk with this hub (None: nobody answers) and keeps things in `home`."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "MINILLM_"))}
    return {
        **others,
        "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        "COLUMNS": "200",
        **changes,
    }


# What the library's fetching in small files would hide: that large files are resumed.
LARGE_HERE = f"""
import minillm.loading.hub_transfer, minillm.loading.download
minillm.loading.hub_transfer.RESUMABLE_BYTES = {LARGE_BYTES}
minillm.loading.download.CHUNK_BYTES = 500
minillm.loading.download.PAUSE_S = 0.01
"""
CONFIG_ONLY = "from minillm.loading.hub import fetch_config_from_hub\nprint(fetch_config_from_hub('org/tiny'))"
FETCH = f"import sys\n{LARGE_HERE}\nfrom minillm import fetch\nsys.exit(fetch.main(sys.argv[1:]))"


def fetch(hub: Hub | None, home: Path, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """`minillm fetch ARGUMENTS` (default: org/tiny) in a process of its own."""
    return run(FETCH, *(arguments or ("org/tiny",)), hub=hub, home=home, **changes)


def run(code: str, *arguments: str, hub: Hub | None, home: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, with this hub and home."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=REPOSITORY,
        env=environment(hub, home, **changes),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=60,
    )


class Here:
    """`minillm fetch` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path):
        self.monkeypatch, self.capsys, self.home = monkeypatch, capsys, home
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("minillm.loading.hub_transfer.RESUMABLE_BYTES", LARGE_BYTES)
        monkeypatch.setattr("minillm.loading.download.CHUNK_BYTES", 500)
        monkeypatch.setattr("minillm.loading.download.PAUSE_S", 0.01)

    def fetch(
        self, hub: Hub | None, *arguments: str, offline: bool = False, token: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`minillm fetch ARGUMENTS` (default: org/tiny) from this hub; None: nobody answers."""
        endpoint = hub.url if hub else "http://127.0.0.1:9"
        self.monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        url = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        self.monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        self.monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        if token is not None:
            self.monkeypatch.setenv("HF_TOKEN", token)
        self.capsys.readouterr()
        code = command.main(arguments or ("org/tiny",))
        out, err = self.capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The sentence of a fetch that failed as it should: exit code 2, nothing on stdout, one line of error."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("minillm fetch: error: "), done.stderr
    return last
