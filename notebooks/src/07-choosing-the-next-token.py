# %% [markdown]
# # Notebook 7: Choosing the next token
#
# Beside [chapter 7](../chapters/07-choosing-the-next-token.md). You take one row of logits through every step by hand
# and look at the distribution after each, find three orders of the same steps that keep 5, 7 and 14 tokens, draw ten
# thousand times and hold the counts against what chance allows, break the steps in the ways in which they break, and
# ask the model how likely it finds texts of yours. The exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in less than a minute, and on a CUDA GPU as it stands.

# %%
import math
import random
from itertools import accumulate

import matplotlib.pyplot as plt
import torch

from minillm.decode import decode
from minillm.device import clock, pick_device
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.logits_processors import (
    apply_logit_bias,
    apply_repetition_penalty,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    process_logits,
)
from minillm.perplexity import perplexity, text_logprobs
from minillm.prefill import prefill
from minillm.sampler import SamplerState, SamplingParams, draw, inverse_cdf, sample, sample_one

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)

# %% [markdown]
# ## One distribution
#
# A prompt with many good continuations, and what the model has to say about the next token:


# %%
def logits_after(text):
    """One row of logits, [V]: what the model thinks of each token that could follow."""
    return prefill(model, tokenizer.encode(text), KVCache(model.config, 128, device=device))[0]


prompt = "She opened the door and saw a"
logits = logits_after(prompt)
probs = logits.softmax(0)
assert abs(float(probs.sum()) - 1) < 1e-4
likeliest = logits.topk(8).indices.tolist()
names = [tokenizer.decode([token_id]).strip() for token_id in likeliest]
print(f"{len(logits):,} logits, from {float(logits.min()):.1f} to {float(logits.max()):.1f}")
for token_id, name in zip(likeliest[:7], names, strict=False):
    print(f"{name:<10} logit {float(logits[token_id]):5.1f}   probability {float(probs[token_id]):.3f}")
print(f"all others {' ' * 11}   probability {1 - float(probs[likeliest[:7]].sum()):.3f}")

# %% [markdown]
# A difference of two logits is the logarithm of a ratio of probabilities: that is all that a softmax keeps of them.

# %%
first, second = likeliest[:2]
difference = float(logits[first] - logits[second])
ratio = float(probs[first] / probs[second])
assert math.isclose(math.exp(difference), ratio, rel_tol=1e-4)
print(f"{names[0]} - {names[1]} = {difference:.3f} in logits, and exp({difference:.3f}) = {math.exp(difference):.3f}")
print(f"{names[0]} / {names[1]} = {ratio:.3f} in probabilities")
assert torch.allclose((logits + 7).softmax(0), probs, atol=1e-6)
print("add 7 to all logits: the same probabilities")

# %% [markdown]
# ## Step by step
#
# A request that uses everything: a bias of -1.2 on " group", temperature 0.7, min-p 0.05, top-k 6, top-p 0.9. Each step
# takes logits and gives logits, so each can be looked at on its own.

# %%
group = likeliest[1]
chain = {"the model's own": logits}
chain["logit bias: group -1.2"] = apply_logit_bias(chain["the model's own"], {group: -1.2})
chain["temperature 0.7"] = apply_temperature(chain["logit bias: group -1.2"], 0.7)
chain["min-p 0.05"] = keep_min_p(chain["temperature 0.7"], 0.05)
chain["top-k 6"] = keep_top_k(chain["min-p 0.05"], 6)
chain["top-p 0.9"] = keep_top_p(chain["top-k 6"], 0.9)

print(f"{'':<22}{'kept':>7}  " + "".join(f"{name:>10}" for name in names) + "    others")
for step, row in chain.items():
    shares = row.softmax(0)
    kept = int((row > -math.inf).sum())
    each = "".join(f"{100 * float(shares[token_id]):10.1f}" for token_id in likeliest)
    print(f"{step:<22}{kept:7,}  {each}{100 * abs(1 - float(shares[likeliest].sum())):10.1f}")

