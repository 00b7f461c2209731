"""The two speeds of this machine, measured in the very run whose figures are set against them."""

import torch

from minillm.device import DTYPES, cpu_multiplies
from minillm.machine.measure import peak_matmul_flops
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
