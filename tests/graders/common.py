"""What the graders share: short ways to write a case."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.errors import InputError
from minillm.exercises.grading import Case, Function, Observation


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


def refusal(run: Callable[[], Any]) -> str:
    """What `run` raises, in words: REFUSED for an InputError (or a kind of it) with a message."""
    try:
        run()
    except InputError as error:
        return REFUSED if str(error).strip() else "InputError without a message"
    except Exception as error:
        name = type(error).__name__
        return f"another class called {name}, not minillm.errors.{name}" if name == "InputError" else name
    return "no exception"


REFUSED = "InputError with a sentence"
