"""Exercises of chapter 12, *Batching*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 12          grades this file and shows where you are
    pytest --ch 12.2        grades one exercise
    pytest --hint 12.2      the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

12.1, 12.2 and 12.5 are arithmetic. A `ModelShape` has the sizes of a model under the names of config.json (see
minillm/machine/shape.py), a `Machine` its two speeds. 12.3 and 12.4 are two methods of the engine's `Scheduler`: it
decides, step by step, which tokens of which requests are computed together (minillm/engine/scheduler.py).
"""

from collections.abc import Sequence

from minillm.engine.request import Request
from minillm.engine.scheduler import Plan
from minillm.exercises import todo
from minillm.machine.roofline import (  # noqa: F401 - here for you
    Machine,
    Work,
    decode_work,
    forward_bytes,
    forward_flops,
    shortest_seconds,
)
from minillm.machine.shape import ModelShape, num_active_params, num_params  # noqa: F401 - here for you


# --- 12.1 ------------------------------------------------------------------------------------------------------------
def step_work(
    shape: ModelShape,
    spans: Sequence[tuple[int, int]],
    sampled: int,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> Work:
    """What one pass over a mix of requests asks of a machine: `Work(flops, bytes)`, two floats.

    spans: for each request (context, new): tokens that its cache holds already, and new tokens of it in this pass.
    (700, 1) decodes; (512, 256) reads the third chunk of a prompt. sampled: how many of the requests have a next token
    chosen after this pass. Only those send a row to the head: nobody wants the logits of half a prompt.

    Count as in chapter 9, for a dense model without a sliding window:

    - operations: two per weight of the layers for each new token, two per weight of the head for each sampled row, and
      4 x head_dim per query head, layer and pair of a new token and one that it may attend to: those of its own
      request, up to itself;
    - bytes: the weights that the pass multiplies by, `num_active_params(shape)` (layers and head); and the keys and
      values of all tokens of all requests, the new ones included.

    `forward_flops(shape, batch, new_tokens, context)` counts a pass in which each sequence has its last row go through
    the head. You may call it.

    About 6 lines.
    """
    todo("12.1")


# --- 12.2 ------------------------------------------------------------------------------------------------------------
def decode_steps(lengths: Sequence[int], places: int, refill: bool) -> int:
    """How many decode steps does it take until every request has its tokens?

    lengths: how many tokens each answer has, at least 1, in the order in which the requests came; all are there from
    the beginning. places: how many requests a batch holds at most. Each step gives each member of the batch one token.
    Prompts cost nothing here.

    refill: False is static batching: the next `places` requests begin when all members of the batch have ended. True
    is continuous batching: where a member has ended, the next request takes its place in the very next step.

    Without requests there are 0 steps. decode_steps([2, 5, 1], 2, refill=False) is 6; with refill it is 5.

    About 8 lines.
    """
    todo("12.2")


# --- 12.3 ------------------------------------------------------------------------------------------------------------
def continue_running(self, plan: Plan) -> None:
    """`Scheduler._continue_running`: this step's tokens for the requests that run.

    self is the scheduler, and this function its method:

        self.running                               the requests that run, in the order of arrival
        request.num_to_compute                     tokens that a request has yet to compute: 1 while it decodes, more
                                                   while its prompt is read (or read again)
        self.token_budget                          tokens of all requests together that a step computes at most
        plan.num_tokens                            how many the plan has so far
        self._make_room(request, num_tokens, plan) blocks for that many of its next tokens, or for fewer. Returns for
                                                   how many; 0 is possible. Where blocks run out, it takes requests
                                                   out of self.running, this one or another (that is 12.4)
        self._put(request, num_tokens, plan)       these tokens are part of the plan; 0 changes nothing

    Requests that decode come first, each with its one token. Then those that read their prompts, each with as many
    tokens as the budget leaves. Within each kind, the order of arrival decides. A request that had to give way
    meanwhile gets nothing: neither tokens nor blocks. Return nothing.

    About 6 lines.
    """
    todo("12.3")


# --- 12.4 ------------------------------------------------------------------------------------------------------------
def make_room(self, request: Request, num_tokens: int, plan: Plan) -> int:
    """`Scheduler._make_room`: blocks for the next `num_tokens` tokens of a running request, or for fewer.

    self is the scheduler, and this function its method:

        self._give_blocks(request, n, plan)   blocks for n tokens more: True. Or False, if too few are free: then
                                              nothing has changed
        self._room(request)                   for how many tokens more its own blocks and the free ones have slots
        self.running                          the requests that run, in the order of arrival: the youngest is last
        plan.scheduled                        what this step computes so far; `part.request` is whose tokens they are
        self._preempt(other, plan)            take a request out of self.running, and its blocks with it

    Where there is room for some of the tokens but not for all, it gets blocks for those, and nobody has to give way.
    Where there is room for none, the youngest of the running requests gives its blocks back, and you try again for all
    `num_tokens`. (Blocks may be shared, so one may not be enough.) A request that this step has tokens of already must
    not give way: what it computes would have nowhere to go. `request` itself has none of them yet, and may be the
    youngest: then it gives way.

    Return for how many tokens it has blocks now, 0 if it had to give way itself. num_tokens may be 0: do nothing.

    About 10 lines.
    """
    todo("12.4")


# --- 12.5 ------------------------------------------------------------------------------------------------------------
def largest_batch(
    shape: ModelShape,
    context: int,
    machine: Machine,
    memory_bytes: float,
    tpot_s: float,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> int:
    """How many requests may decode together, if each has `context` tokens?

    Two limits hold at once:

    - memory: all weights (`num_params(shape)` of them) and the keys and values of all sequences are at most
      `memory_bytes`;
    - time: a decode step takes at most `tpot_s` seconds, even on a machine that reaches both of its speeds
      (`shortest_seconds(work, machine)`, with `decode_work(shape, batch, context, bytes_per_weight, bytes_per_kv)`).

    A larger batch never takes less time. Return 0 where not even one request is within both limits. For a dense model
    without a sliding window. The answer may be in the tens of thousands.

    About 8 lines.
    """
    todo("12.5")
