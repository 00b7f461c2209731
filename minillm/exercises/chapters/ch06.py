"""The exercises of chapter 6, *The decode loop*."""

from minillm.exercises.exercise import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "6.1",
        "The ids that end a request",
        "minillm.decode:ending_ids",
        (
            "Two sources of ids, and a switch. Which of the two does the switch belong to?",
            "ignore_eos takes the model's own ids out of play. It says nothing about stop_token_ids, not even where"
            " the same id is in both.",
            "Start from config.eos_token_ids, or from nothing where params.ignore_eos; then unite with"
            " params.stop_token_ids: frozenset(...) | frozenset(...).",
        ),
        called="once per request, at its first token",
        section="when-does-it-stop",
    ),
    Exercise(
        "6.2",
        "Why a request ends",
        "minillm.decode:finish_reason",
        (
            "Three questions about one token. Which of them do you ask first?",
            "The token itself first: a model that has said its last word at the last allowed token has finished. Then"
            " the two limits, either of which is enough.",
            'if token_id in stop_ids: "stop". If count >= max_tokens or length >= max_seq_len: "length". Else None.'
            " Both counts include the token at hand, so the limit is reached when they are equal.",
        ),
        called="at each token",
        section="when-does-it-stop",
    ),
    Exercise(
        "6.3",
        "The decode loop",
        "minillm.decode:decode_loop",
        (
            "Write it first for a KVCache, with the five lines of the docstring inside `while True`, in that order.",
            "The order is everything: the yield stands between the choice and the pass. After it, `if reason: return`,"
            " so that the last token is never computed.",
            "Keep a list of the tokens behind what the cache held at the start: ids = list(prompt_ids[held:]) with held"
            " = cache.length, to which each choice is appended. The next pass computes ids[cache.length - held:], which"
            " is one token with a KVCache and everything with a NoCache; and the request's length is held + len(ids).",
        ),
        called="in every request",
        section="the-loop",
    ),
    Exercise(
        "6.4",
        "The keys and values of a whole answer",
        "minillm.metrics:decode_kv_bytes",
        (
            "Write down, for a prompt of 5 and an answer of 4, how many tokens each pass has in view. How many passes"
            " are there?",
            "Three passes, with 6, 7 and 8 in view. In general completion_tokens - 1 passes, the n-th with"
            " prompt_tokens + n.",
            "bytes_per_token * sum(prompt_tokens + n for n in range(1, completion_tokens)). In closed form, with p ="
            " completion_tokens - 1 passes: p * prompt_tokens + p * (p + 1) // 2, and mind the answer of no token.",
        ),
        called="for the metrics where the bandwidth is known",
        section="what-one-token-costs",
    ),
    Exercise(
        "6.5",
        "Own time: a profile that adds up",
        "minillm.machine.profile:self_seconds",
        (
            "From whom do you have to take away a span's duration? There may be four spans around it.",
            "From one only: the span that it stands in directly. The others have lost it already, because they lose"
            " the whole of that span.",
            "Keep a stack of indices. For each span: pop while the top one's end <= this one's start; its own time"
            " begins as end - start; take that from the own time of the top of the stack, if there is one; push it.",
        ),
        section="a-profile-read",
    ),
)
