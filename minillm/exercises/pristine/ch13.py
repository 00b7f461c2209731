"""Exercises of chapter 13, *PagedAttention and prefix caching*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 13          grades this file and shows where you are
    pytest --ch 13.2        grades one exercise
    pytest --hint 13.2      the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

`generate` serves one request, from a dense cache, and calls none of these. The last cells of the chapter's notebook run
a batch of requests on what you have finished.

A slot is room for one token's keys and values; a block is `block_size` slots. Slots are counted through all blocks:
block b has slots b * block_size to b * block_size + block_size - 1.
"""

import hashlib  # noqa: F401 - here for you
from array import array  # noqa: F401 - here for you
from collections.abc import Sequence

from jaxtyping import Int, Num
from torch import Tensor

from minillm.engine.prefix_cache import NO_PARENT, is_same_prefix  # noqa: F401 - here for you
from minillm.engine.request import Request
from minillm.errors import InputError  # noqa: F401 - here for you
from minillm.exercises import todo


# --- 13.1 ------------------------------------------------------------------------------------------------------------
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


# --- 13.2 ------------------------------------------------------------------------------------------------------------
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


# --- 13.3 ------------------------------------------------------------------------------------------------------------
def slots_of(block_table: Sequence[int], start: int, num_tokens: int, block_size: int) -> list[int]:
    """In which slots do these tokens of a request lie?

    block_table: the blocks of the request, in the order of its tokens: tokens 0 to block_size - 1 are in block
    block_table[0], the next block_size in block_table[1]. It may be longer than needed.

    The tokens are `num_tokens` of them, from position `start` on. Return the number of each one's slot, counted through
    the slots of all blocks: a list of int.

    About 2 lines.
    """
    todo("13.3")


# --- 13.4 ------------------------------------------------------------------------------------------------------------
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


# --- 13.5 ------------------------------------------------------------------------------------------------------------
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


# --- 13.6 ------------------------------------------------------------------------------------------------------------
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


# --- 13.7 ------------------------------------------------------------------------------------------------------------
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
