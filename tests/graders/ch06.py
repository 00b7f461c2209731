"""Graders of chapter 6: what ends a request, the loop, what it reads, and where its time goes."""

from graders.ch06_ends import ENDING_IDS, FINISH_REASON
from graders.ch06_loop import DECODE_LOOP
from graders.ch06_sums import DECODE_KV_BYTES, SELF_SECONDS

GRADERS = {
    "6.1": ENDING_IDS,
    "6.2": FINISH_REASON,
    "6.3": DECODE_LOOP,
    "6.4": DECODE_KV_BYTES,
    "6.5": SELF_SECONDS,
}
