"""The schedule of a set of requests without the model: blocks, waste, preemptions and counts of tokens cost nothing."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.benchmark.many.serve import Served, Serving, serve
from minillm.benchmark.many.workload import Ask
from minillm.config import ModelConfig
from minillm.engine.engine import Engine, Output
from minillm.engine.request import Request
from minillm.engine.scheduler import Plan
from minillm.model import Llama
from minillm.sampler import Sampled

TOKEN = Sampled(0, 0.0, None)


class PolicyAlone(Engine):
    """An engine that computes nothing: after every prompt and every token comes token 0. All else is the engine's."""

    def _compute(self, plan: Plan) -> Float[Tensor, "sampled vocab"]:
        return torch.empty(0, 0)

    def _sample(
        self, requests: Sequence[Request], logits: Float[Tensor, "sampled vocab"], forward_s: float
    ) -> list[Output]:
        return [Output(request, self._accept(request, TOKEN, forward_s, 0.0)) for request in requests]


def serve_without_a_model(config: ModelConfig, asks: Sequence[Ask], serving: Serving) -> Served:
    """What `serve` would say of blocks and tokens. Its seconds mean nothing. Weights and cache take no memory."""
    return serve(Llama(config, device="meta"), asks, serving, PolicyAlone)
