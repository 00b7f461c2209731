"""Exercises of chapter 1, *The journey of a request*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 1           grades this file and shows where you are
    pytest --hint 1.1       the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere.
"""

from collections.abc import Sequence

from minillm.exercises import todo


# --- 1.1 -------------------------------------------------------------------------------------------------------------
def time_per_output_token(token_times_s: Sequence[float]) -> float | None:
    """TPOT, the time per output token, in seconds.

    token_times_s: when each generated token was there, in seconds, in order, on a clock that began when the request
    came in: [0.9, 1.1, 1.4] is a first token after 0.9 s (the TTFT), a second at 1.1 s, a third at 1.4 s.

    Return the mean time from one token to the next: 0.25 s for these three. The wait for the first token is not a
    part of it, for it is prefill's doing and grows with the prompt. Where there was no second token there is
    nothing to take a mean of: return None.

    About 3 lines.
    """
    todo("1.1")


# --- 1.2 -------------------------------------------------------------------------------------------------------------
def request_seconds(ttft_s: float, tpot_s: float, completion_tokens: int) -> float:
    """How long a request takes from end to end, in seconds: predict it before you run it.

    ttft_s: the time to its first token. tpot_s: the time per output token, as 1.1 defines it.
    completion_tokens: how many tokens it generates, at least 1.

    A request with a TTFT of 0.5 s and a TPOT of 0.1 s that generates 3 tokens is done after 0.7 s.

    About 1 line.
    """
    todo("1.2")


# --- 1.3 -------------------------------------------------------------------------------------------------------------
def tokens_held(prompt_tokens: int, completion_tokens: int) -> int:
    """Of how many tokens does the cache hold keys and values when a request has ended?

    prompt_tokens: at least 1. completion_tokens: how many were generated; 0 for a request that was stopped right
    after its prefill.

    A token's keys and values come into being when the token goes *through* the model, not when it is chosen. Follow
    a trace with 5 prompt tokens and 3 generated ones, pass by pass, and count what each pass computes: the sum is 7.

    About 1 line.
    """
    todo("1.3")


# --- 1.4 -------------------------------------------------------------------------------------------------------------
def decode_ceiling(bandwidth_bytes_per_s: float, weight_bytes: float, kv_bytes: float = 0.0) -> float:
    """The most tokens per second at which one request can decode, however good the program.

    bandwidth_bytes_per_s: what memory delivers. weight_bytes: all weights of the model. kv_bytes: the keys and
    values of all tokens so far. Both are read once, in full, for each token; arithmetic is free, as it nearly is
    for a single request.

    30 GB/s, 538 MB of weights and 2 MB of keys and values allow 55.6 tokens per second.

    About 1 line.
    """
    todo("1.4")
