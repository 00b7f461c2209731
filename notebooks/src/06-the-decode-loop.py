# %% [markdown]
# # Notebook 6: The decode loop
#
# Beside [chapter 6](../chapters/06-the-decode-loop.md). You write the loop by hand and count what goes through the
# model, take the engine's apart step by step, time a token and set it against what memory allows, read a profile of
# where the rest of the time goes, and end a request in each way in which one can end. The exercises are at the end,
# with a cell for each.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands.

# %%
from dataclasses import replace

import matplotlib.pyplot as plt
import torch

from minillm.decode import decode, ending_ids, finish_reason
from minillm.detokenizer import detokenize
from minillm.device import pick_device
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.machine.measure import read_bandwidth
from minillm.machine.profile import KINDS, Span, profile_pass, self_seconds
from minillm.machine.roofline import forward_bytes, mbu
from minillm.machine.well_known import BY_NAME
from minillm.metrics import decode_ceiling, decode_kv_bytes, time_per_output_token
from minillm.model import weight_bytes_per_pass
from minillm.prefill import prefill
from minillm.sampler import SamplingParams

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config
question_ids = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])

# %% [markdown]
# ## The loop, by hand
#
# Choose a token, hand it out, compute what follows it. Ten lines, greedy, and complete.


# %%
def by_hand(prompt_ids, cache):
    """Token ids, one at a time, until the model has said its last word."""
    logits = prefill(model, prompt_ids, cache)  # [1, V]
    while True:
        token_id = int(logits.argmax())
        yield token_id
        if token_id in config.eos_token_ids:
            return
        logits = prefill(model, [token_id], cache)  # [1, V]: the pass for the next token, with this one alone


def new_cache(room=256):
    return KVCache(config, room, device=device)


for token_id in by_hand(question_ids, new_cache()):
    print(token_id, repr(tokenizer.decode([token_id], skip_special_tokens=False)))

# %% [markdown]
# The engine's loop does the same. It chooses through the sampler, and each of its steps says more than an id.


# %%
def run(params=None, cache=None, prompt_ids=question_ids):
    """Prefill, then decode: all steps."""
    cache = cache or new_cache()
    return list(decode(model, prefill(model, prompt_ids, cache), cache, params or SamplingParams()))


steps = run()
assert [step.token_id for step in steps] == list(by_hand(question_ids, new_cache()))
print("the same tokens; the last step:", steps[-1].token_id, steps[-1].finish_reason)

# %% [markdown]
# ## One token per pass
#
# Watch the model's door: how many rows go in at each pass?

# %%
rows = []
watch = model.register_forward_pre_hook(lambda module, arguments: rows.append(arguments[0].shape[1]))
cache = new_cache()
steps = run(cache=cache)
watch.remove()
print("rows per pass:", rows)
print(f"{len(steps)} tokens came out, {len(rows)} passes, {cache.length} tokens in the cache")
assert rows == [len(question_ids)] + [1] * (len(steps) - 1)
assert cache.length == len(question_ids) + len(steps) - 1, "the last token was never computed"

# %% [markdown]
# The first token came out of prefill. Each further one took a pass for itself, with one row. And the last,
# `<|im_end|>`, was never computed.
#
# ## A generator: nothing runs unless somebody asks
#
# `decode` gives back a generator. Ask it for a token, and it runs to its `yield`, and stands still there.

# %%
cache = new_cache()
running = decode(model, prefill(model, question_ids, cache), cache, SamplingParams())
print(f"called:               {cache.length - len(question_ids)} passes")
for number in (1, 2, 3):
    step = next(running)
    print(
        f"token {number} handed out:   {cache.length - len(question_ids)} passes",
        repr(tokenizer.decode([step.token_id])),
    )
    assert cache.length - len(question_ids) == number - 1

# %% [markdown]
# The token comes first, and the pass that follows it only when the next one is asked for. A reader who is slow slows
# the loop down, and one who goes away ends it: `close()` (or leaving a `for`, or Ctrl-C) finds the generator at its
# `yield`, between two passes. Nothing is half written, and the cache can be gone on with.

# %%
running.close()
assert list(running) == []
assert cache.length == len(question_ids) + 2
rest = list(decode(model, prefill(model, [step.token_id], cache), cache, SamplingParams()))
assert [s.token_id for s in rest] == [s.token_id for s in steps[3:]]
print("closed after three tokens, and later gone on:", repr(tokenizer.decode([s.token_id for s in rest])))

