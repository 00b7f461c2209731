# %% [markdown]
# # Notebook 12: Batching
#
# Beside [chapter 12](../chapters/12-batching.md). You build a step of the engine by hand, out of its four parts, and
# run several requests through one pass. Then two policies compete on the same requests, a long prompt arrives among
# streams that are running, the memory runs out, and in the end the batch grows while you hold the clock against what
# the roofline says. The exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in well under a minute, and on a CUDA GPU as it stands.

# %%
from statistics import median

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import LogLocator

from minillm.device import clock, dtype_name, pick_device
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span
from minillm.engine.request import Request
from minillm.engine.scheduler import Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.machine.batching import decode_steps
from minillm.machine.limits import measure_limits
from minillm.machine.roofline import Machine, bound_by, decode_limit, decode_work, shortest_seconds
from minillm.machine.shape import shape_of
from minillm.sampling_params import SamplingParams

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config, shape = model.config, shape_of(model.config)
SIZE = 16  # tokens per block

# %% [markdown]
# ## A step by hand
#
# Four parts. The *scheduler* says which tokens of which requests are computed next. The *cache* holds keys and values
# of all of them, in blocks. A *batch* is what the model is handed for one pass: the new tokens of all requests in a
# single row, each at its own place in its own request. And the *model* is the one of chapter 3, unchanged: it does not
# know that there is more than one request.

# %%
PROMPTS = ("The capital of France is", "Water boils at", "One, two, three, four,", "My favourite colour")


def request_of(name, prompt, max_tokens):
    """A request: its tokens, and how many of them are computed (none yet)."""
    ids = tuple(tokenizer.encode(prompt)) if isinstance(prompt, str) else tuple(prompt)
    return Request(name, ids, SamplingParams(max_tokens=max_tokens), len(ids) + max_tokens)


@torch.inference_mode()
def step(scheduler, cache):
    """One pass for all that are at work. Returns the plan, and who got a token."""
    plan = scheduler.schedule()
    ids, last_rows = [], []
    for part in plan.scheduled:
        start = part.request.num_computed
        ids += part.request.token_ids[start : start + part.num_tokens]
        if part.samples:
            last_rows.append(len(ids) - 1)
    spans = [Span(part.request.block_table, part.request.num_computed, part.num_tokens) for part in plan.scheduled]
    hidden = model(torch.tensor([ids], device=device), PagedBatch(cache, spans))  # [1, N, E]
    scheduler.computed(plan)
    sampling = [part.request for part in plan.scheduled if part.samples]
    if sampling:
        for request, logits in zip(sampling, model.logits(hidden[0, last_rows]), strict=True):  # [V] each
            request.token_ids.append(int(logits.argmax()))
            if len(request.token_ids) == request.max_length:
                scheduler.finish(request)
    return plan, sampling


def in_words(plan):
    """Request by request, the tokens of a step: +5 of a prompt, . for one that decodes."""
    parts = ((part.request.request_id, part.num_tokens) for part in plan.scheduled)
    return "  ".join(f"{name}:{'.' if count == 1 else f'+{count}'}" for name, count in parts)


scheduler = Scheduler(64, SIZE, max_batch_size=3, token_budget=16, prefix_caching=False)
cache = PagedKVCache(config, 64, SIZE, device=device)
limits = (4, 6, 10, 5)
requests = [request_of(*each) for each in zip("ABCD", PROMPTS, limits, strict=True)]
for request in requests:
    scheduler.add(request)
number = 0
while scheduler.has_work:
    plan, _ = step(scheduler, cache)
    number += 1
    print(f"step {number:2d}   {in_words(plan)}")
assert scheduler.pool.num_used == 0, "who has ended has given its blocks back"
for request in requests:
    print(f"{request.request_id}  {tokenizer.decode(request.token_ids)!r}")

# %% [markdown]
# Three places, four requests: D waits until A has ended, and begins in the very next step. Nobody has waited for it.
#
# Are these the tokens that each request would have got alone? A single pass over the finished text tells: at each place
# it says which token it expects next, and no other request is anywhere near.


# %%
@torch.inference_mode()
def alone(request):
    """The tokens that the model chooses by itself at every place of the request's answer."""
    ids = torch.tensor([request.token_ids[:-1]], device=device)
    hidden = model(ids, KVCache(config, ids.shape[1], device=device))  # [1, T, E]
    return model.logits(hidden[0, len(request.prompt_ids) - 1 :]).argmax(-1).tolist()


for request in requests:
    assert alone(request) == list(request.generated_ids), "who shares a batch must not matter"
print("every request has the tokens that it gets alone")

# %% [markdown]
# ## Two policies, the same requests
#
# Eight answers of very different length, four places. First on paper: how many steps will it take? A static batch takes
# as many as its longest answer. (A prompt here takes one step, which also gives the first token.)

