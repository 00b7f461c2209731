# %% [markdown]
# # Notebook 3: Inside the transformer
#
# Beside [chapter 3](../chapters/03-inside-the-transformer.md). You take one forward pass apart: every weight is
# counted, every step done by hand and compared with the engine's, two of them broken on purpose. Then you write the
# whole pass in a dozen lines, get the logits of `transformers`, and see where a pass's time goes. The exercises are at
# the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in under a minute, and on a CUDA GPU as it stands. It needs the `[test]`
# extra, which brings `transformers`.

# %%
import math

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
import transformers

import minillm.model
from minillm.attention import causal_attention
from minillm.device import clock, pick_device
from minillm.errors import InputError
from minillm.kv_cache import KVCache, kv_bytes_per_token
from minillm.loading import load, open_checkpoint, resolve
from minillm.loading.checkpoint import read
from minillm.machine.measure import read_bandwidth
from minillm.machine.shape import num_params, shape_of
from minillm.model import rms_norm
from minillm.prefill import prefill
from minillm.rope import apply_rope, plain_frequencies, rope_tables

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config

# %% [markdown]
# ## Ids in, scores out
#
# A pass takes ids and gives, for each of them, one score per entry of the vocabulary: what may come next.


# %%
def best(hidden, count=4):
    """The likeliest next tokens after a row of hidden states, and their logits."""
    logits = model.logits(hidden)
    return [(tokenizer.decode([token]), f"{logits[token]:.1f}") for token in logits.topk(count).indices.tolist()]


ids = torch.tensor([tokenizer.encode("The capital of France is")], device=device)  # [B, T]
hidden = model(ids, KVCache(config, 16, device=device))  # [B, T, E]
logits = model.logits(hidden)  # [B, T, V]
print("ids", list(ids.shape), " hidden states", list(hidden.shape), " logits", list(logits.shape))
for row, token in enumerate(ids[0].tolist()):
    print(f"after {tokenizer.decode([token])!r:<10}", *best(hidden[0, row], 3))

# %% [markdown]
# Five ids went in, and the pass has an opinion at each of them. For the next token only the last row is needed.
#
# ## Count the numbers
#
# The checkpoint is a list of named matrices. These are the ones outside the layers, and those of the first:

# %%
tensors = open_checkpoint(resolve(MODEL)).tensors
shapes = {name: tensors.shape(name) for name in tensors.names()}
for name, sizes in sorted(shapes.items()):
    if ".layers." not in name or ".layers.0." in name:
        print(f"{name:<48} {list(sizes)!s:<14} {math.prod(sizes):>12,}")

# %% [markdown]
# Predict the total from the config alone, part by part, before you run the next cell.

# %%
V, E, L, middle = config.vocab_size, config.hidden_size, config.num_hidden_layers, config.intermediate_size
H, Hkv, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim

parts = {
    "embedding": V * E,
    "q, k, v projections": L * E * (H + 2 * Hkv) * D,
    "o projections": L * H * D * E,
    "MLPs": L * 3 * E * middle,
    "norms": L * 2 * E + E,
    "head": 0 if config.tie_word_embeddings else V * E,
}
total = sum(parts.values())
for name, count in parts.items():
    print(f"{name:<20} {count:>12,}  {count / total:6.1%}")
print(f"{'in all':<20} {total:>12,}")
assert total == num_params(shape_of(config)), "the engine's own count"
assert total == sum(parameter.numel() for parameter in model.parameters()), "what was loaded"
assert total == sum(math.prod(sizes) for sizes in shapes.values()), "what is in the file"

# %% [markdown]
# Right to the last one, three times. The LM head costs nothing, because it *is* the embedding: one table, used from
# both sides.

# %%
assert (model.lm_head.weight is model.embed_tokens.weight) == config.tie_word_embeddings

# %% [markdown]
# ## The embedding
#
# The first step is a lookup: row number `id` of the table. No arithmetic at all.

# %%
table = model.embed_tokens.weight  # [V, E]
x = table[ids]  # [B, T, E]
assert torch.equal(x, model.embed_tokens(ids))
print(f"{ids.numel()} rows of {E} numbers: {x.nbytes:,} of the table's {table.nbytes:,} bytes")

# %% [markdown]
# An id that is no row of the table is a crash. Here it is a polite one; on a GPU it is an assertion inside a kernel,
# after which the whole process can compute nothing any more. So the engine looks before it leaps.

