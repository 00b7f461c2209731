# %% [markdown]
# # Notebook 5: The KV cache
#
# Beside [chapter 5](../chapters/05-the-kv-cache.md). You generate the same tokens with a cache and without one, find
# out what has to be kept and why it can be, weigh it, break it in the ways in which caches break, and end at the point
# where it is heavier than the model. The exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from minillm.attention import causal_attention, causal_mask, single_query_attention
from minillm.config import ModelConfig
from minillm.decode import decode
from minillm.device import clock, pick_device
from minillm.kv_cache import KVCache, NoCache, kv_bytes_per_token, tokens_that_fit
from minillm.loading import load
from minillm.machine.measure import read_bandwidth
from minillm.metrics import decode_ceiling
from minillm.prefill import prefill
from minillm.sampler import SamplingParams
from minillm.trace import weight_bytes_per_pass

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config

# %% [markdown]
# ## Without a cache
#
# The model maps a sequence of tokens to the logits of the next one. The plainest way to generate is to hand it the
# whole sequence each time: prompt, and all tokens so far. `NoCache` does just that. Run it beside a `KVCache`, for 96
# tokens.


# %%
def generate(cache, prompt_ids, max_tokens):
    """Prefill and decode, whatever the cache: all steps, each with the seconds of its forward pass."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    logits = prefill(model, prompt_ids, cache)
    return list(decode(model, logits, cache, params, prompt_ids=prompt_ids))


story_ids = tokenizer.encode("Once upon a time, there was a")
num_tokens = 96
with_cache = generate(KVCache(config, 128, device=device), story_ids, num_tokens)
without_cache = generate(NoCache(config, device), story_ids, num_tokens)
assert [step.token_id for step in with_cache] == [step.token_id for step in without_cache]
print(f"the same {num_tokens} tokens, and the same text:")
print(tokenizer.decode([step.token_id for step in with_cache])[:72], "...")

# %% [markdown]
# The same tokens. Not the same work. Count the rows that went through the layers after the first token: with a cache,
# one for each pass. Without, the prompt and everything generated so far, each time.

# %%
passes = range(1, num_tokens)  # the pass after token number n
rows_with = len(passes)
rows_without = sum(len(story_ids) + n for n in passes)
assert rows_without == rows_with * len(story_ids) + num_tokens * (num_tokens - 1) // 2  # half a square
print(f"rows computed with a cache: {rows_with:,}")
print(f"without:                    {rows_without:,}, {rows_without / rows_with:.0f} times as many")

# %% [markdown]
# And what the clock says:

# %% tags=["measured"]
ms_with = [1e3 * step.forward_s for step in with_cache[1:]]
ms_without = [1e3 * step.forward_s for step in without_cache[1:]]


def around(times, n):
    """The median of nine passes around the n-th: a single one may have been disturbed."""
    return sorted(times[max(0, n - 5) : n + 4])[4]


print("token   with a cache   without")
for n in (10, 30, 50, 70, 90):
    print(f"{n:5}   {around(ms_with, n):9.1f} ms   {around(ms_without, n):7.1f} ms")
print(f"  all   {sum(ms_with) / 1e3:9.2f} s    {sum(ms_without) / 1e3:7.2f} s")

# %% tags=["measured"]
figure, (each, total) = plt.subplots(1, 2)
for times, name in ((ms_without, "without a cache"), (ms_with, "with a cache")):
    each.plot(passes, times, label=name)
    total.plot(passes, (torch.tensor(times) / 1e3).cumsum(0), label=name)
each.set(title="one token", xlabel="token number", ylabel="ms", ylim=(0, 1.3 * around(ms_without, 90)))
total.set(title="all tokens so far", xlabel="token number", ylabel="s", ylim=(0, None))
each.legend(loc="upper left")
plt.show()

# %% [markdown]
# On a CPU the line on the left climbs and the one beside it lies flat; their sums, on the right, are a parabola and a
# straight line. (A large GPU hardly notices a hundred rows of so small a model. Raise `num_tokens` there until it
# does.)
#
# ## What can be kept, and why
#
# A layer computes three things for each token: a query, a key, a value. To see which of them the future needs, take
# two prompts that share a beginning, fill a cache with each, and compare what they hold.


# %%
def filled(prompt_ids):
    """A cache with exactly these tokens computed."""
    cache = KVCache(config, 128, device=device)
    prefill(model, prompt_ids, cache)
    return cache


def same_entries(one, other, position):
    """Whether two caches hold the same K and V for a position, in all layers."""
    pairs = ((one.keys, other.keys), (one.values, other.values))  # each [L, B, Hkv, S, D]
    return all(torch.allclose(a[..., position, :], b[..., position, :], atol=1e-3, rtol=1e-3) for a, b in pairs)


ids = tokenizer.encode("The capital of France is")
short = filled(ids)
longer = filled(ids + tokenizer.encode(" not the largest city of the country"))
assert all(same_entries(short, longer, position) for position in range(len(ids)))
print(f"{longer.length - len(ids)} tokens later, the K and V of the first {len(ids)} are what they were")

# %% [markdown]
# Tokens that come *after* change nothing. Tokens that come *before* do. Exchange the fourth one, France for Spain:

# %%
other_ids = tokenizer.encode("The capital of Spain is")
other = filled(other_ids)
for position, (token_id, other_id) in enumerate(zip(ids, other_ids, strict=True)):
    same = same_entries(short, other, position)
    beginning = ids[: position + 1] == other_ids[: position + 1]
    assert same == beginning, "a token's K and V depend on itself and on what stands before it"
    words = f"{tokenizer.decode([token_id])!r} / {tokenizer.decode([other_id])!r}"
    print(f"position {position}   {words:<24} K and V {'equal' if same else 'differ'}")

# %% [markdown]
# Position 4 is the word ` is` in both, and its keys and values differ, because in every layer but the first they are
# made from a state that has already looked at the country. So a cache entry belongs to a whole beginning, not to a
# word. What makes it safe to keep is one rule: no token looks at what comes after it. A model without that rule (an
# encoder like BERT) could not have this cache.
#
# ### Why no Q
#
# Catch q, k and v of one layer on their way into the cache.


# %%
class Spy(KVCache):
    """A cache that remembers what one layer handed it last."""

    def attend(self, layer, q, k, v):
        if layer == config.num_hidden_layers // 2:
            self.seen = q, k, v
        return super().attend(layer, q, k, v)


spy = Spy(config, 128, device=device)
logits = prefill(model, ids, spy)
q, k, v = spy.seen
print("prefill:     q", list(q.shape), " k", list(k.shape), " v", list(v.shape), " [batch, heads, tokens, head_dim]")

full = causal_attention(q, k, v)  # [B, H, T, D]
newest = single_query_attention(q[:, :, -1:], k, v)  # [B, H, 1, D]
assert torch.allclose(full[:, :, -1:], newest, atol=1e-5)

prefill(model, [int(logits.argmax())], spy)
q, k, v = spy.seen
assert q.shape[2] == 1
print("decode pass: q", list(q.shape), "  k", list(k.shape), " v", list(v.shape))

# %% [markdown]
# The last row of attention needs the last query, and the keys and values of everybody. All other rows of `full`
# belong to tokens whose turn is over: their queries have asked, and nobody will ask with them again. One new row of
# each goes in, two of the three stay.
#
# ## What it costs
#
# *Exercise 5.1 asks for what comes next: do it first, if you want to find it yourself. Its cell is at the end.*
#
# For every token: a key and a value, in each layer, for each key/value head, `head_dim` numbers long.
#
# `2 x num_hidden_layers x num_key_value_heads x head_dim x bytes per number`

# %%
for dtype in (torch.float32, torch.bfloat16):
    worked = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * dtype.itemsize
    assert worked == kv_bytes_per_token(config, dtype)
    print(
        f"2 x {config.num_hidden_layers} layers x {config.num_key_value_heads} heads x {config.head_dim} numbers"
        f" x {dtype.itemsize} bytes = {worked:,} bytes per token in {str(dtype).removeprefix('torch.')}"
    )

# %% [markdown]
# That is the formula. This is the allocation:

# %%
per_token = kv_bytes_per_token(config, model.dtype)
cache = KVCache(config, 1024, device=device)
allocated = cache.keys.untyped_storage().nbytes() + cache.values.untyped_storage().nbytes()
assert allocated == cache.reserved_bytes == 1024 * per_token
prefill(model, ids, cache)
assert cache.used_bytes == len(ids) * per_token
print(f"reserved for 1,024 tokens: {cache.reserved_bytes:,} bytes = {cache.reserved_bytes / 1e6:.1f} MB", end="")
print(f" = {cache.reserved_bytes / 2**20:.1f} MiB")
used = cache.used_bytes / cache.reserved_bytes
print(f"used by {len(ids)} of them:         {cache.used_bytes:,} bytes, {used:.1%} of it")

# %% [markdown]
# MB and MiB are not the same: a MB is 1,000,000 bytes, a MiB 1,048,576. Bandwidths and file sizes are quoted in the
# first, memory sizes mostly in the second, and at gigabytes the difference is 7 %.
#
# And look at the second line: memory that is reserved and not used is the larger part of it. Chapter 13 is about that
# line.
#
# ### The lever: fewer key/value heads
#
# SmolLM2 has 9 query heads and 3 key/value heads: three queries share a key (*grouped-query attention*). What would
# it cost if each had its own?

# %%
one_each = replace(config, num_key_value_heads=config.num_attention_heads)
bytes_shared, bytes_own = (KVCache(c, 1024, device=device).reserved_bytes for c in (config, one_each))
assert bytes_own == bytes_shared * config.num_attention_heads // config.num_key_value_heads
print(f"1,024 tokens: {bytes_shared / 1e6:.1f} MB with shared keys, {bytes_own / 1e6:.1f} MB without")

# %% [markdown]
# Now for models that will frighten somebody. These are published shapes; a 16-bit number takes two bytes; one
# sequence of 4,096 tokens, and then 32 such users at once.

# %%
shapes = {  # vocabulary, hidden, intermediate, layers, heads, key/value heads, head_dim, context
    "Llama-2-7B": ModelConfig(32000, 4096, 11008, 32, 32, 32, 128, 4096),
    "Llama-2-13B": ModelConfig(32000, 5120, 13824, 40, 40, 40, 128, 4096),
    "Llama-3-8B": ModelConfig(128256, 4096, 14336, 32, 32, 8, 128, 8192),
    "Llama-3-70B": ModelConfig(128256, 8192, 28672, 80, 64, 8, 128, 8192),
}
print("              bytes per token   4,096 tokens            x 32")
for name, shape in shapes.items():
    each = kv_bytes_per_token(shape, torch.float16)
    one = 4096 * each
    print(f"{name:<12}{each:17,}   {one / 1e9:5.2f} GB = {one / 2**30:5.3f} GiB   {32 * one / 1e9:6.1f} GB")
assert kv_bytes_per_token(shapes["Llama-2-13B"], torch.float16) == 819_200
assert kv_bytes_per_token(shapes["Llama-3-8B"], torch.float16) == 131_072

# %% [markdown]
# The weights of Llama-2-13B are 26 GB in 16 bits. Its 32 users need four times as much for their keys and values.
# Llama-3-8B has eight key/value heads for 32 query heads: without that, it would stand where Llama-2-7B does.
#
# ## Write in place, never concatenate
#
# The obvious cache is a tensor that grows: `keys = torch.cat((keys, new))`. But a tensor cannot grow. `cat` makes a
# new one and copies everything into it, for every token, in every layer. Count the bytes that one layer writes for
# 2,048 tokens, and time it.

# %%
tokens, heads, head_dim = 2048, config.num_key_value_heads, config.head_dim
row_bytes = 2 * heads * head_dim * 4  # K and V of one token in one layer, float32
in_place_bytes = tokens * row_bytes
cat_bytes = sum(n * row_bytes for n in range(1, tokens + 1))
assert cat_bytes == in_place_bytes * (tokens + 1) // 2
print(f"in place: {in_place_bytes / 1e6:7,.1f} MB written\ncat:      {cat_bytes / 1e6:7,.1f} MB written")

# %% tags=["measured"]
new = torch.randn(2, 1, heads, 1, head_dim, device=device)  # [K and V, B, Hkv, 1, D]

started = clock(device)
grown = new[:, :, :, :0]  # nothing yet
for _ in range(tokens):
    grown = torch.cat((grown, new), dim=3)  # [2, B, Hkv, n, D]
cat_s = clock(device) - started

started = clock(device)
room = torch.empty(2, 1, heads, tokens, head_dim, device=device)
for n in range(tokens):
    room[:, :, :, n : n + 1] = new
in_place_s = clock(device) - started

assert torch.equal(room, grown)
print(f"in place {1e3 * in_place_s:7.1f} ms")
print(f"cat      {1e3 * cat_s:7.1f} ms, and for a moment both the old and the new tensor in memory")

# %% [markdown]
# And that is one layer of a small model. The price of reserving is that somebody must say beforehand how long the
# text may become: `KVCache(config, max_seq_len)`. There is a third way that needs neither copies nor prophecy, and
# chapter 13 builds it.
#
# ## Where caches break
#
# ### Several new tokens on a warm cache
#
# A long prompt can be computed in chunks. Each chunk attends to what the cache holds, and causally to itself. The
# result must be that of one pass.

# %%
text = "A cache holds the keys and values of all tokens so far. The next chunk of the prompt must see all of"
chunk_ids = tokenizer.encode(text)
one_pass = prefill(model, chunk_ids, KVCache(config, 128, device=device))
chunked = prefill(model, chunk_ids, KVCache(config, 128, device=device), chunk_size=8)
assert torch.allclose(one_pass, chunked, atol=1e-3, rtol=1e-3)
assert one_pass.argmax() == chunked.argmax()
print(f"{len(chunk_ids)} tokens in chunks of 8: the same logits; next is {tokenizer.decode([int(chunked.argmax())])!r}")

# %% [markdown]
# The mask decides. With 3 new tokens behind 4 cached ones, the queries are the *last* three of seven positions, so
# the diagonal ends in the lower right corner. A mask that starts in the upper left, which is what `is_causal=True`
# means when the lengths differ, hides from each new token most of what came before it.

# %%
right = causal_mask(3, 7)
wrong = torch.ones(3, 7, dtype=torch.bool).tril()
assert right.sum(1).tolist() == [5, 6, 7]
assert wrong.sum(1).tolist() == [1, 2, 3]
for name, mask in (("lower right", right), ("upper left", wrong)):
    print(name)
    for row in mask.tolist():
        print("   ", " ".join("x" if seen else "." for seen in row))


# %%
class WrongCorner(KVCache):
    """The bug: a causal mask aligned to the upper left. Do not ship this."""

    def attend(self, layer, q, k, v):
        keys, values = self.append(layer, k, v)  # [B, Hkv, S, D]
        mask = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device).tril()  # [T, S]
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)  # [B, H, T, D]


wrong_one_pass = prefill(model, chunk_ids, WrongCorner(config, 128, device=device))
wrong_chunked = prefill(model, chunk_ids, WrongCorner(config, 128, device=device), chunk_size=8)
assert torch.allclose(wrong_one_pass, one_pass, atol=1e-3, rtol=1e-3), "in one pass both masks are the same"
assert (wrong_chunked - one_pass).abs().max() > 1, "in chunks they are not"
for name, row in (("right", one_pass), ("wrong, one pass", wrong_one_pass), ("wrong, chunks", wrong_chunked)):
    print(f"{name:<16}", [tokenizer.decode([token_id]) for token_id in row[0].topk(4).indices.tolist()])

# %% [markdown]
# The wrong cache is right in one pass, where every test with a short prompt would look. It raises nothing in chunks:
# it goes on talking, and here even its likeliest word is still the right one.
#
# ### Going back
#
# To forget is to set the length back. What lies behind it is not erased, and need not be: it is overwritten before
# anybody looks. But logits are not kept. To go on from a shorter cache, drop one token more, and compute that one
# again: its row gives the logits.

# %%
cache = KVCache(config, 128, device=device)
params = SamplingParams(max_tokens=16, ignore_eos=True)
once = [step.token_id for step in decode(model, prefill(model, ids, cache), cache, params)]
assert cache.length == len(ids) + 15, "the last token is never computed"

cache.truncate(len(ids) - 1)
logits = prefill(model, ids[-1:], cache)
again = [step.token_id for step in decode(model, logits, cache, params)]
assert again == once

shared = next(n for n, (one, two) in enumerate(zip(ids, other_ids, strict=True)) if one != two)
cache.truncate(shared)  # "The capital of", still warm
logits = prefill(model, other_ids[shared:], cache)
elsewhere = [step.token_id for step in decode(model, logits, cache, params)]
fresh = KVCache(config, 128, device=device)
logits = prefill(model, other_ids, fresh)
assert elsewhere == [step.token_id for step in decode(model, logits, fresh, params)]
print(repr(tokenizer.decode(again)))
print(repr(tokenizer.decode(elsewhere)))

# %% [markdown]
# The second text shares three tokens with the first, and paid for two. A chat that keeps its cache from turn to turn,
# a server that recognises a system prompt, a speculative decoder that takes back a wrong guess: all of them are this
# one `truncate`.
#
# ## When the cache outgrows the weights
#
# How many tokens are as heavy as the model? *Exercise 5.7 asks you to predict it: do that before you look at the next
# cell.*

# %%
fit = tokens_that_fit(model.nbytes, config, model.dtype)
assert fit * per_token <= model.nbytes < (fit + 1) * per_token
context = config.max_position_embeddings
print(f"{model.nbytes:,} bytes of weights / {per_token:,} = {fit:,} tokens")
for users in (1, 2, 4, 32):
    each = tokens_that_fit(model.nbytes, config, model.dtype, batch_size=users)
    print(f"{users:3} at once: {each:6,} tokens each" + (", more than the context" if each > context else ""))

# %% [markdown]
# One user of SmolLM2 never gets there: its context ends at 8,192. Two users do. For Llama-2-13B (26 GB, 819,200 bytes
# per token) the sum is 31,738 tokens, fewer than eight users with a full context of 4,096.
#
# Weight is not all. A decode pass *reads* its cache, all of it, each time, so a long context costs time as well. The
# clock does not care what the numbers in a cache are; fill one with random ones, to any length, and time a pass. The
# limit is what memory can deliver: weights and cache, once. (A share above 100 % says that another program was busy
# while the limit was measured: run the cell again.)


# %% tags=["measured"]
def pass_seconds(length, repeats=7):
    """The shortest of several decode passes behind `length` tokens."""
    big.truncate(0)
    big.advance(length)
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        prefill(model, [1], big)
        seconds.append(clock(device) - started)
        big.truncate(length)
    return min(seconds)


big = KVCache(config, context, device=device)
big.keys.normal_()
big.values.normal_()
weight_bytes = weight_bytes_per_pass(model)
lengths = [1, 1024, 2048, 4096, 6144, 8191]
pass_seconds(1)  # the first pays for what is set up once
before = read_bandwidth(device)
measured_ms = [1e3 * pass_seconds(length) for length in lengths]
bandwidth = max(before, read_bandwidth(device))
limit_ms = [1e3 / decode_ceiling(bandwidth, weight_bytes, length * per_token) for length in lengths]
print("context   K and V     measured      limit   limit / measured")
for length, measured, limit in zip(lengths, measured_ms, limit_ms, strict=True):
    held = f"{length * per_token / 1e6:5.0f} MB"
    print(f"{length:7,}   {held}   {measured:7.1f} ms   {limit:5.1f} ms   {limit / measured:15.0%}")

# %% tags=["measured"]
figure, axes = plt.subplots()
axes.plot(lengths, measured_ms, "o-", color="C0", label="measured")
axes.plot(lengths, limit_ms, "--", color="C1", label="limit: weights + cache, read once")
axes.axhline(limit_ms[0], color="C3", linewidth=0.8, linestyle=":")
axes.annotate(
    "the weights alone", (lengths[-1], limit_ms[0]), xytext=(0, -12), textcoords="offset points", ha="right", color="C3"
)
axes.set(
    xlabel="tokens in the cache", ylabel="ms for one more token", ylim=(0, None), title="A longer past is more to read"
)
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 5: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("5.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch05.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 5` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.errors import InputError
from minillm.exercises import check, hint, todo


# %%
def kv_bytes_per_token(config: ModelConfig, dtype: torch.dtype) -> int:
    """How many bytes of cache does one token of one sequence need?

    config: the model's shape; look at `ModelConfig` in minillm/config.py for what it knows. dtype: what keys and
    values are stored in; `dtype.itemsize` is the bytes of one number.

    SmolLM2-135M keeps 23,040 bytes per token in bfloat16. Return a whole number (int).

    About 1 line.
    """
    todo("5.1")


check("5.1", kv_bytes_per_token)  # and hint("5.1"), when you are stuck


# %%
def append(
    self,
    layer: int,
    k: Float[Tensor, "batch num_kv_heads q_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads q_len head_dim"],
) -> tuple[Float[Tensor, "batch num_kv_heads kv_len head_dim"], Float[Tensor, "batch num_kv_heads kv_len head_dim"]]:
    """`KVCache.append`: keep the new tokens' keys and values of one layer; give back those of all tokens so far.

    self is the cache, and this function its method:

        self.keys, self.values    tensors [L, B, Hkv, max_seq_len, D], allocated once and for all
        self.length               how many tokens the cache holds; the new ones stand right behind them
        self.max_seq_len          how many it has room for

    layer: which layer is speaking. k, v: [B, Hkv, T, D], the T new tokens (a whole prompt, or a single token).

    Write them in place, into this layer alone. Return (keys, values) of the layer, each [B, Hkv, length + T, D], as
    *views* of the cache: slices, no copies. Do not touch `self.length`: every layer appends at the same place, and
    the caller advances the length once, when all have.

    Raise InputError, with a sentence, where the new tokens do not fit; nothing may have been written then. (Slicing
    past the end of a tensor is no error in PyTorch: one token assigned there vanishes without a word.)

    About 6 lines.
    """
    todo("5.2")


check("5.2", append)  # and hint("5.2"), when you are stuck


# %%
def single_query_attention(
    q: Float[Tensor, "batch num_heads 1 head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
) -> Float[Tensor, "batch num_heads 1 head_dim"]:
    """Attention of one new token over everything that is cached: softmax(q k^T / sqrt(D)) v, for each head.

    q: [B, H, 1, D], the newest token's queries. k, v: [B, Hkv, S, D], the keys and values of all S tokens so far,
    its own included. Return [B, H, 1, D], in q's dtype.

    The newest token may look at all of them, so there is no mask. Grouped-query attention: H is a multiple of Hkv,
    and each key/value head serves H / Hkv *neighbouring* query heads: with H = 6 and Hkv = 2, query heads 0, 1, 2
    read key head 0, and 3, 4, 5 read key head 1.

    k and v are views of the cache: whatever you write into them, the cache has for good. Do not.

    About 6 lines by hand (matmul, softmax, matmul).
    """
    todo("5.3")


check("5.3", single_query_attention)  # and hint("5.3"), when you are stuck


# %%
def causal_mask(q_len: int, kv_len: int, device: torch.device | None = None) -> Bool[Tensor, "q_len kv_len"]:
    """Which key may which query see? [q_len, kv_len], True where it may.

    The queries are the *last* q_len of kv_len positions; those before are in the cache already. A token sees itself
    and everything before it. With 2 new tokens behind 3 cached ones, causal_mask(2, 5) is

        True  True  True  True  False
        True  True  True  True  True

    device: where the mask is to be made; None is PyTorch's default.

    About 2 lines.
    """
    todo("5.4")


check("5.4", causal_mask)  # and hint("5.4"), when you are stuck


# %%
def causal_attention(
    q: Float[Tensor, "batch num_heads q_len head_dim"],
    k: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
    v: Float[Tensor, "batch num_kv_heads kv_len head_dim"],
) -> Float[Tensor, "batch num_heads q_len head_dim"]:
    """Attention of several new tokens on a warm cache: 5.3 for a whole chunk, where each token sees its own past only.

    q: [B, H, T, D], the queries of the last T of the S positions. k, v: [B, Hkv, S, D], all positions. Return
    [B, H, T, D], in q's dtype. Heads are grouped as in 5.3, and who sees whom is 5.4's mask. T == S is a prompt on an
    empty cache; T == 1 is a decode step; everything between is a chunk of a prompt, or a chat's next turn.

    Let the scores be large, of either sign: a score of 300 must not become a nan, and a hidden key gets no weight at
    all, however low the visible ones' scores are. k and v belong to the cache: do not write into them.

    About 8 lines by hand; 1 to 5 with `F.scaled_dot_product_attention`, if you know what its `is_causal` means when
    T < S. You may call your 5.4, and your 5.3: that a decode step needs no mask is worth using, and not graded.
    """
    todo("5.5")


check("5.5", causal_attention)  # and hint("5.5"), when you are stuck


# %%
def truncate(self, length: int) -> None:
    """`KVCache.truncate`: forget everything behind the first `length` tokens.

    self is the cache, as in 5.2; its property `length` reads the attribute `self._length`, which you may set.

    A chat whose last message is edited, a speculative decoder whose guess was wrong: both step back. What is
    forgotten need not be erased, because the next append overwrites it. So this costs nothing: no copy, no clearing,
    the same tensors as before, with the same room.

    length: 0 up to and including `self.length`. Raise InputError, with a sentence, for anything else: a cache cannot
    be truncated to more than it holds, nor to a negative length. The cache is then as it was.

    About 3 lines.
    """
    todo("5.6")


check("5.6", truncate)  # and hint("5.6"), when you are stuck


# %%
def tokens_that_fit(num_bytes: int, config: ModelConfig, dtype: torch.dtype, batch_size: int = 1) -> int:
    """When does the cache outgrow its memory? How many tokens may each of `batch_size` sequences have?

    num_bytes: the memory that is there for keys and values, in bytes. config, dtype: as in 5.1. All sequences are
    equally long, and none is shared. Return a whole number: a token that fits in part does not fit.

    With `num_bytes` set to the bytes of the weights, this is the length at which the cache weighs as much as the
    model does. Llama-2-13B in float16 has 26 GB of weights; 32 users get there with 991 tokens each.

    About 1 line. You may call your 5.1.
    """
    todo("5.7")


check("5.7", tokens_that_fit)  # and hint("5.7"), when you are stuck
