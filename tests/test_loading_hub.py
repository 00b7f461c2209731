"""Models of a hub: the real `huggingface_hub` against a stand-in for its service on loopback."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import minillm
from minillm.errors import InputError, MissingError
from minillm.loading.hub import fetch_from_hub

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"never asked for",
    "original/consolidated.safetensors": b"never asked for",
    "README.md": b"never asked for",
}
COMMIT = "a" * 40
REPOSITORY = Path(minillm.__file__).parents[1]

# A process of its own: the library reads its settings from the environment when it is imported.
CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from minillm.errors import MissingError
from minillm.loading.hub import fetch_from_hub
try:
    print(fetch_from_hub("org/tiny"))
except MissingError as error:
    print(f"refused: {error}")
"""


class Hub(BaseHTTPRequestHandler):
    """What the library asks for when it takes a snapshot; `refusal` answers everything with that status."""

    refusal: tuple[int, str] | None = None

    def do_GET(self) -> None:
        if self.refusal is not None:
            self._send(self.refusal[0], b"{}", {"X-Error-Code": self.refusal[1]})
        elif self.path.startswith("/api/models/org/tiny/revision/"):
            siblings = [{"rfilename": name} for name in FILES]
            self._send_json({"id": "org/tiny", "sha": COMMIT, "siblings": siblings})
        elif self.path.startswith("/api/models/org/tiny/tree/"):
            self._send_json([{"type": "file", "path": n, "size": len(c), "oid": _etag(c)} for n, c in FILES.items()])
        elif self.path.startswith((f"/org/tiny/resolve/{COMMIT}/", "/org/tiny/resolve/main/")):
            content = FILES[self.path.removeprefix("/org/tiny/resolve/").partition("/")[2]]
            self._send(200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(404, b"{}", {})

    do_HEAD = do_GET  # noqa: N815

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def fetch_in_child(cache: Path, refusal: tuple[int, str] | None = None, child: str = CHILD, **environment: str) -> str:
    """What fetching prints, against a hub that answers so."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (Hub,), {"refusal": refusal}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(cache),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1",
        **environment,
    }
    others = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    command = [sys.executable, "-c", child, str(REPOSITORY)]
    done = subprocess.run(command, env=others | settings, capture_output=True, text=True, check=False)
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_only_the_files_that_are_read_are_downloaded(tmp_path):
    directory = Path(fetch_in_child(tmp_path))
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["chat_template.jinja", "config.json", "model.safetensors"]
    assert (directory / "model.safetensors").read_bytes() == b"weights"


def test_a_model_in_the_cache_needs_no_network(tmp_path):
    directory = fetch_in_child(tmp_path)
    assert fetch_in_child(tmp_path, HF_HUB_OFFLINE="1") == directory
    assert fetch_in_child(tmp_path, HF_ENDPOINT="http://127.0.0.1:9") == directory


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ((404, "RepoNotFound"), "no hub model of this name"),
        ((403, "GatedRepo"), "is gated: accept its licence"),
        ((500, ""), "the hub could not be asked"),
    ],
)
def test_each_refusal_of_the_hub_has_its_sentence(tmp_path, refusal, words):
    answer = fetch_in_child(tmp_path, refusal)
    assert answer.startswith("refused: ")
    assert words in answer
    assert "\n" not in answer


def test_no_network_and_offline_mode_say_what_to_do(tmp_path):
    assert "check the network" in fetch_in_child(tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert "check the network" in fetch_in_child(tmp_path, HF_HUB_OFFLINE="1")


def test_a_malformed_id_is_refused_before_anything_is_asked():
    with pytest.raises(InputError, match="is neither a path nor a hub id"):
        fetch_from_hub("org/--name")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingError, match=r"pip install \"minillm\[hub\]\""):
        fetch_from_hub("org/tiny")
