"""The limits of the machine that this runs on, measured once and remembered with their date.

Other programs can make a measurement too low, and nothing can make it too high. So of several measurements the
highest is kept.
"""

import contextlib
import json
import os
import platform
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch

from minillm.device import DTYPES
from minillm.errors import InputError
from minillm.machine.measure import peak_matmul_flops, read_bandwidth
from minillm.machine.roofline import Machine
from minillm.user_cache import user_cache

MOST_BYTES_PER_S, MOST_FLOPS_PER_S = 1e15, 1e18
"""No machine comes near: a B200 reaches 8 thousandths of the one and 10 of the other (`specs`). Of several measurements
the highest is kept, so one that is nonsense must not be believed, or it would be kept for ever.
"""


@dataclass(frozen=True)
class Limits:
    """What was measured: bytes per second, operations per second by dtype name, and the day (ISO 8601)."""

    device: str
    bandwidth_bytes_per_s: float
    flops_per_s: dict[str, float]
    measured_on: str

    def machine(self, dtype: str) -> Machine:
        """The two speeds for a model in this dtype. Raises InputError for a dtype that was not measured."""
        if dtype not in self.flops_per_s:
            measured = ", ".join(self.flops_per_s) or "none yet"
            raise InputError(f"dtype {dtype!r} was not measured here (measured: {measured})")
        return Machine(self.bandwidth_bytes_per_s, self.flops_per_s[dtype])


def device_title(device: torch.device | str) -> str:
    """What was measured, in words, and what else the figures depend on: the processor, its threads, torch's version."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{_processor_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def measure_limits(
    device: torch.device | str = "cpu", dtypes: Collection[str] = tuple(DTYPES), file: Path | None = None
) -> Limits:
    """Measure, keep the better of this and what was known, and remember it in `file`.

    Bandwidth takes less than a second, and a dtype about as long; dtypes that are not asked for keep what was known.
    A file that cannot be written is no error: the figures are then measured again next time.
    """
    device = torch.device(device)
    bandwidth = read_bandwidth(device)
    flops = {name: peak_matmul_flops(device, DTYPES[name]) for name in dtypes}
    known = known_limits(device, file)
    if known is not None:
        bandwidth = max(bandwidth, known.bandwidth_bytes_per_s)
        flops = {**known.flops_per_s, **{name: max(flops[name], known.flops_per_s.get(name, 0.0)) for name in flops}}
    limits = Limits(device_title(device), bandwidth, flops, date.today().isoformat())
    place = file or _file_if_any()
    if place is not None:
        with contextlib.suppress(OSError):
            _remember(limits, place)
    return limits


def known_limits(device: torch.device | str = "cpu", file: Path | None = None) -> Limits | None:
    """What was measured before on this very machine; None where nothing was, or it cannot be read."""
    entry = _entries(file or _file_if_any()).get(device_title(device))
    if not isinstance(entry, dict):
        return None
    try:
        limits = Limits(**entry)
        for flops in (*limits.flops_per_s.values(), 1.0):
            machine = Machine(limits.bandwidth_bytes_per_s, flops)
            if machine.bandwidth_bytes_per_s > MOST_BYTES_PER_S or machine.flops_per_s > MOST_FLOPS_PER_S:
                return None
        date.fromisoformat(limits.measured_on)
    except (InputError, TypeError, ValueError, AttributeError):  # written by another version, or by hand
        return None
    return limits


def limits_file() -> Path:
    """Where measurements are kept: limits.json in $MINILLM_CACHE, else in minillm/ of the user's cache directory.

    Raises InputError where there is no such home directory as is meant.
    """
    return user_cache() / "limits.json"


def _file_if_any() -> Path | None:
    """Where measurements are kept, or None: that there is no place for them ends no request."""
    with contextlib.suppress(InputError):
        return limits_file()
    return None


def _entries(file: Path | None) -> dict[str, object]:
    try:
        entries = json.loads(file.read_text(encoding="utf-8")) if file is not None and file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(limits: Limits, file: Path) -> None:
    """Add to the file, by way of a temporary one that is gone afterwards: a reader never meets half of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    entries = {**_entries(file), limits.device: asdict(limits)}
    temporary = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as writer:
            json.dump(entries, writer, indent=1)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "CPU"
