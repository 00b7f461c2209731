"""Graders of chapter 5: bytes, the cache, and attention over it."""

from graders.ch05_attention import CAUSAL_ATTENTION, CAUSAL_MASK, SINGLE_QUERY_ATTENTION
from graders.ch05_bytes import BYTES_PER_TOKEN, TOKENS_THAT_FIT
from graders.ch05_cache import APPEND, TRUNCATE

GRADERS = {
    "5.1": BYTES_PER_TOKEN,
    "5.2": APPEND,
    "5.3": SINGLE_QUERY_ATTENTION,
    "5.4": CAUSAL_MASK,
    "5.5": CAUSAL_ATTENTION,
    "5.6": TRUNCATE,
    "5.7": TOKENS_THAT_FIT,
}