# %%
LENGTHS = [14, 2, 5, 3, 12, 2, 4, 2]
PLACES = 4
paper = {name: decode_steps(LENGTHS, PLACES, refill) for name, refill in (("static", False), ("continuous", True))}
print(paper, "and with all places full, always:", sum(LENGTHS) / PLACES)


# %% tags=["measured"]
def run(policy):
    """All requests through one policy: steps, seconds, and the share of places that computed something."""
    scheduler = policy(64, SIZE, max_batch_size=PLACES, token_budget=64, prefix_caching=False)
    cache = PagedKVCache(config, 64, SIZE, device=device)
    for number, length in enumerate(LENGTHS):
        scheduler.add(request_of(str(number), PROMPTS[number % 4], length))
    used, started = [], clock(device)
    while scheduler.has_work:
        used.append(len(step(scheduler, cache)[0].scheduled))
    return len(used), clock(device) - started, sum(used) / len(used) / PLACES


step_counts = {}
for name, policy in (("static", StaticScheduler), ("continuous", Scheduler)):
    steps, seconds, share = run(policy)
    step_counts[name] = steps
    print(f"{name:<11} {steps} steps, {share:.0%} of the places used, {sum(LENGTHS) / seconds:5.1f} tokens/s")
assert step_counts == paper

# %% [markdown]
# The steps are exactly those of the paper. A step of the static policy whose batch has nearly ended is cheaper than a
# full one, so the time does not shrink as much as the count. It is the same reason for which batching pays at all: a
# step for one costs nearly as much as a step for four.
#
# ## A long prompt arrives
#
# Three requests are decoding. After four steps, somebody sends a prompt of 480 tokens. Each time, you write down how
# long the three wait for their next token: once with a budget that takes the whole prompt in one step, once with a
# budget of 64.

# %% tags=["measured"]
long_prompt = (tokenizer.encode("The quick brown fox jumps over the lazy dog, and nobody knows why. ") * 40)[:480]


def gaps(token_budget):
    """Seconds of each step, while three requests decode and a long prompt comes in; and tokens of the prompt in it."""
    scheduler = Scheduler(64, SIZE, max_batch_size=4, token_budget=token_budget, prefix_caching=False)
    cache = PagedKVCache(config, 64, SIZE, device=device)
    decoding = [request_of(name, prompt, 18) for name, prompt in zip("ABC", PROMPTS, strict=False)]
    for request in decoding:
        scheduler.add(request)
    late = request_of("late", long_prompt, 2)
    seconds, chunks = [], []
    for number in range(17):
        if number == 5:
            scheduler.add(late)
        started = clock(device)
        plan, sampled = step(scheduler, cache)
        assert set(decoding) <= set(sampled) or number == 0, "somebody's stream stands still"
        if number:
            seconds.append(clock(device) - started)
            chunks.append(sum(part.num_tokens for part in plan.scheduled if part.request is late))
    return seconds, chunks


whole, chunked = gaps(512), gaps(64)
for name, (seconds, chunks) in (("in one step", whole), ("budget 64", chunked)):
    print(f"{name:<12} chunks {[c for c in chunks if c > 1]}")
    print(f"{'':<12} usual gap {1e3 * median(seconds[:4]):5.0f} ms, longest {1e3 * max(seconds):6.0f} ms")
assert max(whole[1]) == 480
assert max(chunked[1]) == 64 - 3, "three tokens of the budget are the others'"

# %% tags=["measured"]
figure, axes = plt.subplots()
for (seconds, _), label, colour in ((whole, "prompt in one step", "C1"), (chunked, "token budget 64", "C0")):
    axes.step(range(1, len(seconds) + 1), [1e3 * s for s in seconds], where="mid", label=label, color=colour)
axes.set(xlabel="step", ylabel="ms until the next token", ylim=(0, None), title="What the others notice")
axes.legend()
plt.show()

# %% [markdown]
# The sum under both lines is about the same: a prompt costs what it costs. What differs is the longest gap. The others
# are slower for as long as the prompt is being read, and none of them stands still.
#
# ## The memory runs out
#
# Now with a pool that is too small: three requests that will need 9 blocks together, and 6 blocks. Nobody knows that
# when they are admitted, because nobody knows how long answers will be.

# %%
scheduler = Scheduler(6, SIZE, max_batch_size=3, token_budget=64, prefix_caching=False)
cache = PagedKVCache(config, 6, SIZE, device=device)
prompts = [(tokenizer.encode(prompt) * 4)[:14] for prompt in PROMPTS[:3]]
crowd = [request_of(name, prompt, 26) for name, prompt in zip("ABC", prompts, strict=True)]
for request in crowd:
    scheduler.add(request)
