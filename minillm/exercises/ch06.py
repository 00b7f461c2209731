"""Exercises of chapter 6, *The decode loop*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 6           grades this file and shows where you are
    pytest --ch 6.2         grades one exercise
    pytest --hint 6.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --mine      runs the engine on what you have finished

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.
"""

from collections.abc import Collection, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from minillm.config import ModelConfig
from minillm.decode import Step
from minillm.exercises import todo
from minillm.kv_cache import Cache
from minillm.machine.profile import Span
from minillm.model import Llama
from minillm.prefill import prefill  # noqa: F401 - here for you
from minillm.sampler import SamplerState, SamplingParams, sample_one  # noqa: F401 - here for you


# --- 6.1 -------------------------------------------------------------------------------------------------------------
def ending_ids(params: SamplingParams, config: ModelConfig) -> frozenset[int]:
    """Which token ids end a request?

    config.eos_token_ids: the model's end-of-sequence ids, a tuple; there may be several, or none.
    params.ignore_eos: True where the request is to go on past them.
    params.stop_token_ids: a tuple of further ids at which this request, by its own wish, is to end.

    Return them as a frozenset (any collection that can be asked `token_id in ...` will do). What was asked for by its
    id counts in any case, whatever else that id may be.

    About 2 lines.
    """
    todo("6.1")


# --- 6.2 -------------------------------------------------------------------------------------------------------------
def finish_reason(
    token_id: int, stop_ids: Collection[int], count: int, max_tokens: int, length: int, max_seq_len: int
) -> str | None:
    """Does the request end with the token just chosen, and why?

    token_id: that token. stop_ids: what 6.1 gives. count: how many tokens were generated, this one included.
    max_tokens: how many are wanted at most. length: how many tokens prompt and completion have together, this one
    included. max_seq_len: how many there may be.

    Return "stop" where the token itself ends the answer, "length" where the answer is cut off because one of the two
    limits is reached, and None where the request goes on. Where both are true, the answer is whole: say "stop".

    About 5 lines.
    """
    todo("6.2")


# --- 6.3 -------------------------------------------------------------------------------------------------------------
def decode_loop(
    model: Llama,
    logits: Float[Tensor, "1 vocab"],
    cache: Cache,
    params: SamplingParams,
    prompt_ids: Sequence[int],
) -> Iterator[Step]:
    """The decode loop, as a generator. What it is given has been checked.

    logits: [1, vocab], what follows the prompt, from prefill. cache: it holds the prompt, or, if it is a NoCache,
    nothing, ever. prompt_ids: the prompt; it may be empty where there is a cache, and is complete where there is none.

    Again and again:

        choice = sample_one(logits, params, state)      choice.token_id, choice.logprob, choice.top_logprobs
        state.observe(choice.token_id)                  penalties count what was generated
        does the request end here, and why?             your 6.2, with your 6.1 and cache.max_seq_len
        yield Step(token_id, logprob, reason, top_logprobs)
        logits = prefill(model, ids, cache)             the pass for the next token, [1, vocab]

    with one `state = SamplerState(params, prompt_ids)` for the whole request. `ids` are those that the cache does
    not hold yet: with a KVCache the token just chosen, and with a NoCache everything, prompt and completion. Both are
    what comes after the first `cache.length` tokens of the whole text. (Where prompt_ids is empty, the tokens that the
    cache held at the start stand before yours.) prefill counts `ids` into the cache. Leave prompt_ids as it is.

    Yield each step *before* its token is computed: whoever reads the stream then has it, and does not wait for the
    next. After a step with a reason, end: the last token is never computed. Never look further ahead than asked.

    A Step also has room for seconds, forward_s and sample_s; they are not graded, and 0 in a trace if you leave them.

    About 15 lines.
    """
    todo("6.3")


# --- 6.4 -------------------------------------------------------------------------------------------------------------
def decode_kv_bytes(prompt_tokens: int, completion_tokens: int, bytes_per_token: int) -> int:
    """How many bytes of keys and values do all decode passes of a request read together?

    prompt_tokens: at least 1. completion_tokens: all that were generated, the last one included; at least 0.
    bytes_per_token: what one token of cache weighs (exercise 5.1).

    The first token comes out of prefill and costs no decode pass. The pass for the second one computes the first: it
    has the prompt and that token in view, and reads the keys and values of all of these. Each pass after it has one
    token more in view. Return a whole number.

    About 2 lines: a loop, or the sum in closed form.
    """
    todo("6.4")


# --- 6.5 -------------------------------------------------------------------------------------------------------------
def self_seconds(spans: Sequence[Span]) -> list[float]:
    """A profile's own times: of each span the seconds in which it was running, and no span inside it was.

    Each has .start and .end, in seconds. They come in the order in which they began, an outer one before those inside
    it. Of two spans either one lies inside the other, or they do not overlap (one may begin where another ends).

        0    1    2    3    4    5    6    7
        [ layer                         ]            own: 6 - (2 + 3) = 1
        [ norm  ] [ mlp         ]                    own: 2 and 3 - 1 = 2
                       [mm ]                         own: 1

    Return a list (no generator, no array) with one number per span, in the spans' order. Where all lie inside one, the
    own seconds of all add up to its duration: no second is lost, and none is counted twice.

    About 8 lines: keep a stack of the spans that are still running.
    """
    todo("6.5")
