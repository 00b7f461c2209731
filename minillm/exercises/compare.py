"""How far an answer is from the wanted one, and the difference in words.

Values are what graders observe: tensors, numbers, text, None. The tolerance is for sums in float32 taken in another
order: the right answers that were tried (see tests/test_exercises_graders.py) are within a tenth of it, and the known
wrong ones more than a hundred times beyond.
"""

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from minillm.device import dtype_name

TENSOR_TOLERANCE = 2e-5  # of a float tensor's entries: absolute, and relative to the wanted entry
NUMBER_TOLERANCE = 1e-9  # of a float, relative: Python computes in 53 bits


def distance(got: Any, want: Any) -> float:
    """How far `got` is from `want`, in tolerances: up to 1 counts as equal; infinite if it differs in kind."""
    if _differs_in_kind(got, want):
        return math.inf
    if isinstance(want, Tensor):
        return _tensor_distance(got, want)
    if isinstance(want, float):
        if math.isnan(want) or math.isnan(got) or math.isinf(want):
            return 0.0 if str(float(got)) == str(want) else math.inf
        return abs(float(got) - want) / (NUMBER_TOLERANCE * max(abs(want), 1e-12))
    return 0.0 if got == want else math.inf


def _tensor_distance(got: Tensor, want: Tensor) -> float:
    """The largest over the entries. Two nans are alike."""
    if want.numel() == 0 or want.is_meta:
        return 0.0
    return float(_entry_distances(got, want).max())


def _entry_distances(got: Tensor, want: Tensor) -> Tensor:
    """The distance of each entry, in tolerances: infinite where only one is a nan, or an exact kind differs."""
    if not want.is_floating_point():
        return torch.where(got == want, 0.0, math.inf)
    got, want = got.detach().double(), want.double()
    off = (got - want).abs() / (TENSOR_TOLERANCE * (1 + want.abs()))
    alike = (got == want) | (got.isnan() & want.isnan())  # also two infinities, whose difference is a nan
    return torch.where(alike, 0.0, off.nan_to_num(nan=math.inf))


def _differs_in_kind(got: Any, want: Any) -> str:
    """In words, why the two cannot be compared entry by entry; "" if they can."""
    if want is not None and got is None:
        return "None (is there a `return`?)"
    if isinstance(want, Tensor):
        return _tensor_differs_in_kind(got, want)
    if isinstance(want, bool | str) or want is None:
        return "" if type(got) is type(want) else in_words(got)
    if isinstance(got, bool) or not isinstance(got, Real):
        advice = " (`.item()` takes the number out of it)" if isinstance(got, Tensor) and got.numel() == 1 else ""
        return f"{in_words(got)}: not a number{advice}"
    if isinstance(want, int) and not isinstance(got, Integral):
        return f"{in_words(got)}: a float, where a whole number (int) is wanted"
    return ""


def _tensor_differs_in_kind(got: Any, want: Tensor) -> str:
    if not isinstance(got, Tensor):
        return f"{in_words(got)}: not a tensor"
    if got.shape != want.shape:
        return f"shape {list(got.shape)} instead of {list(want.shape)}"
    if got.dtype != want.dtype:
        return f"{in_words(got)}: the dtype is not {_dtype(want)}"
    if got.device.type != want.device.type:
        return f"a tensor on the device {str(got.device)!r} instead of {str(want.device)!r}"
    return ""


def difference(got: Any, want: Any) -> tuple[str, str]:
    """What was wanted and what came, in words, at the entry that is farthest off."""
    kind = _differs_in_kind(got, want)
    if kind:
        return in_words(want), kind
    if not isinstance(want, Tensor) or want.dim() == 0:
        return in_words(want), in_words(got)
    off = _entry_distances(got, want)
    worst = int(off.argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), want.shape)]
    wrong = f"{int((off > 1).sum())} of {off.numel()} entries are off, the worst at {index}"
    return (
        f"{in_words(want)} with {_entry(want.flatten()[worst])} at {index}",
        f"{_entry(got.flatten()[worst])} there; {wrong}",
    )


def in_words(value: Any) -> str:
    """A value as a failure shows it: short, and without a tensor's entries unless they are few."""
    if isinstance(value, Tensor):
        return f"a {_dtype(value)} tensor {list(value.shape)}"
    text = str(value) if isinstance(value, str) else repr(value)
    kind = "" if value is None or isinstance(value, bool | int | float | str) else f"{_article(type(value).__name__)}: "
    return kind + (text if len(text) <= 60 else text[:57] + "...")


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _dtype(tensor: Tensor) -> str:
    return dtype_name(tensor.dtype)


def _entry(entry: Tensor) -> str:
    value = entry.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
