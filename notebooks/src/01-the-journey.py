# %% [markdown]
# # Notebook 1: The journey of a request
#
# Beside [chapter 1](../chapters/01-the-journey.md). You send a prompt, follow it through the engine, and then measure
# each cell of the one table that this book hangs on: prefill against decode. At the end you predict a request before
# you run it.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands. The times that you
# see are those of one small machine; run the cells, and they are yours.

# %%
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from torch.utils.flop_counter import FlopCounterMode

from minillm import LLM, SamplingParams
from minillm.device import clock, pick_device
from minillm.kv_cache import kv_bytes_per_token
from minillm.machine.measure import matmul_flops, read_bandwidth
from minillm.metrics import decode_ceiling, request_seconds, tokens_held
from minillm.prefill import prefill
from minillm.trace import journey, weight_bytes_per_pass

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
llm = LLM(MODEL, device=device, dtype=torch.float32)
model, tokenizer = llm.model, llm.tokenizer

# %% [markdown]
# ## The first run
#
# A prompt goes in, a text comes out. `temperature=0`, the default, takes the likeliest token each time, so you get
# the words that are printed here.

# %%
prompt = "The capital of France is"
params = SamplingParams(max_tokens=8)
print(prompt + llm.generate(prompt, params).text)

# %% [markdown]
# That hides the most important thing about it: the text did not come at once. `stream` hands out each piece when it
# is there. Look at the clock on the left.

# %% tags=["measured"]
started = clock(device)
for piece in llm.stream(prompt, params):
    print(f"{1e3 * (clock(device) - started):7.1f} ms  {piece!r}")

# %% [markdown]
# A wait, and then a drip: the same gap, token after token. Generating text is not one big calculation. It is a loop
# that adds one token at a time, and each turn needs the token of the turn before. You cannot start the tenth until
# the ninth is known.
#
# ## The trace, line by line
#
# `llm.start` gives the request itself, which writes down what it does. `journey` makes a table of it.

# %% tags=["measured"]
generation = llm.start(prompt, params)
completion = generation.run()
for row in journey(generation):
    print(f"{row.name:<12}{1e3 * row.seconds:8.2f} ms   {row.went_in}  ->  {row.came_out}")
    if row.moved:
        print(f"{'':<26}{row.moved}")

# %% [markdown]
# **tokenize.** Text becomes numbers, on the CPU, in next to no time. A token is often a word with the space before
# it.

# %%
ids = list(generation.prompt_ids)
assert ids == tokenizer.encode(prompt)
[(token_id, tokenizer.decode([token_id])) for token_id in ids]

# %% [markdown]
# **prefill.** All five ids go through the model together, in one *pass*: one read of all its weights. Two things
# remain. One is a row of *logits*, a score for every entry of the vocabulary. The other is the *KV cache*: for each
# token, in each layer, a key and a value, which later tokens will look at. Its size follows from the model's shape.

# %%
config = llm.config
per_token = kv_bytes_per_token(config, model.dtype)
assert per_token == 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize
print(f"weights read in one pass     {weight_bytes_per_pass(model):>13,} bytes")
print(f"K and V written per token    {per_token:>13,} bytes")
print(f"           for {len(ids)} tokens      {len(ids) * per_token:>13,} bytes")

# %% [markdown]
# **sample.** One id is chosen from 49,152 scores. `logprobs=5` also tells what else was likely. The probability in
# the trace is the first of these.

# %%
first = llm.generate(prompt, SamplingParams(max_tokens=1, logprobs=5)).logprobs[0]
for token_id, logprob in first.top:
    print(f"{torch.tensor(logprob).exp():6.3f}  {tokenizer.decode([token_id])!r}")

# %% [markdown]
# **decode.** The chosen id goes through the model, alone, and gives the next row of logits; choose again, and so on.
# Eight tokens take seven such passes: the first token came out of the prefill, and the last is never computed,
# because nobody asks what would follow it. So the cache ends with one token less than there are.

# %%
decode_passes = len(generation.steps) - 1
assert decode_passes == len(completion.token_ids) - 1
assert generation.cache.length == tokens_held(len(ids), len(completion.token_ids))
assert completion.metrics.kv_bytes == generation.cache.length * per_token
print(f"{len(ids)} tokens in, {len(completion.token_ids)} out:", end=" ")
print(f"{decode_passes} decode passes, {generation.cache.length} tokens in the cache")

