"""CUDA graphs: a step's kernels, recorded once and started again with a single call.

A decode step of a small model is hundreds of kernels of a few microseconds each; starting them one by one takes the
CPU longer than the GPU needs to run them. A graph holds the kernels with the addresses they read and write, so what
changes from step to step has to lie at addresses that do not: in tensors that the caller fills before each replay.

Explicit capture rather than `torch.compile(mode="reduce-overhead")`: the latter decides by itself what to
record, per compiled function. Here that function is one layer, called with other weights each time (it would copy
the weights of each layer to an address of its own, or record each layer alone), and it writes into its arguments (for
which it declines to record). A capture of the whole step around the compiled layers has neither trouble.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

MAX_GRAPHS = 16


class CudaGraphs:
    """The graphs recorded so far, by what they depend on; the least recently used one goes when there are too many."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = OrderedDict()
        # One pool for all graphs: they never run at the same time, and nothing inside outlives a replay.
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, key: Hashable, step: Callable[[], Tensor]) -> Tensor:
        """The result of `step`, from the graph recorded under `key`; recorded now if there is none.

        `key` must name every address and shape that `step` uses and that may differ from call to call. `step` must
        give the same when it runs twice.
        """
        if key not in self._graphs:
            self._graphs[key] = self._record(step)
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        graph, result = self._graphs[key]
        graph.replay()
        return result.clone()  # the next replay writes over it

    def _record(self, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Run once outside (what libraries set up at a first call cannot be recorded), then once under recording."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = step()
        return graph, result
