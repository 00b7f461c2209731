"""7.1 and 7.2: what moves logits, against sums on plain lists."""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from graders import ch07_oracle as oracle
from graders.ch07_oracle import NEVER, row
from graders.common import UNTOUCHED, random, touched
from minillm.exercises.grading import Case, Function, Grader, Mutant, Observation

RANDOM = [round(x, 3) for x in (random(37, seed=11) * 3).tolist()]
WRITES = "You write into the logits that you were given. They are the caller's, who still takes log-probabilities from"
IN_PLACE = f"{WRITES} them: make new ones."


def as_softmax(result: Any) -> Any:
    """The softmax of a row of floats; anything else as it came, for the comparison to name."""
    return result.softmax(0) if isinstance(result, Tensor) and result.is_floating_point() and result.dim() else result


# --- 7.1 -------------------------------------------------------------------------------------------------------------


def _temperature_case(given: str, logits: Sequence[float], value: float, dtype: torch.dtype = torch.float32) -> Case:
    def observe(f: Function) -> Observation:
        mine = row(logits, dtype)
        before = mine.clone()
        result = f(mine, value)
        return {"the softmax of the result": as_softmax(result), "logits afterwards": touched(logits=(mine, before))}

    def want() -> Observation:
        exact = row(logits, dtype).tolist()  # as the dtype holds them: some lie only a last digit apart
        probs = row(oracle.softmax(oracle.temperature(exact, value)), dtype)
        return {"the softmax of the result": probs, "logits afterwards": UNTOUCHED}

    return Case(f"{given}; temperature = {value}", observe, want)


def _divided_in_place(logits: Tensor, t: float) -> Tensor:
    logits -= logits.max()
    logits /= t
    return logits


def _above_0_in(x: Tensor, t: float) -> float:
    """The temperature, or the least number that the dtype holds in full."""
    return max(t, torch.finfo(x.dtype).tiny)


