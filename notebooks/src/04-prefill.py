# %% [markdown]
# # Notebook 4: Prefill
#
# Beside [chapter 4](../chapters/04-prefill.md). You send a prompt through the model in one pass and in many, take the
# causal mask away and put it back, break a chunked prefill in three ways that raise nothing, and then find out what
# sets the wait for the first token: you predict it, measure it, and set it against the limit of your machine. The
# exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in less than a minute, and on a CUDA GPU as it stands.

# %%
import weakref

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from minillm.attention import causal_mask
from minillm.decode import decode
from minillm.device import clock, pick_device
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.machine.measure import peak_matmul_flops, read_bandwidth
from minillm.machine.roofline import (
    Machine,
    forward_flops,
    mfu,
    prefill_work,
    shortest_seconds,
    smallest_compute_bound_prompt,
    visible_pairs,
)
from minillm.machine.shape import shape_of
from minillm.prefill import forward_in_chunks, next_token_logits, prefill
from minillm.sampler import SamplingParams

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config


def room(tokens, kind=KVCache):
    """An empty cache with room for so many tokens."""
    return kind(config, tokens, device=device)


# %% [markdown]
# ## One pass
#
# A prompt is there from the start, all of it. So all its tokens can go through each layer side by side, as the rows of
# one matrix. They can also go one after the other. The logits at the end are the same:

# %%
prompt = "A prompt is read before it is answered. All of its words are known from the start, so nobody has to wait for"
ids = tokenizer.encode(prompt)
together = prefill(model, ids, room(64))  # [1, V]
one_by_one = room(64)
for token_id in ids:
    apart = prefill(model, [token_id], one_by_one)  # [1, V]
assert torch.allclose(together, apart, atol=1e-3, rtol=1e-3)
assert together.argmax() == apart.argmax()
print(f"{len(ids)} tokens in one pass, or in {len(ids)}: the same logits; next is", end=" ")
print(repr(tokenizer.decode([int(together.argmax())])))

# %% [markdown]
# The time is not.


# %% tags=["measured"]
def best_of(repeats, work):
    """The shortest of several runs, in seconds: other programs can only make one longer."""
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        work()
        seconds.append(clock(device) - started)
    return min(seconds)


def token_by_token():
    cache = room(64)
    for token_id in ids:
        prefill(model, [token_id], cache)


one_pass_s = best_of(3, lambda: prefill(model, ids, room(64)))
many_passes_s = best_of(1, token_by_token)
print(f"one pass {1e3 * one_pass_s:7.1f} ms\n{len(ids)} passes {1e3 * many_passes_s:7.1f} ms")
assert one_pass_s < many_passes_s

# %% [markdown]
# Each pass reads all the weights. In one pass, they are read once for all the tokens.
#
# ## Take the mask away
#
# Side by side, the tokens could look at each other in both directions. The causal mask forbids one of the two. What if
# it did not? This cache attends to everything that is there. (Do not ship it.)


# %%
class NoMask(KVCache):
    """Every token sees every other, those after it too."""

    def attend(self, layer, q, k, v):
        keys, values = self.append(layer, k, v)  # [B, Hkv, S, D]
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)  # [B, H, T, D]


def layers_changed(kind, tokens, more):
    """In how many layers `more` tokens at the end of a prompt change the keys and values of those before."""
    short, longer = room(64, kind), room(64, kind)
    prefill(model, tokens, short)
    prefill(model, [*tokens, *more], longer)
    kept = len(tokens)
    same = [
        torch.allclose(a[layer, :, :, :kept], b[layer, :, :, :kept], atol=1e-3, rtol=1e-3)
        for a, b in ((short.keys, longer.keys), (short.values, longer.values))
        for layer in range(config.num_hidden_layers)
    ]
    layers = config.num_hidden_layers
    return [not (same[layer] and same[layers + layer]) for layer in range(layers)]


