"""Exercises of chapter 7, *Choosing the next token*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 7           grades this file and shows where you are
    pytest --ch 7.2         grades one exercise
    pytest --hint 7.2       the next hint; each call gives away a little more
    python -m minillm.generate --prompt "Hello" --temperature 0.8 --top-p 0.9 --mine    runs the engine on your code

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

`logits` is one row, [V]: a score for each of the V tokens of the vocabulary. A token that was dropped has the logit
-inf, in what you are given and in what you return: its probability is 0 after a softmax.
"""

import math  # noqa: F401 - here for you
from collections.abc import Collection, Sequence

import torch  # noqa: F401 - here for you
from jaxtyping import Float, Int
from torch import Tensor

from minillm import logits_processors as steps  # noqa: F401 - here for you
from minillm.errors import InputError  # noqa: F401 - here for you
from minillm.exercises import todo
from minillm.sampler import SamplerState, SamplingParams


# --- 7.1 -------------------------------------------------------------------------------------------------------------
def apply_temperature(logits: Float[Tensor, " vocab"], temperature: float) -> Float[Tensor, " vocab"]:
    """Logits whose softmax is the distribution at this temperature: softmax(logits / temperature).

    logits: [V], some may be -inf. temperature: above 0 (a request at 0 is greedy, and never comes here); it may be
    very small, 2e-38 say, and the result then must still have a softmax without nan: all of the probability goes to
    the largest logit, by however little it is the largest. A softmax does not see a constant that is added to all
    logits; that is worth using.

    Below torch.finfo(logits.dtype).tiny (1.2e-38 in float32) torch may take a temperature for 0: let it count as
    that number.

    Return [V], in the dtype of `logits`, and leave `logits` itself as it was. What is graded is the softmax of your
    result.

    About 2 lines.
    """
    todo("7.1")


# --- 7.2 -------------------------------------------------------------------------------------------------------------
def apply_repetition_penalty(
    logits: Float[Tensor, " vocab"], token_ids: Collection[int], penalty: float
) -> Float[Tensor, " vocab"]:
    """Make the tokens that occurred already less likely (penalty above 1; below 1, likelier).

    logits: [V]. token_ids: those of the prompt and the completion so far; a list may name one several times, a set
    has no order and no index, and it may be empty. penalty: above 0.

    A positive logit of such a token is divided by the penalty. A negative one is multiplied by it: divided, it would
    move *up*. Once for each token, however often it occurred.

    Return [V], in the dtype of `logits`, and leave `logits` itself as it was.

    About 4 lines.
    """
    todo("7.2")


# --- 7.3 -------------------------------------------------------------------------------------------------------------
def keep_min_p(logits: Float[Tensor, " vocab"], min_p: float) -> Float[Tensor, " vocab"]:
    """Keep the tokens that are at least `min_p` times as likely as the likeliest one.

    logits: [V], some may be -inf. min_p: in [0, 1]; 0 keeps all. With probabilities 0.5, 0.3, 0.15, 0.05 and a min_p
    of 0.2, the bar is 0.2 x 0.5 = 0.1, and the first three stay.

    Return [V]: the logits of the tokens that stay as they were, those of all others -inf. Leave `logits` itself as
    it was.

    About 3 lines.
    """
    todo("7.3")


# --- 7.4 -------------------------------------------------------------------------------------------------------------
def keep_top_p(logits: Float[Tensor, " vocab"], top_p: float) -> Float[Tensor, " vocab"]:
    """Keep the nucleus: the likeliest tokens, as few as together reach the probability `top_p`.

    logits: [V], in no order; some may be -inf. top_p: in (0, 1]; 1 keeps all. Probabilities are those of a softmax
    over the logits as they are: what an earlier filter dropped has none, and the sum counts what is left.

    The token that carries the sum across `top_p` belongs to the nucleus. So it is never empty, and reaches top_p
    instead of staying below it. With probabilities 0.5, 0.3, 0.15, 0.05 and a top_p of 0.7, two tokens stay; with
    one of 0.5 the first alone has reached it. Tokens exactly as likely as the crossing one stay too: no choice is
    made between equals.

    Return [V]: the logits of the tokens that stay as they were, at their own places, those of all others -inf. Leave
    `logits` itself as it was.

    About 5 lines.
    """
    todo("7.4")


# --- 7.5 -------------------------------------------------------------------------------------------------------------
def process_logits(
    logits: Float[Tensor, " vocab"], params: SamplingParams, state: SamplerState
) -> Float[Tensor, " vocab"]:
    """All the steps, in their order: the logits whose softmax the token is drawn from.

        logit bias -> repetition, frequency, presence penalty -> temperature -> min-p -> top-k -> top-p

    logits: [V], the model's own. params: what the request asked for; its fields carry the names of the steps
    (`params.logit_bias`, `params.repetition_penalty`, `params.temperature`, `params.top_k` ...; see
    minillm/sampling_params.py). state.seen_token_ids: the set of all tokens so far, prompt and completion.
    state.generated_counts: how often each token of the *completion* occurred, {token id: count}.

    The steps are there: `steps.apply_logit_bias(logits, biases)`, `steps.apply_repetition_penalty(logits, ids,
    penalty)`, `steps.apply_frequency_penalty(logits, counts, penalty)`, `steps.apply_presence_penalty(logits, ids,
    penalty)`, and `steps.apply_temperature`, `steps.keep_min_p`, `steps.keep_top_k` and `steps.keep_top_p`, each of
    (logits, its parameter). They are the engine's own; run it with `--mine`, and yours take their places. Each does
    nothing at its neutral value, so no step needs an `if`, except one: a request with temperature 0 is greedy, takes
    the largest logit after the penalties, and must not be divided by 0. Return its logits as they are then.

    Return [V].

    About 10 lines.
    """
    todo("7.5")


# --- 7.6 -------------------------------------------------------------------------------------------------------------
def draw(probs: Float[Tensor, "batch vocab"], uniforms: Float[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Draw a token from each row of `probs`, by the inverse of its cumulative distribution.

    probs: [B, V] in float32; each row sums to 1, or nearly. uniforms: [B] in float64, a number u in [0, 1) for each
    row, 0 possible and 1 not. Return [B], int64: for each row, the first token id at which the running sum of the
    probabilities, in the order of ids, is *greater* than u.

    With probabilities 0, 0.25, 0.75: any u below 0.25 gives token 1, any other token 2, and none token 0, not even
    u = 0. A token of probability 0 is never drawn.

    Two things go wrong in float32. Near 1 its numbers are 6e-8 apart, so that a rarer token has no share in the
    running sum: add up in float64. And a whole row may add up to a hair less than 1: with u beyond that, no sum is
    greater. Let u be a fraction of the row's whole sum, and there is always one.

    Leave `probs` and `uniforms` as they were.

    About 4 lines, with cumsum and torch.searchsorted (mind its `right`).
    """
    todo("7.6")


# --- 7.7 -------------------------------------------------------------------------------------------------------------
def perplexity(logprobs: Sequence[float]) -> float:
    """The perplexity of a text: exp of minus the mean of its tokens' log-probabilities.

    logprobs: natural logarithms, one for each token that was predicted. A text of 5 tokens has 4 of them, because
    nothing precedes the first, so nothing predicts it; that is settled, and all that you are given count. There may
    be thousands.

    [log(1/2), log(1/8)] has a perplexity of 4: as unsure as if each time 4 tokens had been equally likely. Return a
    float, of Python's own or .item() of a tensor; the precision of float32 is enough.

    Raise InputError, with a sentence, where there are none: there is no mean of nothing.

    About 3 lines.
    """
    todo("7.7")