# %%
try:
    table.cpu()[torch.tensor([V])]
except IndexError as error:
    print("the table:", error)

try:
    prefill(model, [504, V], KVCache(config, 16, device=device))
except InputError as error:
    print("the engine:", error)

# %% [markdown]
# ## The stream and its size
#
# From here on, every layer *adds* to these rows. Watch how large they get: the root of the mean of the squares, token
# by token, behind each layer.

# %%
cache = KVCache(config, 16, device=device)
cos, sin = rope_tables(cache.positions(ids.shape[1]), model.inv_freq)  # [B, 1, T, D/2]
sizes, largest, x = [], [], model.embed_tokens(ids)
for layer in [None, *model.layers]:
    x = x if layer is None else layer(x, cos, sin, cache)  # [B, T, E]
    sizes.append(x[0].square().mean(dim=-1).sqrt().tolist())
    largest.append(x.abs().max().item())
assert torch.equal(model.norm(x), hidden), "that was the whole pass"

figure, axes = plt.subplots()
for row, colour in enumerate(["C1", *["C0"] * (ids.shape[1] - 1)]):
    name = {0: "the first token", 1: "the others"}.get(row)
    axes.semilogy([float(f"{each[row]:.3g}") for each in sizes], color=colour, label=name)
axes.set(xlabel="layers behind it (0: the embedding)", ylabel="size of the token's row", title="Every layer adds")
axes.legend(loc="center right", bbox_to_anchor=(1, 0.75))
plt.show()

# %% [markdown]
# From 0.1 to 20 or so, a factor of two hundred; and the first token, whatever it is, to nearly a thousand, until the
# last two layers bring it back. (The attention heads that have nothing to look for look at it; models learn to use it
# as a place to look away to.) No matrix product could deal with rows of such different sizes. That is why each half of
# a layer reads a *normalised* copy.
#
# ### In which numbers?
#
# The largest number in the stream:

# %%
worst = max(largest)
print(f"largest number: {worst:,.0f}")
print(f"its square:     {worst**2:.2g}    float16 ends at {torch.finfo(torch.float16).max:,.0f}")

x_wide = model.embed_tokens(ids)
for layer in model.layers[: largest.index(worst)]:
    x_wide = layer(x_wide, cos, sin, cache)
weight = model.layers[0].input_layernorm.weight