# %% [markdown]
# Now the wrong order, shown breaking: compute first, yield then. The tokens are the same. But each is handed out a
# pass late, and a reader who takes one token has paid for two passes.


# %%
def late(prompt_ids, cache):
    """Do not ship this: the pass for the next token stands before the yield."""
    logits = prefill(model, prompt_ids, cache)
    while True:
        token_id = int(logits.argmax())
        logits = prefill(model, [token_id], cache)
        yield token_id
        if token_id in config.eos_token_ids:
            return


cache = new_cache()
assert list(late(question_ids, cache)) == [step.token_id for step in steps]
print(f"{cache.length - len(question_ids)} passes for {len(steps)} tokens: the last one is computed too")
cache = new_cache()
next(late(question_ids, cache))
print(f"passes before the first token is there: {cache.length - len(question_ids)} more than needed")

# %% [markdown]
# ## What one token costs
#
# A pass reads all weights, and the keys and values of all tokens so far. Of Llama-3-8B in 16 bit, on an H100:

# %%
llama = BY_NAME["llama-3-8b"].shape
for context in (1, 1000, 4096):
    num_bytes = forward_bytes(llama, 1, 1, context - 1)  # one token, behind the others
    ms, most = 1e3 * num_bytes / 3.35e12, decode_ceiling(3.35e12, num_bytes)
    print(f"context {context:5,}: {num_bytes / 1e9:.2f} GB / 3.35 TB/s = {ms:.2f} ms, at most {most:.0f} tokens/s")

# %% [markdown]
# *Exercise 6.4 asks for what comes next: do it first, if you want to find it yourself.*
#
# The keys and values of a whole answer are a sum that grows by one token with each pass. Check the formula against a
# cache that adds up what it hands out.


# %%
class CountingCache(KVCache):
    """Counts the bytes of keys and values that attention is given to read."""

    read_bytes = 0

    def append(self, layer, k, v):
        keys, values = super().append(layer, k, v)
        self.read_bytes += keys.nbytes + values.nbytes
        return keys, values


cache = CountingCache(config, 256, device=device)
logits = prefill(model, question_ids, cache)
cache.read_bytes = 0  # prefill's own reads are not meant
steps = list(decode(model, logits, cache, SamplingParams(max_tokens=20, ignore_eos=True)))
predicted = decode_kv_bytes(len(question_ids), len(steps), cache.bytes_per_token)
assert cache.read_bytes == predicted
weights = (len(steps) - 1) * weight_bytes_per_pass(model)
print(f"{len(steps)} tokens: {predicted:,} bytes of K and V read, predicted and counted")
print(f"and {weights:,} bytes of weights: {weights / predicted:.0f} times as much")

# %% [markdown]
# ## TPOT against the ceiling
#
# 64 tokens in float32 and 32 in bfloat16, timed from step to step. The limit is what memory delivers, over what a pass
# must read. (A share above 100 % says that another program was busy while the limit was measured: run the cell again.)


# %% tags=["measured"]
def measure(model, max_tokens=64):
    """TPOT in seconds, as the mean; the mean bytes of a pass; and all passes' own seconds."""
    cache = KVCache(config, 256, device=device, dtype=model.dtype)
    logits = prefill(model, question_ids, cache)
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    steps = list(decode(model, logits, cache, params))
    at = [0.0]
    for step in steps[1:]:
        at.append(at[-1] + step.forward_s + step.sample_s)
    kv_bytes = decode_kv_bytes(len(question_ids), max_tokens, cache.bytes_per_token) / (max_tokens - 1)
    return time_per_output_token(at), weight_bytes_per_pass(model) + kv_bytes, [step.forward_s for step in steps[1:]]


before = read_bandwidth(device)
measure(model, 4)  # the first passes pay for what is set up once
results = {"float32": measure(model)}
half_model, _ = load(MODEL, device=device, dtype=torch.bfloat16)
results["bfloat16"] = measure(half_model, 32)
del half_model
bandwidth = max(before, read_bandwidth(device))

print(f"memory delivers {bandwidth / 1e9:.1f} GB/s")
print("            bytes per pass       TPOT      limit   tokens/s   ceiling    MBU")
for name, (tpot_s, num_bytes, _) in results.items():
    limit_s = num_bytes / bandwidth
    print(
        f"{name:<10}{num_bytes / 1e6:13.0f} MB   {1e3 * tpot_s:6.1f} ms  {1e3 * limit_s:6.1f} ms   {1 / tpot_s:8.1f}"
        f"  {1 / limit_s:8.1f}   {mbu(num_bytes, tpot_s, bandwidth):4.0%}"
    )
