# %% [markdown]
# # Notebook 9: Two resources
#
# Beside [chapter 9](../chapters/09-two-resources.md). You measure the two speeds of the machine in front of you, count
# what a pass through the model asks of each, and draw the line between the two: your own roofline, with the engine's
# passes under it.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands.

# %%
import matplotlib.pyplot as plt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from minillm.device import clock, dtype_name, pick_device
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.machine.limits import measure_limits
from minillm.machine.measure import compare_reads
from minillm.machine.roofline import (
    Machine,
    attainable_flops,
    decode_work,
    forward_bytes,
    forward_flops,
    mbu,
    mfu,
    shortest_seconds,
    smallest_compute_bound_batch,
)
from minillm.machine.shape import shape_of
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME
from minillm.model import weight_bytes_per_pass

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
shape = shape_of(model.config)
BYTES = 4.0  # of a number in float32, for weights and cache alike

# %% [markdown]
# ## Two speeds
#
# Memory first: sum up half a gigabyte, more than any cache holds, in three ways, and divide by the time of the
# fastest. Then arithmetic: multiply two large matrices, and count two operations for each product. The best of several
# tries counts, because other programs can only make a machine look slower than it is.

# %% tags=["measured"]
limits = measure_limits(device)
dtype = dtype_name(model.dtype)
print(limits.device)
print(f"memory     {limits.bandwidth_bytes_per_s / 1e9:8.1f} GB/s")
for name, flops in limits.flops_per_s.items():
    print(f"{name:<10} {flops / 1e9:8.1f} GFLOP/s, ridge at {flops / limits.bandwidth_bytes_per_s:.2f} FLOP per byte")

# %% [markdown]
# Is that the memory's speed, or only PyTorch's? Let a program that shares nothing with it read as well: numpy, in a
# thread per core, with another operation on numbers of another size, and in one way only. If PyTorch is at the limit of
# the memory, numpy comes near and does not pass it; what is left is noise, and the best read of all is the one to go on
# with.

# %% tags=["measured"]
ours, independent = compare_reads()
print(f"torch sums float32     {ours / 1e9:6.1f} GB/s")
print(f"numpy ors 64-bit words {independent / 1e9:6.1f} GB/s, a ratio of {ours / independent:.2f}")
machine = Machine(max(limits.bandwidth_bytes_per_s, ours, independent), limits.flops_per_s[dtype])

# %% [markdown]
# ## What a pass asks for
#
# `forward_flops` and `forward_bytes` count on paper. PyTorch can count operations while it runs, and a model knows its
# bytes: compare. PyTorch's counter knows matrix products only. It leaves out the norms, which the paper counts like
# other weights; and it counts all pairs of a masked prompt, where the paper counts those that are visible.

# %%
new_tokens, context = 32, 64
cache = KVCache(model.config, 128, device=device)
ids = torch.arange(new_tokens + context, device=device)[None]  # [1, T]
model(ids[:, :context], cache)
cache.advance(context)
with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
    model.logits(model(ids[:, context:], cache)[:, -1])
hidden_pairs = new_tokens * (new_tokens - 1) // 2
per_pair = 4 * shape.num_attention_heads * shape.head_dim * shape.num_hidden_layers
norms = 2 * new_tokens * (2 * shape.num_hidden_layers + 1) * shape.hidden_size
counted = counter.get_total_flops()
on_paper = forward_flops(shape, 1, new_tokens, context)
assert on_paper == counted - hidden_pairs * per_pair + norms
print(f"{new_tokens} tokens behind {context}: {on_paper / 1e9:.2f} GFLOP on paper, {counted / 1e9:.2f} counted")

cache_bytes = (context + new_tokens) * cache.bytes_per_token
assert forward_bytes(shape, 1, new_tokens, context, BYTES, BYTES) == weight_bytes_per_pass(model) + cache_bytes
print(f"{weight_bytes_per_pass(model) / 1e6:.0f} MB of weights and {cache_bytes / 1e6:.1f} MB of cache to read")

# %% [markdown]
# Divide one by the other, and you have the *arithmetic intensity*. Of a decode step for one request it is about half an
# operation per byte in float32 (two operations on each weight of four bytes), whatever the model. In 16 bit it is one.

# %%
for name in ("smollm2-135m", "llama-3-8b", "llama-3-70b"):
    known = BY_NAME[name].shape
    step, prompt = decode_work(known, 1, 1), forward_flops(known, 1, 512) / forward_bytes(known, 1, 512)
    print(f"{name:<13} in 16 bit: decode {step.intensity:.2f}, prefill of 512 tokens {prompt:.0f} FLOP per byte")
    assert abs(step.intensity - 1) < 0.01

# %% [markdown]
# ## Your roofline
#
# Now time passes of 1 to 512 tokens, and put each where it belongs: its intensity to the right, the operations per
# second that it reached upwards. The line above them is what the two speeds allow.