# %% [markdown]
# **detokenize.** Ids become text again, piece by piece. A piece is handed out when it is certain: half a character
# waits for its other half. Joined, the pieces are what decoding all ids at once would give.

# %%
assert "".join(piece.text for piece in generation.pieces) == tokenizer.decode(completion.token_ids)
print([piece.text for piece in generation.pieces])

# %% [markdown]
# Where did the time go? Two of the five rows matter.

# %% tags=["measured"]
rows = {row.name: row.seconds for row in journey(generation)}
for name, seconds in rows.items():
    print(f"{name:<12}{seconds / sum(rows.values()):7.1%}")
in_model = sum(seconds for name, seconds in rows.items() if name.startswith(("prefill", "decode")))
print(f"{'the two':<12}{in_model / sum(rows.values()):7.1%}")
assert in_model > sum(rows.values()) / 2

# %% [markdown]
# ## Two phases that could not be more different
#
# Prefill and decode run the same layers with the same weights. What differs is how many tokens share a pass.
#
# |  | prefill | decode |
# |---|---|---|
# | work | the whole prompt in one pass | one token in each pass |
# | parallelism | all tokens at once | none: each needs the one before |
# | limiting resource | arithmetic | memory bandwidth |
# | metric | TTFT, time to first token | TPOT, time per output token |
# | lever | fewer prompt tokens, more FLOP/s | fewer bytes per pass, more tokens per pass |
#
# Do not believe it. Here is each row, measured.
#
# ### Work: what one token costs
#
# A pass reads all the weights once, however many tokens are in it. So the bytes *per token* depend on the company
# that it travels in. The arithmetic does not: each token is multiplied with every weight, at two operations each (a
# multiplication and an addition). Only the head, the last matrix, runs for the last token of a pass alone.
# `FlopCounterMode` counts what PyTorch is really asked to do.

# %%
sentence = "A request arrives as text, is computed as numbers, and leaves as text. "
long_ids = tokenizer.encode(sentence * 64)[:512]  # what it says is nothing to the clock; its length is
cache = llm.new_cache(1024)
weight_bytes = weight_bytes_per_pass(model)
head_weights = model.lm_head.weight.numel()
matrices = sum(p.numel() for p in model.layers.parameters() if p.dim() == 2)
for tokens in (512, 1):
    cache.truncate(0)
    with FlopCounterMode(display=False) as counter:
        prefill(model, long_ids[:tokens], cache)
    flops = 2 * (tokens * matrices + head_weights)
    assert flops <= counter.get_total_flops() < 1.25 * flops  # attention itself comes on top, where it is counted
    megabytes, megaflops = weight_bytes / tokens / 1e6, flops / tokens / 1e6
    print(f"pass of {tokens:3} tokens: {megabytes:6.1f} MB and {megaflops:3.0f} MFLOP per token")

# %% [markdown]
# ### Parallelism: what a pass costs
#
# If arithmetic took all the time, a pass of 32 tokens would take 32 times as long as a pass of one. If reading took
# all the time, both would take the same. Try.


# %%
def best_of(repeats, work):
    """The shortest of several runs, in seconds: other programs can only make one longer."""
    seconds = []
    for _ in range(repeats):
        started = clock(device)
        work()
        seconds.append(clock(device) - started)
    return min(seconds)


def one_pass(tokens):
    """A pass over the first `tokens` ids of the long prompt, with an empty cache before it."""
    cache.truncate(0)
    prefill(model, long_ids[:tokens], cache)


# %% tags=["measured"]
sizes = (1, 2, 8, 32, 128, 512)
one_pass(1)  # the first pays for what is set up once
pass_s = {tokens: best_of(2 if tokens > 32 else 7, lambda tokens=tokens: one_pass(tokens)) for tokens in sizes}
print("tokens   ms per pass   ms per token")
for tokens, seconds in pass_s.items():
    print(f"{tokens:6}   {1e3 * seconds:11.1f}   {1e3 * seconds / tokens:12.2f}")
assert pass_s[512] / 512 < pass_s[1], "a token in company is cheaper than a token alone"

# %% [markdown]
# A pass of 512 tokens takes longer than a pass of one, but nowhere near 512 times as long: the price of a token falls
# as its company grows, and then stops falling. That floor is the next row. (On a CPU the second token may seem to
# cost as much as the first: the engine has a faster way to read weights for a single row, in `linear.py`, that two
# rows cannot take.)
#
# ### Limiting resource: two limits, one for each phase
#
# Your machine can read so many bytes per second, and multiply so many numbers per second. Both can be measured
# without any model.

