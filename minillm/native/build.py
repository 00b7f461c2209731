"""From the C++ files beside this one to a library that Python can call: compiled for this very processor, once.

No header of torch is included, so the compiler is done in seconds; what the functions get are addresses of tensors.
The library is kept in the user's cache under a name made of everything that went into it: another source, compiler,
processor or torch makes another one.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import secrets
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from minillm.errors import MissingError
from minillm.user_cache import user_cache

SOURCES = Path(__file__).parent
UNITS = ("decode.cpp", "attention.cpp", "prompt.cpp", "rows.cpp")
"""The files that are compiled; the others are included by them."""
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
FUNCTIONS = (
    "decode_layers", "multiply_rows", "prompt_in_tiles", "prompt_in_floats", "norm_rows", "rotate_rows", "gate_rows",
    "widen_rows",
)  # fmt: skip
"""Those that give nothing back."""
COMPILERS = ("c++", "g++", "clang++")


@functools.cache
def native_library() -> ctypes.CDLL:
    """The compiled kernels; at first use on a machine, compiled (about six seconds).

    Raises MissingError, with one sentence, where there is no compiler or it fails.
    """
    compiler = find_compiler()
    command = [compiler, *FLAGS]
    file = user_cache() / "native" / f"kernels-{_fingerprint(command)}.so"
    if not os.path.isfile(file):  # False also where the directory may not be looked into; `Path.is_file` would raise
        _compile(command, file)
    try:
        library = ctypes.CDLL(str(file))
    except OSError as error:
        raise MissingError(f"the compiled kernels {file} cannot be loaded ({error}): remove the file") from None
    for function in FUNCTIONS:
        getattr(library, function).restype = None
    return library


def find_compiler() -> str:
    """$CXX, or the first C++ compiler on the path. Raises MissingError where there is none."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else COMPILERS:
        if found := shutil.which(name):
            return found
    where = f"$CXX is {wanted!r}, which is not there" if wanted else f"there is none of {', '.join(COMPILERS)}"
    raise MissingError(f"no C++ compiler: {where} (Debian and Ubuntu: apt install g++)")


def _compile(command: list[str], file: Path) -> None:
    """All units side by side, each to a temporary name; then linked, and renamed: another process never loads half a
    library.
    """
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    objects = [temporary.with_name(f"{temporary.name}.{unit}.o") for unit in UNITS]

    def run(*arguments: object) -> None:
        whole = [*command, *map(str, arguments)]
        subprocess.run(whole, check=True, capture_output=True, text=True, timeout=300)

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(len(UNITS)) as pool:
            list(pool.map(lambda unit, to: run("-c", SOURCES / unit, "-o", to), UNITS, objects))
        run(*objects, "-o", temporary, *_torch_openmp())
        os.replace(temporary, file)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or ["?"]
        raise MissingError(f"the C++ compiler {command[0]} failed: {lines[0].strip()}") from None
    except subprocess.TimeoutExpired:
        raise MissingError(f"the C++ compiler {command[0]} took more than five minutes") from None
    except OSError as error:
        raise MissingError(f"the compiled kernels cannot be written to {file.parent} ({error.strerror})") from None
    finally:
        for left in (temporary, *objects):
            with contextlib.suppress(OSError):  # where nothing could be written, there is nothing to remove
                left.unlink()


def _torch_openmp() -> list[str]:
    """Torch's own OpenMP library, if it brings one: with another one beside it, two sets of threads would spin."""
    return [str(found) for found in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]]


def _fingerprint(command: list[str]) -> str:
    """Of all that the library depends on."""
    try:
        version = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:  # it may be executed, but is no program
        raise MissingError(f"the C++ compiler {command[0]} cannot be run ({error.strerror})") from None
    parts = [*command, version, torch.__version__, *_torch_openmp(), platform.machine(), _processor_flags()]
    parts += [
        path.read_text(encoding="utf-8") for path in [*sorted(SOURCES.glob("*.h")), *(SOURCES / unit for unit in UNITS)]
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor_flags() -> str:
    """What this processor can do, as Linux says it: a home directory may be shared by unlike machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    return next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