# %% tags=["measured"]
def best_pass_seconds(batch, new_tokens, context=0, repeats=5):
    """The shortest of several passes of `new_tokens` for each of `batch` sequences behind `context` tokens."""
    cache = KVCache(model.config, context + new_tokens, batch, device=device)
    cache.keys.zero_()
    cache.values.zero_()
    cache.advance(context)
    ids = torch.arange(batch * new_tokens, device=device).view(batch, new_tokens)  # [B, T]
    seconds = []
    with torch.inference_mode():
        for _ in range(repeats + 1):  # the first one pays for what is set up once
            started = clock(device)
            model.logits(model(ids, cache)[:, -1])
            seconds.append(clock(device) - started)
    return min(seconds[1:])


sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
seconds = [best_pass_seconds(1, size) for size in sizes]
flops = [forward_flops(shape, 1, size) for size in sizes]
read = [forward_bytes(shape, 1, size, 0, BYTES, BYTES) for size in sizes]
intensity = [f / b for f, b in zip(flops, read, strict=True)]
print("tokens   FLOP/byte    GFLOP/s   of the roof    MBU    MFU")
for size, i, f, b, s in zip(sizes, intensity, flops, read, seconds, strict=True):
    share = f / s / attainable_flops(i, machine)
    used = f"{mbu(b, s, machine.bandwidth_bytes_per_s):6.0%} {mfu(f, s, machine.flops_per_s):6.0%}"
    print(f"{size:6} {i:11.1f} {f / s / 1e9:10.1f} {share:13.0%} {used}")

# %% tags=["measured"]
figure, axes = plt.subplots()
span = [min(intensity) / 2, machine.ridge_point, max(intensity) * 2]
axes.loglog(span, [attainable_flops(i, machine) / 1e9 for i in span], color="C1", label="what the two speeds allow")
axes.loglog(intensity, [f / s / 1e9 for f, s in zip(flops, seconds, strict=True)], "o", color="C0", label="measured")
for size, i, f, s in zip(sizes, intensity, flops, seconds, strict=True):
    if size in (1, 8, 64, 512):
        text = "1 token" if size == 1 else f"{size} tokens"
        axes.annotate(text, (i, f / s / 1e9), xytext=(8, -12), textcoords="offset points", color="C0")
axes.axvline(machine.ridge_point, color="C3", linewidth=0.8, linestyle=":")
axes.annotate("ridge", (machine.ridge_point, axes.get_ylim()[0]), xytext=(4, 6), textcoords="offset points", color="C3")
axes.set(xlabel="FLOP per byte", ylabel="GFLOP/s", title="Passes of 1 to 512 tokens under this machine's roofline")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## The batch at which decode turns
#
# Predict before you go on: how many sequences must share a decode step until arithmetic is its limit? Exercise 9.5 asks
# for the function; here it is called for this machine, at a context of 128. Then the batches around it are run. Below
# the turn, tokens per second can grow with the batch, because more of them share a read; above it arithmetic allows no
# more. An engine far below both limits turns later than the line that it stays under, and less sharply.

# %% tags=["measured"]
context = 128
turn = smallest_compute_bound_batch(shape, context, machine, BYTES, BYTES)
print(f"predicted: compute-bound from a batch of {turn} on" if turn else "predicted: memory-bound at every batch")
batches = [1, 2, 4, 8, 16, 32]
rates, allowed = [], []
for batch in batches:
    rates.append(batch / best_pass_seconds(batch, 1, context - 1))
    allowed.append(batch / shortest_seconds(decode_work(shape, batch, context, BYTES, BYTES), machine))
print("batch   tokens/s   at most   share")
for batch, rate, most in zip(batches, rates, allowed, strict=True):
    print(f"{batch:5} {rate:10.1f} {most:9.1f} {rate / most:7.0%}")

# %% tags=["measured"]
figure, axes = plt.subplots()
axes.loglog(batches, allowed, color="C1", label="at most")
axes.loglog(batches, rates, "o-", color="C0", label="measured")
if turn:
    axes.axvline(turn, color="C3", linewidth=0.8, linestyle=":")
    axes.annotate("predicted turn", (turn, min(rates)), xytext=(4, 0), textcoords="offset points", color="C3")
axes.set_xticks(batches, [str(batch) for batch in batches])
axes.set(xlabel="sequences in a decode step", ylabel="tokens per second, all together", title="What batching buys")
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## The same on a GPU that you do not have
#
# Arithmetic needs no hardware. An H100's two speeds are in its datasheet, and the shape of Llama-3-8B in its config.

