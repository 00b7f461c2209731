"""The handle by which an engine in another process is asked: see `worker.py`."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from minillm.benchmark.engine import EngineSpec
from minillm.benchmark.many.check import Checked
from minillm.benchmark.many.serve import Served, Serving
from minillm.benchmark.many.workload import Workload
from minillm.errors import InputError

HINTS = {
    4: ", as when the engine was compiled for another processor, or by a compiler that got it wrong",
    9: ", as when memory runs out",
}
"""What a signal suggests, by its number. Others suggest nothing."""


@dataclass(frozen=True)
class Loaded:
    """What an engine says about itself once it is loaded; bytes, and seconds until its first pass was over."""

    load_s: float
    vocab_size: int
    weight_bytes: int
    pass_bytes: int
    kv_bytes_per_token: int
    compiled: bool = False


@dataclass(frozen=True)
class Top:
    """The two likeliest ids, their logits, and the standard deviation of all logits."""

    ids: list[int]
    logits: list[float]
    std: float


class RemoteEngine:
    """An engine in a process of its own, loaded. To be used in a `with`: the process ends with it.

    Raises InputError where the engine cannot be loaded or does not answer.
    """

    def __init__(self, title: str, spec: EngineSpec) -> None:
        self.title, self.spec = title, spec
        command = [sys.executable, "-m", "minillm.benchmark.worker"]
        # In a session of its own, so that Ctrl-C reaches this process only, which then ends the other.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        try:
            self.loaded = Loaded(**self._ask(do="load", spec=asdict(spec)))
        except BaseException:
            self.close()
            raise

    def prefill(self, tokens: int, room: int, seed: int) -> float:
        """Seconds for a prompt of random ids, until the first token is chosen; see `Engine.prefill`."""
        return self._ask(do="prefill", tokens=tokens, room=room, seed=seed)["seconds"]

    def decode(self, batch: int, passes: int) -> float:
        """Seconds for `passes` decode passes behind that prompt; see `Engine.decode`."""
        return self._ask(do="decode", batch=batch, passes=passes)["seconds"]

    def top(self, tokens: int, seed: int) -> Top:
        """What the engine thinks follows random ids."""
        return Top(**self._ask(do="top", tokens=tokens, seed=seed))

    def decode_together(self, batch: int, context: int, steps: int) -> float:
        """Seconds for `steps` steps in which `batch` requests decode; see `MinillmEngine.decode_together`."""
        return self._ask(do="decode_together", batch=batch, context=context, steps=steps)["seconds"]

    def serve(self, workload: Workload, serving: Serving) -> Served:
        """A set of requests to its end; see `many/serve.py`."""
        return Served.from_json(self._ask(do="serve", workload=asdict(workload), serving=asdict(serving)))

    def check(self, workload: Workload, serving: Serving) -> Checked:
        """Whether each of them gets the tokens that it gets alone; see `many/check.py`."""
        return Checked.from_json(self._ask(do="check", workload=asdict(workload), serving=asdict(serving)))

    def peak_bytes(self) -> int | None:
        """The most that its process has held beyond what it held once imported; None where that is not known."""
        return self._ask(do="peak")["bytes"]

    @property
    def process_id(self) -> int:
        """The operating system's number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> "RemoteEngine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(command), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            raise InputError(f"the process of {self.title} ended while it was measured ({why_ended(code)})")
        answer = json.loads(line)
        if "error" in answer:
            raise InputError(answer["error"])
        return answer


def why_ended(code: int) -> str:
    """What is known of a process's end from its exit code, which is below 0 where a signal ended it."""
    if code >= 0:
        return f"exit code {code}, see above"
    return f"signal {-code}: {signal.strsignal(-code)}{HINTS.get(-code, '')}"
