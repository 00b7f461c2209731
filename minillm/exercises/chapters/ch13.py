"""The exercises of chapter 13, *PagedAttention and prefix caching*."""

from minillm.exercises.exercise import Exercise

_WITH_MANY = "when many requests share the engine"

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "13.1",
        "Hand out a block",
        "minillm.engine.block_pool:BlockPool.allocate",
        (
            "Four things change when a block changes hands, or else none. List them before you write.",
            "`self._free.popitem(last=False)` takes the first key out, and returns it with its value: a pair. Look"
            " whether there is one before that.",
            "if not self._free: raise InputError(...). block, _ = self._free.popitem(last=False); self._users[block] ="
            " 1; self._on_reuse(block); return block.",
        ),
        called=_WITH_MANY,
        section="blocks-that-belong-to-nobody-for-long",
    ),
    Exercise(
        "13.2",
        "Give a block back",
        "minillm.engine.block_pool:BlockPool.free",
        (
            "There are three cases: nobody uses it (an error), others use it too, and you were the last.",
            "Check first. Then count down; if there is a user left, that was all.",
            "if self._users[block] < 1: raise InputError(...). self._users[block] -= 1; if self._users[block]: return."
            " self._free[block] = None puts it behind all others; unless keep, move_to_end(block, last=False).",
        ),
        called=_WITH_MANY,
        section="what-is-forgotten-first",
    ),
    Exercise(
        "13.3",
        "From positions to slots",
        "minillm.engine.paged_kv_cache:slots_of",
        (
            "Take block_size 4 and token 6. The how-manieth block of its request is it in, and where in that block?",
            "Token i is in the request's block number i // block_size, at place i % block_size. The table says which"
            " block that is among all.",
            "[block_table[i // block_size] * block_size + i % block_size for i in range(start, start + num_tokens)]",
        ),
        called=_WITH_MANY,
        section="blocks-that-belong-to-nobody-for-long",
    ),
    Exercise(
        "13.4",
        "Gather keys out of blocks",
        "minillm.engine.paged_kv_cache:gather_blocks",
        (
            "A tensor can be indexed with a tensor of numbers: what is the shape of part[tables]?",
            "part[tables] is [R, most_blocks, block_size, Hkv, D]. The second and third axis together are the tokens,"
            " in order.",
            "part[tables].flatten(1, 2)[:, :num_tokens].transpose(1, 2)",
        ),
        called=_WITH_MANY,
        section="attention-out-of-blocks",
    ),
    Exercise(
        "13.5",
        "A hash for all that came before",
        "minillm.engine.prefix_cache:block_hash",
        (
            "The parent's hash stands for everything before the block. What has to go into the block's own?",
            "Bytes of the parent, and then bytes of the tokens, from which the tokens could be read back: as many bytes"
            " for each id, enough for the largest. Then a digest of all that.",
            'hashlib.blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()',
        ),
        called="when many requests share the engine, for every full block",
        section="a-hash-for-all-that-came-before",
    ),
    Exercise(
        "13.6",
        "Find a prefix, and prove it",
        "minillm.engine.prefix_cache:PrefixCache.find",
        (
            "Keep one variable: the entry found last, None at first. It gives both the parent's hash and what the next"
            " entry's parent is compared with.",
            "tokens = tuple(token_ids[start : start + size]), for start = 0, size, 2 * size, ... as long as the block"
            " is full. entry = self._by_hash.get(hash); end where it is None or is not what it seems.",
            "entry is None or entry.token_ids != tokens or not is_same_prefix(entry.parent, last): break. Otherwise"
            " append entry.block, and last = entry. The hash of the next: self._hash_block(last.hash, tokens).",
        ),
        called=_WITH_MANY,
        section="equal-hashes-are-no-proof",
    ),
    Exercise(
        "13.7",
        "What is really held",
        "minillm.engine.log:tokens_held",
        (
            "Which blocks can be shared, and which cannot? Count the two kinds apart.",
            "divmod(request.num_computed, block_size) says how many blocks of a request are full, and how many tokens"
            " lie in the one behind them.",
            "Put the full ones, request.block_table[:whole], of all requests into one set. The result is its size times"
            " block_size, and the rest of each request.",
        ),
        called="when many requests share an engine that somebody observes, in every step",
        section="the-same-beginning",
    ),
)
