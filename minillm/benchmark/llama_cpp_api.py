"""The library of llama.cpp, through the low-level functions of `llama-cpp-python`; imported only when asked for."""

import ctypes
import functools
import importlib
import importlib.util
from typing import Any

from minillm.errors import InputError

OLD = "this llama-cpp-python cannot turn flash attention off: pip install --upgrade llama-cpp-python"
MISSING = '--compare llama.cpp needs llama-cpp-python: pip install "minillm[bench]" (it is compiled: some minutes)'


def require_llama_cpp() -> None:
    """Raises InputError where it is not installed."""
    if importlib.util.find_spec("llama_cpp") is None:
        raise InputError(MISSING)


@functools.cache  # also keeps the callback alive, which the library goes on calling
def llama_cpp() -> Any:
    """The module, its log silenced: it would write hundreds of lines to stderr.

    Raises InputError where it is one that flash attention cannot be turned off in: set all the same, a field that it
    does not know would change nothing.
    """
    require_llama_cpp()
    library: Any = importlib.import_module("llama_cpp")
    if not hasattr(library, "LLAMA_FLASH_ATTN_TYPE_DISABLED"):
        raise InputError(OLD)

    def silent(level: int, text: bytes, user_data: Any) -> None:
        """Say nothing."""

    library.minillm_silence = library.llama_log_callback(silent)
    library.llama_log_set(library.minillm_silence, ctypes.c_void_p(0))
    library.llama_backend_init()
    return library
