"""What a real run takes of this machine's memory, to hold the prediction of `memory.py` against.

Each run is a process of its own (`python -m minillm.machine.footprint MODEL CONTEXT BATCH`): it notes its resident
memory once everything is imported and warm, loads the model in float32, computes `BATCH` prompts of `CONTEXT` tokens
in one pass, and asks the operating system for the peak. Linux only: the peak is read from /proc.

glibc keeps most of the memory that a program frees, for the next time. The child is therefore started with
MALLOC_MMAP_THRESHOLD_ set, so that large blocks go back at once and the peak is of what was in use. Without it,
SmolLM2-135M with 2 prompts of 2,048 tokens peaked at 947 MB instead of 866 MB (857 MB predicted): that reserve is what
an allocator adds, PyTorch's on a GPU as well.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.cli import guarded
from minillm.errors import InputError
from minillm.machine.formats import FORMATS
from minillm.machine.memory import Demand, Workload, demand
from minillm.machine.shape import ModelShape

if TYPE_CHECKING:
    from minillm.model import Llama

POINTS = ((256, 1), (256, 2), (1024, 1), (1024, 2))
"""(context, batch): two of each."""

GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Footprint:
    """One run: what was predicted, and by how many bytes the resident memory grew to its peak."""

    context: int
    batch: int
    predicted: Demand
    measured: int

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted.total / self.measured - 1


def predict(shape: ModelShape, context: int, batch: int) -> Demand:
    """What the run of `measure` should take: float32, no blocks, every prompt in one pass, no GPU."""
    load = Workload(
        context,
        batch,
        weights=FORMATS["float32"],
        dtype="float32",
        kv_dtype="float32",
        block_size=1,
        tokens_per_pass=context * batch,
    )
    return demand(shape, load, overhead=0)


def measure(model: str, shape: ModelShape, context: int, batch: int, *, give_back: bool = True) -> Footprint:
    """Run it, in a process of its own. `give_back=False` leaves the allocator as it is.

    Raises InputError where the run fails, or where the system has no /proc.
    """
    if not STATUS.exists():
        raise InputError(f"the peak of resident memory is read from {STATUS}, which only Linux has")
    command = [sys.executable, "-m", "minillm.machine.footprint", model, str(context), str(batch)]
    environment = os.environ | (GIVE_BACK if give_back else {})
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InputError(f"the run of {model} with {batch} x {context} tokens failed, see above")
    return Footprint(context, batch, predict(shape, context, batch), json.loads(done.stdout)["growth_bytes"])


def growth_bytes(model: str, context: int, batch: int) -> int:
    """By how much this process grows, from all imported and warm to the peak of the run."""
    from minillm.loading.checkpoint import open_checkpoint
    from minillm.loading.loader import load_model
    from minillm.loading.registry import resolve

    warm_up()
    checkpoint = open_checkpoint(resolve(model))
    before = resident_bytes_from_here()
    _run(load_model(checkpoint), context, batch)
    return status_bytes("VmHWM") - before


def warm_up() -> None:
    """Import the engine, start its threads and set up what the libraries set up at their first product."""
    from minillm.config import ModelConfig
    from minillm.model import Llama

    tiny = Llama(ModelConfig(64, 64, 64, 1, 2, 1, 32, 64))
    for parameter in tiny.parameters():
        parameter.fill_(0.01)
    _run(tiny, context=64, batch=1)


def resident_bytes_from_here() -> int:
    """Bytes resident now; the system forgets the peak so far, so that "VmHWM" is that of what comes next."""
    with suppress(OSError):  # where that is not allowed, the peak is that of the whole process: the run's all the same
        CLEAR_REFS.write_text("5", encoding="utf-8")
    return status_bytes("VmRSS")


def _run(llama: "Llama", context: int, batch: int) -> None:
    """All prompts in one pass, on a cache for them."""
    import torch

    from minillm.kv_cache import KVCache
    from minillm.prefill import prefill

    config = llama.config
    length = min(context, config.max_position_embeddings)
    ids = torch.arange(batch * length).remainder(config.vocab_size).view(batch, length)  # [B, T]
    prefill(llama, ids, KVCache(config, length, batch))


def status_bytes(name: str) -> int:
    """A line of /proc/self/status in bytes: "VmRSS" is the memory that is resident, "VmHWM" its peak so far."""
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main(argv: Sequence[str]) -> int:
    """MODEL CONTEXT BATCH -> {"growth_bytes": ...} on stdout."""
    return guarded(lambda: _print_growth(*argv), "minillm.machine.footprint")


def _print_growth(model: str, context: str, batch: str) -> int:
    print(json.dumps({"growth_bytes": growth_bytes(model, int(context), int(batch))}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
