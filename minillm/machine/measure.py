"""What this very machine can do at most: bytes read per second, and floating-point operations per second.

A figure of the engine means little by itself. Set against one of these, it says how far there is to go.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from minillm.device import clock

READ_BYTES = 512 * 2**20
"""Large against any cache of a processor: a second read of the same bytes finds none of them there."""

LONG_ENOUGH_S = 0.05
"""A product that takes this long is not made larger: what is set up once per product no longer shows."""


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
    size: int = 2048,
    repeats: int = 5,
) -> float:
    """Floating-point operations per second in a product of two size x size matrices: the best of `repeats`.

    Each of size² results takes `size` multiplications and as many additions: 2 size³ in all. The numbers are random:
    a GPU that multiplies ones needs less power for it, and clocks higher than it does for a model.
    """
    device = torch.device(device)
    a = torch.randn(size, size, device=device).to(dtype)  # [N, N]
    return 2 * size**3 / _best_seconds(lambda: a @ a, device, repeats)


def peak_matmul_flops(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """The same, for the size of matrix that suits the machine: doubled from 256 until a product takes a while.

    A processor without instructions for `dtype` may take seconds for what a GPU does in a millisecond.
    """
    best, size = 0.0, 256
    while size <= 8192:
        flops = matmul_flops(device, dtype, size=size, repeats=3)
        best = max(best, flops)
        if 2 * size**3 / flops > LONG_ENOUGH_S:
            break
        size *= 2
    return best


def compare_reads(num_bytes: int = READ_BYTES, rounds: int = 5) -> tuple[float, float]:
    """Bytes per second of `read_bandwidth` on the CPU, and of a read that shares nothing with it: the best of each.

    The other one is numpy's, a bitwise "or" over whole 64-bit words, in one Python thread per thread of torch's. The
    two take turns, so that a busy moment of the machine meets both.
    """
    threads = torch.get_num_threads()
    words = np.ones(num_bytes // 8, np.uint64)
    parts = np.array_split(words, threads)
    ours, others = [], []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            ours.append(read_bandwidth(num_bytes=num_bytes, repeats=3))
            seconds = _best_seconds(lambda: list(pool.map(np.bitwise_or.reduce, parts)), torch.device("cpu"), 3)
            others.append(words.nbytes / seconds)
    return max(ours), max(others)


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    work()  # the first call pays for what is set up once
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        work()
        seconds.append(clock(device) - started)
    return min(seconds)