TEMPERATURE = Grader(
    cases=[
        _temperature_case("logits = [2.0, 1.0, -1.0]", [2.0, 1.0, -1.0], 2.0),
        _temperature_case("37 random logits", RANDOM, 0.7),
        _temperature_case("37 random logits", RANDOM, 1.0),
        _temperature_case("logits = [3.0, -inf, 4.0, 2.5], one token dropped", [3.0, NEVER, 4.0, 2.5], 1.5),
        _temperature_case("4 logits in float64", [12.5, 11.0, 10.25, 3.0], 0.5, torch.float64),
        _temperature_case("logits = [0.0, 1e-10], nearly equal", [0.0, 1e-10], 2e-38),
        _temperature_case("logits = [13.0, 12.0, 9.0, -4.0]", [13.0, 12.0, 9.0, -4.0], 2e-38),
        _temperature_case("logits = [5.0, 14.0, 14.0], two equal", [5.0, 14.0, 14.0], 2e-38),
        _temperature_case("logits = [13.0, 13.0 + 2^-17], nearly equal", [13.0, 13.0 + 2.0**-17], 1e-6),
        _temperature_case("4,096 logits, all 3.0", [3.0] * 4096, 2e-38),
        _temperature_case("logits = [13.0, 12.0, 9.0, -4.0]", [13.0, 12.0, 9.0, -4.0], 1e-39),
        _temperature_case("logits = [5.0, 14.0, 14.0], two equal", [5.0, 14.0, 14.0], 1e-50),
    ],
    mutants=[
        Mutant(
            lambda x, t: x / max(t, 1e-5),
            "You hold the temperature above some small number (or add one to it). Two logits that lie closer than that"
            " then share the probability, where the larger should have all of it: subtract the largest logit, and"
            " hardly anything is left to guard against.",
        ),
        Mutant(
            lambda x, t: x * t,
            "You multiply. A temperature below 1 sharpens: dividing by it draws the logits apart.",
        ),
        Mutant(
            lambda x, t: x / t,
            "At a very small temperature the quotient overflows to inf, and in the softmax inf - inf is nan. Subtract"
            " the largest logit first: a softmax does not see it, and 0 / 2e-38 is 0.",
        ),
        Mutant(
            lambda x, t: (x - x.max()) / t,
            "The smallest normal number of float32 is 1.2e-38. A temperature of 1e-50 is 0 in it, and 0 / 0 is nan:"
            " divide by max(temperature, torch.finfo(logits.dtype).tiny).",
        ),
        Mutant(
            lambda x, t: (x - x.max()) * (1 / t),
            "1 / temperature overflows on its own: 1 / 1e-39 is inf in float32, and 0 * inf is nan. Divide by the"
            " temperature, and by no less than torch.finfo(logits.dtype).tiny.",
        ),
        Mutant(
            lambda x, t: x.log_softmax(0) / _above_0_in(x, t),
            "A log_softmax leaves the largest logit *below* 0: at -8.3 where 4,096 tokens are equal. By a very small"
            " temperature that too overflows, to -inf for all. Subtract the largest logit: it is then 0, and stays 0.",
        ),
        Mutant(
            lambda x, t: (x / t).nan_to_num(),
            "nan_to_num gives every logit that overflowed the same, largest number, and tokens that were far apart are"
            " equal. Let nothing overflow upwards: subtract the largest logit first.",
        ),
        Mutant(
            lambda x, t: x - x.max() / t,
            "Your division reaches the maximum alone: / binds tighter than -. Parentheses: (logits - logits.max()) /"
            " temperature.",
        ),
        Mutant(
            lambda x, t: (x - x.min()) / t,
            "You subtract the smallest logit, and that moves the largest further up, where it overflows. Subtract the"
            " largest: then all others can only overflow downwards.",
        ),
        Mutant(
            lambda x, t: (x - x.mean()) / t,
            "You subtract the mean. Where a token was dropped the mean is -inf, and the largest logit is still above"
            " it and can still overflow: subtract the maximum.",
        ),
        Mutant(
            lambda x, t: x - x.max(),
            "The temperature changes nothing: divide by it.",
        ),
        Mutant(
            lambda x, t: ((x - x.max()) / _above_0_in(x, t)).softmax(0),
            "You return probabilities. The steps after this one expect logits, and take a softmax once more.",
        ),
        Mutant(
            lambda x, t: x.softmax(0) / t,
            "You divide probabilities by the temperature. It divides logits, *before* the softmax: there it changes"
            " the ratios; of probabilities it would only change the sum.",
        ),
        Mutant(
            lambda x, t: ((x - x.max()) / _above_0_in(x, t)).to(torch.float32),
            "The result is float32 whatever came in: keep the dtype of `logits`.",
        ),
        Mutant(
            lambda x, t: torch.full_like(x, NEVER).index_fill(0, x.argmax(), 0.0) if t < 1e-5 else x / t,
            "At a very small temperature you give everything to one token. Two that are equally likely stay so at any"
            " temperature: each has a half.",
        ),
        Mutant(_divided_in_place, IN_PLACE),
    ],
    alternatives=[
        lambda x, t: (x - x.max()) / _above_0_in(x, t),
        lambda x, t: (x - x.max()) * (1 / max(t, 1e-30)),
        lambda x, t: ((x.double() - x.max()) / t).to(x.dtype),
        lambda x, t: (x.double() / t).log_softmax(0).to(x.dtype),
    ],
)

# --- 7.2 -------------------------------------------------------------------------------------------------------------


def _penalty_case(given: str, logits: Sequence[float], token_ids: Collection[int], penalty: float) -> Case:
    def observe(f: Function) -> Observation:
        mine = row(logits)
        before = mine.clone()
        result = f(mine, type(token_ids)(token_ids), penalty)  # pyright: ignore[reportCallIssue]
        return {"the result": result, "logits afterwards": touched(logits=(mine, before))}

    def want() -> Observation:
        return {"the result": row(oracle.repetition(logits, token_ids, penalty)), "logits afterwards": UNTOUCHED}

    return Case(f"{given}; token_ids = {token_ids}; penalty = {penalty}", observe, want)


def _penalised(logits: Tensor, ids: Collection[int], change: Any) -> Tensor:
    if not ids:
        return logits
    index = torch.tensor(list(ids))
    changed = logits.clone()
    changed[index] = change(logits[index])
    return changed


