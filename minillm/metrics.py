"""What a request took, and the few rules by which such numbers are made and predicted. All arithmetic, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Metrics:
    """What a request took, on a clock that stands still while whoever reads the stream keeps the engine waiting.

    What needs a first or a second token is None where there was none.
    """

    prompt_tokens: int
    cached_tokens: int  # of the prompt's tokens, those whose keys and values were there already
    completion_tokens: int
    ttft_s: float | None  # time to first token: from the request's start until its first token was chosen
    tpot_s: float | None  # time per output token: mean over the tokens after the first
    prefill_tokens_per_s: float
    decode_tokens_per_s: float | None
    kv_bytes: int  # keys and values held at the end
    total_s: float
    # What memory allows at most, for the bytes that this request's decode passes had to read; and the share of that
    # which was reached (model bandwidth utilization). None where the machine was not measured or nothing was decoded.
    bandwidth_ceiling_tokens_per_s: float | None = None
    mbu: float | None = None


def request_metrics(
    *, prompt_tokens: int, cached_tokens: int, token_times_s: Sequence[float], prefill_s: float, kv_bytes: int
) -> Metrics:
    """The metrics of one request, without a ceiling. `token_times_s` says when each token was there, in seconds since
    the request came in; `prefill_s` how long the prompt took that was not cached, 0 where it is not computed yet.
    """
    tpot_s = time_per_output_token(token_times_s)
    return Metrics(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        completion_tokens=len(token_times_s),
        ttft_s=token_times_s[0] if token_times_s else None,
        tpot_s=tpot_s,
        prefill_tokens_per_s=(prompt_tokens - cached_tokens) / prefill_s if prefill_s else 0.0,
        decode_tokens_per_s=1.0 / tpot_s if tpot_s else None,
        kv_bytes=kv_bytes,
        total_s=token_times_s[-1] if token_times_s else 0.0,
    )


def time_per_output_token(token_times_s: Sequence[float]) -> float | None:
    """TPOT in seconds: the mean gap between tokens. `token_times_s` says when each was there, in seconds.

    n tokens have n - 1 gaps. The wait for the first one is not among them: that is TTFT, which grows with the
    prompt. None where there was no second token.
    """
    if len(token_times_s) < 2:
        return None
    return (token_times_s[-1] - token_times_s[0]) / (len(token_times_s) - 1)


def request_seconds(ttft_s: float, tpot_s: float, completion_tokens: int) -> float:
    """How long a request of `completion_tokens` >= 1 tokens takes from end to end, in seconds."""
    return ttft_s + (completion_tokens - 1) * tpot_s


def tokens_held(prompt_tokens: int, completion_tokens: int) -> int:
    """Tokens whose keys and values a cache holds at the end of a request.

    One less than there are: the last token is chosen, handed out, and never computed, because nobody asks what
    would follow it.
    """
    return prompt_tokens + max(0, completion_tokens - 1)


def decode_kv_bytes(prompt_tokens: int, completion_tokens: int, bytes_per_token: int) -> int:
    """Bytes of keys and values that all decode passes of a request read together.

    The pass for the second token has the prompt and the first token in view, each further one a token more; the first
    token came out of prefill, and the last has no pass. So there is one pass less than there are tokens.
    """
    passes = max(0, completion_tokens - 1)
    return bytes_per_token * (passes * prompt_tokens + passes * (passes + 1) // 2)


def decode_ceiling(bandwidth_bytes_per_s: float, weight_bytes: float, kv_bytes: float = 0.0) -> float:
    """The most tokens per second that one request can decode at, whatever the program.

    Each token's pass reads all the weights and the keys and values of all tokens so far, once; memory delivers
    `bandwidth_bytes_per_s`. Arithmetic is left out: at batch 1 there is little of it.
    """
    return bandwidth_bytes_per_s / (weight_bytes + kv_bytes)
