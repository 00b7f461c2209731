"""The exercises of chapter 1, *The journey of a request*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "1.1",
        "Time per output token",
        "minillm.metrics:time_per_output_token",
        (
            "Draw the tokens as posts on a time line. TPOT is about the stretches of fence between them.",
            "Three tokens have two gaps. All gaps together reach from the first token to the last.",
            "(last time - first time) / (number of tokens - 1), and None where that would divide by zero.",
        ),
        called="for the metrics at the end",
        section="where-it-breaks",
    ),
    Exercise(
        "1.2",
        "How long a request takes",
        "minillm.metrics:request_seconds",
        (
            "Which tokens does the TTFT pay for already?",
            "One of them. Each of the others adds one TPOT.",
            "ttft_s + (completion_tokens - 1) * tpot_s",
        ),
        section="the-arithmetic",
    ),
    Exercise(
        "1.3",
        "What the cache holds at the end",
        "minillm.metrics:tokens_held",
        (
            "Prefill computes the whole prompt. After that, which token does each pass take in?",
            "A pass takes in the token that was chosen last, to find out what follows it. Does anybody ask what follows"
            " the very last one?",
            "The prompt and all generated tokens but the last. Mind the request that generated none: it has no last"
            " token to leave out.",
        ),
        called="for a trace",
        section="read-a-trace",
    ),
    Exercise(
        "1.4",
        "The bandwidth ceiling of decode",
        "minillm.metrics:decode_ceiling",
        (
            "Ask first how many bytes one token costs.",
            "Bytes per second divided by bytes per token is tokens per second.",
            "One token reads weight_bytes + kv_bytes.",
        ),
        called="for the metrics where the bandwidth is known",
        section="the-arithmetic",
    ),
)