assert all(tpot_s > 0.5 * num_bytes / bandwidth for tpot_s, num_bytes, _ in results.values())

# %% [markdown]
# Half the bytes, and not twice the speed: the part of a pass that is not reading stays as it is. (A processor without
# instructions for bfloat16 also converts each number before it multiplies.) So what *is* the rest of the time?
#
# ## Reading a profile
#
# *Exercise 6.5 asks for what comes next: do it first, if you want to find it yourself.*
#
# A profiler notes when each thing began and ended. The things lie inside each other, so their durations add up to far
# more than the whole. What adds up are *own* times: a thing's duration less that of the things directly inside it.

# %%
example = [Span("layer", 0.0, 6.0), Span("norm", 0.0, 2.0), Span("mlp", 2.0, 5.0), Span("product", 3.0, 4.0)]
print("name      duration   own")
for span, own in zip(example, self_seconds(example), strict=True):
    print(f"{span.name:<10}{span.end - span.start:8.1f}   {own:3.1f}")
print(f"sum       {sum(span.end - span.start for span in example):8.1f}   {sum(self_seconds(example)):3.1f}")

# %% [markdown]
# `profile_pass` does this for turns of the loop: marks around the model's parts, and PyTorch's own marks around each
# operator. What is in a part and in no operator lies *between* operators: Python, and the way from a call to its
# kernel.

# %% tags=["measured"]
cache = new_cache()
prefill(model, question_ids, cache)
profile = profile_pass(model, cache)
print("ms per pass        ", *(f"{kind:>18}" for kind in KINDS), "         all")
for part in [*profile.parts, None]:
    seconds = profile.by_kind(part)
    cells = (f"{1e3 * seconds[kind]:18.2f}" for kind in KINDS)
    print(f"{part or 'the whole pass':<19}", *cells, f"{1e3 * sum(seconds.values()):12.2f}")
shares = {kind: seconds / profile.total_s for kind, seconds in profile.by_kind().items()}
print("share              ", *(f"{share:18.0%}" for share in shares.values()), f"{sum(shares.values()):12.0%}")
print(f"\n{profile.calls:,.0f} calls of operators per pass; under the profiler it took {1e3 * profile.total_s:.1f} ms,")
print(f"without it {1e3 * sorted(results['float32'][2])[31]:.1f} ms (median)")
assert abs(sum(shares.values()) - 1) < 1e-6, "nothing is lost, and nothing counted twice"

# %% [markdown]
# Read it from the bottom line up. How much is matrix products, the only thing that reads weights? How much is the
# other operators, each of them tiny? And how much lies between operators, where no number is computed at all? The last
# two are the price of some two thousand calls. They cost the same whether a matrix behind a call has a thousand numbers
# or a billion: that is why a small model stands further from its ceiling than a large one.

# %% tags=["measured"]
figure, axes = plt.subplots()
limit_ms = 1e3 * results["float32"][1] / bandwidth
left = dict.fromkeys(range(2), 0.0)
colours = dict(zip(KINDS, ("C0", "C1", "C3"), strict=True))
for kind in KINDS:
    ms = 1e3 * profile.by_kind()[kind]
    axes.barh(1, ms, left=left[1], color=colours[kind], label=kind)
    axes.text(left[1] + ms / 2, 1, f"{ms:.1f}", ha="center", va="center", color="white")
    left[1] += ms
axes.barh(0, limit_ms, color="C2", label="reading its bytes once, at full bandwidth")
axes.text(limit_ms / 2, 0, f"{limit_ms:.1f}", ha="center", va="center", color="white")
axes.set(
    yticks=(0, 1),
    yticklabels=("the limit", "a pass"),
    xlabel="ms",
    title="Where a decode pass spends its time",
    ylim=(-0.6, 2.3),
)
axes.grid(axis="y", visible=False)
axes.legend(loc="upper left", ncols=2)
plt.show()

# %% tags=["measured"]
figure, axes = plt.subplots()
left = dict.fromkeys(profile.parts, 0.0)
for kind in KINDS:
    widths = [1e3 * profile.by_kind(part)[kind] for part in profile.parts]
    axes.barh(profile.parts, widths, left=list(left.values()), color=colours[kind], label=kind)
    left = {part: left[part] + width for part, width in zip(profile.parts, widths, strict=True)}
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
axes.set(xlabel="ms", title="The same pass by the model's parts")
axes.legend()
plt.show()