# %% tags=["measured"]
bandwidth = read_bandwidth(device)
flops_limit = matmul_flops(device, model.dtype)
print(f"memory is read at    {bandwidth / 1e9:8.1f} GB/s")
print(f"matrices multiply at {flops_limit / 1e9:8.1f} GFLOP/s")

# %% [markdown]
# Now set each phase against both.

# %% tags=["measured"]
print("                      of the bandwidth   of the FLOP/s")
share = {}
for phase, tokens in (("prefill, 512 tokens", 512), ("decode, 1 token", 1)):
    bytes_per_s = weight_bytes / pass_s[tokens]
    flops_per_s = 2 * (tokens * matrices + head_weights) / pass_s[tokens]
    share[phase] = (bytes_per_s / bandwidth, flops_per_s / flops_limit)
    print(f"{phase:<22}{share[phase][0]:16.0%}{share[phase][1]:16.0%}")
prefill_share, decode_share = share.values()
assert prefill_share[0] < decode_share[0], "prefill asks less of memory than decode"
assert prefill_share[1] > decode_share[1], "prefill asks more of arithmetic than decode"

# %% [markdown]
# Read each line for its larger number. Prefill uses the multipliers and leaves memory idle; decode waits for memory
# and leaves the multipliers idle. This is the fact that batching, quantization and speculative decoding live on.
#
# The larger number is not 100 %. Around the matrix products there are norms, rotations, attention, and the launching
# of it all: some two thousand calls into PyTorch for each pass. The smaller the model, the more these weigh. On a
# large GPU a model of this size is not limited by memory at all, but by launching: both numbers are small there, and
# that, too, is worth having seen.
#
# ### Metric: the prompt is paid for once
#
# Two times describe what a user feels. *TTFT* is the wait for the first token, *TPOT* the gap between tokens. Make
# the prompt longer.


# %% tags=["measured"]
def measure(prompt_tokens, max_tokens):
    """Run a request of exactly that size, and give it back."""
    request = llm.start(
        tokenizer.decode(long_ids[:prompt_tokens]), SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    )
    assert len(request.prompt_ids) == prompt_tokens
    request.run()
    return request


print("prompt      TTFT       TPOT")
requests = {prompt_tokens: measure(prompt_tokens, max_tokens=12) for prompt_tokens in (32, 128, 512)}
for prompt_tokens, request in requests.items():
    metrics = request.metrics()
    print(f"{prompt_tokens:6}   {1e3 * metrics.ttft_s:7.1f} ms   {1e3 * metrics.tpot_s:5.1f} ms")

# %% [markdown]
# Sixteen times the prompt makes TTFT many times longer on a CPU, where the arithmetic of a pass is soon the longer
# part. TPOT hardly notices: the longer cache is a few more megabytes to read, beside all the weights. How many, is
# arithmetic.

# %%
for prompt_tokens in (32, 128, 512):
    kv_bytes = prompt_tokens * per_token
    print(
        f"{prompt_tokens:4} tokens: {kv_bytes / 1e6:5.1f} MB of K and V beside {weight_bytes / 1e6:.1f} MB of weights"
    )

# %% [markdown]
# ### Lever: what makes each phase faster
#
# Decode is a matter of bytes, so halve them: a `bfloat16` number takes two bytes where `float32` takes four. What you
# gain depends on your processor. One that can multiply bfloat16 gains up to a factor of two. One that cannot must
# widen each number first, and gains less, or nothing.

# %%
half = LLM(MODEL, device=device, dtype=torch.bfloat16)
assert half.model.nbytes * 2 == model.nbytes
print(f"float32  {model.nbytes / 1e6:6.1f} MB\nbfloat16 {half.model.nbytes / 1e6:6.1f} MB")

# %% tags=["measured"]
half_cache = half.new_cache(1024)


def one_half_pass(tokens):
    """The same pass in bfloat16."""
    half_cache.truncate(0)
    prefill(half.model, long_ids[:tokens], half_cache)


