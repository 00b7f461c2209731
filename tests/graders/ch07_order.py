"""7.5: all steps in their order, against the steps on plain lists."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from graders import ch07_oracle as oracle
from graders.ch07_logits import RANDOM, as_softmax
from graders.ch07_oracle import NEVER, logs, row
from graders.common import UNTOUCHED, touched
from minillm import logits_processors as engine
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.sampler import SamplerState, SamplingParams


def _wanted(logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], done: Sequence[int]) -> list[float]:
    counts = Counter(done)
    x = oracle.biased(logits, params.logit_bias or {})
    x = oracle.repetition(x, {*prompt, *done}, params.repetition_penalty)
    x = oracle.biased(x, {i: -params.frequency_penalty * n for i, n in counts.items()})
    x = oracle.biased(x, dict.fromkeys(counts, -params.presence_penalty))
    if params.temperature == 0:
        return x
    x = oracle.temperature(x, params.temperature)
    x = oracle.min_p(x, params.min_p)
    x = oracle.top_k(x, params.top_k)
    return oracle.top_p(x, params.top_p)


def _case(
    given: str, logits: Sequence[float], prompt: Sequence[int] = (), done: Sequence[int] = (), **params: Any
) -> Case:
    """Of a greedy request the logits are compared, of any other their softmax: a constant makes no difference there."""
    asked = SamplingParams(**params)
    view, name = (lambda x: x, "the result") if not asked.temperature else (as_softmax, "the softmax of the result")

    def observe(f: Function) -> Observation:
        mine, state = row(logits), SamplerState(asked, prompt)
        for token_id in done:
            state.observe(token_id)
        before = mine.clone()
        result = f(mine, asked, state)
        known = state.seen_token_ids == {*prompt, *done} and state.generated_counts == Counter(done)
        return {
            name: view(result),
            "logits afterwards": touched(logits=(mine, before)),
            "state afterwards": UNTOUCHED if known else "changed by your code",
        }

    def want() -> Observation:
        wanted = _wanted(row(logits).tolist(), asked, prompt, done)
        probs_or_logits = oracle.softmax(wanted) if asked.temperature else wanted
        return {name: row(probs_or_logits), "logits afterwards": UNTOUCHED, "state afterwards": UNTOUCHED}

    fields = ", ".join(f"{key}={value!r}" for key, value in params.items())
    so_far = f"; prompt {list(prompt)}, completion {list(done)}" if prompt or done else ""
    return Case(f"{given}{so_far}; SamplingParams({fields})", observe, want)


# One letter for a step, so that an order is a word: "brfptmkn" is right.
_STEPS = {
    "b": lambda x, p, s: engine.apply_logit_bias(x, p.logit_bias),
    "r": lambda x, p, s: engine.apply_repetition_penalty(x, s.seen_token_ids, p.repetition_penalty),
    "f": lambda x, p, s: engine.apply_frequency_penalty(x, s.generated_counts, p.frequency_penalty),
    "p": lambda x, p, s: engine.apply_presence_penalty(x, s.generated_counts, p.presence_penalty),
    "t": lambda x, p, s: engine.apply_temperature(x, p.temperature),
    "m": lambda x, p, s: engine.keep_min_p(x, p.min_p),
    "k": lambda x, p, s: engine.keep_top_k(x, p.top_k),
    "n": lambda x, p, s: engine.keep_top_p(x, p.top_p),
    "R": lambda x, p, s: engine.apply_repetition_penalty(x, s.generated_counts, p.repetition_penalty),
    "F": lambda x, p, s: engine.apply_frequency_penalty(x, Counter(s.seen_token_ids), p.frequency_penalty),
    "1": lambda x, p, s: engine.apply_frequency_penalty(x, dict.fromkeys(s.generated_counts, 1), p.frequency_penalty),
    "P": lambda x, p, s: engine.apply_presence_penalty(x, s.seen_token_ids, p.presence_penalty),
    "x": lambda x, p, s: engine.apply_frequency_penalty(x, s.generated_counts, p.presence_penalty),
    "y": lambda x, p, s: engine.apply_presence_penalty(x, s.generated_counts, p.frequency_penalty),
    "s": lambda x, p, s: x.softmax(0),
}


def _in_order(order: str, greedy_after: str = "brfpRF1Pxy") -> Function:
    """The steps in this order; of a greedy request only those in `greedy_after`."""

    def process_logits(logits: Tensor, params: SamplingParams, state: SamplerState) -> Tensor:
        for step in order:
            if params.temperature or step in greedy_after:
                logits = _STEPS[step](logits, params, state)
        return logits

    return process_logits


def _discarding(logits: Tensor, params: SamplingParams, state: SamplerState) -> Tensor:
    engine.apply_logit_bias(logits, params.logit_bias)
    if params.temperature:
        engine.apply_temperature(logits, params.temperature)
    return logits


def _greedy_below(limit: float) -> Function:
    def process_logits(logits: Tensor, params: SamplingParams, state: SamplerState) -> Tensor:
        order = "brfp" if params.temperature < limit else "brfptmkn"
        return _in_order(order)(logits, params, state)

    return process_logits


def _greedy_id(logits: Tensor, params: SamplingParams, state: SamplerState) -> Tensor:
    result = _in_order("brfptmkn")(logits, params, state)
    return result if params.temperature else result.argmax()


_MISSING = {
    "b": "logit_bias is never applied: it comes first.",
    "r": "The repetition penalty is never applied: it follows the bias.",
    "f": "The frequency penalty is never applied: it follows the repetition penalty.",
    "p": "The presence penalty is never applied: it belongs to the penalties, before the temperature.",
    "t": "The temperature is never applied: it follows the penalties.",
    "m": "min_p is never applied: it follows the temperature.",
    "k": "top_k is never applied: it follows min-p.",
    "n": "top_p is never applied: it comes last.",
}

PROCESS_LOGITS = Grader(
    cases=[
        _case("probabilities 0.5, 0.3, 0.2", logs(0.5, 0.3, 0.2), temperature=0.5),
        _case("probabilities 0.6, 0.3, 0.1", logs(0.6, 0.3, 0.1), temperature=0.25, top_p=0.8),
        _case("probabilities 0.4, 0.3, 0.2, 0.1", logs(0.4, 0.3, 0.2, 0.1), temperature=2.0, min_p=0.6),
        _case("probabilities 0.5, 0.2, 0.15, 0.15", logs(0.5, 0.2, 0.15, 0.15), temperature=1.0, top_p=0.6, min_p=0.35),
        _case("probabilities 0.4, 0.3, 0.2, 0.1", logs(0.4, 0.3, 0.2, 0.1), temperature=1.0, top_p=0.55, top_k=2),
        _case("probabilities 0.4, 0.3, 0.2, 0.1", logs(0.4, 0.3, 0.2, 0.1), temperature=1.0, top_k=3),
        _case("logits = [-1.0, 0.0]", [-1.0, 0.0], [0], temperature=0, logit_bias={0: 3.0}, repetition_penalty=4.0),
        _case(
            "logits = [4.0, 3.0, 2.0, -1.0]",
            [4.0, 3.0, 2.0, -1.0],
            [1, 3],
            [0, 0, 2],
            temperature=0,
            repetition_penalty=2.0,
            presence_penalty=0.25,
            frequency_penalty=0.5,
        ),
        _case("logits = [2.5, 1.0, 0.5], greedy", [2.5, 1.0, 0.5], temperature=0, top_k=1, top_p=0.5, min_p=0.5),
        _case(
            "logits = [4.0, 3.5, 3.0, -1.0]",
            [4.0, 3.5, 3.0, -1.0],
            [1],
            [0, 0],
            temperature=0.5,
            repetition_penalty=1.5,
            presence_penalty=0.3,
            frequency_penalty=0.2,
            logit_bias={2: -0.4},
        ),
        _case(
            "37 random logits",
            RANDOM,
            [1, 2, 3],
            [7, 7, 8],
            temperature=0.8,
            logit_bias={5: 2.0, 9: -100.0},
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            presence_penalty=0.2,
            min_p=0.02,
            top_k=20,
            top_p=0.9,
        ),
        _case("logits = [13.0, 13.0 + 2^-17], nearly equal", [13.0, 13.0 + 2.0**-17], temperature=1e-6),
        _case("logits = [1.0, -inf, 2.0], all neutral", [1.0, NEVER, 2.0], [0], [2], temperature=1.0),
    ],
    mutants=[
        Mutant(
            _in_order("brfpmknt"),
            "The temperature comes last, as in llama.cpp. Here the filters follow it: they cut the distribution that is"
            " really drawn from.",
        ),
        Mutant(
            _in_order("brfpmktn"),
            "The temperature comes after a filter: min-p then looks at a distribution that nobody draws from. It comes"
            " before all three.",
        ),
        Mutant(
            _greedy_below(1e-5),
            "You let requests of a very small temperature go as greedy ones. Only 0 is greedy: any other temperature,"
            " however small, is a division, and tokens that are nearly as likely still get their share.",
        ),
        Mutant(
            _greedy_id,
            "For a greedy request you return the token. Return its logits [V] as they are; whoever called takes the"
            " largest.",
        ),
        Mutant(
            _in_order("brfptnmk"),
            "top_p runs before min-p and top-k, and counts the probability of tokens that those are about to drop. It"
            " adds up, so it comes last, and adds up what is left.",
        ),
        Mutant(
            _in_order("brfptknm"),
            "top_p runs before min-p, as in transformers, and counts what min-p is about to drop. Min-p first.",
        ),
        Mutant(
            _in_order("brfptmnk"),
            "top_k comes last. Then top_p has counted the probability of tokens that top_k drops: top_k before top_p.",
        ),
        Mutant(
            _in_order("tbrfpmkn"),
            "The temperature comes first, so that bias and penalties act on logits which it has moved: a bias of 2"
            " would mean something else at each temperature. It follows the penalties.",
        ),
        Mutant(
            _in_order("tbrfpmkn", greedy_after=""),
            "The temperature comes first, so that bias and penalties act on logits which it has moved; and a greedy"
            " request, which leaves before it, gets neither. Both come before it.",
        ),
        Mutant(
            _in_order("rfpbtmkn"),
            "The bias comes after the penalties. It comes first: the penalties act on what model and caller together"
            " prefer.",
        ),
        Mutant(
            _in_order("rfptbmkn", greedy_after="rfp"),
            "The bias comes after the temperature: a bias of 2 would mean something else at each temperature, and a"
            " greedy request never gets it. It comes first.",
        ),
        Mutant(
            _in_order("btrfpmkn", greedy_after="b"),
            "The penalties come after the temperature, so that a penalty of 0.5 means something else at each; and a"
            " greedy request, which leaves before it, gets none. They come before it.",
        ),
        Mutant(
            _in_order("btrfpmkn"),
            "The penalties come after the temperature, so that a penalty of 0.5 means something else at each. They"
            " come before it.",
        ),
        Mutant(
            _in_order("bprftmkn"),
            "The presence penalty comes before the repetition penalty. That one divides and this one subtracts, so the"
            " order shows: the repetition penalty comes first.",
        ),
        Mutant(
            _in_order("bfrptmkn"),
            "The frequency penalty comes before the repetition penalty. That one divides and this one subtracts, so"
            " the order shows: the repetition penalty comes first.",
        ),
        Mutant(
            _in_order("bfprtmkn"),
            "The repetition penalty comes after the other two. It divides and they subtract, so the order shows: (4 /"
            " 2) - 1 is not (4 - 1) / 2.",
        ),
        Mutant(
            _in_order("brfptmkn", greedy_after="brfptmkn"),
            "A greedy request goes through temperature and filters as well. At temperature 0 there is nothing to"
            " divide by: after the penalties its logits are done.",
        ),
        Mutant(
            _in_order("brfptmkn", greedy_after="brfpmkn"),
            "A greedy request skips the temperature, and goes through the filters all the same. They change nothing"
            " that it needs: after the penalties its logits are done.",
        ),
        Mutant(
            _in_order("brfptmkn", greedy_after=""),
            "A greedy request gets its logits back untouched. Bias and penalties change which token is the likeliest,"
            " so they count for it too.",
        ),
        Mutant(
            _in_order("brfptmkn", greedy_after="b"),
            "A greedy request is let go after the bias. The penalties change which token is the likeliest as well.",
        ),
        Mutant(
            _in_order("bRfptmkn"),
            "The repetition penalty looks at the completion alone. It looks at the prompt too: state.seen_token_ids.",
        ),
        Mutant(
            _in_order("brfPtmkn"),
            "The presence penalty looks at the prompt. It is about what was *generated*: state.generated_counts.",
        ),
        Mutant(
            _in_order("brFPtmkn"),
            "Frequency and presence penalty look at the prompt. They are about what was *generated*:"
            " state.generated_counts.",
        ),
        Mutant(
            _in_order("brFptmkn"),
            "The frequency penalty looks at the prompt, and counts each token once. It counts what was generated:"
            " state.generated_counts.",
        ),
        Mutant(
            _in_order("brxytmkn"),
            "Frequency and presence penalty have each other's parameter: params.frequency_penalty goes with"
            " apply_frequency_penalty.",
        ),
        Mutant(
            _in_order("br1ptmkn"),
            "The frequency penalty counts each token once. It takes its penalty for each time: give it the counts.",
        ),
        Mutant(
            _in_order("brfptmkns"),
            "You return probabilities. What is asked for are logits; whoever draws takes the softmax.",
        ),
        Mutant(
            _discarding,
            "You call the steps and discard what they return. None of them changes its logits in place: logits ="
            " steps.apply_logit_bias(logits, ...), and so on.",
        ),
        *(Mutant(_in_order("brfptmkn".replace(step, "")), cause) for step, cause in _MISSING.items()),
    ],
    alternatives=[_in_order("brfptkmn"), _in_order("brpftmkn"), _in_order("brfptmkn")],
)