params = SamplingParams(temperature=0.7, min_p=0.05, top_k=6, top_p=0.9, logit_bias={group: -1.2}, seed=7)
assert torch.equal(process_logits(logits, params, SamplerState(params)), chain["top-p 0.9"]), "the engine's own chain"

# %%
figure, panels = plt.subplots(2, 3, figsize=(10, 5), sharey=True)
for panel, (step, row) in zip(panels.flat, chain.items(), strict=True):
    shares = row.softmax(0)[likeliest].tolist()
    panel.bar([*names, "others"], [*shares, max(0.0, 1 - sum(shares))], color=["C0"] * 8 + ["0.7"])
    panel.set_title(step)
    panel.tick_params(axis="x", rotation=60)
figure.supylabel("probability")
plt.show()

# %% [markdown]
# Bias and temperature move probability; they drop nothing. The three filters drop, and each time what is left is
# scaled up to one again by the next softmax.
#
# ## Three orders
#
# Same logits, same numbers: temperature 0.7, min-p 0.05, top-p 0.9. *Before you run the cell: which order keeps more
# tokens, top-p before min-p or after it? And if the temperature comes last?*


# %%
def count(row):
    return int((row > -math.inf).sum())


warm = apply_temperature(logits, 0.7)
ours = keep_top_p(keep_min_p(warm, 0.05), 0.9)
top_p_first = keep_min_p(keep_top_p(warm, 0.9), 0.05)
temperature_last = apply_temperature(keep_min_p(keep_top_p(logits, 0.9), 0.05), 0.7)
assert count(ours) < count(top_p_first) < count(temperature_last)
print(f"temperature, min-p, top-p (here and in vLLM):  {count(ours):3} tokens")
print(f"temperature, top-p, min-p (transformers):      {count(top_p_first):3}")
print(f"top-p, min-p, temperature (llama.cpp):         {count(temperature_last):3}")
print()
print(f"top-p alone, at temperature 0.7: {count(keep_top_p(warm, 0.9)):4}")
print(f"top-p alone, at temperature 1:   {count(keep_top_p(logits, 0.9)):4}")
print(f"min-p alone, at temperature 0.7: {count(keep_min_p(warm, 0.05)):4}")
print(f"min-p alone, at temperature 1:   {count(keep_min_p(logits, 0.05)):4}")

# %% [markdown]
# Nobody's order is wrong, and a setting that was tuned on one engine is another setting on the next.
#
# ## How the steps break
#
# **Temperature 0 is not a division.** By a very small temperature, the plain quotient overflows:

# %%
for temperature in (1.0, 1e-3, 2e-38, 0.0):
    plain = (logits / temperature).softmax(0)
    print(f"logits / {temperature:<6g}  p({names[0]}) = {float(plain[first]):.3f}")
assert (logits / 2e-38).softmax(0).isnan().any()
assert float(apply_temperature(logits, 2e-38).softmax(0)[first]) == 1.0
print(f"apply_temperature(logits, 2e-38)   p({names[0]}) = 1.000, because the largest logit is moved to 0 first")

# %% [markdown]
# And 0 itself is answered before any division: `process_logits` returns, and the largest logit is taken.
#
# **Top-p that drops the crossing token.** It works as long as no token is likelier than top-p itself:


# %%
def keep_top_p_wrong(row, top_p):
    """The bug: the token that carries the sum across top_p is dropped. Do not ship this."""
    shares, order = row.softmax(0).sort(descending=True)
    kept = torch.zeros_like(shares, dtype=torch.bool).scatter(0, order, shares.cumsum(0) <= top_p)
    return torch.where(kept, row, -math.inf)


paris = logits_after("The capital of France is")
for text, row in ((prompt, logits), ("The capital of France is", paris)):
    print(f"{text!r}: right {count(keep_top_p(row, 0.5))}, wrong {count(keep_top_p_wrong(row, 0.5))}")