one_half_pass(1)
print("                  float32      bfloat16")
for phase, tokens in (("decode, 1 token", 1), ("prefill, 512", 512)):
    half_s = best_of(2, lambda tokens=tokens: one_half_pass(tokens))
    print(f"{phase:<16}{1e3 * pass_s[tokens]:7.1f} ms   {1e3 * half_s:7.1f} ms   x {pass_s[tokens] / half_s:.2f}")

# %% [markdown]
# The other lever you have seen already: look back at the passes of 1, 2 and 8 tokens. Eight tokens of eight
# *different users* can share one read of the weights just as eight tokens of a prompt do. That is batching, chapter
# 12.
#
# For prefill the levers are the other ones: multiply faster, or do not compute what was computed before (prefix
# caching, chapter 13).
#
# ## Predict, then measure
#
# Two numbers of one request are enough to predict another on the same machine. Take a prompt of 256 tokens and 24
# tokens out. TTFT: the prompt's length times the price of a token in a long pass. TPOT: that of the 128-token request
# above. Write your own guess down first.

# %% tags=["measured"]
prompt_tokens, completion_tokens = 256, 24
ttft_s = prompt_tokens * pass_s[512] / 512
tpot_s = requests[128].metrics().tpot_s
predicted_s = request_seconds(ttft_s, tpot_s, completion_tokens)
print(f"predicted: TTFT {1e3 * ttft_s:.0f} ms, TPOT {1e3 * tpot_s:.1f} ms, in all {predicted_s:.2f} s")

# %%
predicted_held = tokens_held(prompt_tokens, completion_tokens)
print(f"predicted: {predicted_held} tokens in the cache, {predicted_held * per_token:,} bytes")

# %% [markdown]
# And now the request.

# %% tags=["measured"]
request = measure(prompt_tokens, completion_tokens)
measured = request.metrics()
ttft_ms, tpot_ms = 1e3 * measured.ttft_s, 1e3 * measured.tpot_s
print(f"measured:  TTFT {ttft_ms:.0f} ms, TPOT {tpot_ms:.1f} ms, in all {measured.total_s:.2f} s")
print(f"the prediction is off by {predicted_s / measured.total_s - 1:+.0%}")
assert request.cache.length == predicted_held
assert measured.kv_bytes == predicted_held * per_token

# %% [markdown]
# The bytes are exact, always. The seconds are a forecast: they move with whatever else your machine is doing.
#
# ### Against the limit
#
# No program decodes faster than memory delivers what a token needs: the weights, and the cache so far. (More than 100
# % would say that another program was busy while the limit was measured: run the cell again.)

# %% tags=["measured"]
bandwidth = max(bandwidth, read_bandwidth(device))
ceiling = decode_ceiling(bandwidth, weight_bytes, measured.kv_bytes)
reached = measured.decode_tokens_per_s
print(f"decode: {reached:.1f} tokens/s of at most {ceiling:.1f}: {reached / ceiling:.0%}")

# %% [markdown]
# ## Two pictures
#
# The request on a time line. Above, each block is a pass; below, the tokens that have been computed so far. Prefill
# climbs a cliff, decode a staircase.

# %% tags=["measured"]
times_ms = [1e3 * seconds for seconds in request.token_times_s]
figure, (bars, count) = plt.subplots(2, 1, sharex=True, height_ratios=(1, 2.4))
bars.broken_barh([(0, times_ms[0])], (0, 1), color="C0")
gaps = [(start, end - start) for start, end in pairwise(times_ms)]
bars.broken_barh(gaps, (0, 1), color="C1", edgecolor="white", linewidth=1)
bars.text(times_ms[0] / 2, 0.5, f"prefill\n{prompt_tokens} tokens", ha="center", va="center", color="white", fontsize=9)
bars.text((times_ms[0] + times_ms[-1]) / 2, 1.12, f"decode: {len(gaps)} passes of one token", ha="center", color="C1")
bars.set(yticks=[], ylim=(0, 1.5))
bars.grid(visible=False)
bars.spines["left"].set_visible(False)
computed = [prompt_tokens + passes for passes in range(len(times_ms))]
count.plot([0, times_ms[0]], [0, prompt_tokens], color="C0")
count.step(times_ms, computed, where="post", color="C1")
count.plot(times_ms, computed, ".", color="C1", markersize=4)
count.axvline(times_ms[0], color="C3", linewidth=0.8, linestyle=":")
count.text(
    times_ms[0], 20, f"  TTFT {times_ms[0]:.0f} ms, then a token every {1e3 * measured.tpot_s:.0f} ms", color="C3"
)
count.set(xlabel="ms since the request came in", ylabel="tokens computed", ylim=(0, None), xlim=(0, times_ms[-1]))
plt.show()

