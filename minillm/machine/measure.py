"""What this very machine can do at most: bytes read per second, and floating-point operations per second.

A figure of the engine means little by itself. Set against one of these, it says how far there is to go.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import UInt64

from minillm.device import clock

READ_BYTES = 512 * 2**20
"""Large against any cache of a processor: a second read of the same bytes finds none of them there."""

PIECE_WORDS = 2**15
"""Of 64 bits: few enough for a core's own cache, enough for the time that numpy takes to begin not to show."""

LONG_ENOUGH_S = 0.05
"""A product that takes this long is not made larger: what is set up once per product no longer shows."""


def read_bandwidth(device: torch.device | str = "cpu", *, num_bytes: int = READ_BYTES, repeats: int = 5) -> float:
    """Bytes per second at which memory is read, on all threads; see `bandwidth_reader`."""
    return bandwidth_reader(device, num_bytes)(repeats)


def bandwidth_reader(device: torch.device | str = "cpu", num_bytes: int = READ_BYTES) -> Callable[[int], float]:
    """A function of `repeats` that gives the bytes per second at which memory is read in this moment: the best of so
    many reads of `num_bytes` in each of three ways. It keeps what it reads: to make it takes as long as to read it.

    The best, not the mean: other programs can only make a read slower than the machine is. Three ways, because a core
    that reads in one place does not draw all that its memory gives: more is under way at a time when it reads in
    several, and in how many is best differs from processor to processor. Each of them reads every byte once and writes
    a 32nd of that or less, which is not counted. All compute with float32 numbers, an addition per four bytes or a
    multiplication besides, because torch has no plainer way to read.
    """
    device = torch.device(device)
    numbers = torch.ones(num_bytes // 4, device=device)  # [N]
    # One long sum runs on few threads; one sum per row, for a few rows per thread, runs on all of them.
    rows = numbers.view(math.gcd(numbers.numel(), 64), -1)  # [64, N/64]
    columns = numbers.view(math.gcd(numbers.numel(), 32), -1)  # [32, N/32]
    sums = torch.empty_like(columns[0])  # [N/32]; made once, for new memory costs more than to write it
    matrix = numbers.view(-1, math.gcd(numbers.numel(), 4096))  # [N/4096, 4096]
    vector = torch.ones_like(matrix[0])  # [4096]
    ways: tuple[Callable[[], object], ...] = (
        lambda: rows.sum(dim=1),  # a thread reads in one place
        lambda: torch.sum(columns, dim=0, out=sums),  # in up to 32, far from each other
        lambda: matrix @ vector,  # in a few neighbouring rows
    )
    return lambda repeats: numbers.nbytes / min(_best_seconds(way, device, repeats) for way in ways)


def matmul_flops(
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    size: int = 2048,
    repeats: int = 5,
) -> float:
    """Floating-point operations per second in a product of two size x size matrices; see `matmul_timer`."""
    return matmul_timer(device, dtype, size)(repeats)


def matmul_timer(device: torch.device | str, dtype: torch.dtype, size: int) -> Callable[[int], float]:
    """A function of `repeats` that gives the operations per second of this moment: the best of so many products.

    Each of size² results takes `size` multiplications and as many additions: 2 size³ in all. The numbers are random:
    a GPU that multiplies ones needs less power for it, and clocks higher than it does for a model.
    """
    device = torch.device(device)
    a = torch.randn(size, size, device=device).to(dtype)  # [N, N]
    return lambda repeats: 2 * size**3 / _best_seconds(lambda: a @ a, device, repeats)


def peak_matmul_flops(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> float:
    """The same, for the size of matrix that suits the machine best."""
    return max(matmul_flops_by_size(device, dtype).values())


def matmul_flops_by_size(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> dict[int, float]:
    """Operations per second for matrices of 256 rows, of twice as many, and so on until a product takes a while.

    A processor without instructions for `dtype` may take seconds for what a GPU does in a millisecond.
    """
    found, size = {}, 256
    while size <= 8192:
        found[size] = flops = matmul_flops(device, dtype, size=size, repeats=3)
        if 2 * size**3 / flops > LONG_ENOUGH_S:
            break
        size *= 2
    return found


def quick_matmul_size(flops_by_size: Mapping[int, float]) -> int:
    """Of these the largest whose product does not take long: small ones are computed on one thread, or nearly so."""
    quick = [size for size, flops in flops_by_size.items() if 2 * size**3 / flops <= LONG_ENOUGH_S]
    return max(quick, default=min(flops_by_size))


def compare_reads(num_bytes: int = READ_BYTES, rounds: int = 5) -> tuple[float, float]:
    """Bytes per second of `read_bandwidth` on the CPU, and of a read that shares nothing with it: the best of each.

    The other one is numpy's, a bitwise "or" of whole 64-bit words, in one Python thread per thread of torch's; each
    reads in two places at once. The two take turns, so that a busy moment of the machine meets both.
    """
    threads = torch.get_num_threads()
    words = np.ones((threads, 2, num_bytes // 16 // threads), np.uint64)
    ours, others = [], []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(rounds):
            ours.append(read_bandwidth(num_bytes=num_bytes, repeats=3))
            seconds = _best_seconds(lambda: list(pool.map(_read_pair, words)), torch.device("cpu"), 3)
            others.append(words.nbytes / seconds)
    return max(ours), max(others)


def _read_pair(pair: UInt64[np.ndarray, "2 words"]) -> None:
    """Read two stretches of memory side by side, piece by piece: what comes out is small enough to stay in a cache."""
    out = np.empty(PIECE_WORDS, np.uint64)
    for start in range(0, pair.shape[1], PIECE_WORDS):
        one, other = pair[:, start : start + PIECE_WORDS]
        np.bitwise_or(one, other, out=out[: len(one)])


def _best_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    work()  # the first call pays for what is set up once
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        work()
        seconds.append(clock(device) - started)
    return min(seconds)