# %% [markdown]
# ## When does it stop?
#
# A loop needs an end. First without one: take the end-of-sequence ids away, as an engine does that has not found them
# in the checkpoint, and ask the same question.

# %%
babble = run(SamplingParams(max_tokens=64, ignore_eos=True))
print(tokenizer.decode([step.token_id for step in babble], skip_special_tokens=False))
assert babble[7].token_id in config.eos_token_ids
assert babble[-1].finish_reason == "length"

# %% [markdown]
# The answer was over after eight tokens. What follows is not the answer to anything: the model has been trained on
# conversations, so it writes the next turn, the user's, and would then answer that. Nothing is wrong with its numbers.
# The loop just did not know which token means "done".
#
# Now each way to end, with the reason that it leaves and what the cache holds. The prompt has 37 tokens.


# %%
def ending(name, params, room=256, params_stop=()):
    """Run until it ends; say how."""
    cache = new_cache(room)
    logits = prefill(model, question_ids, cache)
    pieces = list(detokenize(decode(model, logits, cache, params), tokenizer, params_stop))
    tokens = sum(piece.step is not None for piece in pieces)
    text = "".join(piece.text for piece in pieces)
    print(f"{name:<26}{pieces[-1].finish_reason:<9}{tokens:4}{cache.length:8}   {text[:34]!r}")
    assert cache.length == len(question_ids) + tokens - 1, "whatever the reason, the last token is never computed"
    return pieces[-1].finish_reason


print(f"{'':<26}{'reason':<9}tokens  cache   text")
assert ending("end-of-sequence token", SamplingParams()) == "stop"
assert ending("max_tokens = 5", SamplingParams(max_tokens=5)) == "length"
assert ending("both at once", SamplingParams(max_tokens=8)) == "stop"
assert ending("a context of 42 tokens", SamplingParams(), room=42) == "length"
(paris_id,) = tokenizer.encode(" Paris")
assert ending("stop_token_ids: ' Paris'", SamplingParams(stop_token_ids=[paris_id])) == "stop"
assert ending("stop string: 'of Fra'", SamplingParams(), params_stop=["of Fra"]) == "stop"
assert ending("ignore_eos, 12 tokens", SamplingParams(max_tokens=12, ignore_eos=True)) == "length"

# %% [markdown]
# Two of these deserve a second look. With `max_tokens = 8` the last token allowed is also the one that ends the answer:
# the answer is whole, and the reason says so. And the stop string is no business of the loop: it reaches across tokens
# ("of", " France"), so text is where it is looked for (chapter 8). There the reader of the stream stops asking, and the
# generator is closed.
#
# The eighth way is not in the table: somebody hangs up. Then no step has a reason, for the answer did not end. The
# engine calls that "abort".
#
# Which ids end a request, and why, are two small functions. *They are exercises 6.1 and 6.2.*

