"""The two speeds of this machine, measured in the very run whose figures are set against them.

A machine that is shared changes its speed, by half and more. Its memory does so from minute to minute: a share of the
best that a run has seen would say more of the minute than of the engine, so memory is read right before and right after
each run that it limits. Its matrix units may do so several times a second: what they did beside a prefill is not what
they did meanwhile, and only the best that was seen is a ceiling.
"""

import time
from collections.abc import Callable

import torch

from minillm.benchmark.turns import PREFILL
from minillm.device import DTYPES, cpu_multiplies
from minillm.machine.measure import matmul_flops_by_size, matmul_timer, peak_matmul_flops, quick_matmul_size
from minillm.machine.roofline import Machine


def multiplied_in(dtype: str, device: torch.device) -> str:
    """The dtype in which the machine multiplies fastest what is stored in `dtype`.

    A processor without instructions for a half precision converts number by number, hundreds of times slower than
    float32; an engine that converts whole matrices first is then faster than products "in" that dtype, so these are
    no ceiling.
    """
    return dtype if device.type != "cpu" or cpu_multiplies(DTYPES[dtype]) else "float32"


def measure_ceilings(dtype: str, device: torch.device, bandwidth_bytes_per_s: float) -> Machine:
    """The bandwidth, and the operations per second in the dtype in which numbers stored in `dtype` are multiplied."""
    return Machine(bandwidth_bytes_per_s, peak_matmul_flops(device, DTYPES[multiplied_in(dtype, device)]))


READS_BEFORE = 5
READS, PRODUCTS = 2, 2
"""How often each is repeated before the runs and beside one: enough to tell a disturbance from the moment."""

SETTLE_S = 0.03
"""After a reading, its threads look out for more work for some 10 ms, on the very cores that an engine needs next."""


class Ceilings:
    """Both speeds for numbers stored in `dtype`: those before any run, and those of the moment in which it is called.

    read: a `bandwidth_reader` of the device.
    """

    def __init__(self, dtype: str, device: torch.device, read: Callable[[int], float]) -> None:
        fastest = DTYPES[multiplied_in(dtype, device)]
        by_size = matmul_flops_by_size(device, fastest)
        self.before = Machine(read(READS_BEFORE), max(by_size.values()))
        self._read, self._multiply = read, matmul_timer(device, fastest, quick_matmul_size(by_size))

    def __call__(self, what: str) -> float:
        """What limits a prefill now, in operations per second, or decoding, in bytes per second.

        A reading takes some tens of milliseconds, up to two tenths of a second.
        """
        limit = self._multiply(PRODUCTS) if what == PREFILL else self._read(READS)
        time.sleep(SETTLE_S)
        return limit