# %% [markdown]
# And what a token costs, against the number of tokens that share a pass. The two lines are your machine's limits: on
# the left nothing can be below the time to read the weights, on the right nothing below the time to multiply. Decode
# lives at the left end, prefill at the right, and the distance between the points and the lines is what the chapters
# ahead are about.

# %% tags=["measured"]
figure, axes = plt.subplots()
per_token_ms = [1e3 * pass_s[tokens] / tokens for tokens in sizes]
read_ms = [1e3 * weight_bytes / bandwidth / tokens for tokens in sizes]
multiply_ms = [1e3 * 2 * (matrices + head_weights / tokens) / flops_limit for tokens in sizes]
axes.loglog(sizes, read_ms, color="C1", linestyle="--", label="limit: reading the weights")
axes.loglog(sizes, multiply_ms, color="C2", linestyle="--", label="limit: multiplying")
axes.loglog(sizes, per_token_ms, "o-", color="C0", label="measured")
axes.annotate("decode", (sizes[0], per_token_ms[0]), xytext=(-6, -16), textcoords="offset points", color="C0")
axes.annotate(
    "prefill", (sizes[-1], per_token_ms[-1]), xytext=(-6, 9), textcoords="offset points", color="C0", ha="center"
)
axes.set(xlabel="tokens per pass", ylabel="ms per token", title="A token in company is cheaper")
axes.set_xticks(sizes, [str(tokens) for tokens in sizes])
axes.yaxis.set_major_formatter("{x:g}")
axes.minorticks_off()
axes.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 1: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("1.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch01.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 1` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from collections.abc import Sequence

from minillm.exercises import check, hint, todo


# %%
def time_per_output_token(token_times_s: Sequence[float]) -> float | None:
    """TPOT, the time per output token, in seconds.

    token_times_s: when each generated token was there, in seconds, in order, on a clock that began when the request
    came in: [0.9, 1.1, 1.4] is a first token after 0.9 s (the TTFT), a second at 1.1 s, a third at 1.4 s.

    Return the mean time from one token to the next: 0.25 s for these three. The wait for the first token is not a
    part of it, for it is prefill's doing and grows with the prompt. Where there was no second token there is
    nothing to take a mean of: return None.

    About 3 lines.
    """
    todo("1.1")


check("1.1", time_per_output_token)  # and hint("1.1"), when you are stuck


# %%
def request_seconds(ttft_s: float, tpot_s: float, completion_tokens: int) -> float:
    """How long a request takes from end to end, in seconds: predict it before you run it.

    ttft_s: the time to its first token. tpot_s: the time per output token, as 1.1 defines it.
    completion_tokens: how many tokens it generates, at least 1.

    A request with a TTFT of 0.5 s and a TPOT of 0.1 s that generates 3 tokens is done after 0.7 s.

    About 1 line.
    """
    todo("1.2")


check("1.2", request_seconds)  # and hint("1.2"), when you are stuck


# %%
def tokens_held(prompt_tokens: int, completion_tokens: int) -> int:
    """Of how many tokens does the cache hold keys and values when a request has ended?

    prompt_tokens: at least 1. completion_tokens: how many were generated; 0 for a request that was stopped right
    after its prefill.

    A token's keys and values come into being when the token goes *through* the model, not when it is chosen. Follow
    a trace with 5 prompt tokens and 3 generated ones, pass by pass, and count what each pass computes: the sum is 7.

    About 1 line.
    """
    todo("1.3")


check("1.3", tokens_held)  # and hint("1.3"), when you are stuck


# %%
def decode_ceiling(bandwidth_bytes_per_s: float, weight_bytes: float, kv_bytes: float = 0.0) -> float:
    """The most tokens per second at which one request can decode, however good the program.

    bandwidth_bytes_per_s: what memory delivers. weight_bytes: all weights of the model. kv_bytes: the keys and
    values of all tokens so far. Both are read once, in full, for each token; arithmetic is free, as it nearly is
    for a single request.

    30 GB/s, 538 MB of weights and 2 MB of keys and values allow 55.6 tokens per second.

    About 1 line.
    """
    todo("1.4")


check("1.4", decode_ceiling)  # and hint("1.4"), when you are stuck
