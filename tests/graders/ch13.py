"""Graders of chapter 13: blocks handed out and given back, tokens in them, prefixes found again, slots counted."""

from graders.ch13_blocks import GATHER_BLOCKS, SLOTS_OF
from graders.ch13_hash import BLOCK_HASH
from graders.ch13_held import TOKENS_HELD
from graders.ch13_pool import ALLOCATE, FREE
from graders.ch13_prefix import FIND

GRADERS = {
    "13.1": ALLOCATE,
    "13.2": FREE,
    "13.3": SLOTS_OF,
    "13.4": GATHER_BLOCKS,
    "13.5": BLOCK_HASH,
    "13.6": FIND,
    "13.7": TOKENS_HELD,
}