capital = tokenizer.encode("The capital of France is")
more = tokenizer.encode(" a city on the river")
masked, unmasked = (layers_changed(kind, capital, more) for kind in (KVCache, NoMask))
print(f"{len(more)} more tokens change the K and V of the first {len(capital)}")
print(f"  with the mask:    in {sum(masked):2} of {config.num_hidden_layers} layers")
print(f"  without the mask: in {sum(unmasked):2} of {config.num_hidden_layers} layers")
assert not any(masked)
assert not unmasked[0], "layer 0 makes its keys from the embeddings, before anybody has looked at anybody"
assert all(unmasked[1:])

# %% [markdown]
# So without the mask, nothing that you compute for a prompt is final: one word more, and all of it has to be computed
# again. And each token has seen the one that it is supposed to predict. This model was trained with the mask; without
# it, its rows are not those that it knows how to continue:

# %%
right = prefill(model, capital, room(64))[0].softmax(-1)  # [V]
wrong = prefill(model, capital, room(64, NoMask))[0].softmax(-1)  # [V]
paris = int(right.argmax())
word = repr(tokenizer.decode([paris]))
print(f"p({word}) with the mask:    {float(right[paris]):.2f}")
print(f"p({word}) without the mask: {float(wrong[paris]):.2f}")
assert wrong[paris] < right[paris] / 2

# %% [markdown]
# It raised nothing. A missing mask is found by comparing, and in no other way.
#
# How much does the mask leave? Each token looks at itself and at those before it: half of the square, and half the
# diagonal. *Exercise 4.4 asks for the formula: do it first, if you want to find it yourself.*

# %%
for tokens in (4, 32, 512):
    counted = int(causal_mask(tokens, tokens).sum())
    assert counted == visible_pairs(tokens)
    print(f"{tokens:4} tokens: {counted:7,} of {tokens * tokens:7,} pairs, {counted / tokens**2:.1%}")

# %% [markdown]
# ## In chunks
#
# A long prompt may be cut: each chunk is a pass of its own, on a cache that holds those before it. The logits must not
# change. Here is one with a word near its beginning that its end asks for.

# %%
filler = " It rained in the morning, and later the sun came out. The market was full of people, and the bread was good."
text = "The password is butterfly." + filler * 2 + " The password is"
chunk_ids = tokenizer.encode(text)
whole = prefill(model, chunk_ids, room(96))  # [1, V]
for size in (7, 16, 64):
    chunked = prefill(model, chunk_ids, room(96), chunk_size=size)
    assert torch.allclose(whole, chunked, atol=1e-3, rtol=1e-3)
print(f"{len(chunk_ids)} tokens, in chunks of 7, 16 or 64: the same logits")


# %% [markdown]
# Now break it, three times. A chunk needs two things of the past: its *positions* must go on where those of the last
# chunk ended, and its *mask* must show all of what is cached. And when it has been computed, it must be *counted in*.


# %%
class Restarting(KVCache):
    """Each chunk's positions start at 0 again."""

    def positions(self, num_tokens):
        return super().positions(num_tokens) - self.length


class WrongCorner(KVCache):
    """The mask's diagonal begins in the upper left corner, as with `is_causal=True`."""

    def attend(self, layer, q, k, v):
        keys, values = self.append(layer, k, v)  # [B, Hkv, S, D]
        mask = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device).tril()  # [T, S]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)  # [B, H, T, D]


class CountedOnce(KVCache):
    """The first chunk is counted in and the others are not: each of them is written over the one before."""

    def advance(self, num_tokens):
        super().advance(num_tokens if self.length == 0 or num_tokens == 1 else 0)  # (a decode step is counted)


def off_by(kind, chunk_size):
    """The largest difference of a logit from that of a whole prefill with the engine's own cache."""
    return float((prefill(model, chunk_ids, room(96, kind), chunk_size) - whole).abs().max())


print("                  one pass   chunks of 16")
for kind in (KVCache, Restarting, WrongCorner, CountedOnce):
    in_one, in_chunks = off_by(kind, None), off_by(kind, 16)
    print(f"{kind.__name__:<15}   {in_one:8.1f}   {in_chunks:12.1f}")
    assert in_one < 0.01, "whole prompts do not show it"
    assert (in_chunks < 0.01) == (kind is KVCache), "chunks do"

