# %% [markdown]
# # Notebook 13: PagedAttention and prefix caching
#
# Beside [chapter 13](../chapters/13-paged-attention.md). You hand out blocks by hand, run the model out of blocks that
# lie anywhere, let two requests share some, break that and mend it, make two prompts collide, watch what is forgotten
# first, and end with two measurements: how much memory is reserved for nothing, and how soon an answer comes whose
# beginning somebody has computed before. The exercises are at the end, with a cell for each.
#
# The notebook runs from top to bottom on a CPU in well under a minute, and on a CUDA GPU as it stands.

# %%
import matplotlib.pyplot as plt
import torch

from minillm.device import clock, pick_device
from minillm.engine import Engine, Request
from minillm.engine.block_pool import BlockPool, blocks_for
from minillm.engine.log import tokens_held
from minillm.engine.paged_kv_cache import PagedBatch, PagedKVCache, Span, gather_blocks, slots_of
from minillm.engine.prefix_cache import PrefixCache, block_hash
from minillm.engine.scheduler import Scheduler
from minillm.engine.static_scheduler import StaticScheduler
from minillm.errors import InputError
from minillm.kv_cache import KVCache
from minillm.loading import load
from minillm.prefill import prefill
from minillm.sampling_params import SamplingParams

MODEL = "smollm2-135m"  # an alias, a directory, a .gguf file, or a hub id
device = pick_device()
model, tokenizer = load(MODEL, device=device, dtype=torch.float32)
config = model.config

# %% [markdown]
# ## Where the memory went
#
# No model is needed to see it: the scheduler counts tokens and blocks, whatever is computed with them. Here are 64
# requests with prompts of 5 to 800 tokens, each allowed 256 tokens of answer, of which it will use 1 to 200 (nobody
# knows that before). They go through memory for 4,096 tokens, once with room reserved for the longest, as before, and
# once in blocks of 16.

# %%
prompt_lengths = [5 + (373 * i + 211) % 796 for i in range(64)]  # 5 to 800, mixed
answer_lengths = [1 + (91 * i + 37) % 200 for i in range(64)]  # 1 to 200
ALLOWED = 256
MEMORY = 4096  # tokens


def serve(scheduler):
    """Run the 64 requests without a model; (requests that run, slots reserved, slots held) of every step."""
    lengths = {}
    for number, (prompt, answer) in enumerate(zip(prompt_lengths, answer_lengths, strict=True)):
        params = SamplingParams(max_tokens=ALLOWED)
        request = Request(str(number), tuple(range(number, number + prompt)), params, prompt + ALLOWED)
        lengths[request] = answer
        scheduler.add(request)
    steps = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        scheduler.computed(plan)  # as if a model had run
        reserved = scheduler.pool.num_used * scheduler.block_size
        steps.append((len(scheduler.running), reserved, tokens_held(scheduler.running, scheduler.block_size)))
        for part in plan.scheduled:
            if part.samples:
                part.request.token_ids.append(0)  # as if it had chosen a token
                if part.request.num_generated == lengths[part.request]:
                    scheduler.finish(part.request)
    assert scheduler.pool.num_used == 0, "every block has come back"
    return steps


def wasted(steps):
    """The share of reserved slots that held nothing, over all steps."""
    return 1 - sum(held for _, _, held in steps) / sum(reserved for _, reserved, _ in steps)