def norm_in_its_own_dtype(x, weight, eps):
    """The bug: squares in the dtype of x. Do not ship this."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


right = rms_norm(x_wide.half(), weight.half(), config.rms_norm_eps)[0, 0]
wrong = norm_in_its_own_dtype(x_wide.half(), weight.half(), config.rms_norm_eps)[0, 0]
assert (right != 0).any()
assert (wrong == 0).all(), "one over the root of infinity"
print("numbers of the first token's row that are not 0, once it is normalised:")
print(f"squares in float32: {(right != 0).sum()}, squares in float16: {(wrong != 0).sum()}")

# %% [markdown]
# One square is infinite, so the mean is, so the row becomes zero, and nothing raises.
#
# ## Where a token stands
#
# Each pair of numbers in a query or key is turned by its own angle per position. Here are the hands of four of the 32
# clocks, at the first positions:

# %%
frequencies = plain_frequencies(D, config.rope_theta)  # [D/2]
assert config.rope_scaling is not None or torch.equal(frequencies, model.inv_freq.cpu())
pairs = [0, D // 32, D // 16, D // 8]
figure, clocks = plt.subplots(1, len(pairs), subplot_kw={"projection": "polar"}, figsize=(7.2, 2.4))
for axes, pair in zip(clocks, pairs, strict=True):
    step = round(float(frequencies[pair]), 4)  # radians per position
    for position in range(6):
        axes.plot([position * step] * 2, [0, 1], color="C0", alpha=1 - 0.15 * position)
        if step > 0.2 or position in (0, 5):
            axes.annotate(str(position), (position * step, 1.15), ha="center", va="center", fontsize=8)
    axes.set(xticks=[], yticks=[], ylim=(0, 1.3))
    axes.set_title(
        f"pair {pair}\n{2 * math.pi / float(frequencies[pair]):,.0f} tokens a turn", fontsize=9, loc="center"
    )
plt.show()

# %% [markdown]
# Turn a query by its position, turn a key by its own, and what is left in their product is the difference:


# %%
def turned(vector, position):
    """A query or key [D] as it looks at a position."""
    return apply_rope(vector.view(1, 1, 1, D), *rope_tables(torch.tensor([[position]]), frequencies)).view(D)


generator = torch.Generator().manual_seed(0)
q, k = torch.randn(D, generator=generator), torch.randn(D, generator=generator)
scores = [float(turned(q, position + 5) @ turned(k, position)) for position in (0, 100, 5000)]
assert max(scores) - min(scores) < 1e-2, "five tokens apart, wherever"
assert abs(float(turned(q, 6) @ turned(k, 0)) - scores[0]) > 1e-2, "six tokens apart is another score"
print("five apart, at 0, 100 and 5,000:", *(f"{score:.2f}" for score in scores))

# %% [markdown]
# ### 256 and 257
#
# A bfloat16 number has 8 significant bits. Whole numbers beyond 256 do not all exist in it.

# %%
positions = torch.arange(254, 262)
coarse = positions.bfloat16().long()
print("positions  ", *positions.tolist())
print("in bfloat16", *coarse.tolist())
assert coarse[2] == coarse[3] == 256

# %% [markdown]
# An engine that makes its angles in the model's dtype gives two neighbours the same place. Angles are made in float32
# here, whatever the model is in, and only their cosines and sines are rounded.
#
# ### The wrong pairs
#
# Which two numbers are a pair? The paper takes neighbours; this layout takes number *i* and number *i* + D/2. Let the
# model run with the wrong pairs, with no turning at all, and with another model's `rope_theta`, and look at what it
# says after "The capital of France is". Then look at how surprised it is by a text: the mean of -log p of each next
# token, with the natural logarithm, whose unit is the nat. *e* to that power is the number of equally likely tokens
# among which a guess would be as hard.

# %%
text = (
    "The lighthouse stood at the end of a long stone pier, and in winter the keeper walked out to it with one hand on "
    "the rail. Every evening at dusk he climbed the ninety-two steps, cleaned the glass of the lamp, filled it with"
    " oil and lit it. Then he sat down at the small table under the window and wrote the weather into his book: the"
    " wind, the height of the waves, the ships that had passed. Nobody had asked him to write down the ships. He did"
    " it because his father had done it before him, and because a page without ships looked to him like a day on which"
    " nothing had happened. One night in March he wrote that the wind was from the north, that the waves were higher"
    " than the pier, and that a ship without lights had passed so close to the lighthouse that he could hear the"
    " voices of the men."
)
text_ids = torch.tensor([tokenizer.encode(text)], device=device)


def neighbours_turned(x, cos, sin):
    """The bug: pairs of neighbours, on weights that were made for halves. Do not ship this."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)


def surprise():
    """The mean of -log p over the text, in nats per token."""
    rows = model.logits(model(text_ids, KVCache(config, text_ids.shape[1], device=device)))[0]  # [T, V]
    return float(F.cross_entropy(rows[:-1], text_ids[0, 1:]))


def said():
    """The likeliest word after the capital of France."""
    return best(model(ids, KVCache(config, 16, device=device))[0, -1], 1)[0][0]


def with_rope(apply, theta=config.rope_theta):
    """What the model says, and its surprise, with another way of turning."""
    own = minillm.model.apply_rope, model.inv_freq
    try:
        minillm.model.apply_rope, model.inv_freq = apply, plain_frequencies(D, theta).to(device)
        return said(), surprise()
    finally:
        minillm.model.apply_rope, model.inv_freq = own


ways = {
    "as it is": with_rope(apply_rope),
    "rope_theta = 10,000": with_rope(apply_rope, 10000.0),
    "pairs of neighbours": with_rope(neighbours_turned),
    "nothing turned": with_rope(lambda x, cos, sin: x),
}
for name, (word, nats) in ways.items():
    print(f"{name:<20} says {word!r}   surprise {nats:.2f} nats, one in {math.exp(nats):,.0f}")
assert all(nats > ways["as it is"][1] + 0.05 for name, (_, nats) in ways.items() if name != "as it is")

# %% [markdown]
# All four say Paris. Nothing raised, the shapes are right, the one question that everybody asks is answered. Compare
# logits with those of an implementation that you trust, or you will not know.
#
# ## Looking at each other
#
# One layer, by hand. The projection gives all heads of q, k and v at once; they get an axis for the heads, queries and
# keys are turned, and attention mixes values.