# %%
params = SamplingParams(stop_token_ids=[paris_id])
print("ids that end it:                  ", sorted(ending_ids(params, config)))
print("with ignore_eos:                  ", sorted(ending_ids(replace(params, ignore_eos=True), config)))
print("token 17, the 3rd of 8, 40 of 256:", finish_reason(17, {2}, 3, 8, 40, 256))
print("token 17, the 8th of 8, 45 of 256:", finish_reason(17, {2}, 8, 8, 45, 256))
print("token  2, the 8th of 8, 45 of 256:", finish_reason(2, {2}, 8, 8, 45, 256))
print("token 17, the 3rd of 8, 42 of 42: ", finish_reason(17, {2}, 3, 8, 42, 42))

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 6: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("6.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch06.py`: from there
# `--mine` runs the engine on it, and `!minillm grade 6` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from collections.abc import Collection, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.decode import Step
from minillm.exercises import check, hint, todo
from minillm.kv_cache import Cache
from minillm.machine.profile import Span
from minillm.model import Llama
from minillm.prefill import prefill
from minillm.sampler import SamplerState, SamplingParams, sample_one


# %%
def ending_ids(params: SamplingParams, config: ModelConfig) -> frozenset[int]:
    """Which token ids end a request?

    config.eos_token_ids: the model's end-of-sequence ids, a tuple; there may be several, or none.
    params.ignore_eos: True where the request is to go on past them.
    params.stop_token_ids: a tuple of further ids at which this request, by its own wish, is to end.

    Return them as a frozenset (any collection that can be asked `token_id in ...` will do). What was asked for by its
    id counts in any case, whatever else that id may be.

    About 2 lines.
    """
    todo("6.1")


check("6.1", ending_ids)  # and hint("6.1"), when you are stuck


# %%
def finish_reason(
    token_id: int, stop_ids: Collection[int], count: int, max_tokens: int, length: int, max_seq_len: int
) -> str | None:
    """Does the request end with the token just chosen, and why?

    token_id: that token. stop_ids: what 6.1 gives. count: how many tokens were generated, this one included.
    max_tokens: how many are wanted at most. length: how many tokens prompt and completion have together, this one
    included. max_seq_len: how many there may be.

    Return "stop" where the token itself ends the answer, "length" where the answer is cut off because one of the two
    limits is reached, and None where the request goes on. Where both are true, the answer is whole: say "stop".

    About 5 lines.
    """
    todo("6.2")


check("6.2", finish_reason)  # and hint("6.2"), when you are stuck


# %%
def decode_loop(
    model: Llama,
    logits: Float[Tensor, "1 vocab"],
    cache: Cache,
    params: SamplingParams,
    prompt_ids: Sequence[int],
) -> Iterator[Step]:
    """The decode loop, as a generator. What it is given has been checked.

    logits: [1, vocab], what follows the prompt, from prefill. cache: it holds the prompt, or, if it is a NoCache,
    nothing, ever. prompt_ids: the prompt; it may be empty where there is a cache, and is complete where there is none.

    Again and again:

        choice = sample_one(logits, params, state)      choice.token_id, choice.logprob, choice.top_logprobs
        state.observe(choice.token_id)                  penalties count what was generated
        does the request end here, and why?             your 6.2, with your 6.1 and cache.max_seq_len
        yield Step(token_id, logprob, reason, top_logprobs)
        logits = prefill(model, ids, cache)             the pass for the next token, [1, vocab]

    with one `state = SamplerState(params, prompt_ids)` for the whole request. `ids` are those that the cache does
    not hold yet: with a KVCache the token just chosen, and with a NoCache everything, prompt and completion. Both are
    what comes after the first `cache.length` tokens of the whole text. (Where prompt_ids is empty, the tokens that the
    cache held at the start stand before yours.) prefill counts `ids` into the cache. Leave prompt_ids as it is.

    Yield each step *before* its token is computed: whoever reads the stream then has it, and does not wait for the
    next. After a step with a reason, end: the last token is never computed. Never look further ahead than asked.

    A Step also has room for seconds, forward_s and sample_s; they are not graded, and 0 in a trace if you leave them.

    About 15 lines.
    """
    todo("6.3")


check("6.3", decode_loop)  # and hint("6.3"), when you are stuck


# %%
def decode_kv_bytes(prompt_tokens: int, completion_tokens: int, bytes_per_token: int) -> int:
    """How many bytes of keys and values do all decode passes of a request read together?

    prompt_tokens: at least 1. completion_tokens: all that were generated, the last one included; at least 0.
    bytes_per_token: what one token of cache weighs (exercise 5.1).

    The first token comes out of prefill and costs no decode pass. The pass for the second one computes the first: it
    has the prompt and that token in view, and reads the keys and values of all of these. Each pass after it has one
    token more in view. Return a whole number.

    About 2 lines: a loop, or the sum in closed form.
    """
    todo("6.4")


check("6.4", decode_kv_bytes)  # and hint("6.4"), when you are stuck


# %%
def self_seconds(spans: Sequence[Span]) -> list[float]:
    """A profile's own times: of each span the seconds in which it was running, and no span inside it was.

    Each has .start and .end, in seconds. They come in the order in which they began, an outer one before those inside
    it. Of two spans either one lies inside the other, or they do not overlap (one may begin where another ends).

        0    1    2    3    4    5    6    7
        [ layer                         ]            own: 6 - (2 + 3) = 1
        [ norm  ] [ mlp         ]                    own: 2 and 3 - 1 = 2
                       [mm ]                         own: 1

    Return a list (no generator, no array) with one number per span, in the spans' order. Where all lie inside one, the
    own seconds of all add up to its duration: no second is lost, and none is counted twice.

    About 8 lines: keep a stack of the spans that are still running.
    """
    todo("6.5")


check("6.5", self_seconds)  # and hint("6.5"), when you are stuck
