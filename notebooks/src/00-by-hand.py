# %% [markdown]
# # Notebook 0: One request, by hand
#
# Beside the five steps of [chapter 1](../chapters/01-the-journey.md#five-steps).
#
# `LLM("smollm2-135m").generate("The capital of France is")` is five steps. Here they are, one cell each, with a look
# at what comes out of each. The cells run from top to bottom on a CPU in a few seconds; on a machine with a CUDA GPU,
# `pick_device()` finds it.

# %%
import torch

from minillm.decode import decode
from minillm.detokenizer import StreamDecoder
from minillm.device import pick_device
from minillm.kv_cache import KVCache, NoCache
from minillm.loading import load
from minillm.prefill import prefill
from minillm.sampler import SamplingParams

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config
print(config)

# %% [markdown]
# ## 1. Text becomes ids
#
# The model never sees text. It sees numbers from 0 to `vocab_size - 1`, one per *token*, and a token is often a word
# with the space before it.

# %%
text = "The capital of France is"
ids = tokenizer.encode(text)
[(token_id, tokenizer.decode([token_id])) for token_id in ids]

# %% [markdown]
# ## 2. Prefill: all ids in one pass
#
# The cache has room for 64 tokens, and is empty. One pass over the prompt fills it with the keys and values of five
# tokens, and gives one row of logits: a score for every entry of the vocabulary, for the token that would come next.

# %%
cache = KVCache(config, max_seq_len=64, device=device)
logits = prefill(model, ids, cache)
print("logits", tuple(logits.shape), "| cache holds", cache.length, "tokens,", f"{cache.used_bytes:,} bytes")
formula = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4  # K and V, float32
assert cache.used_bytes == len(ids) * formula

# %% [markdown]
# ## 3. Choose
#
# Softmax turns scores into probabilities. Greedy choice takes the largest.

# %%
best = logits[0].softmax(-1).topk(5)
for probability, token_id in zip(best.values.tolist(), best.indices.tolist(), strict=True):
    print(f"{probability:6.3f}  {tokenizer.decode([token_id])!r}")

# %% [markdown]
# ## 4. and 5. The decode loop, and back to text
#
# Each turn chooses a token, hands it out, and computes what follows it: one row through the same layers, attending
# over everything in the cache. A token is not always a whole character, so text is shown when it is certain.

# %%
decoder = StreamDecoder(tokenizer)
for step in decode(model, logits, cache, SamplingParams(max_tokens=8)):
    print(f"{step.token_id:6}  {decoder.add(step.token_id)!r:12}  cache {cache.length}  {step.finish_reason or ''}")

# %% [markdown]
# ## The same without a cache
#
# `NoCache` keeps nothing, so each turn computes the whole sequence again. The tokens are the same; the work is not.


# %%
def generate(cache, max_tokens):
    """The generated ids, and the seconds that the decode loop's forward passes took."""
    logits = prefill(model, ids, cache)
    steps = list(decode(model, logits, cache, SamplingParams(max_tokens=max_tokens), prompt_ids=ids))
    return [step.token_id for step in steps], sum(step.forward_s for step in steps)


with_cache, with_cache_s = generate(KVCache(config, 64, device=device), max_tokens=32)
without_cache, without_cache_s = generate(NoCache(config, device), max_tokens=32)
assert without_cache == with_cache
print("equal")

# %% [markdown]
# How much work, the clock says: the same 31 passes after the first token, once with one new row each, and once with 6
# to 36 rows.

# %% tags=["measured"]
passes = len(with_cache) - 1
print(f"with a cache    {1e3 * with_cache_s / passes:6.1f} ms per token")
print(f"without         {1e3 * without_cache_s / passes:6.1f} ms per token")