number, computed = 0, 0
while scheduler.has_work:
    plan, _ = step(scheduler, cache)
    number, computed = number + 1, computed + plan.num_tokens
    for request in plan.preempted:
        print(f"step {number:2d}   {request.request_id} gives its blocks back, with {request.num_generated} tokens")
    for request in plan.admitted:
        if request.num_preemptions:
            anew = sum(part.num_tokens for part in plan.scheduled if part.request is request)
            print(f"step {number:2d}   {request.request_id} is back: {anew} tokens are computed anew")
needed = sum(len(request.token_ids) - 1 for request in crowd)
assert computed > needed, "somebody's tokens were computed twice"
assert crowd[0].num_preemptions == 0, "the oldest never gives way"
assert all(alone(request) == list(request.generated_ids) for request in crowd)
print(f"{computed} tokens computed, {computed - needed} of them a second time; all answers as they are alone")

# %% [markdown]
# ## The batch grows
#
# And now the curve. Each of the requests holds 128 tokens. What the keys and values *are* does not matter for the time,
# so they need not be computed: you hand the batch its spans directly. The prediction comes from the two speeds of this
# machine and from the bytes and operations of a step.

# %% tags=["measured"]
CONTEXT, BATCHES = 128, (1, 2, 4, 8, 16, 32)


@torch.inference_mode()
def decode_seconds(batch, steps=4):
    """The shortest of some decode steps in which `batch` requests of CONTEXT tokens take part."""
    blocks = CONTEXT // SIZE
    cache = PagedKVCache(config, batch * blocks, SIZE, device=device)
    spans = [Span(range(n * blocks, (n + 1) * blocks), CONTEXT - 1, 1) for n in range(batch)]
    ids, seconds = torch.full((1, batch), 28, device=device), []
    for _ in range(steps):
        started = clock(device)
        hidden = model(ids, PagedBatch(cache, spans))  # [1, B, E]
        model.logits(hidden[0]).argmax(-1).tolist()
        seconds.append(clock(device) - started)
    return min(seconds)


measured = {batch: decode_seconds(batch) for batch in BATCHES}
limits = measure_limits(device)
machine = Machine(limits.bandwidth_bytes_per_s, limits.flops_per_s[dtype_name(model.dtype)])
works = {batch: decode_work(shape, batch, CONTEXT, 4.0, 4.0) for batch in BATCHES}
least = {batch: shortest_seconds(work, machine) for batch, work in works.items()}
print(f"{machine.bandwidth_bytes_per_s / 1e9:.1f} GB/s, {machine.flops_per_s / 1e9:.0f} GFLOP/s")
print("batch   TPOT measured   at least   limit      tokens/s measured   at most   share   x one")
for batch, seconds in measured.items():
    print(
        f"{batch:5d}{1e3 * seconds:13.1f} ms{1e3 * least[batch]:8.1f} ms   {bound_by(works[batch], machine):<8}"
        f"{batch / seconds:20.1f}{decode_limit(works[batch], batch, machine):10.1f}"
        f"{least[batch] / seconds:8.0%}{batch / seconds * measured[1]:8.1f}"
    )

# %% tags=["measured"]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4))
rates = [batch / seconds for batch, seconds in measured.items()]
most = [decode_limit(works[batch], batch, machine) for batch in BATCHES]
left.loglog(BATCHES, most, "--", color="C1", label="roofline")
left.loglog(BATCHES, rates, "o-", color="C0", label="measured")
left.set(title="tokens per second, all requests", xlabel="batch")
right.loglog(BATCHES, [1e3 * s for s in least.values()], "--", color="C1", label="roofline")
right.loglog(BATCHES, [1e3 * s for s in measured.values()], "o-", color="C0", label="measured")
right.set(title="ms per token, each request", xlabel="batch")
for axes in (left, right):
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
plt.show()

# %% [markdown]
# Both lines bend, and not at the same place. The roofline has its ridge where arithmetic takes as long as reading the
# weights; on a CPU that is a batch of ten or so. The engine is below it everywhere: for few rows, PyTorch's products
# reach a part of either speed, and attention gathers each request's blocks before it reads them (chapter 13).

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 12: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("12.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch12.py`: from
# there `--mine` runs the engine on it, and `!minillm grade 12` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from collections.abc import Sequence

from minillm.engine.request import Request
from minillm.engine.scheduler import Plan
from minillm.exercises import check, hint, todo
from minillm.machine.roofline import Machine, Work, decode_work, forward_bytes, forward_flops, shortest_seconds
from minillm.machine.shape import ModelShape, num_active_params, num_params


# %%
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


check("12.1", step_work)  # and hint("12.1"), when you are stuck


# %%
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


check("12.2", decode_steps)  # and hint("12.2"), when you are stuck


# %%
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


check("12.3", continue_running)  # and hint("12.3"), when you are stuck


# %%
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


check("12.4", make_room)  # and hint("12.4"), when you are stuck


# %%
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


check("12.5", largest_batch)  # and hint("12.5"), when you are stuck
