"""What the graders share: short ways to write a case."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.errors import InputError
from minillm.exercises.grading import EXCEPTION, UNEXPECTED, Case, Function, Observation, Raised, raised


def formula(given: str, arguments: Sequence[Any], want: Any) -> Case:
    """A case of a function of plain values. Every run gets its own copies, and may not change them."""

    def observe(f: Function) -> Observation:
        mine = copy.deepcopy(list(arguments))
        result = f(*mine)
        return {"the result": result, "the arguments afterwards": UNTOUCHED if mine == list(arguments) else CHANGED}

    return Case(given, observe, lambda: {"the result": want, "the arguments afterwards": UNTOUCHED})


def random(*shape: int, seed: int) -> Tensor:
    """Distinct float32 values, whatever torch's default dtype is."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def touched(**arguments: tuple[Tensor, Tensor]) -> str:
    """Which of the arguments, given as (tensor, copy from before), the code has written into."""
    changed = [name for name, (tensor, before) in arguments.items() if not torch.equal(tensor, before)]
    return f"{' and '.join(changed)} written into" if changed else UNTOUCHED


UNTOUCHED = "as they were"
CHANGED = "changed by your code"


def refusal(f: Function, *arguments: Any) -> Observation:
    """What a call raises, in words: REFUSED for an InputError (or a kind of it) with a message.

    Of any other exception its class is compared; message and line go along for the reader. (Of a NameError, the
    message too: which name is not known is all that there is to it.)
    """
    try:
        result = f(*arguments)
    except InputError as error:
        return {EXCEPTION: REFUSED if str(error).strip() else "InputError without a message"}
    except Exception as error:
        return {EXCEPTION: _in_words(error), UNEXPECTED: _told(error, f)}
    if isinstance(result, BaseException):
        return {EXCEPTION: "no exception: one is returned, and not raised"}
    return {EXCEPTION: "no exception"}


def _in_words(error: Exception) -> str:
    name = type(error).__name__
    if name == "InputError":
        return f"another class called {name}, not minillm.errors.{name}"
    return f"{name}: {error}" if isinstance(error, NameError) else name


def _told(error: Exception, f: Function) -> Raised | None:
    return None if type(error).__name__ == "InputError" else raised(error, f)


REFUSED = "InputError with a sentence"
