"""How long a queue may be, if those in it have been promised a first token."""

from math import floor


def longest_queue(ttft_s: float, prefill_s: float, answer_s: float, places: int) -> int:
    """How many requests may wait, if the last of them is to have its first token after `ttft_s` seconds at most?

    places: requests that run at a time. All are taken, and each keeps its place for `answer_s` seconds, evenly
    staggered: a place becomes free every `answer_s / places` seconds, and the first of the queue waits that long. A
    request that has got a place reads its prompt in `prefill_s`. 0 where not even the first would be in time.
    """
    return max(0, floor((ttft_s - prefill_s) * places / answer_s))
