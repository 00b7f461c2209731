# %% [markdown]
# # Notebook 10: Will it fit?
#
# Beside [chapter 10](../chapters/10-will-it-fit.md). You count a model before you load it and check the count against
# what was loaded, watch a forward pass take memory and give it back, hold a prediction against what the operating
# system says, and end with a GPU and a model of your choice.
#
# The notebook runs from top to bottom on a CPU in about a minute, and on a CUDA GPU as it stands.

# %%
import sys
import weakref
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from minillm.device import pick_device
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.machine import footprint
from minillm.machine.formats import FORMATS
from minillm.machine.memory import Workload, activation_bytes, demand, kv_cache_bytes, shard, weight_bytes
from minillm.machine.shape import num_active_params, num_params, shape_of
from minillm.machine.specs import find
from minillm.machine.verdict import Question, judge, largest_batch, largest_context
from minillm.machine.well_known import BY_NAME
from minillm.prefill import prefill

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
shape = shape_of(model.config)

# %% [markdown]
# ## Count, then look
#
# A model's shape is a dozen numbers. The parameters follow from it, and so do the bytes: what was loaded must be just
# that.

# %%
loaded = sum(parameter.numel() for parameter in model.parameters())
assert num_params(shape) == loaded
assert weight_bytes(shape, FORMATS["float32"]) == model.nbytes == 4 * loaded
print(f"{num_params(shape):,} parameters x 4 bytes = {model.nbytes:,} bytes")
print(f"= {model.nbytes / 1e6:.1f} MB = {model.nbytes / 2**20:.1f} MiB; in 16 bit, half of it")

context, batch = 1024, 2
cache = KVCache(model.config, context, batch, device=device)
assert cache.reserved_bytes == kv_cache_bytes(shape, context, batch, "float32")
print(f"a cache for {batch} x {context:,} tokens: {cache.reserved_bytes / 1e6:.1f} MB")
del cache

# %% [markdown]
# Both to the byte. Now the reflex, parameters x 2 = GB in 16 bit, on models that nobody has to download:

# %%
print("                name says   parameters   in 16 bit")
for name in ("llama-2-7b", "llama-3-8b", "llama-2-13b", "mixtral-8x7b", "llama-3-70b", "llama-3.1-405b"):
    known = BY_NAME[name].shape
    billions = num_params(known) / 1e9
    print(f"{name:<14} {name.split('-')[-1]:>10}   {billions:8.2f} B   {2 * billions:6.1f} GB")
assert num_params(BY_NAME["llama-2-13b"].shape) == 13_015_864_320
mixtral = BY_NAME["mixtral-8x7b"].shape
print(f"mixtral holds {num_params(mixtral) / 1e9:.1f} B and uses {num_active_params(mixtral) / 1e9:.1f} B per token")

# %% [markdown]
# And where "4 bit" is half a byte, and where it is not:

# %%
print("                half a byte     int4   bits per parameter")
for name in ("smollm2-135m", "llama-3-8b", "llama-3-70b"):
    known = BY_NAME[name].shape
    half, really = num_params(known) / 2, weight_bytes(known, FORMATS["int4"])
    assert really > half
    print(f"{name:<14} {half / 1e9:9.2f} GB {really / 1e9:5.2f} GB   {8 * really / num_params(known):5.2f}")

# %% [markdown]
# The smaller the model, the larger the share of its embedding, which such formats leave in 16 bit. SmolLM2 in int4
# takes nearly seven bits for each of its parameters.
#
# ## What is alive during a pass
#
# Weights and cache are there all the time. Everything else that a pass makes is given back, and the question is how
# much exists at the same time. PyTorch lets you look over its shoulder: a `TorchDispatchMode` sees every operation.
# This one notes each new piece of memory, and when it goes.


