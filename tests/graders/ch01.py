"""Graders of chapter 1: the arithmetic of a request."""

from itertools import pairwise
from statistics import fmean, median

from graders.common import formula
from minillm.exercises.grading import Grader, Mutant

# --- 1.1: uneven gaps, so that mean and median differ; a late start, so that the TTFT weighs -------------------------


def _taking_out(t: list[float]) -> float | None:
    if len(t) < 2:
        return None
    first = t.pop(0)
    return (t[-1] - first) / len(t)


_TPOT = Grader(
    cases=[
        formula("token_times_s = [0.9, 1.1, 1.4]", [[0.9, 1.1, 1.4]], 0.25),
        formula("token_times_s = (2.0, 2.5), two tokens, one gap", [(2.0, 2.5)], 0.5),
        formula("token_times_s = [7.0, 7.25, 7.5, 8.75, 9.0]", [[7.0, 7.25, 7.5, 8.75, 9.0]], 0.5),
        formula(
            "token_times_s = [0.41273, 0.53861, 0.60934, 0.72315]",
            [[0.41273, 0.53861, 0.60934, 0.72315]],
            0.31042 / 3,
        ),
        formula("token_times_s = [0.8], a single token", [[0.8]], None),
        formula("token_times_s = [], no token at all", [[]], None),
    ],
    mutants=[
        Mutant(
            lambda t: (t[-1] - t[0]) / len(t) if len(t) > 1 else None,
            "You divide by the number of tokens. n tokens have n - 1 gaps: the fence has one post more than stretches.",
        ),
        Mutant(
            lambda t: t[-1] / len(t) if len(t) > 1 else None,
            "You divide the whole time by the number of tokens, and so spread the wait for the first one over all."
            " That wait is the TTFT; it belongs to prefill, and a long prompt would make decode look slow.",
        ),
        Mutant(
            lambda t: t[-1] / (len(t) - 1) if len(t) > 1 else None,
            "You count from the request's start. The gaps reach from the first token to the last: subtract the first"
            " token's time.",
        ),
        Mutant(
            lambda t: (len(t) - 1) / (t[-1] - t[0]) if len(t) > 1 else None,
            "That is tokens per second. TPOT is its inverse: seconds per token.",
        ),
        Mutant(
            lambda t: median(b - a for a, b in pairwise(t)) if len(t) > 1 else None,
            "That is the median gap. TPOT is the mean, so that TPOT times the gaps gives the whole time back.",
        ),
        Mutant(
            lambda t: (t[-1] - t[0]) / (len(t) - 1) if len(t) > 1 else 0.0,
            "Where there is no second token you return 0, which says that tokens came infinitely fast. There is no"
            " such time: return None.",
        ),
        Mutant(
            lambda t: (t[-1] - t[0]) / (len(t) - 1),
            "The mean is right, but a single token has no gap, and you divide by zero (and no token has no first):"
            " return None for fewer than two.",
        ),
        Mutant(
            lambda t: round((t[-1] - t[0]) / (len(t) - 1), 2) if len(t) > 1 else None,
            "You round. Rounding is for the moment a number is printed: TPOT is multiplied by hundreds of tokens"
            " before that, and so is what rounding took away.",
        ),
        Mutant(
            _taking_out,
            "You change the list that you were given. It is the caller's, who still needs it whole: read t[0] and"
            " t[-1] where they are, or work on a copy.",
        ),
    ],
    alternatives=[
        lambda t: fmean(b - a for a, b in pairwise(t)) if len(t) >= 2 else None,
        lambda t: sum(t[i] - t[i - 1] for i in range(1, len(t))) / (len(t) - 1) if t[1:] else None,
    ],
)

# --- 1.2 -------------------------------------------------------------------------------------------------------------