assert count(keep_top_p_wrong(paris, 0.5)) == 0, "none is left, and the softmax of that is nan"

# %% [markdown]
# **A repetition penalty that divides.** The prompt's own words, and their logits as the next token:

# %%
wrong_way = []
print("token      logit   penalty 1.3   logit / 1.3")
for token_id in tokenizer.encode(prompt):
    before = float(logits[token_id])
    after = float(apply_repetition_penalty(logits, [token_id], 1.3)[token_id])
    assert after < before, "down, whatever the sign"
    wrong_way += [token_id] if before / 1.3 > before else []
    print(f"{tokenizer.decode([token_id]):<9}{before:7.2f}{after:14.2f}{before / 1.3:14.2f}")
print("moved up by a plain division:", [tokenizer.decode([token_id]) for token_id in wrong_way])
assert wrong_way

# %% [markdown]
# ## Greedy, and its loops
#
# A greedy answer is the same each time. It is not the likeliest text, and small models in particular run into
# circles, because what has been said twice is likely to be said a third time.


# %%
def generate(text, num_tokens, **settings):
    """Steps of the decode loop, for any sampling parameters."""
    ids = tokenizer.encode(text)
    cache = KVCache(model.config, 128, device=device)
    asked = SamplingParams(max_tokens=num_tokens, ignore_eos=True, **settings)
    return list(decode(model, prefill(model, ids, cache), cache, asked, prompt_ids=ids))


def text_of(steps):
    return tokenizer.decode([step.token_id for step in steps])


start = "The wind blew, and the waves"
for settings in ({}, {"repetition_penalty": 1.3}, {"frequency_penalty": 0.5}):
    ids = [step.token_id for step in generate(start, 44, **settings)]
    triples = list(zip(ids, ids[1:], ids[2:], strict=False))
    again = len(triples) - len(set(triples))
    print(f"{settings or 'greedy'}: {again} of {len(triples)} runs of three tokens had been there before")
    print("   ", repr(tokenizer.decode(ids)))

# %% [markdown]
# The penalties break the circle, and they do not make the model wiser: a repetition penalty falls on "the" and on the
# full stop as well as on the musician.
#
# ## Forbid and force
#
# A bias of -100 bans a token, one of +100 makes it the only one. What a request is *told* of the choice is the
# model's own opinion: log-probabilities are taken from the raw logits, before any step.

# %%
fire = likeliest[7]
for bias in ({first: -100.0}, {fire: 100.0}):
    asked = SamplingParams(logit_bias=bias, logprobs=2)
    state = SamplerState(asked)
    choice = sample_one(logits[None], asked, state)
    after = float(process_logits(logits, asked, state).softmax(0)[choice.token_id])
    told = [(tokenizer.decode([i]), round(math.exp(logprob), 3)) for i, logprob in choice.top_logprobs]
    print(f"{bias}: {tokenizer.decode([choice.token_id])!r}, probability after the bias {after:.3f}")
    print(f"    its log-probability is told as {choice.logprob:.2f}, a probability of {math.exp(choice.logprob):.4f}")
    print(f"    the likeliest are told as {told}")
    assert abs(math.exp(choice.logprob) - float(probs[choice.token_id])) < 1e-5

# %% [markdown]
# ## The draw
#
# Five tokens are left of the chain above. In the order of their ids, their probabilities add up to a staircase from 0
# to 1. A number u in [0, 1) falls on one of the stairs.

# %%
left = chain["top-p 0.9"].softmax(0)
stair_ids = left.nonzero().flatten().tolist()
shares = left[stair_ids].tolist()
words = [tokenizer.decode([token_id]).strip() for token_id in stair_ids]
u = SamplerState(params).next_uniform()
assert u == random.Random(7).random()
drawn = inverse_cdf(left, u)
for word, share, total in zip(words, shares, accumulate(shares), strict=True):
    mark = f"   <- u = {u:.3f}" if word == tokenizer.decode([drawn]).strip() else ""
    print(f"{word:<10} {share:.3f}   from {total - share:.3f} to {total:.3f}{mark}")

