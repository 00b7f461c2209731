"""What the graders share: short ways to write a case."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minillm.exercises.grading import Case


def formula(given: str, arguments: Sequence[Any], want: Any) -> Case:
    """A case of a function of plain values."""
    return Case(given, lambda f: {"the result": f(*arguments)}, lambda: {"the result": want})


def random(*shape: int, seed: int) -> Tensor:
    """Distinct float32 values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def touched(**arguments: tuple[Tensor, Tensor]) -> str:
    """Which of the arguments, given as (tensor, copy from before), the code has written into."""
    changed = [name for name, (tensor, before) in arguments.items() if not torch.equal(tensor, before)]
    return f"{' and '.join(changed)} written into" if changed else UNTOUCHED


UNTOUCHED = "as they were"


def refusal(run: Callable[[], Any]) -> str:
    """The name of the exception that `run` raises, or that there was none."""
    try:
        run()
    except Exception as error:
        return type(error).__name__
    return "no exception"