# %%
h100 = find("h100")
paper = Machine(h100.bandwidth_bytes_per_s, h100.flops("bfloat16"))
llama = BY_NAME["llama-3-8b"].shape
print(f"{h100.name}: ridge at {paper.ridge_point:.0f} FLOP per byte")
for length in (1, 128, 256, 384, 512, 4096):
    turn = smallest_compute_bound_batch(llama, length, paper)
    print(f"context {length:5,}: " + (f"compute-bound from batch {turn:,} on" if turn else "memory-bound at any batch"))
assert smallest_compute_bound_batch(llama, 1, paper) is not None
assert smallest_compute_bound_batch(llama, 4096, paper) is None

# %% [markdown]
# Somewhere past 384 tokens of context no batch is large enough any more. A sequence's own keys and values are read once
# per step, and each of their numbers serves four queries (32 query heads, 8 key/value heads): four operations per byte,
# far below the ridge, and more sequences bring more of both. Only a smaller cache helps: fewer key/value heads, fewer
# bytes per number.

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 9: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("9.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch09.py`: from there
# `!minillm grade 9` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from minillm.exercises import check, hint, todo
from minillm.machine.roofline import Machine
from minillm.machine.shape import ModelShape, num_active_params


# %%
def attainable_flops(intensity: float, machine: Machine) -> float:
    """The roofline: FLOP per second that work of this arithmetic intensity can reach on this machine.

    intensity: operations per byte read. machine: its two speeds, see above.

    A machine of 100 bytes/s and 1,000 FLOP/s can do 500 FLOP/s of work with 5 FLOP per byte, and 1,000 of work with 50.

    About 1 line.
    """
    todo("9.1")


check("9.1", attainable_flops)  # and hint("9.1"), when you are stuck


# %%
def forward_flops(shape: ModelShape, batch: int, new_tokens: int, context: int = 0) -> int:
    """Floating-point operations of one forward pass, for a dense model without a sliding window.

    batch: sequences. new_tokens: tokens that each of them adds in this pass. context: tokens that each of them has in
    its cache already.

    Count two operations, a multiplication and an addition, for each product:

    - every new token is multiplied by every weight of the layers. `num_active_params(shape)` counts these weights and
      those of the head (vocab_size x hidden_size) together;
    - the head is applied to the last new token of each sequence only, for nobody asks what follows the others;
    - in attention, each query head of each layer compares each new token with itself and all tokens before it, and
      takes a share of the value of each: two times `head_dim` products per pair. Pairs that the causal mask hides do
      not count.

    Softmax, rotation and the like are left out: they are far below a hundredth. Return a whole number (int).

    About 6 lines.
    """
    todo("9.2")


check("9.2", forward_flops)  # and hint("9.2"), when you are stuck


# %%
def forward_bytes(
    shape: ModelShape,
    batch: int,
    new_tokens: int,
    context: int = 0,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> float:
    """Bytes that one forward pass reads from memory at the least, for a dense model without a sliding window.

    The first four are those of 9.2. bytes_per_weight, bytes_per_kv: bytes of one number of the weights, and of one
    number of the cache.

    Two things are read: the weights that the pass multiplies by, as `num_active_params(shape)` counts them; and the
    keys and values of all tokens of all sequences, those of the new tokens included. Each of them once.

    About 3 lines.
    """
    todo("9.3")


check("9.3", forward_bytes)  # and hint("9.3"), when you are stuck


# %%
def mbu(bytes_per_pass: float, seconds_per_pass: float, bandwidth_bytes_per_s: float) -> float:
    """Model bandwidth utilization: the share of the memory's speed that a pass made use of, 1.0 for all of it.

    bytes_per_pass: what the pass had to read, see 9.3. seconds_per_pass: how long it took.
    bandwidth_bytes_per_s: what the memory can deliver.

    A pass that reads 50 bytes in 2 seconds, from a memory of 100 bytes/s, has an MBU of 0.25.

    About 1 line.
    """
    todo("9.4")


check("9.4", mbu)  # and hint("9.4"), when you are stuck


# %%
def smallest_compute_bound_batch(
    shape: ModelShape,
    context: int,
    machine: Machine,
    bytes_per_weight: float = 2.0,
    bytes_per_kv: float = 2.0,
) -> int | None:
    """The batch from which on a decode step is limited by arithmetic and no longer by memory.

    A decode step gives each of `batch` sequences one token more; with it, each has `context` tokens (so `context` - 1
    were there before). Return the smallest batch, 1 or more, at which the time for the operations (9.2) is at least
    the time for the bytes (9.3). Return None where no batch is large enough: such contexts exist.

    For a dense model without a sliding window. You may call `forward_flops` and `forward_bytes` here; where you have
    not written yours, import them from minillm.machine.roofline. A loop over batches never ends where the answer is
    None: work out what one sequence more adds to both sides.

    About 8 lines.
    """
    todo("9.5")


check("9.5", smallest_compute_bound_batch)  # and hint("9.5"), when you are stuck