# %%
figure, axes = plt.subplots()
totals = list(accumulate(shares))
axes.bar(words, shares, bottom=[0, *totals[:-1]], width=1, edgecolor="white")
for seed in (1, 2, 3, 5, 6, 7):
    number = random.Random(seed).random()
    index = next(i for i, total in enumerate(totals) if total > number)
    axes.plot([-0.5, index], [number, number], "o-", color="C1", markersize=3, linewidth=0.8)
    axes.annotate(f"seed {seed}", (-0.5, number), xytext=(4, 2), textcoords="offset points", fontsize=8, color="C1")
axes.set(ylabel="running sum", xlim=(-0.5, 4.5), ylim=(0, 1), title="Where the first number of six seeds falls")
plt.show()

# %% [markdown]
# ### Ten thousand draws against chance
#
# If the draw is right, each token comes up as often as its probability says, give or take chance. How much may chance
# take? Add up, over the tokens, (count - expected)² / expected: with five tokens that sum stays below 18.5 in 999 of
# 1,000 experiments. (The probabilities are rounded to three digits here, so that your machine counts what this one
# did. They then sum to 0.999; the draw takes u as a fraction of the whole sum, whatever that is.)

# %%
num_draws, limit = 10_000, 18.47  # the 99.9th percentile of chi-square with 4 degrees of freedom
rounded = [round(share, 3) for share in shares]
table = torch.tensor(rounded, device=device).expand(num_draws, -1)  # [N, 5], a row for each draw
state = SamplerState(params)
numbers = [state.next_uniform() for _ in range(num_draws)]  # those of one request with 10,000 tokens
uniforms = torch.tensor(numbers, dtype=torch.float64, device=device)  # [N]
counts = draw(table, uniforms).bincount(minlength=5).tolist()
chi_square = 0.0
for word, share, seen in zip(words, rounded, counts, strict=True):
    expected = num_draws * share / sum(rounded)
    chi_square += (seen - expected) ** 2 / expected
    print(f"{word:<10} expected {expected:7.1f}   drawn {seen:5}")
print(f"chi-square {chi_square:.2f}, limit {limit}")
assert chi_square < limit

# %% [markdown]
# ## What a seed promises
#
# The same seed gives the same numbers, hence the same tokens, as long as the logits are the same.

# %%
settings = {"temperature": 0.7, "min_p": 0.05, "top_p": 0.9}
for seed in (1, 2, 1):
    print(f"seed {seed}: {text_of(generate(prompt, 10, seed=seed, **settings))!r}")

# %% [markdown]
# Who else is in the batch has no say: each request has a generator of its own. Five requests, greedy and drawn, once
# alone and once side by side:

# %%
asked = [SamplingParams(), *(SamplingParams(seed=seed, **settings) for seed in (1, 2, 3)), SamplingParams(top_k=1)]
alone = [sample_one(logits[None], one, SamplerState(one)).token_id for one in asked]
together = sample(logits.expand(len(asked), -1), asked, [SamplerState(one) for one in asked])
assert [choice.token_id for choice in together] == alone
print("alone and together:", [tokenizer.decode([token_id]) for token_id in alone])

# %% [markdown]
# That is what a *sampler* can promise. Logits that are a little different move the edges of the stairs, and a u that
# fell next to an edge falls on the other side. Round the logits to bfloat16, which is less than a model in bfloat16
# does to them:

