"""`python -m minillm.serve`: a model behind OpenAI's API, for many clients at a time.

Everything that is said goes to stderr.
"""

import argparse
import asyncio
import importlib.util
import ipaddress
import os
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minillm.cli import (
    Parser,
    add_model_flags,
    add_serving_flags,
    checked_kv_bytes,
    guarded,
    load_llm,
    served_name,
)
from minillm.errors import InputError, MissingError
from minillm.generate import say

if TYPE_CHECKING:
    from minillm.llm import LLM
    from minillm.server.settings import Settings

PROG = "minillm serve"
DESCRIPTION = """\
Serve a model on a port: OpenAI's /v1/chat/completions, /v1/completions and /v1/models, streamed or whole; vLLM's
/tokenize and /detokenize; /health, /health/ready and /metrics (Prometheus). At / a page to talk on, which also shows
what the engine does (/engine).

SIGTERM or Ctrl-C: no new requests, those that run may finish within --grace seconds, exit code 0. A second one ends it
at once. Exit code 2 for a wrong call.
"""
AFTERWARDS_S = 1.0
"""Seconds from the end of the last connection to the end of the process, at most."""

KEY_VARIABLE = "MINILLM_API_KEY"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns its exit code."""
    args = new_parser().parse_args(argv)
    return guarded(lambda: _serve(args), PROG)


def new_parser() -> Parser:
    """The flags."""
    from minillm.server.settings import GRACE_S, MAX_BODY_BYTES, MAX_WAITING, TIMEOUT_S

    parser = Parser(prog=PROG, description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_argument_group("the door")
    group.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine)"
    )
    group.add_argument("--port", type=int, default=8000, help="the port; 0: any that is free (default: 8000)")
    group.add_argument(
        "--api-key", metavar="KEY", help=f"what clients must send; better in ${KEY_VARIABLE}, which `ps` does not show"
    )
    group.add_argument(
        "--allow-origin", action="append", metavar="ORIGIN", help="let pages of this origin call (default: none)"
    )
    group.add_argument(
        "--allow-host",
        action="append",
        metavar="NAME",
        help="without a key: a name, besides localhost, by which it may be called, a proxy's say (default: none where "
        "only this machine can reach it, else any)",
    )
    group = parser.add_argument_group("what it takes")
    group.add_argument(
        "--max-body-bytes", type=int, default=MAX_BODY_BYTES, metavar="N", help="of a request (default: 4 MiB)"
    )
    group.add_argument(
        "--max-waiting", type=int, default=MAX_WAITING, metavar="N", help=f"choices that wait (default: {MAX_WAITING})"
    )
    group.add_argument(
        "--timeout", type=float, default=TIMEOUT_S, metavar="S", help=f"seconds for a request (default: {TIMEOUT_S:g})"
    )
    group.add_argument(
        "--grace", type=float, default=GRACE_S, metavar="S", help=f"seconds to finish at the end (default: {GRACE_S:g})"
    )
    add_serving_flags(group)
    add_model_flags(parser)
    return parser


def _serve(args: argparse.Namespace) -> int:
    _settings(args)
    kv_bytes = checked_kv_bytes(args)
    check_installed("serving", "fastapi", "prometheus_client", "uvicorn")
    with _bound(args.host, args.port) as sock:
        settings = _settings(args, ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback)
        llm = load_llm(args)
        # Python waits for its threads before it ends. One may still make tokens of a long text, for nobody.
        at_last = threading.Timer(AFTERWARDS_S, os._exit, [0])
        at_last.daemon = True
        asyncio.run(_run(args, llm, kv_bytes, settings, sock, at_last))
        at_last.cancel()
    return 0


def _settings(args: argparse.Namespace, is_this_machine: bool = False) -> "Settings":
    """The flags, checked. is_this_machine: the address is one that only this machine can reach."""
    from minillm.server.keys import called_name
    from minillm.server.settings import Settings

    key = args.api_key if args.api_key is not None else os.environ.get(KEY_VARIABLE)
    hosts = None
    if key is None and (args.allow_host or is_this_machine):
        hosts = frozenset(called_name(name.encode()) for name in args.allow_host or ())
    return Settings(
        api_key=key,
        hosts=hosts,
        allow_origins=tuple(origin.rstrip("/") for origin in args.allow_origin or ()),
        max_body_bytes=args.max_body_bytes,
        max_waiting=args.max_waiting,
        timeout_s=args.timeout,
        grace_s=args.grace,
    )


def check_installed(what: str, *modules: str) -> None:
    """Raise MissingError where `what` lacks one of the modules that the serving extra brings."""
    missing = next((name for name in modules if importlib.util.find_spec(name) is None), None)
    if missing is not None:
        raise MissingError(f'{what} needs {missing}: pip install -e ".[serve]"')


def _bound(host: str, port: int) -> socket.socket:
    """A socket with the address, before the model is loaded: a port that is taken is told at once."""
    if not 0 <= port < 65536:
        raise InputError(f"--port must be 0 to 65535, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host!r} is no address of this machine: {error}") from error
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers have one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror}; --port names another") from error
    return sock


async def _run(
    args: argparse.Namespace,
    llm: "LLM",
    kv_bytes: int | None,
    settings: "Settings",
    sock: socket.socket,
    at_last: threading.Timer,
) -> None:
    from minillm.engine.async_engine import AsyncEngine
    from minillm.server.app import make_app
    from minillm.server.lifecycle import Lifecycle, run_until_told
    from minillm.server.load import fingerprint, new_engine
    from minillm.server.metrics import EngineMetrics
    from minillm.server.prepare import Served
    from minillm.server.service import Service

    name = served_name(args)
    metrics, lifecycle = EngineMetrics(name), Lifecycle()
    engine = new_engine(llm, args.max_batch_size, kv_bytes, observer=metrics.observe)
    metrics.watch(engine)
    metrics.watch_loop(asyncio.get_running_loop())
    async with AsyncEngine(engine, llm.tokenizer) as serving:
        service = Service(serving, Served.on(engine, name, llm.tokenizer), settings, fingerprint(args, llm))
        app = make_app(service, metrics, lifecycle)
        sock.listen()  # from here on clients may come: who does so before the server takes them waits a moment
        host, port = sock.getsockname()[:2]
        say(f"{name} is served at http://{f'[{host}]' if ':' in host else host}:{port}")
        await run_until_told(app, serving, lifecycle, sock, settings.grace_s)
    at_last.start()
    service.close()


if __name__ == "__main__":
    raise SystemExit(main())