# %%
layer, x = model.layers[0], model.embed_tokens(ids)
batch, tokens = ids.shape
cache = KVCache(config, 16, device=device)

normed = rms_norm(x, layer.input_layernorm.weight, config.rms_norm_eps)  # [B, T, E]
q, k, v = layer.self_attn.qkv_proj(normed).split([H * D, Hkv * D, Hkv * D], dim=-1)
q, k, v = (piece.view(batch, tokens, -1, D).transpose(1, 2) for piece in (q, k, v))  # [B, H or Hkv, T, D]
q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
mixed = causal_attention(q, k, v)  # [B, H, T, D]
added = layer.self_attn.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, H * D))  # [B, T, E]
x = x + added
for name, tensor in {"q": q, "k": k, "v": v, "mixed": mixed, "added": added}.items():
    print(f"{name:<6} {list(tensor.shape)}")

# %% [markdown]
# ## Thinking alone
#
# The MLP widens each token's row from 576 to 1,536 numbers, twice; one half, the gate, decides how much of the other
# passes; and back.

# %%
normed = rms_norm(x, layer.post_attention_layernorm.weight, config.rms_norm_eps)  # [B, T, E]
gate, up = layer.mlp.gate_up_proj(normed).chunk(2, dim=-1)  # 2 x [B, T, I]
x = x + layer.mlp.down_proj(F.silu(gate) * up)  # [B, T, E]
print("gate", list(gate.shape), " up", list(up.shape))
print(f"gates that are nearly shut (|silu| < 0.05): {(F.silu(gate).abs() < 0.05).float().mean():.0%}")
assert torch.allclose(x, layer(model.embed_tokens(ids), cos, sin, cache), atol=1e-4), "the engine's own layer"

# %% [markdown]
# ## A stream that is only added to
#
# Attention and MLP have both only added to x. What a layer adds, the later ones can use, and need not. Leave one of
# the layers out, and see how much more surprised the model is by the text.


# %%
def surprise_without(skipped):
    """The surprise of a model that lacks one layer."""
    x, cache = model.embed_tokens(text_ids), KVCache(config, text_ids.shape[1], device=device)
    cos, sin = rope_tables(cache.positions(text_ids.shape[1]), model.inv_freq)
    for n, layer in enumerate(model.layers):
        x = x if n == skipped else layer(x, cos, sin, cache)
    return float(F.cross_entropy(model.logits(model.norm(x))[0, :-1], text_ids[0, 1:]))