# %%
coarse = process_logits(logits.bfloat16().float(), params, SamplerState(params)).softmax(0)
first_numbers = [random.Random(seed).random() for seed in range(1000)]
other = [seed for seed, u in enumerate(first_numbers) if inverse_cdf(left, u) != inverse_cdf(coarse, u)]
assert 0 < len(other) < 200
print(f"of 1,000 seeds, {len(other)} get another first token from the same logits in bfloat16, the first: {other[:5]}")

# %% [markdown]
# ## What it costs
#
# All of this runs once per token, over 49,152 numbers. Beside a forward pass:

# %% tags=["measured"]
ids = tokenizer.encode(prompt)
cache = KVCache(model.config, 128, device=device)
prefill(model, ids, cache)


def median_ms(run, repeats=15):
    run()
    times = []
    for _ in range(repeats):
        started = clock(device)
        run()
        times.append(1e3 * (clock(device) - started))
    return sorted(times)[repeats // 2]


def one_pass():
    cache.truncate(len(ids) - 1)
    prefill(model, ids[-1:], cache)


choices = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(temperature=0.7),
    "temperature, min-p, top-k, top-p": SamplingParams(temperature=0.7, min_p=0.05, top_k=40, top_p=0.9),
    "temperature, top-p": SamplingParams(temperature=0.7, top_p=0.9),
}
pass_ms = median_ms(one_pass)
print(f"{'a forward pass':<34} {pass_ms:7.2f} ms")
for name, one in choices.items():
    state = SamplerState(one, ids)
    ms = median_ms(lambda one=one, state=state: sample_one(logits[None], one, state))
    print(f"{name:<34} {ms:7.2f} ms, {ms / pass_ms:.1%} of it")
print(f"{'to sort all probabilities':<34} {median_ms(lambda: probs.sort(descending=True)):7.2f} ms")
print(f"{'to find the 256 likeliest':<34} {median_ms(lambda: probs.topk(256)):7.2f} ms")

# %% [markdown]
# ## Log-probabilities and perplexity
#
# Now nothing is chosen: the text is given, and the model says how likely it held each of its tokens. One pass gives
# them all, because row *t* of the logits predicts token *t* + 1. The first token is predicted by nobody.

# %%
sentence = "The cat sat on the mat."
ids = tokenizer.encode(sentence)
logprobs = text_logprobs(model, ids)
assert len(logprobs) == len(ids) - 1
for token_id, logprob in zip(ids[1:], logprobs, strict=True):
    print(f"{tokenizer.decode([token_id])!r:<9} log-probability {logprob:6.2f}   probability {math.exp(logprob):.2g}")
mean = sum(logprobs) / len(logprobs)
assert math.isclose(perplexity(logprobs), math.exp(-mean))
print(f"mean {mean:.2f}; perplexity exp({-mean:.2f}) = {perplexity(logprobs):.1f}")

# %% [markdown]
# *Before you run the cell: order these five by perplexity.* The same words shuffled; German; code; and counting.

# %%
english = (
    "The tide went out before dawn and left the boats leaning on the sand. By noon the children had found every crab in"
    " the harbour, and the gulls had found the children's bread."
)
shuffled = english.split()
random.Random(7).shuffle(shuffled)
texts = {
    "English": english,
    "the same words, shuffled": " ".join(shuffled),
    "German": "Die Flut ging vor der Morgendämmerung zurück und ließ die Boote schief auf dem Sand liegen. Bis zum"
    " Mittag hatten die Kinder jeden Krebs im Hafen gefunden.",
    "Python": "def mean(values):\n    total = 0.0\n    for value in values:\n        total += value\n"
    "    return total / len(values)\n",
    "counting": ", ".join(str(n) for n in range(1, 21)),
}


def three_digits(value):
    return f"{float(f'{value:.3g}'):,g}"


found = {}
print(f"{'':<26} tokens  perplexity  bits per byte")
for name, text in texts.items():
    ids = tokenizer.encode(text)
    logprobs = text_logprobs(model, ids)
    found[name] = perplexity(logprobs)
    bits = -sum(logprobs) / math.log(2) / len(text.encode("utf-8"))
    print(f"{name:<26} {len(ids):6}  {three_digits(found[name]):>10}  {bits:13.1f}")
