"""6.3: the decode loop, on a model by rule."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from graders.ch06_script import MOST_STEPS, PROMPT, VOCAB, Scripted, config_with, logits_after, wanted_steps
from minillm.decode import Step, ending_ids, finish_reason
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation
from minillm.kv_cache import KVCache, NoCache
from minillm.prefill import prefill
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
        model = Scripted(config_with(*eos, context=max(room, 20) if cached else room))
        cache = KVCache(model.config, room) if cached else NoCache(model.config)
        cache.advance(len(prompt))
        logits = torch.tensor([logits_after(prompt[-1], len(prompt) - 1)], dtype=torch.float32)
        running = iter(f(model, logits, cache, params, list(prompt) if known else []))
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
    _case(
        f"{_WARM}; prompt_ids is empty, presence_penalty = 2",
        SamplingParams(max_tokens=11, presence_penalty=2.0),
        known=False,
    ),
    _case(f"{_WARM}; repetition_penalty = 3", SamplingParams(max_tokens=11, repetition_penalty=3.0)),
    _case(f"{_WARM}; temperature = 2, seed = 5", SamplingParams(max_tokens=5, temperature=2.0, seed=5)),
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


def _loop(
    *,
    state_of: Callable[..., SamplerState] = lambda params, prompt: SamplerState(params, prompt),
    each_time: bool = False,
    observe: bool = True,
    step_of: Callable[..., Any] = lambda choice, reason: Step(
        choice.token_id, choice.logprob, reason, choice.top_logprobs
    ),
    reason_of: Callable[..., Any] = lambda reason, count, params: reason,
    pending: Callable[..., Sequence[int]] = lambda ids, held, cache: ids[cache.length - held :],
    length_of: Callable[..., int] = lambda ids, held: held + len(ids),
    first: int = 1,
    compute_first: bool = False,
    compute_last: bool = False,
    keep_logits: bool = False,
    hide_last: bool = False,
    advance: int = 0,
) -> Function:
    """The loop, right unless it is told to make a mistake."""

    def decode_loop(model: Any, logits: Any, cache: Any, params: SamplingParams, prompt_ids: Any) -> Iterator[Any]:
        held = cache.length
        ids = list(prompt_ids[held:])
        state, ends = state_of(params, prompt_ids), ending_ids(params, model.config)
        count = first - 1
        while True:
            count += 1
            if each_time:
                state = state_of(params, prompt_ids)
            choice = sample_one(logits, params, state)
            if observe:
                state.observe(choice.token_id)
            ids.append(choice.token_id)
            full = length_of(ids, held)
            reason = finish_reason(choice.token_id, ends, count, params.max_tokens, full, cache.max_seq_len)
            reason = reason_of(reason, count, params)
            if compute_first and not (reason and not compute_last):
                logits = prefill(model, pending(ids, held, cache), cache)
            if not (hide_last and reason):
                yield step_of(choice, reason)
            if reason and not (compute_last and not compute_first):
                return
            if not compute_first:
                new = prefill(model, pending(ids, held, cache), cache)
                logits = logits if keep_logits else new
                cache.advance(advance)
            if reason:
                return

    return decode_loop


def _eager(*arguments: Any) -> list[Step]:
    return list(_loop()(*arguments))


def _prompt_again(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    logits = prefill(model, prompt_ids, cache) if len(prompt_ids) else logits
    yield from _loop()(model, logits, cache, params, prompt_ids)


def _for_loop(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    """Another right way: a `for`, and a question for the kind of cache."""
    state = SamplerState(params, prompt_ids)
    everything, before = list(prompt_ids), cache.length or len(prompt_ids)
    for count in range(1, params.max_tokens + 1):
        choice = sample_one(logits, params, state)
        state.observe(choice.token_id)
        everything.append(choice.token_id)
        reason = finish_reason(
            choice.token_id,
            ending_ids(params, model.config),
            count,
            params.max_tokens,
            before + count,
            cache.max_seq_len,
        )
        yield Step(choice.token_id, choice.logprob, reason, top_logprobs=choice.top_logprobs, forward_s=0.1)
        if reason is not None:
            break
        logits = prefill(model, everything if isinstance(cache, NoCache) else [choice.token_id], cache)


def _by_hand(model: Any, logits: Any, cache: Any, params: Any, prompt_ids: Any) -> Iterator[Step]:
    """Another right way: the model called without prefill; the pass at the head of the loop."""
    state, ends = SamplerState(params, prompt_ids), ending_ids(params, model.config)
    known = [0] * (cache.length - len(prompt_ids)) + list(prompt_ids)
    count = 0
    while True:
        if count:
            hidden = model(torch.tensor([known[cache.length :]]), cache)
            cache.advance(hidden.shape[1])
            logits = model.logits(hidden[:, -1])
        choice = sample_one(logits, params, state)
        state.observe(choice.token_id)
        known.append(choice.token_id)
        count += 1
        reason = finish_reason(choice.token_id, ends, count, params.max_tokens, len(known), cache.max_seq_len)
        yield Step(choice.token_id, choice.logprob, reason, choice.top_logprobs)
        if reason:
            return


def _returning_a_generator(*arguments: Any) -> Iterator[Step]:
    """Another right way: a function that has no `yield`, and returns what has."""
    return (step for step in _loop()(*arguments))


DECODE_LOOP = Grader(
    cases=_CASES,
    mutants=[
        Mutant(
            _loop(compute_first=True),
            "You compute the next pass before you yield. Whoever reads the stream then waits for a token that is"
            " known already, a whole pass long; and a reader who goes away has paid for one pass too many.",
        ),
        Mutant(
            _loop(compute_last=True),
            "You compute the last token. Nobody asks what follows it: look at the reason right after the yield, and"
            " end there.",
        ),
        Mutant(
            _loop(compute_first=True, compute_last=True),
            "You compute each token before you yield it, the last one too. The order is choose, yield, end or go on,"
            " and only then compute.",
        ),
        Mutant(
            _eager,
            "You make a list of all steps and then give it back. Nothing can be streamed like that, and nobody can stop"
            " it halfway: `yield` each step as it is chosen.",
        ),
        Mutant(
            _loop(observe=False),
            "The sampler never hears which token was chosen. Penalties count what was generated:"
            " state.observe(choice.token_id).",
        ),
        Mutant(
            _loop(state_of=lambda params, prompt: SamplerState(params)),
            "The sampler's state does not know the prompt, at which the repetition penalty looks too:"
            " SamplerState(params, prompt_ids).",
        ),
        Mutant(
            _loop(each_time=True),
            "You make a new SamplerState for each token. It remembers a request's random numbers and tokens, so there"
            " is one for the whole request, made before the loop.",
        ),
        Mutant(
            _loop(pending=lambda ids, held, cache: ids),
            "You compute all generated tokens again in each pass. Those before the last are in the cache already, and"
            " are now in it twice: hand prefill only what comes after the first cache.length tokens.",
        ),
        Mutant(
            _loop(pending=lambda ids, held, cache: ids[-1:]),
            "Right with a cache. A NoCache keeps nothing: its length stays 0, and each pass must be given the whole"
            " sequence, prompt and completion.",
        ),
        Mutant(
            _loop(advance=1),
            "You advance the cache after prefill, which has done so already. Each token is counted twice, and between"
            " the real ones stand entries that nobody wrote.",
        ),
        Mutant(
            _loop(hide_last=True),
            "You end before the last token is handed out. It belongs to the answer, and its step carries the finish"
            " reason: yield first, then return.",
        ),
        Mutant(
            _loop(length_of=lambda ids, held: len(ids)),
            "For a full context you count the tokens that you know, and forget those that the cache held before the"
            " first one: prompt_ids may be empty, and the prompt is in the cache all the same.",
        ),
        Mutant(
            _loop(length_of=lambda ids, held: held + len(ids) if held else 1),
            "You take cache.length + 1 for the length of the text. With a NoCache that is 1 for ever, and the context"
            " is never full: count the tokens of prompt and completion.",
            begins="InputError",
        ),
        Mutant(
            _loop(reason_of=lambda reason, count, params: "length" if count == params.max_tokens else None),
            "Your loop ends at max_tokens only. A token may end the answer, and the context may be full: ask 6.2 at"
            " each token.",
        ),
        Mutant(
            _loop(step_of=lambda choice, reason: choice.token_id),
            "You yield token ids. Who reads the stream also needs to know why it ended, and how likely a token was:"
            " yield Step(token_id, logprob, reason, top_logprobs).",
        ),
        Mutant(
            _loop(step_of=lambda choice, reason: Step(choice.token_id, choice.logprob, None, choice.top_logprobs)),
            "The last step has no reason. Without it a reader cannot tell an answer that is whole from one that was cut"
            " off: put what 6.2 says into the step.",
        ),
        Mutant(
            _loop(keep_logits=True),
            "You choose from the same logits again and again. Each pass gives new ones: logits = prefill(...).",
        ),
        Mutant(
            _loop(step_of=lambda choice, reason: Step(choice.token_id, choice.logprob, reason)),
            "The alternatives are lost: a request with `logprobs` asks for them, and they are in choice.top_logprobs.",
        ),
        Mutant(
            _loop(first=0),
            "One token too many: you count from 0, so that the first token is number 0. The count includes the token"
            " at hand.",
        ),
        Mutant(
            _prompt_again,
            "You prefill the prompt again. That was done before: `logits` is what follows it, and the first token is"
            " chosen from them without any pass.",
        ),
    ],
    alternatives=[_loop(), _for_loop, _by_hand, _returning_a_generator],
)
