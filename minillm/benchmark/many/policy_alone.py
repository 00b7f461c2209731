"""The schedule of a set of requests without the model: blocks, waste, preemptions and counts of tokens cost nothing."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.benchmark.many.serve import Served, Serving, serve
from minillm.benchmark.many.workload import Ask
from minillm.config import ModelConfig
from minillm.engine.engine import Engine
from minillm.engine.scheduler import Plan
from minillm.model import Llama


class PolicyAlone(Engine):
    """An engine that computes nothing: after every prompt and every token comes token 0. All else is the engine's."""

    def _compute(self, plan: Plan) -> Float[Tensor, "sampled vocab"]:
        return torch.zeros(sum(part.samples for part in plan.scheduled), 1)  # [n, 1]


def serve_without_a_model(config: ModelConfig, asks: Sequence[Ask], serving: Serving) -> Served:
    """What `serve` would say of blocks and tokens. Its seconds mean nothing. Weights and cache take no memory."""
    return serve(Llama(config, device="meta"), asks, serving, PolicyAlone)
