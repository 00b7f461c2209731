"""What batching does on paper: how many steps two policies take, and how large a batch two limits allow.

All arithmetic, no torch. The work of a single step is in `roofline.py`.
"""

import heapq
from bisect import bisect_right
from collections.abc import Sequence

from minillm.machine.roofline import Machine, decode_work, kv_numbers, shortest_seconds
from minillm.machine.shape import ModelShape, num_params


def decode_steps(lengths: Sequence[int], places: int, refill: bool) -> int:
    """Decode steps until all requests have their tokens, at most `places` of them in a step.

    lengths: tokens of each answer, in the order in which the requests came. Each step gives every member of the batch a
    token. refill: whether a place that becomes free is given to the next request at once (continuous batching), or
    only when all members have ended (static batching). Prompts cost nothing here.
    """
    if not refill:
        return sum(max(lengths[first : first + places]) for first in range(0, len(lengths), places))
    ends = [0] * places  # the step after which each place is free
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def largest_batch(
    shape: ModelShape,
    context: int,
    machine: Machine,
    memory_bytes: float,
    tpot_s: float,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> int:
    """The most sequences of `context` tokens that fit into memory beside the weights, and whose decode step takes no
    longer than `tpot_s` seconds even where the machine reaches its limits. 0 where not even one does.

    Activations and overhead are left out: see `memory.py` for those.
    """
    room = memory_bytes - num_params(shape) * bytes_per_weight
    kv_bytes = kv_numbers(shape) * context * bytes_per_kv
    that_fit = range(1, max(0, int(room // kv_bytes)) + 1)

    def step_s(batch: int) -> float:
        return shortest_seconds(decode_work(shape, batch, context, bytes_per_weight, bytes_per_kv), machine)

    return bisect_right(that_fit, tpot_s, key=step_s)