before = serve(StaticScheduler(MEMORY // 16, 16))
after = serve(Scheduler(MEMORY // 16, 16, prefix_caching=False))
print(f"{'':<26}reserved and empty   requests at once   steps")
for name, steps in (("reserved for the longest", before), ("in blocks of 16", after)):
    at_once = sum(running for running, _, _ in steps) / len(steps)
    print(f"{name:<26}{wasted(steps):18.1%}{at_once:19.1f}{len(steps):8,}")
assert wasted(after) < 0.04 < 0.4 < wasted(before)
assert len(after) < len(before) / 1.5

# %% [markdown]
# The waste of blocks can be foretold: of a request's blocks only the last is not full, and of that half is empty on
# average, (block_size - 1) / 2 slots. Small blocks waste less, then. (What they cost, the chapter says.)

# %%
sizes = [1, 2, 4, 8, 16, 32, 64, 128, 256]
measured, foretold = [], []
for size in sizes:
    steps = serve(Scheduler(MEMORY // size, size, prefix_caching=False))
    measured.append(wasted(steps))
    running, held = sum(running for running, _, _ in steps), sum(held for _, _, held in steps)
    empty = running * (size - 1) / 2
    foretold.append(empty / (empty + held))
    assert abs(measured[-1] - foretold[-1]) < 0.25 * foretold[-1] + 1e-9
    print(f"blocks of {size:3}: {measured[-1]:5.1%} reserved and empty, foretold {foretold[-1]:5.1%}")
figure, axes = plt.subplots()
axes.plot(sizes, [100 * share for share in foretold], "--", color="C1", label="half a block per request")
axes.plot(sizes, [100 * share for share in measured], "o", color="C0", label="counted")
axes.axhline(100 * wasted(before), color="C2", label="reserved for the longest")
axes.set_xscale("log", base=2)
axes.set_xticks(sizes, [str(size) for size in sizes])
axes.set(xlabel="tokens per block", ylabel="reserved and empty, %", title="What is wasted", ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# ## Blocks, by hand
#
# A pool is a list of numbers: who uses which block. Allocate three, share one, give all back.

# %%
pool = BlockPool(6)
mine = [pool.allocate() for _ in range(3)]
pool.share(mine[0])  # somebody else reads it, too
print("mine:", mine, " users:", [pool.users(block) for block in range(6)], " free:", pool.num_free)
for block in mine:
    pool.free(block)
print("given back; block 0 has still", pool.users(0), "user")
pool.free(0)
assert pool.num_free == pool.num_blocks
try:
    pool.free(0)
except InputError as error:
    print("once more:", error)

# %% [markdown]
# ## The model, out of blocks that lie anywhere
#
# A block table says where a request's tokens are. This one is scattered on purpose. Token 21 is in its second block
# (21 // 16 = 1), at place 5 (21 % 16):

# %%
cache = PagedKVCache(config, 12, 16, device=device)
table = [7, 2, 9, 4]
print("tokens 14 to 22 are in slots", slots_of(table, 14, 9, 16))
assert slots_of(table, 21, 1, 16) == [2 * 16 + 5]


def forward(*spans_and_ids):
    """One pass over the new tokens of several requests: (span, ids) each. Logits of each one's last token, [n, V]."""
    spans = [span for span, _ in spans_and_ids]
    row = [token_id for _, ids in spans_and_ids for token_id in ids]
    last = torch.tensor([span.num_tokens for span in spans]).cumsum(0) - 1
    with torch.inference_mode():
        hidden = model(torch.tensor([row], device=device), PagedBatch(cache, spans))  # [1, N, E]
        return model.logits(hidden[0, last.to(device)])  # [n, V]


def dense(ids, count):
    """Greedy tokens of one request on a dense cache, and the logits of the first."""
    own = KVCache(config, len(ids) + count, device=device)
    first = logits = prefill(model, ids, own)
    tokens = [int(logits.argmax())]
    while len(tokens) < count:
        logits = prefill(model, tokens[-1:], own)
        tokens.append(int(logits.argmax()))
    return tokens, first


def paged(ids, block_table, count):
    """The same out of blocks."""
    first = logits = forward((Span(block_table, 0, len(ids)), ids))
    tokens = [int(logits.argmax())]
    while len(tokens) < count:
        place = len(ids) + len(tokens) - 1
        logits = forward((Span(block_table, place, 1), tokens[-1:]))
        tokens.append(int(logits.argmax()))
    return tokens, first


ids = tokenizer.encode("The lighthouse keeper wrote down every ship that passed. In the winter of that year, the first")
expected, dense_logits = dense(ids, 16)
tokens, paged_logits = paged(ids, table, 16)
assert tokens == expected
torch.testing.assert_close(paged_logits, dense_logits, atol=1e-3, rtol=0)
print(f"{len(ids)} tokens in blocks {table}:", tokenizer.decode(tokens))

# %% [markdown]
# What attention gets is the same as ever: keys side by side, in the order of the tokens, gathered out of the blocks.

# %%
keys = gather_blocks(cache.keys[0], torch.tensor([table], device=device), len(ids))  # [1, Hkv, T, D]
own = KVCache(config, len(ids), device=device)
prefill(model, ids, own)
torch.testing.assert_close(keys, own.keys[0, :, :, : len(ids)], atol=1e-4, rtol=0)
print("keys of layer 0:", list(keys.shape), "as in the dense cache")

# %% [markdown]
# Several requests in one pass are no more work to write down: a span for each. Both get what they get alone.

# %%
other = tokenizer.encode("Bread is baked")
other_table = [0, 11]
logits = forward((Span(table, 0, len(ids)), ids), (Span(other_table, 0, len(other)), other))
assert logits.argmax(dim=1).tolist() == [expected[0], dense(other, 1)[0][0]]
print("next tokens:", [tokenizer.decode([token]) for token in logits.argmax(dim=1).tolist()])

# %% [markdown]
# ## Sharing, and writing into what is shared
#
# Two continuations of one prompt need the prompt's keys and values once. Its last block, though, is not full: both
# will write into it, at the same place. First wrongly, into the same block. (`fork` goes on with two given tokens, one
# for each, and then greedily.)

# %%
prompt_table = table[: blocks_for(len(ids), 16)]
forked_tokens = tokenizer.encode(" snow") + tokenizer.encode(" boats")
assert len(forked_tokens) == 2
assert len(ids) % 16, "the last block has room"


def fork(tables, count=12):
    """Two continuations of the prompt, step by step in one pass, each with its own table."""
    texts = [[token] for token in forked_tokens]
    for step in range(count):
        spans = [Span(each, len(ids) + step, 1) for each in tables]
        logits = forward(*[(span, text[-1:]) for span, text in zip(spans, texts, strict=True)])
        for text, token in zip(texts, logits.argmax(dim=1).tolist(), strict=True):
            text.append(token)
    return texts


solo = [[token, *dense([*ids, token], 12)[0]] for token in forked_tokens]
paged(ids, table, 1)  # the prompt's keys and values, once
shared = fork([[*prompt_table, 5], [*prompt_table, 6]])
for name, texts in (("alone", solo), ("one last block for both", shared)):
    print(name, *(f"   {tokenizer.decode(text)!r}" for text in texts), sep="\n")
assert shared != solo, "the second has written over the first"

# %% [markdown]
# Then with a copy of the one block that is written into. The others stay shared.

# %%
paged(ids, table, 1)
cache.copy_block(prompt_table[-1], 8)
copied = fork([[*prompt_table, 5], [*prompt_table[:-1], 8, 6]])
assert copied == solo
print(f"blocks {prompt_table[:-1]} shared, {prompt_table[-1]} copied to 8: both as if alone")

# %% [markdown]
# ## A prefix, found again
#
# A block is named by a hash of its tokens and of the hash before it. The same 16 tokens behind another beginning have
# another hash, and they must: their keys and values are others.

# %%
words = tokenizer.encode("Answer in one short sentence, and say so if you do not know the answer. " * 3)
first, second = words[:16], words[16:32]
print("second block behind the first:", block_hash(block_hash(b"", first), second).hex())
print("second block behind itself:   ", block_hash(block_hash(b"", second), second).hex())
prefixes = PrefixCache(block_size=16)
prefixes.insert(words, block_table=[3, 8, 1])
for name, asked in (
    ("the same", words),
    ("another fourth word", [*words[:3], 0, *words[4:]]),
    ("another 20th", [*words[:19], 0]),
    ("the first 31", words[:31]),
):
    print(f"{name:<20} -> blocks {prefixes.find(asked)}")
assert prefixes.find(words) == [3, 8, 1][: len(words) // 16]

# %% [markdown]
# A hash of 16 bytes does not collide by accident. To see what would happen if it did, take a bad one: the sum of the
# tokens, modulo 256. Somebody who knows the hash can look for a prompt that has the same:


# %%
def bad_hash(parent, token_ids):
    """Do not ship this."""
    return bytes([(sum(parent) + sum(token_ids)) % 256])


secret = tokenizer.encode("My account number is 4432 and the code for the door is 91, please")[:16]
attack = [*secret[:-2], secret[-2] + 5, secret[-1] - 5]
assert bad_hash(b"", attack) == bad_hash(b"", secret)
weak = PrefixCache(16, hash_block=bad_hash)
weak.insert(secret, [3])
believing = weak._by_hash[bad_hash(b"", attack)].block  # what a cache finds that believes its hash
print("hashes are equal; a cache that believes them answers out of block", believing)
print("this one compares the tokens, and finds", weak.find(attack))
assert weak.find(attack) == []
assert weak.find(secret) == [3]

# %% [markdown]
# ## What is forgotten first
#
# Blocks of requests that have ended stay as they are until somebody needs room. Then the longest unused goes first, and
# of one request the end before the beginning. Twelve blocks; a request of 8 blocks ends, and small ones come after it.

# %%
scheduler = Scheduler(num_blocks=12, block_size=16, max_batch_size=2, token_budget=512)


def run_alone(ids):
    """One request through the scheduler: read its prompt, one token of answer, end."""
    request = Request("one", tuple(ids), SamplingParams(max_tokens=1), len(ids) + 1)
    scheduler.add(request)
    scheduler.computed(scheduler.schedule())
    scheduler.finish(request)
    return request


document = list(range(1000, 1128))  # 8 blocks
run_alone(document)
left = [len(scheduler.prefix_cache.find(document))]
for number in range(6):
    run_alone(range(5000 + 100 * number, 5032 + 100 * number))  # 2 blocks each
    left.append(len(scheduler.prefix_cache.find(document)))
print("blocks of the document that can be found, after each small request:", left)
assert left == sorted(left, reverse=True)
assert left[0] == 8
assert left[-1] == 0

# %% [markdown]
# The first two cost nothing, for there were four blocks that had never been used. Asking for the document in between
# would have made it the newest.
#
# And a prompt that is there entirely? Its last token is computed again, because its row is where the answer comes from,
# and that writes into a block that others may read or find: copy on write, by the scheduler this time.

# %%
run_alone(document)
again = Request("again", tuple(document), SamplingParams(max_tokens=1), len(document) + 1)
scheduler.add(again)
plan = scheduler.schedule()
print(f"{len(document)} tokens, {again.num_cached} of them found, {plan.num_tokens} to compute;", end=" ")
print(f"copied (from, to): {plan.copies}")
assert plan.num_tokens == 1
assert len(plan.copies) == 1
scheduler.finish(again)

# %% [markdown]
# ## What a prefix is worth
#
# 32 requests that begin with the same 600 tokens, each with 20 of its own. Count, without a model, how many prompt
# tokens are computed with prefix caching and without:


# %%
def prompt_tokens_computed(prefix_caching):
    """All that the scheduler has computed of 32 prompts."""
    many = Scheduler(400, 16, max_batch_size=8, token_budget=512, prefix_caching=prefix_caching)
    for number in range(32):
        ids = (*range(600), *range(1000 * number, 1000 * number + 20))
        many.add(Request(str(number), ids, SamplingParams(max_tokens=1), len(ids) + 1))
    total = 0
    while many.has_work:
        plan = many.schedule()
        many.computed(plan)
        total += plan.num_tokens
        for part in plan.scheduled:
            if part.samples:
                many.finish(part.request)
    return total


without, with_cache = prompt_tokens_computed(False), prompt_tokens_computed(True)
print(f"{without:,} tokens without, {with_cache:,} with: {1 - with_cache / without:.1%} less")
assert without == 32 * 620
assert with_cache == 620 + 31 * (620 - 37 * 16)  # 37 full blocks are 592 tokens
assert with_cache < 0.1 * without

# %% [markdown]
# And with the model: how long until the first token (TTFT) of a prompt of 400 tokens, of which a part has been computed
# for somebody else. The prediction is a straight line: what is not found must be computed, and a pass over a single
# token is the least that there is.

# %% tags=["measured"]
PROMPT = 400  # tokens: 25 blocks
story = tokenizer.encode("The keeper counted the ships that passed in the night and wrote them down. " * 60)
engine = Engine(model, num_blocks=256, block_size=16, token_budget=1024)


def first_token_s(ids):
    """Seconds from `add` to the first token, and how many prompt tokens were found."""
    started = clock(device)
    request = engine.add(ids, SamplingParams(max_tokens=1))
    while engine.has_work:
        engine.step()
    return clock(device) - started, request.num_cached


first_token_s(story[:64])  # the first pass of a process is slower than all others
found, seconds = [], []
for number, share in enumerate((0, 0.25, 0.5, 0.75, 1)):
    known = round(PROMPT * share)
    beginning = [100 + number, *story[: PROMPT - 1]]  # a first token of its own: a new prefix
    if known:
        first_token_s(beginning[:known])
    own_end = [token + 1 for token in beginning[known:]]
    elapsed, cached = first_token_s([*beginning[:known], *own_end])
    assert cached == min(known // 16 * 16, PROMPT - 1)  # whole blocks, and never the last token
    found.append(cached)
    seconds.append(elapsed)
cold, warm = seconds[0], seconds[-1]
assert found[0] == 0
assert found == sorted(found)
line = [warm + (cold - warm) * (1 - cached / found[-1]) for cached in found]
for cached, elapsed in zip(found, seconds, strict=True):
    print(f"{cached:4} of {PROMPT} tokens found: first token after {elapsed:6.3f} s")
print(f"{cold / warm:.0f} times sooner with all of it; one token was computed instead of {PROMPT}")

# %% tags=["measured"]
figure, axes = plt.subplots()
axes.plot(found, line, "--", color="C1", label="predicted from the two ends")
axes.plot(found, seconds, "o", color="C0", label="measured")
axes.set(xlabel="prompt tokens found", ylabel="TTFT, s", ylim=(0, None), title="A prefix that is known")
axes.legend()
plt.show()

# %% [markdown]
# Read the picture once more as somebody who shares the engine with others: the time to the first token *tells* whether
# these words have been sent before, by anybody. Where users must not learn that of each other, they must not share.
#
# Last, the tokens. Four requests with a common beginning, two of them the same, in a pool of seven blocks, which is too
# small for all of them; against each of them alone on a dense cache. (Whoever had to give way finds its own blocks
# again, as far as nobody has taken them meanwhile.)

# %%
questions = ["What is a lighthouse?", "Who keeps it?", "Why is the sea salt?", "What is a lighthouse?"]
system = "You answer in one short sentence. You are polite, and you do not guess. " * 2
prompts = [tokenizer.encode(system + question) for question in questions]
engine = Engine(model, num_blocks=7, block_size=16, max_batch_size=4, token_budget=64)
requests = [engine.add(ids, SamplingParams(max_tokens=20, ignore_eos=True)) for ids in prompts]
while engine.has_work:
    engine.step()
alone = {tuple(ids): dense(ids, 20)[0] for ids in prompts}
for request, ids in zip(requests, prompts, strict=True):
    assert list(request.generated_ids) == alone[tuple(ids)]
    print(f"{len(ids)} tokens, {request.num_cached} found, {request.num_preemptions} times preempted: as if alone")
assert any(request.num_preemptions for request in requests)
assert engine.scheduler.pool.num_used == 0

# %% [markdown]
# ## Exercises
#
# One cell for each exercise of chapter 13: replace `todo(...)` by your code, run the cell, and read its verdict. A
# wrong answer is told what was given, what was wanted, and what the likely misunderstanding is. You can begin right
# here: run the next cell, and those of the exercises, and nothing above.
#
# `hint("13.2")` gives a hint, a little more each time. What passes belongs into `minillm/exercises/ch13.py`: from
# there `!minillm grade 13` grades it, in a cell like any other, and the last cell runs a batch of requests on it.
#
# From here on these names stand for your functions. To run cells above again, run the very first one before them: it
# brings the engine's own back.

# %%
import hashlib
from array import array
from collections.abc import Sequence

from jaxtyping import Int, Num
from torch import Tensor

from minillm.engine.prefix_cache import NO_PARENT, is_same_prefix
from minillm.engine.request import Request
from minillm.errors import InputError
from minillm.exercises import check, hint, todo


# %%
def allocate(self) -> int:
    """`BlockPool.allocate`: a block for one user. Return its number.

    self is the pool, and this function its method:

        self.num_blocks         all blocks, numbered from 0
        self._free              an OrderedDict whose keys are the blocks that nobody uses. The first key has been unused
                                the longest, and is the next to be handed out
        self._users             a list: how many use each block
        self._on_reuse(block)   tells the prefix cache that what is in this block is lost from now on

    A block that is handed out is not free any more, has one user, and the prefix cache has been told. Where no block is
    free, raise InputError with a sentence, and change nothing.

    About 6 lines.
    """
    todo("13.1")


check("13.1", allocate)  # and hint("13.1"), when you are stuck


# %%
def free(self, block: int, *, keep: bool = False) -> None:
    """`BlockPool.free`: one user of a block less.

    self is the pool, with the fields of 13.1. A block that others still use stays in use. One that nobody uses any more
    is free:

    - with `keep`, somebody may want its contents again, so it is handed out last of all that are free now;
    - without, nobody can find its contents, so it is the very next to be handed out.

    (`self._free.move_to_end(block)` moves a key behind all others, and with `last=False` before all others.)

    What the block holds stays as it is, and nobody is told: that is for when it is handed out. A block that has no user
    has been freed already. Raise InputError with a sentence then, and change nothing.

    About 8 lines.
    """
    todo("13.2")


check("13.2", free)  # and hint("13.2"), when you are stuck


# %%
def slots_of(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    """In which slots do these tokens of a request lie?

    block_table: the blocks of the request, in the order of its tokens: tokens 0 to block_size - 1 are in block
    block_table[0], the next block_size in block_table[1]. It may be longer than needed.

    The tokens are `num_tokens` of them, from position `start` on. Return the number of each one's slot, counted through
    the slots of all blocks: a list of int.

    About 2 lines.
    """
    todo("13.3")


check("13.3", slots_of)  # and hint("13.3"), when you are stuck


# %%
def gather_blocks(
    part: Num[Tensor, "blocks block_size num_kv_heads head_dim"],
    tables: Int[Tensor, "requests most_blocks"],
    num_tokens: int,
) -> Num[Tensor, "requests num_kv_heads num_tokens head_dim"]:
    """The keys of several requests out of their blocks, each one's side by side, as attention wants them.

    part: the keys (or values) of one layer, [num_blocks, block_size, Hkv, D], of any dtype: in a cache of 8 bits they
    are codes.
    tables: [R, most_blocks], one row of block numbers per request, in the order of its tokens. All rows are equally
    long: that of a shorter request is filled up with its own last block.
    num_tokens: how many tokens the longest request has. Cut all to that length: what lies behind a request's own
    last token is masked later, and is not your concern.

    Return [R, Hkv, num_tokens, D], of the same dtype. Change nothing in `part`: it is the cache of everybody.

    About 2 lines.
    """
    todo("13.4")


check("13.4", gather_blocks)  # and hint("13.4"), when you are stuck


# %%
def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """A name for a full block of tokens, by which it is found again. It stands for all tokens up to the block's end.

    parent: the hash of the block before it, as this function returned it, which thereby stands for all tokens before;
    b"" for the first block.
    token_ids: the block's own tokens, a list or a tuple (the same ids are the same block). Ids go up to 300,000.

    Return 16 to 64 bytes, always as many: the digest of a cryptographic hash. Whatever is different, in the tokens, in
    their order or in what is before them, must give another one, and the same must give the same again, in every
    process.

    (`hashlib.blake2b(data, digest_size=16).digest()` makes 16 bytes of any bytes. `array("q", ids).tobytes()` is 8
    bytes for each id.)

    About 1 line.
    """
    todo("13.5")


check("13.5", block_hash)  # and hint("13.5"), when you are stuck


# %%
def find(self, token_ids: Sequence[int]) -> list[int]:
    """`PrefixCache.find`: the blocks that hold the longest known prefix of these tokens, in order; [] if there is none.

    self is the prefix cache, and this function its method:

        self.block_size                          tokens in a block; only full blocks are known
        self._hash_block(parent_hash, tokens)    the hash of a block; NO_PARENT is the parent_hash of the first
        self._by_hash                            a dict: hash -> what is known under it

    What is known under a hash is a CachedBlock: `block` (its number), `hash`, `token_ids` (a tuple, the block's own
    tokens), and `parent` (the CachedBlock before it, None for the first).

    Take one full block of `token_ids` after the other, and end at the first that is not known. The hash alone is no
    proof. An entry counts only where its own tokens are these, and where all before it are too:
    `is_same_prefix(entry.parent, the entry found before it, or None)` compares those, all the way to the start.

    About 12 lines.
    """
    todo("13.6")


check("13.6", find)  # and hint("13.6"), when you are stuck


# %%
def tokens_held(requests: Sequence[Request], block_size: int) -> int:
    """How many slots hold the keys and values of a token? What is reserved beyond that is waste.

    Of a request you need two things:

        request.block_table      its blocks, in the order of its tokens
        request.num_computed     how many of its tokens have been computed: the first ones, and only they are in the
                                 cache. There may be more tokens, and more blocks, than that

    Several requests may share full blocks at their beginning. What is in a shared block is held once.

    The engine says this in its log for every step, beside the number of blocks in use.

    About 8 lines.
    """
    todo("13.7")


check("13.7", tokens_held)  # and hint("13.7"), when you are stuck

# %% [markdown]
# Many requests on your own code: whatever of yours is finished in `minillm/exercises/` takes the place of the engine's.
# What is listed is how often each of your functions was called.

# %%
from minillm import LLM, SamplingParams
from minillm.exercises.mine import running_on_mine

llm = LLM("smollm2-135m", device="cpu")
beginning = "You answer in one short sentence. You are polite, and you do not guess. You write plain English."
with running_on_mine("finished", print):
    answers = llm.generate([beginning + " Who are you?", beginning + " Why?"], SamplingParams(max_tokens=4))