_REQUEST_SECONDS = Grader(
    cases=[
        formula("ttft_s = 0.5, tpot_s = 0.1, completion_tokens = 3", [0.5, 0.1, 3], 0.7),
        formula("ttft_s = 0.4, tpot_s = 0.03, completion_tokens = 1", [0.4, 0.03, 1], 0.4),
        formula("ttft_s = 2.0, tpot_s = 0.05, completion_tokens = 201", [2.0, 0.05, 201], 12.0),
        formula("ttft_s = 0.41273, tpot_s = 0.031847, completion_tokens = 38", [0.41273, 0.031847, 38], 1.591069),
    ],
    mutants=[
        Mutant(
            lambda ttft, tpot, n: ttft + n * tpot,
            "One TPOT too many: the first token's time is the TTFT, so only the n - 1 after it cost a TPOT each.",
        ),
        Mutant(
            lambda ttft, tpot, n: n * tpot,
            "The wait for the first token is missing. With a long prompt it is most of what the user feels.",
        ),
        Mutant(
            lambda ttft, tpot, n: (n - 1) * tpot,
            "That is the time from the first token to the last. The user waits for the first one too: add the TTFT.",
        ),
        Mutant(
            lambda ttft, tpot, n: n * (ttft + tpot),
            "You pay the TTFT for each token. Prefill happens once; after it, each token costs one TPOT.",
        ),
        Mutant(
            lambda ttft, tpot, n: round(ttft + (n - 1) * tpot, 2),
            "You round. Give back the seconds as they come out, and leave rounding to whoever prints them.",
        ),
    ],
    alternatives=[lambda ttft, tpot, n: ttft - tpot + n * tpot, lambda ttft, tpot, n: sum([ttft] + [tpot] * (n - 1))],
)

# --- 1.3 -------------------------------------------------------------------------------------------------------------

_TOKENS_HELD = Grader(
    cases=[
        formula("prompt_tokens = 5, completion_tokens = 3", [5, 3], 7),
        formula("prompt_tokens = 40, completion_tokens = 1: the first token ends the request", [40, 1], 40),
        formula("prompt_tokens = 6, completion_tokens = 0: stopped right after prefill", [6, 0], 6),
        formula("prompt_tokens = 1, completion_tokens = 256", [1, 256], 256),
    ],
    mutants=[
        Mutant(
            lambda prompt, completion: prompt + completion,
            "You count the last token. It is chosen and handed out, but it never goes through the model, for nobody"
            " asks what would follow it: it leaves no keys and values.",
        ),
        Mutant(
            lambda prompt, completion: prompt + completion - 1,
            "Right while something is generated. A request that was stopped after prefill has no last token to leave"
            " out: its whole prompt is in the cache.",
        ),
        Mutant(
            lambda prompt, completion: prompt + completion - 2 if completion > 1 else prompt,
            "You leave out the first generated token too. It goes through the model in the first decode pass, so it"
            " leaves its keys and values.",
        ),
        Mutant(
            lambda prompt, completion: prompt,
            "You count the prompt alone. Each decode pass adds the token that it takes in.",
        ),
        Mutant(
            lambda prompt, completion: completion,
            "You leave out the prompt. Prefill computes all of it, and the cache exists to keep that.",
        ),
    ],
    alternatives=[
        lambda prompt, completion: prompt + completion - (completion > 0),
        lambda prompt, completion: max(prompt, prompt + completion - 1),
    ],
)

# --- 1.4 -------------------------------------------------------------------------------------------------------------

_DECODE_CEILING = Grader(
    cases=[
        formula("30e9 bytes/s, 538e6 bytes of weights, 2e6 of keys and values", [30e9, 538e6, 2e6], 30e9 / 540e6),
        formula("bandwidth_bytes_per_s = 30e9, weight_bytes = 269e6, kv_bytes left out", [30e9, 269e6], 30e9 / 269e6),
        formula("3.35e12 bytes/s, 26e9 of weights, 13e9 of keys and values", [3.35e12, 26e9, 13e9], 3.35e12 / 39e9),
    ],
    mutants=[
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth / weights,
            "The keys and values are missing. Attention reads all of them for each token, and with a long context or"
            " many users they outweigh the model.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: (weights + kv) / bandwidth,
            "That is the seconds per token. The ceiling is its inverse, tokens per second.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth / (2 * weights + kv),
            "You count the weights twice. The 2 belongs to arithmetic (a multiplication and an addition per weight);"
            " a byte of weights is read once per token.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth / weights + (bandwidth / kv if kv else 0),
            "You add two rates. Both reads happen for the same token, one after the other: add the bytes, then divide.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth / weights + kv,
            "The brackets are missing: you divide by the weights alone, and then add bytes to tokens per second.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth / (8 * (weights + kv)),
            "You turn bytes into bits on one side only. All three are in bytes already.",
        ),
        Mutant(
            lambda bandwidth, weights, kv=0.0: bandwidth // (weights + kv),
            "You round down to a whole number. A ceiling of 55.6 tokens per second is just that: divide with /.",
        ),
    ],
    alternatives=[
        lambda bandwidth, weights, kv=0.0: 1 / (weights / bandwidth + kv / bandwidth),
        lambda bandwidth, weights, kv=0.0: bandwidth / sum((weights, kv)),
    ],
)

GRADERS = {"1.1": _TPOT, "1.2": _REQUEST_SECONDS, "1.3": _TOKENS_HELD, "1.4": _DECODE_CEILING}
