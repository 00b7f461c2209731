"""Where to compute and in which dtype: what `device="auto"` and `dtype="auto"` mean."""

import functools
import re
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from minillm.errors import InputError, MissingError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

CPUINFO = Path("/proc/cpuinfo")

# Linux' names for "this processor multiplies numbers of this type": x86 AVX-512 and AMX, 64-bit Arm.
_CPU_FLAGS = {
    torch.bfloat16: {"avx512_bf16", "amx_bf16", "bf16"},
    torch.float16: {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """The device that is named; for "auto", CUDA where there is a usable GPU, else the CPU.

    Raises InputError for a name that is no device, MissingError for a CUDA device that is not there.
    """
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu(:0)?|cuda(:(0|[1-9][0-9]{0,2}))?", str(device)):
        raise InputError(f"unknown device {str(device)!r}: use auto, cpu, cuda or cuda:N")
    picked = torch.device(device)
    if picked.type == "cpu":
        return torch.device("cpu")  # tensors know no cpu:0
    if picked.type == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if found == 0:
            raise MissingError(
                f"device {device} was asked for, but this PyTorch ({torch.__version__}) sees no CUDA GPU:"
                " use the device cpu, or check the driver and that PyTorch is a CUDA build"
            )
        if (picked.index or 0) >= found:
            raise MissingError(f"device {device} was asked for, but there are only {found} GPUs (cuda:0 ...)")
    return picked


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype that is named; for "auto", what the hardware is fast at: half the bytes where it can multiply them.

    CUDA: bfloat16 from compute capability 8.0 (Ampere), float16 before. CPU: bfloat16 with AVX-512 BF16, AMX or
    Arm BF16, float32 otherwise, where bfloat16 would be converted number by number.
    Raises InputError for a name that is none of float32, bfloat16, float16.
    """
    if dtype == "auto":
        if device.type == "cuda":
            return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        return torch.bfloat16 if cpu_multiplies(torch.bfloat16) else torch.float32
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise InputError(f"unknown dtype {str(dtype)!r}: use auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as users write it: "bfloat16", not "torch.bfloat16"."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def cpu_multiplies(dtype: torch.dtype, cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor states instructions for products of this dtype. Where nothing is stated: no.

    float32 needs no statement: every processor that PyTorch runs on multiplies it.
    """
    return dtype not in _CPU_FLAGS or bool(_CPU_FLAGS[dtype] & set(_stated("flags|Features", cpuinfo)))


@functools.cache
def cpu_multiplies_tiles(dtype: torch.dtype, cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor states AMX for this dtype: instructions that multiply whole tiles of two matrices."""
    return dtype == torch.bfloat16 and "amx_bf16" in _stated("flags", cpuinfo)


@functools.cache
def cpu_is_intel(cpuinfo: Path = CPUINFO) -> bool:
    """Whether the processor says it is Intel's: MKL, PyTorch's library for float32 on x86, asks that before it chooses.

    On others' processors its matrix-vector product runs on one thread.
    """
    return "GenuineIntel" in _stated("vendor_id", cpuinfo)


def _stated(names: str, cpuinfo: Path) -> Sequence[str]:
    """The words that stand behind these names, on the lines of all processors."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return " ".join(re.findall(rf"^(?:{names})\s*:(.*)$", text, flags=re.MULTILINE)).split()


def clock(device: torch.device) -> float:
    """Seconds on a steady clock, read when the device has finished what it was given.

    A CUDA kernel is only launched when its call returns: without waiting, its time would be booked to whatever
    looks at the result first.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def keep_freed_memory() -> None:
    """Let the C library keep what a pass frees: the next layer asks for it again.

    glibc gives freed memory back to the system, whose pages must be mapped and emptied again before their next use,
    until it has seen a large block freed: from then on it keeps twice as much as that (`man mallopt`; 32 MiB is the
    largest block that it learns from). This block is never written to, and takes no memory.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)
