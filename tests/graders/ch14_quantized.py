"""What the graders of 14.1 and 14.3 share: what there is to see of a `QuantizedWeight`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from graders.common import touched
from minillm.exercises.grading import Case, Function, Observation
from minillm.quantization import QuantizedWeight

BECOMES, FINITE, NOT_FINITE = "what is turned into codes", "finite numbers", "nan or infinity among them"


class _IntoIntegers(TorchFunctionMode):
    """Looks at what is turned into an integer type. What becomes of a nan there is the processor's choice: often 0."""

    def __init__(self) -> None:
        super().__init__()
        self.given = FINITE

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        writes = func.__name__ in ("copy_", "__setitem__")
        if writes or func.__name__ in ("to", "type", "type_as", "char", "byte", "short", "int", "long"):
            into = args[0] if writes else result  # of `.type()` the result is a str
            floats = [one for one in args if isinstance(one, Tensor) and one.is_floating_point()]
            exact = isinstance(into, Tensor) and not into.is_floating_point() and into.dtype != torch.bool
            if exact and not all(one.isfinite().all() for one in floats):
                self.given = NOT_FINITE
        return result


def _seen(result: Any) -> Observation:
    """What a `QuantizedWeight` holds. A scale under which all codes are 0 stands for 0, whatever it is."""
    if not isinstance(result, QuantizedWeight):
        return {"the result": f"{type(result).__name__}, and not a QuantizedWeight"}
    codes, scale = result.codes, result.scale
    of_rows = isinstance(scale, Tensor) and isinstance(codes, Tensor) and scale.shape == codes.shape[:1]
    if result.format == "int8" and of_rows and codes.dim() == 2:
        empty = (codes == 0).all(dim=1) & scale.isfinite()
        scale = torch.where(empty, torch.zeros_like(scale), scale)
    return {
        "the result": "a QuantizedWeight",
        "its format": result.format,
        "its codes": codes,
        "its scale": scale,
        "its minimum": result.minimum,
    }


def quantized_case(given: str, weight: Tensor, want: Callable[[Tensor], QuantizedWeight]) -> Case:
    def observe(f: Function) -> Observation:
        mine = weight.clone()
        with _IntoIntegers() as into:
            seen = _seen(f(mine))
        return {**dict.fromkeys(_seen(want(weight)), "nothing, for it is none"), **seen, BECOMES: into.given,
                "afterwards": touched(weight=(mine, weight))}  # fmt: skip

    return Case(given, observe, lambda: {**_seen(want(weight)), BECOMES: FINITE, "afterwards": "as they were"})


def zeros_replaced(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, torch.ones_like(scale), scale)