# %% [markdown]
# Three bugs, all invisible as long as nobody's prompt is longer than a chunk. And what does a user see? Let each of
# them go on for eight tokens.


# %%
def answer(kind, max_tokens=8):
    """What follows the chunked prompt, greedily."""
    cache = room(96, kind)
    logits = prefill(model, chunk_ids, cache, chunk_size=16)
    steps = decode(model, logits, cache, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    return tokenizer.decode([step.token_id for step in steps])


# %% tags=["measured"]
for kind in (KVCache, Restarting, WrongCorner, CountedOnce):
    print(f"{kind.__name__:<15} The password is{answer(kind)!r}")

# %% [markdown]
# None of them raised anything, and a look at the text finds one, perhaps two. Only a comparison of logits with those of
# a whole prefill finds all three.
#
# ## Only the last row needs the head
#
# The layers give a row for each token of the prompt. What follows the tokens before the last is in the prompt already,
# so nobody asks for their logits. *Exercise 4.3 is this one line.* What does it save? First the bytes, by arithmetic.

# %%
tokens = 256
long_ids = torch.arange(tokens, device=device)[None] % config.vocab_size  # [1, T]; to the clock, all ids are alike
with torch.inference_mode():
    hidden = forward_in_chunks(model, long_ids, room(tokens), tokens)  # [1, T, E]
    every_row = model.logits(hidden)  # [1, T, V]
    last_row = next_token_logits(model, hidden)  # [1, V]
assert torch.allclose(every_row[:, -1], last_row, atol=1e-3, rtol=1e-3)
assert every_row.nbytes == tokens * config.vocab_size * 4 == tokens * last_row.nbytes
print(f"logits of every row: {every_row.nbytes / 1e6:6.1f} MB\nof the last one:     {last_row.nbytes / 1e6:6.1f} MB")
head, all_weights = model.lm_head.weight.numel(), sum(p.numel() for p in model.layers.parameters())
print(f"the head has {head / (head + all_weights):.0%} of the weights that a pass multiplies by")
del every_row

# %% tags=["measured"]
layers_s = best_of(1, lambda: forward_in_chunks(model, long_ids, room(tokens), tokens))
with torch.inference_mode():
    every_row_s = best_of(2, lambda: model.logits(hidden))
    last_row_s = best_of(2, lambda: next_token_logits(model, hidden))
print(f"all layers          {1e3 * layers_s:7.1f} ms")
print(f"head, every row     {1e3 * every_row_s:7.1f} ms")
print(f"head, the last row  {1e3 * last_row_s:7.1f} ms")
assert last_row_s < every_row_s

# %% [markdown]
# ## What chunks are for, and what they cost
#
# Look at the memory of a pass: each operation makes new tensors, and gives them back when they have been used. This
# ledger adds up what exists at the same time. ([Notebook 10](10-will-it-fit.ipynb) says more about it.)


# %%
class Ledger(TorchDispatchMode):
    """The most bytes that tensors made inside it had at any one time."""

    def __init__(self):
        super().__init__()
        self.owners, self.now, self.peak = {}, 0, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)} - self.owners.keys()
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage()).data_ptr() not in given:
                self.note(tensor, storage.data_ptr(), storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def note(self, tensor, start, size):
        """One tensor more on a piece of memory, which counts once."""
        if size == 0:
            return
        self.now += 0 if self.owners.get(start) else size
        self.owners[start] = self.owners.get(start, 0) + 1
        weakref.finalize(tensor, self.gone, start, size)

    def gone(self, start, size):
        self.owners[start] -= 1
        if self.owners[start] == 0:
            del self.owners[start]
            self.now -= size


def peak_bytes(chunk_size):
    """Of activations, in one prefill of the long prompt in chunks of this size."""
    cache = room(tokens)
    with Ledger() as ledger:
        prefill(model, long_ids, cache, chunk_size)
    return ledger.peak


sizes = (16, 64, 256)
peaks = {size: peak_bytes(size) for size in sizes}
for size, peak in peaks.items():
    print(f"{tokens} tokens in {-(-tokens // size):2} chunks of {size:3}: at most {peak / 1e6:4.1f} MB of activations")
assert peaks[16] < peaks[64] < peaks[256]

# %% [markdown]
# That is what chunks are for. (Here it is megabytes. Times the width of a large model and a prompt of 100,000 tokens,
# it is what does or does not fit. A server has a second reason: between two chunks it can serve others, chapter 12.)
# The price: each chunk reads the layers' weights again, and a short chunk does not keep the arithmetic busy. The head's
# are read once, after the last.

# %%
head_bytes = model.lm_head.weight.nbytes
passes = {size: -(-tokens // size) for size in sizes}
read = {size: passes[size] * (model.nbytes - head_bytes) + head_bytes for size in sizes}
for size in sizes:
    print(f"chunks of {size:3}: {passes[size]:2} passes read {read[size] / 1e9:4.2f} GB of weights")

# %% tags=["measured"]
chunk_s = {size: best_of(1, lambda size=size: prefill(model, long_ids, room(tokens), size)) for size in sizes}
print("chunk      time   tokens/s")
for size, seconds in chunk_s.items():
    print(f"{size:5}   {seconds:5.2f} s   {tokens / seconds:8.0f}")

# %% tags=["measured"]
figure, (memory, time) = plt.subplots(1, 2)
labels = [str(size) for size in sizes]
memory.bar(labels, [peaks[size] / 1e6 for size in sizes], color="C1")
memory.set(title="activations, at most", xlabel="tokens per chunk", ylabel="MB")
time.bar(labels, [chunk_s[size] for size in sizes], color="C0")
time.set(title="time to the first token", xlabel="tokens per chunk", ylabel="s")
plt.show()

# %% [markdown]
# ## How fast can a prompt be read?
#
# Now the limits. A pass must read the weights, and do its operations; the slower of the two sets the least time that
# any program could take. Measure both speeds of this machine. *Then, before you run the cell after it, say from how
# many tokens on arithmetic will be the limit. (Exercise 4.5.)*

# %% tags=["measured"]
shape = shape_of(config)
itemsize = float(model.dtype.itemsize)
machine = Machine(read_bandwidth(device), peak_matmul_flops(device, model.dtype))
print(f"memory is read at {machine.bandwidth_bytes_per_s / 1e9:.1f} GB/s", end=", ")
print(f"matrices multiply at {machine.flops_per_s / 1e9:.1f} GFLOP/s")

# %% tags=["measured"]
knee = smallest_compute_bound_prompt(shape, machine, itemsize, itemsize)
print(f"predicted: compute-bound from a prompt of {knee} tokens on")

# %% [markdown]
# Prompts of 1 to 1,024 tokens, and what the clock says. Under each stands what memory alone would allow, and what
# arithmetic alone would.


# %% tags=["measured"]
def time_prompt(length, repeats):
    """Seconds to the logits of a prompt of this length."""
    prompt_ids = torch.arange(length, device=device)[None] % config.vocab_size  # [1, T]
    return best_of(repeats, lambda: prefill(model, prompt_ids, room(length)))


lengths = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
time_prompt(1, 2)  # the first pays for what is set up once
measured_s = {length: time_prompt(length, 3 if length < 64 else 1) for length in lengths}
work = {length: prefill_work(shape, length, itemsize, itemsize) for length in lengths}
machine = Machine(
    max(machine.bandwidth_bytes_per_s, read_bandwidth(device)),
    max(machine.flops_per_s, peak_matmul_flops(device, model.dtype)),
)  # other programs can only make a limit look lower than it is
knee = smallest_compute_bound_prompt(shape, machine, itemsize, itemsize)
print("tokens        time   tokens/s   memory allows   arithmetic allows   reached")
for length, seconds in measured_s.items():
    memory_rate = length * machine.bandwidth_bytes_per_s / work[length].bytes
    arithmetic_rate = length * machine.flops_per_s / work[length].flops
    reached = shortest_seconds(work[length], machine) / seconds
    print(
        f"{length:6}   {1e3 * seconds:6.0f} ms   {length / seconds:8.0f}   {memory_rate:13.0f}"
        f"   {arithmetic_rate:17.0f}   {reached:7.0%}"
    )
assert measured_s[1024] / 1024 < measured_s[1], "a prompt's token is cheaper than a token alone"

# %% [markdown]
# ## Predict the wait
#
# TTFT is the prefill and little more. Two predictions for a prompt of 768 tokens, before it runs: the least that the
# machine allows, by arithmetic; and the same, divided by the share of the limit that 512 tokens reached.

# %% tags=["measured"]
least_s = shortest_seconds(prefill_work(shape, 768, itemsize, itemsize), machine)
reached_512 = shortest_seconds(work[512], machine) / measured_s[512]
likely_s = least_s / reached_512
print(f"at least {least_s:.2f} s, probably {likely_s:.2f} s")

# %% tags=["measured"]
ttft_s = time_prompt(768, 1)
print(f"measured {ttft_s:.2f} s: {ttft_s / least_s:.1f} times the least, {ttft_s / likely_s - 1:+.0%} off the probable")

# %% [markdown]
# The operations grow faster than the prompt: attention's share of them does, because each token looks at all those
# before it.

# %%
for length in (512, 2048, 6146, 8192):
    flops = forward_flops(shape, 1, length)
    attention = 4 * config.num_attention_heads * config.head_dim * config.num_hidden_layers * visible_pairs(length)
    print(f"{length:5,} tokens: {flops / 1e12:5.2f} TFLOP, {attention / flops:4.0%} of them in attention")

# %% [markdown]
# ## The picture, and the number
#
# Tokens per second against the length of the prompt. To the left of the knee, the slope: memory delivers the weights
# once per pass, whoever shares it. To the right, the roof, which sinks slowly as attention grows. MFU, model FLOPs
# utilization, is how near the longest prompt came to the roof.

# %% tags=["measured"]
figure, axes = plt.subplots()
memory_rates = [length * machine.bandwidth_bytes_per_s / work[length].bytes for length in lengths]
arithmetic_rates = [length * machine.flops_per_s / work[length].flops for length in lengths]
axes.loglog(lengths, memory_rates, "--", color="C1", label="limit: reading the weights")
axes.loglog(lengths, arithmetic_rates, "--", color="C2", label="limit: arithmetic")
rates = [length / measured_s[length] for length in lengths]
axes.loglog(lengths, rates, "o-", color="C0", label="measured")
axes.axvline(knee, color="C3", linewidth=0.8, linestyle=":")
axes.text(1.08 * knee, 0.05, f"knee: {knee}", transform=axes.get_xaxis_transform(), color="C3")
axes.set(xlabel="tokens in the prompt", ylabel="tokens per second")
axes.set_ylim(min(rates) / 3, 4 * max(arithmetic_rates))
axes.set_title("Reading a prompt")
axes.set_xticks(lengths, [str(length) for length in lengths])
axes.yaxis.set_major_formatter("{x:,.0f}")
axes.minorticks_off()
axes.legend(loc="lower right")
plt.show()

# %% tags=["measured"]
share = mfu(work[1024].flops, measured_s[1024], machine.flops_per_s)
print(
    f"1,024 tokens: {work[1024].flops / measured_s[1024] / 1e9:.0f} of {machine.flops_per_s / 1e9:.0f} GFLOP/s,",
    end=" ",
)
print(f"an MFU of {share:.0%}")

# %% [markdown]
# What is missing to 100 %? Norms, rotations, activations and the residual additions do hardly any operations and read
# and write whole matrices; each is a call of its own, with the memory's speed for its limit. On short prompts, it is
# the calls themselves: some two thousand in each pass. (A share above 100 % says that another program was busy while
# the limit was measured: run the cell again.)

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 4: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("4.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch04.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 4` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.exercises import check, hint, todo
from minillm.kv_cache import Cache
from minillm.machine.roofline import Machine, bound_by, prefill_work
from minillm.machine.shape import ModelShape
from minillm.model import Llama


# %%
def positions(self, num_tokens: int) -> Int[Tensor, "batch q_len"]:
    """`KVCache.positions`: at which positions do the next `num_tokens` tokens stand?

    self is the cache, and this function its method:

        self.length        how many tokens the cache holds, in each of its sequences: at first 0. Only to be read
        self.batch_size    how many sequences it holds, B
        self.keys.device   where the positions are needed: they are turned into the angles that say to a key where it is

    Return an integer tensor (int64) [B, num_tokens] on that device, with the same positions for each sequence. The
    first token of a text stands at position 0.

    The cache itself stays as it is: its length grows when the tokens have been computed, not when somebody asks.

    About 2 lines.
    """
    todo("4.1")


check("4.1", positions)  # and hint("4.1"), when you are stuck


# %%
def forward_in_chunks(
    model: Llama, tokens: Int[Tensor, "batch q_len"], cache: Cache, chunk_size: int
) -> Float[Tensor, "batch last_chunk hidden"]:
    """Prefill's core: send all tokens through the layers, `chunk_size` of them in each pass.

    tokens: [B, T], at least one per sequence, checked to fit. chunk_size: 1 or more; where it is T or more, there is a
    single pass. Every chunk but the last has exactly `chunk_size` tokens of each sequence; the last has what is left.

    `model(chunk, cache)` is one pass. It gives the hidden states of the chunk's tokens, [B, n, E]; it asks the cache
    for their positions, writes their keys and values behind what is counted in, and attends over both.
    `cache.advance(n)` counts n tokens of each sequence in. The model does not do that: you do, when the pass is over.

    The cache may hold something when you are called: the earlier turns of a chat. The head has nothing to do here.

    Return the hidden states of the last chunk, [B, n, E]. Those of earlier chunks are not needed: what later tokens
    want to know of them is in the cache.

    About 5 lines.
    """
    todo("4.2")


check("4.2", forward_in_chunks)  # and hint("4.2"), when you are stuck


# %%
def next_token_logits(model: Llama, hidden: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch vocab"]:
    """The logits of the token that follows each sequence, and of no other.

    hidden: [B, n, E], the hidden states of a prompt (or of its last chunk), as they come out of the layers.
    `model.logits(rows)` sends rows [..., E] through the head and gives [..., V], in float32.

    Return [B, V]. The head is the largest matrix of a small model: compute no row of it that nobody asks for. How many
    rows went through it is graded.

    About 1 line.
    """
    todo("4.3")


check("4.3", next_token_logits)  # and hint("4.3"), when you are stuck


# %%
def visible_pairs(new_tokens: int, context: int = 0) -> int:
    """How many (query, key) pairs does attention compute for `new_tokens` tokens behind `context` cached ones?

    The causal mask hides the rest: each token looks at itself, at the new tokens before it, and at all cached ones.
    It is the number of True entries of `causal_mask(new_tokens, context + new_tokens)`, without making that mask,
    which for a prompt of 100,000 tokens would take 10 GB: one of the cases has a context for which no memory suffices.

    3 new tokens behind 4 cached ones see 5, 6 and 7: 18 pairs. Return a whole number (int). There is a formula, so that
    you need no loop either.

    About 1 line.
    """
    todo("4.4")


check("4.4", visible_pairs)  # and hint("4.4"), when you are stuck


# %%
def smallest_compute_bound_prompt(
    shape: ModelShape, machine: Machine, bytes_per_weight: float = 2.0, bytes_per_kv: float = 2.0
) -> int:
    """The knee: the fewest tokens, 1 or more, of a prompt whose prefill is limited by arithmetic and not by memory.

    shape: the model, dense. machine: its two speeds, `bandwidth_bytes_per_s` and `flops_per_s`; their quotient is
    `machine.ridge_point`. bytes_per_weight, bytes_per_kv: bytes of one number of weights and of cache.

    `prefill_work(shape, prompt_tokens, bytes_per_weight, bytes_per_kv)` (imported above) says what one pass over a
    prompt asks for: its `flops`, its `bytes`, and its `intensity`, which is the first by the second. A pass is limited
    by arithmetic when the time for its operations is at least the time for its bytes.

    Longer prompts bring more operations per byte, always, so there is such a length, and from there on all are. It may
    lie thousands of tokens out.

    About 4 lines.
    """
    todo("4.5")


check("4.5", smallest_compute_bound_prompt)  # and hint("4.5"), when you are stuck
