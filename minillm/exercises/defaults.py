"""What a reader's code may set for all of torch is given back afterwards."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def torch_defaults_kept() -> Iterator[None]:
    """Afterwards the default dtype is what it was before: `torch.set_default_dtype` sets it for the engine too.

    torch is not imported for this. Where the code within is the first to import it, the default was float32.
    """
    before = _torch().get_default_dtype() if _torch() else None
    try:
        yield
    finally:
        torch = _torch()
        if torch is not None:
            torch.set_default_dtype(before or torch.float32)


def _torch() -> Any:
    return sys.modules.get("torch")
