"""What can be asked of `bench_batch`: the curve, a mixed set, a shared prefix, a check; measured where it is there."""

from dataclasses import dataclass
from pathlib import Path

import torch

from minillm.benchmark.many.decode_curve import WARM_UP_STEPS
from minillm.benchmark.many.serve import Serving
from minillm.benchmark.many.workload import Workload
from minillm.benchmark.plan import Mode
from minillm.errors import InputError

CURVE = (1, 2, 4, 8, 16, 32, 64)
PREFIX_REQUESTS = 32
PREFIX_PROMPTS, PREFIX_OUTPUTS = (1, 32), (1, 8)
"""Behind a shared prefix: questions about one long document, say, with short answers."""


@dataclass(frozen=True)
class Curve:
    """Requests that decode at once, for each number in `batches`, behind `context` tokens, `new_tokens` out of each."""

    batches: tuple[int, ...]
    context: int
    new_tokens: int

    @property
    def steps(self) -> int:
        """Steps that are timed: the first token is prefill's."""
        return self.new_tokens - 1

    def check_context(self, longest: int) -> None:
        """Raises InputError where a request would outgrow the model's context."""
        needed = self.context + self.new_tokens + WARM_UP_STEPS
        if needed > longest:
            raise InputError(
                f"--context, --new-tokens and {WARM_UP_STEPS} steps to warm up are {needed:,} tokens in all, more than "
                f"this model's context of {longest:,}"
            )


@dataclass(frozen=True)
class BatchJob:
    """All that is asked for. serving: for the sets of requests. runs: counted rounds of each part."""

    curve: Curve | None
    mixed: Workload | None
    prefix: Workload | None
    check: Workload | None
    serving: Serving
    runs: int
    schedule_only: bool
    peers: tuple[str, ...]
    mode: Mode
    device: torch.device
    compile: bool | None
    plot: Path | None
    command: str

    def check_context(self, longest: int) -> None:
        """Raises InputError where any of it would outgrow the model's context."""
        for part in (self.curve, self.mixed, self.prefix, self.check):
            if part is not None:
                part.check_context(longest)