def _each_time(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    changed = logits.clone()
    for i in ids:
        changed[i] = changed[i] * penalty if changed[i] < 0 else changed[i] / penalty
    return changed


def _once_each(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    return _each_time(logits, set(ids), penalty)


def _penalised_in_place(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    for i in set(ids):
        logits[i] = logits[i] * penalty if logits[i] < 0 else logits[i] / penalty
    return logits


def _index_of_a_set(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    if not ids:
        return logits
    index = torch.tensor(ids)
    changed = logits.clone()
    changed[index] = torch.where(logits[index] < 0, logits[index] * penalty, logits[index] / penalty)
    return changed


def _indexed_as_it_came(logits: Tensor, ids: Any, penalty: float) -> Tensor:
    changed = logits.clone()
    changed[ids] = torch.where(logits[ids] < 0, logits[ids] * penalty, logits[ids] / penalty)
    return changed


def _empty_index(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    index = torch.tensor(list(ids))
    seen = logits[index]
    return logits.scatter(0, index, torch.where(seen < 0, seen * penalty, seen / penalty))


def _whole_row(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    return torch.where(logits < 0, logits * penalty, logits / penalty)


def _the_others(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    return _each_time(logits, set(range(logits.shape[0])) - set(ids), penalty)


def _masked(logits: Tensor, ids: Collection[int], penalty: float) -> Tensor:
    """Another right answer: no index at all."""
    seen = torch.tensor([i in set(ids) for i in range(logits.shape[0])])
    factors = torch.where(logits < 0, penalty, 1 / penalty).to(logits.dtype)
    return torch.where(seen, logits * factors, logits)


REPETITION_PENALTY = Grader(
    cases=[
        _penalty_case("logits = [4.0, -3.0, 2.0, -1.0, 0.5]", [4.0, -3.0, 2.0, -1.0, 0.5], [0, 1], 2.0),
        _penalty_case("logits = [4.0, -3.0, 2.0, -1.0, 0.5]", [4.0, -3.0, 2.0, -1.0, 0.5], [2, 3, 2, 2, 3], 1.25),
        _penalty_case("37 random logits", RANDOM, {0, 7, 19, 36, 22}, 1.3),
        _penalty_case("logits = [4.0, -3.0, 2.0], nothing seen", [4.0, -3.0, 2.0], [], 1.5),
        _penalty_case("37 random logits, a penalty below 1", RANDOM, [5, 30, 5], 0.8),
        _penalty_case("logits = [-inf, 1.5, -2.0], one token dropped", [NEVER, 1.5, -2.0], (0, 2), 3.0),
    ],
    mutants=[
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: seen / p),
            "You divide negative logits as well. -3 / 2 is -1.5, which is *more* likely than before: multiply those"
            " below zero.",
        ),
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: torch.where(seen < 0, seen / p, seen * p)),
            "The two cases have changed places: a positive logit goes down when it is divided, a negative one when it"
            " is multiplied.",
        ),
        Mutant(
            _each_time,
            "You apply the penalty once for each occurrence. This one counts a token once, however often it was there;"
            " the frequency penalty is the one that counts.",
        ),
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: seen - p),
            "You subtract the penalty. That is what presence and frequency penalty do; this one divides and"
            " multiplies, and its neutral value is 1.",
        ),
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: torch.where(seen > 0, seen / p, seen)),
            "You leave negative logits as they were. They go down as well: multiply them by the penalty.",
        ),
        Mutant(
            lambda x, ids, p: _once_each(x, ids, p) if p > 1 else x.clone(),
            "You do nothing for a penalty below 1. The same two rules then make tokens likelier; only 1 is neutral.",
        ),
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: torch.minimum(seen / p, seen * p)),
            "You take whichever of seen / penalty and seen * penalty is less. That is right above 1; a penalty below 1"
            " makes tokens *likelier*. Ask for the logit's sign instead.",
        ),
        Mutant(_whole_row, "You change the logits of all tokens. Only those in token_ids occurred already."),
        Mutant(_the_others, "You change every token but the ones that occurred."),
        Mutant(
            lambda x, ids, p: _penalised(x, ids, lambda seen: torch.full_like(seen, NEVER)),
            "You forbid what occurred. The penalty only makes it less likely; a text without a second 'the' is hard"
            " to write.",
        ),
        Mutant(
            _index_of_a_set,
            "token_ids may be a set (the sampler keeps one), and torch.tensor does not take sets: list(token_ids)"
            " first.",
            begins="RuntimeError: Could not infer dtype of set",
        ),
        Mutant(
            _indexed_as_it_came,
            "token_ids may be a set, which is no index (and a tuple would be one of several axes): make a tensor of it"
            " first, torch.tensor(list(token_ids)).",
            begins="IndexError: only integers, slices",
        ),
        Mutant(
            _empty_index,
            "torch.tensor([]) is a tensor of floats, and floats are no index. Where nothing has occurred there is"
            " nothing to do: return early, or say dtype=torch.long.",
            begins="IndexError: tensors used as indices",
        ),
        Mutant(_penalised_in_place, IN_PLACE),
    ],
    alternatives=[
        _once_each,
        _masked,
        lambda x, ids, p: _penalised(x, ids, lambda seen: torch.minimum(seen / p, seen * p) if p > 1 else _up(seen, p)),
    ],
)


def _up(seen: Tensor, penalty: float) -> Tensor:
    return torch.maximum(seen / penalty, seen * penalty)