# %%
class Ledger(TorchDispatchMode):
    """Bytes of all tensors that were made inside and still exist, after each operation."""

    def __init__(self):
        super().__init__()
        self.owners, self.now, self.history = {}, 0, []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, torch.Tensor)} - self.owners.keys()
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.note(tensor)
        self.history.append(self.now)
        return result

    def note(self, tensor):
        """Another tensor on this piece of memory; the piece counts once, until the last of them is gone."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        if size == 0:
            return
        if start not in self.owners:
            self.now += size
        self.owners[start] = self.owners.get(start, 0) + 1
        weakref.finalize(tensor, self.gone, start, size)

    def gone(self, start, size):
        self.owners[start] -= 1
        if self.owners[start] == 0:
            del self.owners[start]
            self.now -= size


def watched(tokens, chunk_size=None, batch=1):
    """The ledger of one prefill into a cache that was there before, and the logits."""
    ids = torch.arange(batch * tokens, device=device).remainder(shape.vocab_size).view(batch, tokens)  # [B, T]
    cache = KVCache(model.config, tokens, batch, device=device)
    with Ledger() as ledger:
        logits = prefill(model, ids, cache, chunk_size)  # [B, V]
    return ledger, logits


ledger, _ = watched(1024)
peak, estimate = max(ledger.history), activation_bytes(shape, 1024, 1, "float32")
print(f"at most {peak / 1e6:.1f} MB alive; estimate {estimate / 1e6:.1f} MB")
assert abs(estimate / peak - 1) < 0.1

# %% tags=["measured"]
figure, axes = plt.subplots()
axes.plot([size / 1e6 for size in ledger.history], linewidth=1)
axes.axhline(estimate / 1e6, color="C1", linestyle="--", label=f"estimate: {estimate / 1e6:.1f} MB")
axes.set(xlabel="operation", ylabel="MB alive", ylim=(0, 1.25 * peak / 1e6), title="Thirty layers, one after the other")
axes.legend(loc="upper right")
plt.show()

# %% [markdown]
# One tooth per layer, all of the same height. (The model is SmolLM2, so there are thirty.) If the layers did not give
# back what they used, this would be a staircase; in training it is. The high point of a tooth is the MLP, whose rows
# are the widest. At the very end come the logits: one row of 49,152, small here.
#
# ### The peak grows with the tokens of a pass
#
# So bound the tokens of a pass. The same prompt, whole and in chunks:

# %%
whole, logits = watched(2048)
whole_peak = max(whole.history)
print(f"2,048 tokens in one pass:      {whole_peak / 1e6:6.1f} MB alive at most")
for size in (1024, 512, 256):
    chunked, chunked_logits = watched(2048, chunk_size=size)
    chunk_peak = max(chunked.history)
    assert torch.allclose(logits, chunked_logits, atol=1e-3, rtol=1e-3), "chunks change the memory, not the answer"
    assert chunk_peak < 1.3 * whole_peak * size / 2048
    print(f"              in chunks of {size:5}: {chunk_peak / 1e6:6.1f} MB")

# %% [markdown]
# The share of the chunk: what was computed for one is given back before the next begins. What later chunks need of it
# is in the cache.
#
# ### Logits for every row
#
# Nobody asks what follows the first word of a prompt, except those who ask for a prompt's probabilities. This is what
# they get:

# %%
ids = torch.arange(512, device=device)[None]  # [1, T]
cache = KVCache(model.config, 512, device=device)
with torch.inference_mode(), Ledger() as all_rows:
    hidden = model(ids, cache)  # [1, T, E]
    every_logit = model.logits(hidden)  # [1, T, V]
last_row_peak = max(watched(512)[0].history)
all_rows_peak = max(all_rows.history)
print(f"512 tokens, logits of the last row: {last_row_peak / 1e6:6.1f} MB alive at most")
print(f"512 tokens, logits of every row:    {all_rows_peak / 1e6:6.1f} MB")
assert every_logit.nbytes == 512 * shape.vocab_size * 4
assert all_rows_peak > every_logit.nbytes > 4 * last_row_peak
del every_logit, hidden, cache

# %% [markdown]
# A prompt that fits without them does not fit with them.
#
# ## Predict, then measure
#
# The ledger knows what PyTorch's operations return. The operating system knows what the process really holds. Each of
# these runs is a process of its own, which notes its resident memory, loads the model in float32, computes all prompts
# in one pass on the CPU, and reports the peak (Linux only). *Before you run the cell*, work it out: weights, cache,
# activations, in MB.

# %% tags=["measured"]
runs = []
if sys.platform == "linux":
    print("context  batch   weights   cache   activations   predicted   measured   error")
    for run_context, run_batch in ((256, 1), (1024, 2)):
        run = footprint.measure(MODEL, shape, run_context, run_batch)
        runs.append(run)
        need = run.predicted
        parts = f"{need.weights / 1e6:7.1f} {need.kv_cache / 1e6:7.1f} {need.activations / 1e6:13.1f}"
        whole_mb = f"{need.total / 1e6:11.1f} {run.measured / 1e6:10.1f}"
        print(f"{run_context:7,} {run_batch:6}   {parts} {whole_mb} {run.error:+7.1%}")
    small, large = runs
    predicted_growth = (large.predicted.total - small.predicted.total) / 1e6
    measured_growth = (large.measured - small.measured) / 1e6
    print(f"from the first to the second: {predicted_growth:.1f} MB predicted, {measured_growth:.1f} measured")
    assert all(abs(run.error) < 0.1 for run in runs)
    assert abs(predicted_growth / measured_growth - 1) < 0.1, "cache and activations, without the constant"
else:
    print("resident memory is read from /proc, which only Linux has")

# %% [markdown]
# The last line is the stricter test. Weights are most of the sum and easy to get right; a difference has no weights in
# it.
#
# ## The rule of 1.2
#
# (weights + cache) x 1.2, beside the sum of the parts with a CUDA context under them:

# %%
print("                  the sum   the rule")
ratios = []
for name in ("smollm2-135m", "llama-3.2-1b", "llama-3-8b", "llama-2-13b", "llama-3-70b"):
    need = demand(BY_NAME[name].shape, Workload(context=4096))
    ratios.append(need.rule_of_thumb / need.total)
    print(f"{name:<14} {need.total / 1e9:7.2f} GB {need.rule_of_thumb / 1e9:7.2f} GB   x {ratios[-1]:.2f}")
assert ratios[0] < 0.6, "for a small model it promises too little"
assert ratios[-1] > 1.15, "for a large one it asks for a fifth of everything again"

# %% [markdown]
# ## Your GPU, your model
#
# Change these three and run the rest. The names of models are those of `python -m minillm.fit --models`, those of GPUs
# are in the appendix on accelerators.

# %%
MY_MODEL, MY_GPU, MY_CONTEXT = "llama-2-13b", "h100", 4096

mine, gpu = BY_NAME[MY_MODEL].shape, find(MY_GPU)
question = Question(mine, Workload(MY_CONTEXT), gpu.memory_bytes)
most = largest_batch(question)
print(f"{gpu.name}: {gpu.memory_bytes / 1e9:.1f} GB = {gpu.memory_bytes / 2**30:.1f} GiB")
print(f"{MY_MODEL} with {MY_CONTEXT:,} tokens each, a tenth of the memory kept free: {most} sequences")
for number in (most, most + 1):
    total = question.demand(replace(question.load, batch=number)).total
    print(f"{number:4}: {total / 1e9:6.2f} GB, {total / gpu.memory_bytes:.1%}: {judge(total, gpu.memory_bytes)}")
    assert question.fits(replace(question.load, batch=number)) == (number <= most)

# %% tags=["measured"]
batches = range(1, 2 * most + 4)
needs = [question.demand(replace(question.load, batch=number)) for number in batches]
layers = {
    "weights": [need.weights / 1e9 for need in needs],
    "KV cache": [need.kv_cache / 1e9 for need in needs],
    "activations and overhead": [(need.activations + need.overhead) / 1e9 for need in needs],
}
figure, axes = plt.subplots()
axes.stackplot(batches, *layers.values(), labels=layers)
axes.axhline(gpu.memory_bytes / 1e9, color="black", linestyle="--", label=gpu.name)
axes.axvline(most, color="black", linewidth=0.8, linestyle=":")
axes.set(xlabel=f"sequences of {MY_CONTEXT:,} tokens", ylabel="GB", title=MY_MODEL, xlim=(1, max(batches)))
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# A floor that is paid once, and a slope: every capacity plan begins with these two. Now cut a larger model over several
# GPUs, and see what divides and what does not.

# %%
large_shape = BY_NAME["llama-3-70b"].shape
load_70b = Workload(context=8192, batch=32)
print("GPUs   weights on each   cache on each   cache in all")
in_all = []
for gpus in (1, 2, 4, 8, 16):
    need = demand(large_shape, replace(load_70b, gpus=gpus))
    in_all.append(gpus * need.kv_cache)
    print(f"{gpus:4} {need.weights / 1e9:14.2f} GB {need.kv_cache / 1e9:12.2f} GB {in_all[-1] / 1e9:11.1f} GB")
assert in_all[0] == in_all[3], "eight key/value heads: one for each of eight GPUs"
assert in_all[4] == 2 * in_all[3], "on sixteen, each is held twice"
assert shard(large_shape, 16).num_key_value_heads == 1

# %% [markdown]
# And the last two levers together, fewer bits and a shorter context, for 64 sequences on one GPU:

# %%
for name in ("bfloat16", "int8", "int4"):
    load_64 = Workload(context=4096, batch=64, weights=FORMATS[name])
    tokens = largest_context(Question(large_shape, load_64, find("h200").memory_bytes))
    print(f"llama-3-70b on an H200 in {name:<8}: {f'{tokens:,} tokens each' if tokens else 'not even one token each'}")

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 10: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("10.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch10.py`: from there
# `!minillm grade 10` grades it, in a cell like any other.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
from dataclasses import replace

from minillm.errors import InputError
from minillm.exercises import check, hint, todo
from minillm.machine.formats import FORMATS, WeightFormat, dtype_bytes
from minillm.machine.memory import Demand, Workload, demand
from minillm.machine.shape import ModelShape
from minillm.machine.verdict import Question


# %%
def num_params(shape: ModelShape) -> int:
    """How many numbers does a model of this shape consist of?

    An embedding [vocab_size, hidden_size], and a head of the same size, unless `tie_word_embeddings`: then the two are
    one table. One norm (a vector of `hidden_size`) before the head. In each of `num_hidden_layers` layers:

    - the projections of queries, keys, values, and that of the heads' outputs back to `hidden_size`. Queries have
      `num_attention_heads` heads of `head_dim`, keys and values `num_key_value_heads`;
    - `num_experts` MLPs (1 in a dense model) of three matrices between `hidden_size` and `intermediate_size`;
    - where there is more than one expert, a router [num_experts, hidden_size] that chooses among them;
    - two norms.

    You are graded on shapes without biases and without norms on queries and keys.

    Llama-2-13B has 13,015,864,320. Return a whole number (int).

    About 8 lines.
    """
    todo("10.1")


check("10.1", num_params)  # and hint("10.1"), when you are stuck


# %%
def matrix_bytes(self, rows: int, columns: int) -> int:
    """`WeightFormat.matrix_bytes`: bytes of a quantized matrix of `rows` rows with `columns` weights each.

    self is the format, and this function its method:

        self.block          this many consecutive weights of a row form a block
        self.block_bits     bits of a whole block, its scale and zero point included
        self.row_bits       bits that each row needs besides, for a scale of its own (mostly 0)
        self.matrix_bits    bits that the matrix needs besides (mostly 0)
        self.otherwise      the name of a format that is used instead where `columns` is no multiple of `block`;
                            None where there is none

    Blocks lie along the rows and do not go on in the next row. Where the last block of a row is short of weights, it
    takes the room of a whole one. Where there is a format `otherwise`, that one decides:
    `FORMATS[self.otherwise].matrix_bytes(rows, columns)`. Return whole bytes, rounded up.

    About 5 lines.
    """
    todo("10.2")


check("10.2", matrix_bytes)  # and hint("10.2"), when you are stuck


# %%
def kv_cache_bytes(shape: ModelShape, context: int, batch: int, dtype: str, block_size: int = 1) -> int:
    """Bytes of the keys and values of `batch` sequences of `context` tokens each.

    dtype: of keys and values; `dtype_bytes(dtype)` gives the bytes of one number. block_size: tokens in a block of
    the cache. A block belongs to one sequence, and a sequence takes whole blocks.

    Where the shape has a `sliding_window`, no more than that many tokens of a sequence are kept (in whole blocks).
    It is None where every token is.

    Llama-2-13B, 4,096 tokens, batch 32, in bfloat16: 107,374,182,400. Return a whole number (int).

    About 5 lines.
    """
    todo("10.3")


check("10.3", kv_cache_bytes)  # and hint("10.3"), when you are stuck


# %%
def shard(shape: ModelShape, gpus: int) -> ModelShape:
    """What one of `gpus` GPUs holds under tensor parallelism, as a shape of its own.

    - Attention heads and the width of the MLP are shared out evenly.
    - So are key/value heads. Where there are fewer of them than GPUs, each GPU holds one whole head, and several hold
      the same one.
    - Embedding and head are cut along the vocabulary; where it cannot be cut evenly, shares are rounded up.
    - Everything else is on every GPU as it is: `hidden_size` too.

    Raise InputError, with a sentence, where the attention heads or the MLP do not divide by `gpus`, or where neither
    of `num_key_value_heads` and `gpus` is a multiple of the other.

    `replace(shape, vocab_size=...)` gives a shape with some sizes changed.

    About 12 lines.
    """
    todo("10.4")


check("10.4", shard)  # and hint("10.4"), when you are stuck


# %%
def largest_context(question: Question) -> int:
    """The most tokens per sequence that fit, from 1 up to the model's `max_position_embeddings`; 0 where not even one
    does.

        question.shape                 the model's shape
        question.load                  the workload that was asked about: a frozen dataclass with a field `context`
        question.fits(load)            whether a workload fits. A longer context never needs less

    `replace(question.load, context=...)` gives the same workload with another context.

    Ask `question.fits` 30 times at most: a context may have a million tokens.

    About 6 lines.
    """
    todo("10.5")


check("10.5", largest_context)  # and hint("10.5"), when you are stuck


# %%
def predict(shape: ModelShape, context: int, batch: int) -> Demand:
    """What a run of this model on a CPU should take, for `fit --measure` to be held against.

    The run: all numbers are float32, keys and values too. `batch` prompts of `context` tokens each go through the
    model in a single pass, all together, with nothing cut into chunks. The cache has room for just these tokens and
    knows no blocks. There is no GPU, so nothing is taken before the first tensor.

    `Workload` describes a run, and `demand(shape, load, overhead=...)` adds up what it takes. What they assume if you
    do not tell them is not what is so here:

        context, batch             tokens of each sequence, and how many of them there are (1)
        weights                    how weights are stored: FORMATS["bfloat16"]
        dtype, kv_dtype            of activations, and of keys and values: "bfloat16"
        block_size                 tokens in a block of the cache: 16
        tokens_per_pass            prompt tokens that one pass takes at most, of all sequences together: 2048
        gpus                       1
        overhead (of `demand`)     bytes taken before the first tensor: 512 MiB

    About 10 lines.
    """
    todo("10.6")


check("10.6", predict)  # and hint("10.6"), when you are stuck