assert found["counting"] < found["Python"] < found["English"] < found["German"] < found["the same words, shuffled"]

# %% [markdown]
# The limit at the other end: a model that knows nothing, and gives each of its 49,152 tokens the same probability, has
# a perplexity of 49,152 on any text. Shuffled words are far from that, because they are English words still.
#
# Perplexity counts *tokens*, and German takes more of them for a page than English does, each easier than it would be
# as a whole word. Where tokens differ, compare bits per byte: the same sum, shared out over what the text weighs.

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 7: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("7.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch07.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 7` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import math
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm import logits_processors as steps
from minillm.errors import InputError
from minillm.exercises import check, hint, todo
from minillm.sampler import SamplerState, SamplingParams


# %%
def apply_temperature(logits: Float[Tensor, " vocab"], temperature: float) -> Float[Tensor, " vocab"]:
    """Logits whose softmax is the distribution at this temperature: softmax(logits / temperature).

    logits: [V], some may be -inf. temperature: above 0 (a request at 0 is greedy, and never comes here); it may be
    very small, 2e-38 say, and the result then must still have a softmax without nan: all of the probability goes to
    the largest logit, by however little it is the largest. A softmax does not see a constant that is added to all
    logits; that is worth using.

    Below torch.finfo(logits.dtype).tiny (1.2e-38 in float32) torch may take a temperature for 0: let it count as
    that number.

    Return [V], in the dtype of `logits`, and leave `logits` itself as it was. What is graded is the softmax of your
    result.

    About 2 lines.
    """
    todo("7.1")


check("7.1", apply_temperature)  # and hint("7.1"), when you are stuck


# %%
def apply_repetition_penalty(
    logits: Float[Tensor, " vocab"], token_ids: Collection[int], penalty: float
) -> Float[Tensor, " vocab"]:
    """Make the tokens that occurred already less likely (penalty above 1; below 1, likelier).

    logits: [V]. token_ids: those of the prompt and the completion so far; a list may name one several times, a set
    has no order and no index, and it may be empty. penalty: above 0.

    A positive logit of such a token is divided by the penalty. A negative one is multiplied by it: divided, it would
    move *up*. Once for each token, however often it occurred.

    Return [V], in the dtype of `logits`, and leave `logits` itself as it was.

    About 4 lines.
    """
    todo("7.2")


check("7.2", apply_repetition_penalty)  # and hint("7.2"), when you are stuck


# %%
def keep_min_p(logits: Float[Tensor, " vocab"], min_p: float) -> Float[Tensor, " vocab"]:
    """Keep the tokens that are at least `min_p` times as likely as the likeliest one.

    logits: [V], some may be -inf. min_p: in [0, 1]; 0 keeps all. With probabilities 0.5, 0.3, 0.15, 0.05 and a min_p
    of 0.2, the bar is 0.2 x 0.5 = 0.1, and the first three stay.

    Return [V]: the logits of the tokens that stay as they were, those of all others -inf. Leave `logits` itself as
    it was.

    About 3 lines.
    """
    todo("7.3")


check("7.3", keep_min_p)  # and hint("7.3"), when you are stuck


# %%
def keep_top_p(logits: Float[Tensor, " vocab"], top_p: float) -> Float[Tensor, " vocab"]:
    """Keep the nucleus: the likeliest tokens, as few as together reach the probability `top_p`.

    logits: [V], in no order; some may be -inf. top_p: in (0, 1]; 1 keeps all. Probabilities are those of a softmax
    over the logits as they are: what an earlier filter dropped has none, and the sum counts what is left.

    The token that carries the sum across `top_p` belongs to the nucleus. So it is never empty, and reaches top_p
    instead of staying below it. With probabilities 0.5, 0.3, 0.15, 0.05 and a top_p of 0.7, two tokens stay; with
    one of 0.5 the first alone has reached it. Tokens exactly as likely as the crossing one stay too: no choice is
    made between equals.

    Return [V]: the logits of the tokens that stay as they were, at their own places, those of all others -inf. Leave
    `logits` itself as it was.

    About 5 lines.
    """
    todo("7.4")


check("7.4", keep_top_p)  # and hint("7.4"), when you are stuck


# %%
def process_logits(
    logits: Float[Tensor, " vocab"], params: SamplingParams, state: SamplerState
) -> Float[Tensor, " vocab"]:
    """All the steps, in their order: the logits whose softmax the token is drawn from.

        logit bias -> repetition, frequency, presence penalty -> temperature -> min-p -> top-k -> top-p

    logits: [V], the model's own. params: what the request asked for; its fields carry the names of the steps
    (`params.logit_bias`, `params.repetition_penalty`, `params.temperature`, `params.top_k` ...; see
    minillm/sampling_params.py). state.seen_token_ids: the set of all tokens so far, prompt and completion.
    state.generated_counts: how often each token of the *completion* occurred, {token id: count}.

    The steps are there: `steps.apply_logit_bias(logits, biases)`, `steps.apply_repetition_penalty(logits, ids,
    penalty)`, `steps.apply_frequency_penalty(logits, counts, penalty)`, `steps.apply_presence_penalty(logits, ids,
    penalty)`, and `steps.apply_temperature`, `steps.keep_min_p`, `steps.keep_top_k` and `steps.keep_top_p`, each of
    (logits, its parameter). They are the engine's own; run it with `--mine`, and yours take their places. Each does
    nothing at its neutral value, so no step needs an `if`, except one: a request with temperature 0 is greedy, takes
    the largest logit after the penalties, and must not be divided by 0. Return its logits as they are then.

    Return [V].

    About 10 lines.
    """
    todo("7.5")


check("7.5", process_logits)  # and hint("7.5"), when you are stuck


# %%
def draw(probs: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Draw a token from each row of `probs`, by the inverse of its cumulative distribution.

    probs: [B, V] in float32; each row sums to 1, or nearly. uniforms: [B] in float64, a number u in [0, 1) for each
    row, 0 possible and 1 not. Return [B], int64: for each row, the first token id at which the running sum of the
    probabilities, in the order of ids, is *greater* than u.

    With probabilities 0, 0.25, 0.75: any u below 0.25 gives token 1, any other token 2, and none token 0, not even
    u = 0. A token of probability 0 is never drawn.

    Two things go wrong in float32. Near 1 its numbers are 6e-8 apart, so that a rarer token has no share in the
    running sum: add up in float64. And a whole row may add up to a hair less than 1: with u beyond that, no sum is
    greater. Let u be a fraction of the row's whole sum, and there is always one.

    Leave `probs` and `uniforms` as they were.

    About 4 lines, with cumsum and torch.searchsorted (mind its `right`).
    """
    todo("7.6")


check("7.6", draw)  # and hint("7.6"), when you are stuck


# %%
def perplexity(logprobs: Sequence[float]) -> float:
    """The perplexity of a text: exp of minus the mean of its tokens' log-probabilities.

    logprobs: natural logarithms, one for each token that was predicted. A text of 5 tokens has 4 of them, because
    nothing precedes the first, so nothing predicts it; that is settled, and all that you are given count. There may
    be thousands.

    [log(1/2), log(1/8)] has a perplexity of 4: as unsure as if each time 4 tokens had been equally likely. Return a
    float, of Python's own or .item() of a tensor; the precision of float32 is enough.

    Raise InputError, with a sentence, where there are none: there is no mean of nothing.

    About 3 lines.
    """
    todo("7.7")


check("7.7", perplexity)  # and hint("7.7"), when you are stuck