whole = ways["as it is"][1]
assert abs(surprise_without(None) - whole) < 1e-3
for skipped in (0, L // 3, 2 * L // 3):
    nats = surprise_without(skipped)
    among = float(f"{math.exp(nats):.2g}")
    print(f"without layer {skipped:2}: {nats:5.2f} nats instead of {whole:.2f}, one in {among:,.0f}")
assert whole < surprise_without(2 * L // 3) < whole + 1

# %% [markdown]
# One of the upper layers is hardly missed. The first one is: it alone turns the bare embedding into something that the
# others can read.
#
# ## The whole pass, in a dozen lines
#
# *Exercises 3.1 to 3.7 ask for the engine's version of what comes next.* This is the plainest one: no cache, no
# modules, and the tensors as they lie in the file.

# %%
w = {name: read(tensors, name).to(device) for name in tensors.names()}


def forward(ids):
    """Token ids [T] to logits [T, V]."""
    x = w["model.embed_tokens.weight"][ids]  # [T, E]
    angles = torch.arange(len(ids), device=device)[:, None] * plain_frequencies(D, config.rope_theta).to(device)
    cos, sin = angles.cos()[None, None], angles.sin()[None, None]  # [1, 1, T, D/2]
    for n in range(L):
        of = {name.removeprefix(f"model.layers.{n}."): tensor for name, tensor in w.items()}
        y = rms_norm(x, of["input_layernorm.weight"], config.rms_norm_eps)  # [T, E]
        q, k, v = ((y @ of[f"self_attn.{p}_proj.weight"].T).view(1, len(ids), -1, D).transpose(1, 2) for p in "qkv")
        mixed = causal_attention(apply_rope(q, cos, sin), apply_rope(k, cos, sin), v)  # [1, H, T, D]
        x = x + mixed[0].transpose(0, 1).reshape(len(ids), H * D) @ of["self_attn.o_proj.weight"].T
        y = rms_norm(x, of["post_attention_layernorm.weight"], config.rms_norm_eps)  # [T, E]
        gate, up = (y @ of[f"mlp.{p}_proj.weight"].T for p in ("gate", "up"))  # [T, I]
        x = x + (F.silu(gate) * up) @ of["mlp.down_proj.weight"].T
    return rms_norm(x, w["model.norm.weight"], config.rms_norm_eps) @ w.get("lm_head.weight", table).T


ours = forward(text_ids[0])  # [T, V]

# %% [markdown]
# And the same text through `transformers`, the library that everybody compares with:

# %%
transformers.utils.logging.disable_progress_bar()
reference = transformers.AutoModelForCausalLM.from_pretrained(resolve(MODEL), dtype=torch.float32).to(device).eval()
with torch.inference_mode():
    theirs = reference(text_ids).logits[0]  # [T, V]
del reference
engine = model.logits(model(text_ids, KVCache(config, text_ids.shape[1], device=device)))[0]

best_two = theirs.topk(2).values
clear = best_two[:, 0] - best_two[:, 1] > 1e-2  # where two are as good as equal, rounding decides
for name, mine in (("a dozen lines", ours), ("the engine", engine)):
    assert (mine - theirs).abs().max() < 1e-3, name
    assert torch.equal(mine.argmax(-1)[clear], theirs.argmax(-1)[clear]), name
print(f"{theirs.numel():,} logits, up to {theirs.abs().max():.0f} in size: none is off by more than 0.001,")
assert clear.float().mean() > 0.9
print("and all tokens whose best two are clearly apart, more than nine in ten, are the same")

# %% [markdown]
# ## Where a pass's time goes
#
# One token on a cache of 512: a decode step. Every part must read its weights (and attention the keys and values), and
# memory delivers so many bytes per second. That is each part's limit. Time each part in every layer, and set them side
# by side. (A share above 100 % says that another program was busy while the limit was measured: run the cell again.)


# %% tags=["measured"]
def parts_of_a_pass(model, cache, token):
    """Seconds of one decode pass, part by part."""
    seconds = dict.fromkeys(("embedding", "norms", "q, k, v", "rope", "attention", "o", "MLP", "head"), 0.0)

    def timed(part, f, *arguments):
        started = clock(device)
        result = f(*arguments)
        seconds[part] += clock(device) - started
        return result

    x = timed("embedding", model.embed_tokens, token)  # [B, 1, E]
    cos, sin = timed("rope", lambda: rope_tables(cache.positions(1), model.inv_freq))
    for layer in model.layers:
        attn = layer.self_attn
        y = timed("norms", layer.input_layernorm, x)
        qkv = timed("q, k, v", attn.qkv_proj, y).view(1, 1, -1, D).transpose(1, 2)  # [B, H + 2 Hkv, 1, D]
        qk = timed("rope", apply_rope, qkv[:, : H + Hkv], cos, sin)
        mixed = timed("attention", cache.attend, attn.layer, qk[:, :H], qk[:, H:], qkv[:, H + Hkv :])
        x = x + timed("o", attn.o_proj, mixed.transpose(1, 2).reshape(1, 1, -1))
        y = timed("norms", layer.post_attention_layernorm, x)
        x = x + timed("MLP", layer.mlp, y)
    hidden = timed("norms", model.norm, x)
    timed("head", model.logits, hidden)
    return seconds


context = 512
warm = KVCache(config, context + 1, device=device)
warm.keys.normal_()
warm.values.normal_()
warm.advance(context)
token = torch.tensor([[504]], device=device)
parts_of_a_pass(model, warm, token)  # the first pays for what is set up once
before = read_bandwidth(device)
runs = [parts_of_a_pass(model, warm, token) for _ in range(9)]
bandwidth = max(before, read_bandwidth(device))
measured = {part: sorted(run[part] for run in runs)[len(runs) // 2] for part in runs[0]}

number = model.dtype.itemsize
moved = {
    "embedding": E * number,
    "norms": parts["norms"] * number,
    "q, k, v": parts["q, k, v projections"] * number,
    "rope": 0,
    "attention": context * kv_bytes_per_token(config, model.dtype),
    "o": parts["o projections"] * number,
    "MLP": parts["MLPs"] * number,
    "head": V * E * number,
}
print(f"this machine reads {bandwidth / 1e9:.1f} GB/s\n")
print("part          reads      limit    measured   limit / measured")


def line(part, num_bytes, time_s):
    """One row of the table."""
    limit_s = num_bytes / bandwidth
    times = f"{1e3 * limit_s:6.2f} ms   {1e3 * time_s:6.2f} ms"
    print(f"{part:<10} {num_bytes / 1e6:5.1f} MB  {times}   {limit_s / time_s:16.0%}")


for part, time_s in measured.items():
    line(part, moved[part], time_s)
line("in all", sum(moved.values()), sum(measured.values()))

# %% tags=["measured"]
figure, axes = plt.subplots()
rows = range(len(measured))
axes.barh([row - 0.2 for row in rows], [1e3 * time_s for time_s in measured.values()], 0.4, label="measured")
limits_ms = [1e3 * moved[part] / bandwidth for part in measured]
axes.barh([row + 0.2 for row in rows], limits_ms, 0.4, label="limit: its bytes, read once")
axes.set(yticks=rows, yticklabels=list(measured), xlabel="ms in one decode pass", title="Where a token's time goes")
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
axes.legend(loc="center right")
plt.show()

# %% [markdown]
# Read it part by part. What is mostly weights (the MLPs, the head) stands nearest to its limit: there, memory is the
# clock. What has next to no bytes (norms, rope, attention on a short context) has next to no limit either, and costs a
# millisecond or more all the same: 61 norms are some 500 calls into PyTorch, and each costs a microsecond or more to
# start, whatever it computes. On a large model these vanish beside the matrices. On a small one they are what a
# compiler or a fused kernel saves.
#
# An embedding of 113 MB costs nothing: one row of it is read. The same table as a head costs a fifth of the pass.

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 3: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("3.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch03.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 3` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from minillm.exercises import check, hint, todo
from minillm.kv_cache import Cache
from minillm.rope import rope_tables


# %%
def rms_norm(
    x: Float[Tensor, "*rows hidden"], weight: Float[Tensor, " hidden"], eps: float
) -> Float[Tensor, "*rows hidden"]:
    """RMSNorm: bring every token's vector to the same size, then scale each of its numbers by a learned weight.

    x: [..., E], any number of axes before the last; each row along the last axis is one token. weight: [E].

        x / sqrt(mean of the squares of the row + eps) * weight

    Return [..., E], in x's dtype. The squares and their mean must be taken in float32, whatever x is in: in float16
    the square of 256 is infinite already. x is the residual stream, which others still read: do not write into it.

    About 3 lines.
    """
    todo("3.1")


check("3.1", rms_norm)  # and hint("3.1"), when you are stuck


# %%
def plain_frequencies(head_dim: int, rope_theta: float) -> Float[Tensor, " half_dim"]:
    """How fast does each pair of a head turn? In radians per position, [D/2], float32.

    Pair i (0, 1, ..., D/2 - 1) turns by rope_theta ** (-2 i / D). Pair 0 turns by one radian per token, whatever
    rope_theta is; each further pair more slowly, by the same factor each time.

    With head_dim = 4 and rope_theta = 10000.0 the answer is [1.0, 0.01].

    About 2 lines.
    """
    todo("3.2")


check("3.2", plain_frequencies)  # and hint("3.2"), when you are stuck


# %%
def apply_rope(
    x: Float[Tensor, "batch heads q_len head_dim"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
) -> Float[Tensor, "batch heads q_len head_dim"]:
    """Turn every pair of every head by its angle.

    x: [B, H, T, D], queries or keys. cos, sin: [B, 1, T, D/2], the cosine and sine of each token's angle for each
    pair, in x's dtype; the axis of size 1 stands for the heads, which all turn alike.

    Which two numbers are a pair? Number i and number i + D/2: the first half of a head holds all the x-coordinates,
    the second half all the y-coordinates. A pair (a, b) turned by an angle counter-clockwise becomes

        (a cos - b sin,  b cos + a sin)

    Return [B, H, T, D], each number in the place of the one it was made from. Leave x as it is.

    About 2 lines.
    """
    todo("3.3")


check("3.3", apply_rope)  # and hint("3.3"), when you are stuck


# %%
def attention_forward(
    self,
    x: Float[Tensor, "batch q_len hidden"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
    cache: Cache,
) -> Float[Tensor, "batch q_len hidden"]:
    """`Attention.forward`: project, split into heads, turn, attend, join the heads, project back.

    self is the module, and this function its method:

        self.qkv_proj        E -> (H + 2 Hkv) D: the queries of all heads, then the keys, then the values
        self.o_proj          H D -> E
        self.num_heads, self.num_kv_heads, self.head_dim        H, Hkv, D
        self.sizes           [H D, Hkv D, Hkv D]
        self.layer           which layer this is

    x: [B, T, E], normalised already. cos, sin: [B, 1, T, D/2], for the positions of these T tokens. Queries and keys
    are turned by them, as in 3.3; values are not.

    `cache.attend(self.layer, q, k, v)` writes k and v behind what the cache holds, and attends with q over all of it:
    it wants q [B, H, T, D], k and v [B, Hkv, T, D], and gives [B, H, T, D]. (That is chapter 5, and takes care of scale
    and mask.) Leave the cache's length alone: the caller advances it when all layers have run.

    Return [B, T, E]: what is to be added to the residual stream, without the stream itself.

    About 8 lines. You may call your 3.3.
    """
    todo("3.4")


check("3.4", attention_forward)  # and hint("3.4"), when you are stuck


# %%
def mlp_forward(self, x: Float[Tensor, "batch q_len hidden"]) -> Float[Tensor, "batch q_len hidden"]:
    """`SwiGLU.forward`: widen each token's vector, let a gate decide what passes, and narrow it again.

    self is the module:

        self.gate_up_proj    E -> 2 I: first the I numbers of the gate, then the I numbers of "up"
        self.down_proj       I -> E

    x: [B, T, E], normalised already. The gate goes through silu(z) = z * sigmoid(z) (`F.silu`), and multiplies "up",
    number by number. Return [B, T, E], without the residual stream itself.

    About 2 lines.
    """
    todo("3.5")


check("3.5", mlp_forward)  # and hint("3.5"), when you are stuck


# %%
def layer_forward(
    self,
    x: Float[Tensor, "batch q_len hidden"],
    cos: Float[Tensor, "batch 1 q_len half_dim"],
    sin: Float[Tensor, "batch 1 q_len half_dim"],
    cache: Cache,
) -> Float[Tensor, "batch q_len hidden"]:
    """`DecoderLayer.forward`: attention, then the MLP; each reads the residual stream and adds to it.

    self is the module:

        self.input_layernorm, self.post_attention_layernorm        the two norms, [B, T, E] -> [B, T, E]
        self.self_attn(x, cos, sin, cache)                         3.4, [B, T, E]
        self.mlp(x)                                                3.5, [B, T, E]

    x: [B, T, E], the residual stream as it comes in. Each half reads a *normalised copy* of it, and what it gives is
    added to the stream itself; the second half reads what the first has left. Return the stream, [B, T, E], as a new
    tensor: the x that came in is the caller's, and stays as it is.

    The name post_attention_layernorm says where in the layer it stands: behind attention, before the MLP.

    About 2 lines.
    """
    todo("3.6")


check("3.6", layer_forward)  # and hint("3.6"), when you are stuck


# %%
def llama_forward(self, ids: Int[Tensor, "batch q_len"], cache: Cache) -> Float[Tensor, "batch q_len hidden"]:
    """`Llama.forward`: the whole pass, from token ids to the hidden states that the LM head will turn into logits.

    self is the model:

        self.embed_tokens(ids)       [B, T] -> [B, T, E]: row id of the embedding table, for each token
        self.layers                  the decoder layers, in order; each is called as layer(x, cos, sin, cache)
        self.norm                    the last norm
        self.inv_freq                [D/2], 3.2 (in float32, and stretched where a model asks for it)

    ids: [B, T], the tokens that follow what `cache` holds. `cache.positions(T)` gives the positions at which they
    stand, [B, T], and `rope_tables(positions, self.inv_freq)` the pair (cos, sin), each [B, 1, T, D/2] in float32. The
    layers compute in the dtype of the model, and want cos and sin in it.

    Return [B, T, E] after the last norm. No LM head: a prompt needs it for its last row only, so it is another call.
    Leave the cache's length alone: all layers write at the same place, and the caller advances it afterwards.

    About 6 lines.
    """
    todo("3.7")


check("3.7", llama_forward)  # and hint("3.7"), when you are stuck
