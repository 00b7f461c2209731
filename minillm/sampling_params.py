"""SamplingParams: what a request may ask of its sampler, checked once, when it is written down.

No torch is imported here, so that a command line or a server can refuse a bad value before it loads anything.
"""

import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import no_type_check

from minillm.errors import InputError

MAX_LOGPROBS = 20
"""The most alternatives that a request may ask for per token; the OpenAI API's limit for `top_logprobs`."""

MAX_LOGIT_BIAS = 100.0
"""The largest bias, in logits, as in the OpenAI API: in practice, -100 bans a token and +100 forces it."""

MAX_PENALTY = 2.0
"""The largest presence or frequency penalty, in logits per token, as in the OpenAI API."""


@no_type_check  # at run time: the fields are checked below, and refused with a sentence for the user
@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request chooses its tokens, and when it stops. Immutable, hashable; equal when all fields are.

    What may be written in several forms is stored in one: numbers as `int` or `float` (numpy's too),
    `stop` and `stop_token_ids` as tuples, `logit_bias` as a read-only mapping, or None where it is empty.

    max_tokens:         at least 1; the most tokens to generate.
    temperature:        at least 0; 0 is greedy: the likeliest token, always.
    top_k:              at least 0; keep the k likeliest tokens; 0, or more than the vocabulary, keeps all.
    top_p:              in (0, 1]; keep the likeliest tokens that together reach this share; 1 keeps all.
    min_p:              in [0, 1]; keep tokens at least min_p times as likely as the likeliest; 0 keeps all.
    repetition_penalty: above 0; above 1, makes every token of the prompt and the completion less likely.
    presence_penalty:   in [-2, 2]; taken once from the logit of each token generated so far.
    frequency_penalty:  in [-2, 2]; taken from it once for each time that the token was generated.
    logit_bias:         {token id: bias in [-100, 100]}, added to those logits.
    seed:               a signed 64-bit integer; the same seed draws the same tokens, None new ones each time.
    stop:               one string or several, none of them empty: text that ends the completion.
    stop_token_ids:     token ids that end it.
    ignore_eos:         go on past the model's end-of-sequence tokens.
    logprobs:           in [0, 20]; how many alternatives to report per token, with their log-probabilities;
                        0 asks for an empty list of them, None for no list.
    prompt_logprobs:    the same for the tokens of the prompt: how likely the model held what was already there.

    Anything else raises InputError: one sentence that names the field, the value and what is allowed.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": _integer("max_tokens", self.max_tokens, 1),
            "temperature": _number("temperature", self.temperature, 0.0),
            "top_k": _integer("top_k", self.top_k, 0),
            "top_p": _number("top_p", self.top_p, 0.0, 1.0, low_allowed=False),
            "min_p": _number("min_p", self.min_p, 0.0, 1.0),
            "repetition_penalty": _number("repetition_penalty", self.repetition_penalty, 0.0, low_allowed=False),
            "presence_penalty": _number("presence_penalty", self.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
            "logit_bias": _logit_bias(self.logit_bias),
            "seed": _optional_integer("seed", self.seed, -(2**63), 2**63 - 1),
            "stop": _stop_strings(self.stop),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids),
            "ignore_eos": _flag("ignore_eos", self.ignore_eos),
            "logprobs": _optional_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS),
            "prompt_logprobs": _optional_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS),
        }
        for field, value in checked.items():
            object.__setattr__(self, field, value)  # the only way to write to a frozen dataclass

    def check_against_vocabulary(self, vocab_size: int) -> None:
        """Refuse, with InputError, what only the model can refuse: token ids that it does not have.

        To be called once per request, before its first step; the sampler itself trusts the ids.
        """
        named_ids = {"logit_bias": self.logit_bias or (), "stop_token_ids": self.stop_token_ids}
        for field, token_ids in named_ids.items():
            highest = max(token_ids, default=0)
            if highest >= vocab_size:
                raise InputError(
                    f"{field} names token {highest}, but this model's tokens go from 0 to {vocab_size - 1}."
                )
        for field, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > vocab_size:
                raise _refusal(field, count, f"at most {vocab_size}, the size of this model's vocabulary")


class FrozenBias(Mapping[int, float]):
    """A mapping from token id to bias that cannot be changed, and so can be hashed, shared and pickled."""

    __slots__ = ("_biases",)

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._biases = dict(biases)

    def __getitem__(self, token_id: int) -> float:
        return self._biases[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(frozenset(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


def _refusal(field: str, value: object, allowed: str) -> InputError:
    return InputError(f"{field} is {reprlib.repr(value)}, but it must be {allowed}.")


def _integer(field: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int from `low` to `high`, both included. True and False are not numbers here."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _refusal(field, value, allowed)
    number = int(value)
    if number < low or (high is not None and number > high):
        raise _refusal(field, value, allowed)
    return number


def _optional_integer(field: str, value: object, low: int, high: int) -> int | None:
    return None if value is None else _integer(field, value, low, high)


def _number(field: str, value: object, low: float, high: float = math.inf, low_allowed: bool = True) -> float:
    """`value` as a finite float from `low` (itself only if `low_allowed`) to `high`."""
    allowed = f"a finite number {'of at least' if low_allowed else 'above'} {low:g}"
    if high < math.inf:
        allowed += f" and at most {high:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise _refusal(field, value, allowed)
    try:
        number = float(value)
    except OverflowError:  # an int beyond the largest float
        number = math.inf
    above_low = number >= low if low_allowed else number > low
    if not (math.isfinite(number) and above_low and number <= high):
        raise _refusal(field, value, allowed)
    return number


def _flag(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refusal(field, value, "True or False")
    return value


def _token_ids(field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _refusal(field, value, "a list of token ids")
    return tuple(_integer(f"{field}[{i}]", token_id, 0) for i, token_id in enumerate(value))


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, bytes):
        raise _refusal("stop", value, "a string or a list of strings")
    # An empty string is found at the start of any text: the request would end before it began.
    if not all(isinstance(string, str) and string for string in strings):
        raise _refusal("stop", value, "a string or a list of strings, none of them empty")
    # A lone surrogate (which is how Python reads a command line's bytes that are not UTF-8) is in no text.
    if any(0xD800 <= ord(character) <= 0xDFFF for string in strings for character in string):
        raise _refusal("stop", value, "text that can be written as UTF-8")
    return tuple(strings)


def _logit_bias(value: object) -> FrozenBias | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _refusal("logit_bias", value, "a mapping from token id to bias")
    token_ids = [_integer("a token id in logit_bias", token_id, 0) for token_id in value]
    biases = [
        _number(f"logit_bias[{token_id}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
        for token_id, bias in zip(token_ids, value.values(), strict=True)
    ]
    return FrozenBias(dict(zip(token_ids, biases, strict=True))) if token_ids else None
