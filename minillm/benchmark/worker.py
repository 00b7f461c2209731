"""`python -m minillm.benchmark.worker`: a process that holds one engine, and does what it is told, line by line.

A process for each engine keeps them apart: no thread pool of one spins while another is timed, and what the
operating system says of the process's memory is said of that engine. Commands and answers are JSON, one a line:

    {"do": "load", "spec": {...}}                               -> {"load_s": ..., "weight_bytes": ..., ...}
    {"do": "prefill", "tokens": 512, "room": 640, "seed": 1}    -> {"seconds": ...}
    {"do": "decode", "batch": 1, "passes": 127}                 -> {"seconds": ...}
    {"do": "top", "tokens": 16, "seed": 1}                      -> {"ids": [.., ..], "logits": [.., ..], "std": ...}
    {"do": "peak"}                                              -> {"bytes": ...}

Of engines for many requests (`many/`):

    {"do": "decode_together", "batch": 16, "context": 256, "steps": 32}    -> {"seconds": ...}
    {"do": "serve", "workload": {...}, "serving": {...}}                   -> {"total_s": ..., "ttft_s": [...], ...}
    {"do": "check", "workload": {...}, "serving": {...}}                   -> {"tokens": ..., "differences": [...], ...}

An error of the user's is answered by {"error": "one sentence"}.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

import numpy as np

from minillm.benchmark.engine import Engine, EngineSpec, engine_class
from minillm.errors import InputError, MissingError, NumbersError
from minillm.machine.footprint import STATUS, resident_bytes_from_here, status_bytes

Command = Mapping[str, Any]
Answer = dict[str, Any]


class Worker:
    """One engine, and the commands that it is given."""

    engine: Engine
    before_bytes: int

    def answer(self, command: Command) -> Answer:
        """Do what `command` says. A user's error becomes an answer of its own."""
        verbs: dict[str, Callable[[Command], Answer]] = {
            "load": self._load,
            "prefill": self._prefill,
            "decode": self._decode,
            "top": self._top,
            "peak": self._peak,
            "decode_together": self._decode_together,
            "serve": self._serve,
            "check": self._check,
        }
        try:
            return verbs[command["do"]](command)
        except (InputError, MissingError, NumbersError) as error:
            return {"error": str(error)}

    def _load(self, command: Command) -> Answer:
        """Load, and compute one token: an engine that maps its file reads it only then."""
        spec = EngineSpec(**command["spec"])
        kind = engine_class(spec.engine)
        kind.warm_up(spec)
        self.device = spec.device
        self.before_bytes = resident_bytes_from_here() if STATUS.exists() else 0
        started = time.perf_counter()
        self.engine = kind(spec)
        self.engine.prefill([0], 1)
        load_s = time.perf_counter() - started
        names = ("vocab_size", "weight_bytes", "pass_bytes", "kv_bytes_per_token", "compiled")
        return {"load_s": load_s, **{name: getattr(self.engine, name) for name in names}}

    def _prefill(self, command: Command) -> Answer:
        return {"seconds": self.engine.prefill(self._random_ids(command), command["room"])}

    def _decode(self, command: Command) -> Answer:
        return {"seconds": self.engine.decode(command["batch"], command["passes"])}

    def _top(self, command: Command) -> Answer:
        """The two largest logits behind these ids, and how far logits lie apart in general."""
        logits = self.engine.next_logits(self._random_ids(command))  # [V]
        best = np.argsort(logits)[::-1][:2]  # [2]
        return {"ids": best.tolist(), "logits": logits[best].tolist(), "std": float(logits.std())}

    def _peak(self, command: Command) -> Answer:
        """By how many bytes the memory of this process grew at most since everything was imported.

        On a GPU: what its tensors took at most, there. None where the system does not say (it is read from /proc).
        """
        if self.device.startswith("cuda"):
            import torch

            return {"bytes": torch.cuda.max_memory_allocated(self.device)}
        return {"bytes": status_bytes("VmHWM") - self.before_bytes if STATUS.exists() else None}

    def _decode_together(self, command: Command) -> Answer:
        return {"seconds": self._many.decode_together(command["batch"], command["context"], command["steps"])}

    def _serve(self, command: Command) -> Answer:
        return asdict(self._many.serve(*self._asks(command)))

    def _check(self, command: Command) -> Answer:
        return asdict(self._many.check(*self._asks(command)))

    @property
    def _many(self) -> Any:
        """The engine, of which more is asked here than of every engine."""
        return self.engine

    def _asks(self, command: Command) -> tuple[Any, Any]:
        """The requests and how to serve them, as the engine takes them."""
        from minillm.benchmark.many.serve import Serving
        from minillm.benchmark.many.workload import Workload

        workload = Workload.from_json(command["workload"])
        return workload.asks(self.engine.vocab_size), Serving(**command["serving"])

    def _random_ids(self, command: Command) -> list[int]:
        """The same for every engine that is given the same seed."""
        random = np.random.default_rng(command["seed"])
        return random.integers(0, self.engine.vocab_size, command["tokens"]).tolist()


def serve(commands: IO[str], answers: IO[str]) -> None:
    """Answer each command until there are no more."""
    worker = Worker()
    for line in commands:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


def main() -> int:
    """Serve stdin and stdout. What libraries print goes to stderr: stdout is for answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
