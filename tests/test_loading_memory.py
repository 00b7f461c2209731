"""Filling a model takes hardly more memory than the model: measured by the operating system, in a process of
its own.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import write_shards

# 256 MB in float32; the largest tensor is a fifth of it, as the embedding of a small model is.
SHAPES = {
    "model.embed_tokens.weight": (12_800, 1024),
    **{f"layers.{i}.weight": (2048, 1024) for i in range(25)},
}

CHILD = """
import sys, torch
from pathlib import Path
from minillm.loading.checkpoint import fill
from minillm.loading.safetensors import SafetensorsSource

def peak_bytes():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

# Copying between dtypes once, so that what torch sets up at first use is part of the baseline.
torch.zeros(8).copy_(torch.zeros(8, dtype=torch.bfloat16))
source = SafetensorsSource(Path(sys.argv[1]))
before = peak_bytes()
# Written, not just allocated: else the largest tensor might be copied while most slots take no memory yet.
dtype = getattr(torch, sys.argv[2])
slots = {name: torch.full(source.shape(name), torch.nan, dtype=dtype) for name in source.names()}
fill(slots, source)
assert all(float(slot[-1, -1]) == 1.0 for slot in slots.values())
print((peak_bytes() - before) / sum(slot.nbytes for slot in slots.values()))
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("large"), {name: torch.ones(shape) for name, shape in SHAPES.items()})


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory_while_filling_stays_under_1_3_times_the_weights(directory, dtype):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(directory), dtype], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    share = float(done.stdout)
    assert share > 0.9, f"{share}: the weights themselves were not seen, so the measurement is wrong"
    assert share < 1.3, f"the peak grew by {share:.2f} times the weights"
