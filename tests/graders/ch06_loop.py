"""6.3: the decode loop, graded on a model by rule."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from graders import ch06_loop_answers as answers
from graders.ch06_loop_answers import loop
from graders.ch06_script import MOST_STEPS, PROMPT, VOCAB, config_with, logits_after, scripted, wanted_steps
from graders.common import CHANGED, UNTOUCHED
from minillm.decode import Step
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache, NoCache
from minillm.sampler import SamplerState, SamplingParams, sample_one

# --- cases -----------------------------------------------------------------------------------------------------------


def _case(
    given: str,
    params: SamplingParams,
    *,
    eos: Sequence[int] = (),
    room: int = 30,
    cached: bool = True,
    known: bool = True,
    take: int = MOST_STEPS,
) -> Case:
    """cached: a KVCache, or a NoCache. known: prompt_ids are given. take: so many steps are read, then it is closed."""
    prompt = PROMPT

    def observe(f: Function) -> Observation:
        model = scripted(config_with(*eos, context=MOST_STEPS if cached and known else room))
        cache = KVCache(model.config, room) if cached else NoCache(model.config)
        cache.advance(len(prompt))
        logits = torch.tensor([logits_after(prompt[-1], len(prompt) - 1)], dtype=torch.float32)
        mine = list(prompt) if known else []
        running = iter(f(model, logits, cache, params, mine))
        steps, ran = [], []
        for step in islice(running, take):
            steps.append(step)
            ran.append(len(model.passes))
        if hasattr(running, "close"):
            running.close()  # type: ignore[attr-defined]
        return {
            "what is yielded": _kind(steps),
            "the tokens": _words(getattr(step, "token_id", step) for step in steps),
            "the finish reasons": _words(getattr(step, "finish_reason", "?") for step in steps),
            "passes that ran before each step was there": _words(ran),
            "the passes": "; ".join(model.passes) or "none",
            "the cache's length afterwards": cache.length,
            "the likeliest tokens of each step": _words(_top(step) for step in steps),
            "the log-probabilities": _tensor(getattr(step, "logprob", None) for step in steps),
            "prompt_ids afterwards": UNTOUCHED if mine == (list(prompt) if known else []) else CHANGED,
        }

    def want() -> Observation:
        # What torch loads at a first choice takes a second, which is not to count into the reader's time.
        sample_one(torch.zeros(1, VOCAB, dtype=torch.float32), params, SamplerState(params))
        steps = wanted_steps(prompt, params, eos, room, known)[:take]
        tokens = [step[0] for step in steps]
        if cached:
            passes = [f"[{token}] behind {len(prompt) + n}" for n, token in enumerate(tokens[:-1])]
        else:
            passes = [f"{[*prompt, *tokens[: n + 1]]} behind 0" for n in range(len(tokens) - 1)]
        return {
            "what is yielded": "Step" if steps else "nothing",
            "the tokens": _words(tokens),
            "the finish reasons": _words(step[2] for step in steps),
            "passes that ran before each step was there": _words(range(len(steps))),
            "the passes": "; ".join(passes) or "none",
            "the cache's length afterwards": len(prompt) + len(passes) if cached else 0,
            "the likeliest tokens of each step": _words(step[3] for step in steps),
            "the log-probabilities": _tensor(step[1] for step in steps),
            "prompt_ids afterwards": UNTOUCHED,
        }

    return Case(given, observe, want)


def _kind(steps: Sequence[Any]) -> str:
    return " and ".join(dict.fromkeys(type(step).__name__ for step in steps)) or "nothing"


def _words(each: Any) -> str:
    return ", ".join(str(one) for one in each) or "none"


def _top(step: Any) -> Any:
    top = getattr(step, "top_logprobs", None)
    return None if top is None else [token for token, _ in top]


def _tensor(numbers: Any) -> Tensor:
    return torch.tensor([math.nan if n is None else float(n) for n in numbers], dtype=torch.float32)


def _greedy(prompt: Sequence[int], count: int) -> list[int]:
    """What the rule makes of a prompt, without penalties."""
    return [step[0] for step in wanted_steps(prompt, SamplingParams(max_tokens=count), (), 10**6, True)]


_FREE = _greedy(PROMPT, 12)
_WARM = f"a KVCache that holds {len(PROMPT)} prompt tokens"

_CASES = [
    _case(f"{_WARM}; max_tokens = 4", SamplingParams(max_tokens=4)),
    _case(f"{_WARM}; the 4th token is an end-of-sequence id", SamplingParams(max_tokens=9), eos=(22, _FREE[3])),
    _case(
        f"{_WARM}; the 3rd token is an end-of-sequence id, ignore_eos, and the 6th a stop token",
        SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(_FREE[5],)),
        eos=(_FREE[2],),
    ),
    _case(
        f"a NoCache and a prompt of {len(PROMPT)} tokens; max_tokens = 4", SamplingParams(max_tokens=4), cached=False
    ),
    _case(f"{_WARM}; temperature = 2, seed = 5", SamplingParams(max_tokens=5, temperature=2.0, seed=5)),
    _case(
        f"{_WARM}; prompt_ids is empty, presence_penalty = 2",
        SamplingParams(max_tokens=11, presence_penalty=2.0),
        known=False,
    ),
    _case(f"{_WARM}; frequency_penalty = 0.6", SamplingParams(max_tokens=11, frequency_penalty=0.6)),
    _case(f"{_WARM}; repetition_penalty = 3", SamplingParams(max_tokens=11, repetition_penalty=3.0)),
    _case(f"{_WARM}, with room for 8 tokens; prompt_ids is empty", SamplingParams(max_tokens=30), room=8, known=False),
    _case(f"{_WARM}, with room for 9 tokens", SamplingParams(max_tokens=30), room=9),
    _case(
        f"a NoCache in a context of 9 tokens, a prompt of {len(PROMPT)}",
        SamplingParams(max_tokens=30),
        room=9,
        cached=False,
    ),
    _case(f"{_WARM}; max_tokens = 1", SamplingParams(max_tokens=1)),
    _case(f"{_WARM}; the reader takes two of nine steps, and goes", SamplingParams(max_tokens=9), take=2),
    _case(f"{_WARM}; the reader takes nothing", SamplingParams(max_tokens=9), take=0),
    _case(f"{_WARM}; logprobs = 3", SamplingParams(max_tokens=3, logprobs=3)),
]

# --- answers ---------------------------------------------------------------------------------------------------------


def _checked(shape: str) -> str:
    """How the message begins where types are checked, as under pytest; after that it names objects by address."""
    return (
        "TypeCheckError: Type-check error whilst checking the parameters of minillm.sampler.sample_one.\n"
        f"The problem arose whilst typechecking parameter 'logits'.\nActual value: {shape}"
    )


DECODE_LOOP = Grader(
    cases=_CASES,
    mutants=[
        Mutant(
            loop(compute_first=True),
            "You compute the next pass before you yield. Whoever reads the stream then waits for a token that is"
            " known already, a whole pass long; and a reader who goes away has paid for one pass too many.",
        ),
        Mutant(
            loop(compute_last=True),
            "You compute the last token. Nobody asks what follows it: look at the reason right after the yield, and"
            " end there.",
        ),
        Mutant(
            loop(compute_first=True, compute_last=True),
            "You compute each token before you yield it, the last one too. The order is choose, yield, end or go on,"
            " and only then compute.",
        ),
        Mutant(
            answers.eager,
            "You make a list of all steps and then give it back. Nothing can be streamed like that, and nobody can stop"
            " it halfway: `yield` each step as it is chosen.",
        ),
        Mutant(
            loop(observe=0),
            "The sampler never hears which token was chosen. Penalties count what was generated:"
            " state.observe(choice.token_id).",
        ),
        Mutant(
            loop(observe=2),
            "The sampler hears of each token twice, and penalties that count count double: state.observe once per"
            " token. (sample_one leaves that to you.)",
        ),
        Mutant(
            loop(choose=answers.likeliest),
            "You take the likeliest token, whatever the request's temperature and penalties are:"
            " sample_one(logits, params, state) chooses.",
        ),
        Mutant(
            loop(state_of=lambda params, prompt: SamplerState(params)),
            "The sampler's state does not know the prompt, at which the repetition penalty looks too:"
            " SamplerState(params, prompt_ids).",
        ),
        Mutant(
            loop(each_time=True),
            "You make a new SamplerState for each token. It remembers a request's random numbers and tokens, so there"
            " is one for the whole request, made before the loop.",
        ),
        Mutant(
            loop(pending=lambda ids, held, cache: ids),
            "You compute all generated tokens again in each pass. Those before the last are in the cache already, and"
            " are now in it twice: hand prefill only what comes after the first cache.length tokens.",
        ),
        Mutant(
            loop(pending=lambda ids, held, cache: ids[-1:]),
            "Right with a cache. A NoCache keeps nothing: its length stays 0, and each pass must be given the whole"
            " sequence, prompt and completion.",
        ),
        Mutant(
            loop(pending=answers.by_kind, advance=1),
            "You advance the cache after prefill, which has done so already. Each token is counted twice, and between"
            " the real ones stand entries that nobody wrote.",
        ),
        Mutant(
            answers.whole_text(lambda cache, text, made: text[cache.length :]),
            "Your list is shorter than the cache: where prompt_ids is empty it begins with the first generated token,"
            " and the cache holds a whole prompt. Count from what the cache held at the start, held = cache.length:"
            " your ids from cache.length - held on.",
        ),
        Mutant(
            loop(advance=1),
            "There is nothing left to compute, because you advance the cache after prefill, which has done so already:"
            " the cache's length runs ahead of your list.",
        ),
        Mutant(
            answers.whole_text(lambda cache, text, made: text),
            "You compute the prompt and everything after it in each pass. With a KVCache all but the newest token are"
            " in it already, and are now in it twice: hand prefill only what the cache does not hold.",
        ),
        Mutant(
            answers.whole_text(lambda cache, text, made: made if isinstance(cache, NoCache) else made[-1:]),
            "Without a cache you compute the completion alone. A NoCache has kept nothing of the prompt either: each"
            " pass must be given prompt and completion.",
        ),
        Mutant(
            answers.changing_the_prompt,
            "You append to prompt_ids, which is your caller's own list. Copy it first: list(prompt_ids).",
        ),
        Mutant(
            answers.model_alone(advance=False),
            "You call the model yourself and never advance the cache: each pass writes over the one before. prefill"
            " does both; by hand it is cache.advance(1) after the model.",
        ),
        Mutant(
            answers.model_instead(lambda model, ids, cache: model(ids, cache)),
            "The model itself takes a tensor of ids, and gives hidden states. prefill makes the tensor, counts the"
            " tokens into the cache and turns the last row into logits: logits = prefill(model, ids, cache).",
        ),
        Mutant(
            answers.model_instead(lambda model, ids, cache: model(torch.tensor([ids]), cache)),
            "What the model gives back are hidden states, and the sampler wants logits. prefill does all that is"
            " between them: logits = prefill(model, ids, cache).",
            begins=_checked("f32[1,1,4]"),
        ),
        Mutant(
            answers.model_instead(lambda model, ids, cache: model.logits(model(torch.tensor([ids]), cache))),
            "Those are logits with one dimension too many, [1, T, vocab]: the sampler wants the last row's, [1, vocab]."
            " prefill gives just these, and counts the tokens into the cache.",
            begins=_checked(f"f32[1,1,{VOCAB}]"),
        ),
        Mutant(
            loop(hide_last=True),
            "You end before the last token is handed out. It belongs to the answer, and its step carries the finish"
            " reason: yield first, then return.",
        ),
        Mutant(
            loop(length_of=lambda ids, held: len(ids)),
            "For a full context you count the tokens that you know, and forget those that the cache held before the"
            " first one: prompt_ids may be empty, and the prompt is in the cache all the same.",
        ),
        Mutant(
            loop(length_of=lambda ids, held: held + len(ids) if held else 1),
            "You take cache.length + 1 for the length of the text. With a NoCache that is 1 for ever, and the context"
            " is never full: count the tokens of prompt and completion.",
            begins="InputError",
        ),
        Mutant(
            loop(length_of=lambda ids, held: held + len(ids) - 1),
            "Your length does not include the token at hand, and the context is full one token later than it should"
            " be: the length that 6.2 asks for is that of prompt and completion, this token included.",
        ),
        Mutant(
            loop(length_of=lambda ids, held: held + len(ids) + 1),
            "Your length is one too large, and a place of the context stays empty: the token at hand is one token,"
            " whether you count it before or after you append it.",
        ),
        Mutant(
            answers.counted_twice,
            "You count generated tokens twice: cache.length grows with each pass and includes them already. Take what"
            " the cache held at the start, and add the tokens since.",
        ),
        Mutant(
            loop(room_of=lambda model, cache: model.config.max_position_embeddings),
            "You ask for the model's context. A cache may have been made for fewer tokens than that: the limit is"
            " cache.max_seq_len.",
        ),
        Mutant(
            loop(reason_of=lambda reason, count, params: "length" if count == params.max_tokens else None),
            "Your loop ends at max_tokens only. A token may end the answer, and the context may be full: ask 6.2 at"
            " each token.",
        ),
        Mutant(
            loop(step_of=lambda choice, reason: choice.token_id),
            "You yield token ids. Who reads the stream also needs to know why it ended, and how likely a token was:"
            " yield Step(token_id, logprob, reason, top_logprobs).",
        ),
        Mutant(
            loop(step_of=lambda choice, reason: Step(choice.token_id, choice.logprob, None, choice.top_logprobs)),
            "The last step has no reason. Without it a reader cannot tell an answer that is whole from one that was cut"
            " off: put what 6.2 says into the step.",
        ),
        Mutant(
            loop(step_of=lambda choice, reason: Step(choice.token_id, 0.0, reason, choice.top_logprobs)),
            "The steps say nothing of how likely their tokens were: that is choice.logprob.",
        ),
        Mutant(
            loop(keep_logits=True),
            "You choose from the same logits again and again. Each pass gives new ones: logits = prefill(...).",
        ),
        Mutant(
            loop(step_of=lambda choice, reason: Step(choice.token_id, choice.logprob, reason)),
            "The alternatives are lost: a request with `logprobs` asks for them, and they are in choice.top_logprobs.",
        ),
        Mutant(
            loop(first=0),
            "One token too many: you count from 0, so that the first token is number 0. The count includes the token"
            " at hand.",
        ),
        Mutant(
            answers.prompt_again,
            "You prefill the prompt again. That was done before: `logits` is what follows it, and the first token is"
            " chosen from them without any pass.",
        ),
    ],
    alternatives=[
        loop(),
        loop(pending=answers.by_kind),
        answers.with_a_for,
        answers.model_alone(advance=True),
        answers.returning_a_generator,
    ],
)
