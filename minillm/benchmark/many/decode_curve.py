"""Throughput against the number of requests: N of them decode at once behind a context, and what the roofline says.

A decode pass reads the weights once for all its requests, and each request's keys and values. So up to some N another
request costs its keys and values only; from there on arithmetic is used up, and another request costs as much as
the ones before. Where that is, and how high the roof, can be worked out before anything is measured.
"""

import torch

from minillm.benchmark.many.workload import Workload
from minillm.device import clock
from minillm.engine.block_pool import blocks_for
from minillm.engine.engine import Engine
from minillm.machine.roofline import Work, forward_flops
from minillm.machine.shape import ModelShape
from minillm.model import Llama

BLOCK_SIZE = 16
WARM_UP_STEPS = 2
"""Steps that are not timed: the first ones set up what later ones find."""


def decode_together(model: Llama, batch: int, context: int, steps: int) -> float:
    """Seconds for `steps` steps of the engine, each a token for every one of `batch` requests of `context` tokens.

    The steps are whole ones: schedule, pass, choice. The contexts are not computed: what their keys and values are
    changes no time, and a prefill of 64 x 2,048 tokens would take minutes.
    """
    engine = _engine(model, batch, context + WARM_UP_STEPS + steps)
    new_tokens = WARM_UP_STEPS + steps + 1
    for ask in Workload(batch, (context, context), (new_tokens, new_tokens)).asks(model.config.vocab_size):
        engine.add(ask.prompt_ids, ask.params)
    pretend_prefill(engine)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    started = clock(model.device)
    for _ in range(steps):
        engine.step()
    return clock(model.device) - started


def pretend_prefill(engine: Engine) -> None:
    """Every waiting request as it is when its prompt has been read and one token chosen: random keys and values, and
    the prompt's last token once more.
    """
    for part in (engine.cache.keys, engine.cache.values):  # [L, blocks, block_size, Hkv, D]
        part.copy_(torch.randn_like(part[:, :1]).expand_as(part))  # every block alike: quicker than to draw them all
    plan = engine.scheduler.schedule()
    engine.scheduler.computed(plan)
    for part in plan.scheduled:
        assert part.samples, "the budget is as large as all prompts together"
        part.request.token_ids.append(part.request.token_ids[-1])


def _engine(model: Llama, batch: int, length: int) -> Engine:
    """Room for the requests and for nothing else; no prefixes, for they would be found in these random ids never."""
    return Engine(
        model,
        num_blocks=batch * blocks_for(length, BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        max_batch_size=batch,
        token_budget=batch * length,
        prefix_caching=False,
    )


def mean_context(context: int, steps: int) -> float:
    """Tokens that a timed step has in view, its own included, on average over `steps` steps."""
    return context + WARM_UP_STEPS + (steps + 1) / 2


def decode_step_work(shape: ModelShape, batch: int, context: float, pass_bytes: int, kv_bytes_per_token: int) -> Work:
    """One decode step of `batch` requests with `context` tokens in view: the weights once, and all keys and values.

    pass_bytes: what a pass reads of the weights, as they are stored.
    """
    window = context if shape.sliding_window is None else min(context, shape.sliding_window)
    # Operations grow along a straight line with the context, so that a mean of contexts gives the mean of them.
    whole = int(context)
    below, above = (forward_flops(shape, batch, 1, max(0, length - 1)) for length in (whole, whole + 1))
    return Work(below + (context - whole) * (above - below), float(pass_bytes + batch * window * kv_bytes_per_token))
