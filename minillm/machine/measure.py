"""What this very machine can do at most: bytes read per second, and floating-point operations per second.

A figure of the engine means little by itself. Set against one of these, it says how far there is to go.
"""

import math
from collections.abc import Callable

import torch

from minillm.device import clock

READ_BYTES = 512 * 2**20
"""Large against any cache of a processor: a second read of the same bytes finds none of them there."""

MATMUL_SIZE = 2048


def read_bandwidth(device: torch.device | str = "cpu", *, num_bytes: int = READ_BYTES, repeats: int = 5) -> float:
    """Bytes per second at which memory is read, on all threads: the best of `repeats` sums over `num_bytes`.

    The best, not the mean: other programs can only make a read slower than the machine is. It is a sum of float32
    numbers, one addition per four bytes, because torch has no plainer way to read.
    """
    device = torch.device(device)
    numbers = torch.ones(num_bytes // 4, device=device)  # [N]
    # One long sum runs on few threads; one sum per row, for a few rows per thread, runs on all of them.
    rows = numbers.view(math.gcd(numbers.numel(), 64), -1)  # [64, N/64]
    return numbers.nbytes / _best_seconds(lambda: rows.sum(dim=1), device, repeats)


def matmul_flops(
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int = MATMUL_SIZE,
    repeats: int = 5,
) -> float:
    """Floating-point operations per second in a product of two size x size matrices: the best of `repeats`.

    Each of size² results takes `size` multiplications and as many additions: 2 size³ in all.
    """
    device = torch.device(device)
    a = torch.ones(size, size, device=device, dtype=dtype)
    return 2 * size**3 / _best_seconds(lambda: a @ a, device, repeats)


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    work()  # the first call pays for what is set up once
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        work()
        seconds.append(clock(device) - started)
    return min(seconds)
