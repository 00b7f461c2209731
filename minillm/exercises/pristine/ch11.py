"""Exercises of chapter 11, *Bringing up the box*. This file is yours to edit.

Replace each `todo(...)` by your code. Then, at the root of the repository:

    pytest --ch 11          grades this file and shows where you are
    pytest --ch 11.2        grades one exercise
    pytest --hint 11.2      the next hint; each call gives away a little more

Keep the lines that begin with `# ---`: each exercise is graded on its own, from one such line to the next, so that
an accident in one leaves the others alone. You may add imports up here and helpers anywhere, and an exercise may
call your solutions of the others.

No tensors here, and no GPU: texts, numbers, and the values that `minillm/machine/doctor/facts.py` and `finding.py`
define.
"""

import math  # noqa: F401 - here for you, as are the others
import re  # noqa: F401
from collections.abc import Iterable
from dataclasses import replace  # noqa: F401

from minillm.exercises import todo
from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.finding import Check, Finding, not_checked, not_here  # noqa: F401
from minillm.machine.doctor.parse_gpu import version_tuple  # noqa: F401
from minillm.machine.doctor.torch_build import FIRST_DRIVER  # noqa: F401


# --- 11.1 ------------------------------------------------------------------------------------------------------------
def runs(built: str, highest: str | None, driver: str | None, *, wsl: bool = False) -> bool | None:
    """Whether a driver runs a program that was built with CUDA `built`.

    built: the program's CUDA version, "12.8", as `torch.version.cuda` gives it. highest: the CUDA version that the
    driver states, as in the head of `nvidia-smi`. driver: the driver's own version, "535.183.01". Of CUDA versions
    only the first two numbers count.

    - A driver runs every program whose CUDA version is not higher than the one it states.
    - It runs a higher one too if the major number is the same, and the driver itself is at least the first of that
      major: `FIRST_DRIVER` maps 12 to "525.60.13", and so on.
    - Under WSL2 (`wsl`) the driver is that of Windows, which is numbered otherwise: with the same major number, take
      it as new enough.
    - Where `built` or `highest` cannot be read, nobody can say: return None.

    `version_tuple("535.183.01")` is (535, 183, 1), and None for what is no version; tuples compare number by number.

    About 8 lines.
    """
    todo("11.1")


# --- 11.2 ------------------------------------------------------------------------------------------------------------
def has_code_for(capability: str, arch_list: tuple[str, ...]) -> bool:
    """Whether a build of PyTorch has code that a GPU of this compute capability runs.

    capability: the GPU's, "8.9". arch_list: what `torch.cuda.get_arch_list()` says, such as ("sm_86", "sm_90a",
    "compute_90"): the last digit is the minor number, what stands before it the major one.

    - `sm_86` is machine code. It runs on GPUs of its own major number, at the same minor number or a later one.
    - `sm_90a` is machine code for exactly that capability, and for no other.
    - `compute_90` is PTX, which the driver compiles when it is loaded: for that capability and any later one, of any
      major number. With an `a` at its end: for exactly that one.

    Return False if nothing in the list fits.

    About 12 lines.
    """
    todo("11.2")


# --- 11.3 ------------------------------------------------------------------------------------------------------------
def usable_cpus(facts: Facts) -> int | None:
    """The processors that this process really gets, and so the threads that it should start.

    facts.cpus_allowed: how many it may run on (its affinity; None where the system has no such thing). Failing that,
    facts.cpus: how many the machine has. Failing that, facts.cpu.logical: how many /proc/cpuinfo lists. Each may be
    None; if all are, return None.

    facts.cpu_quota: how many processors' worth of time its control group is allotted (2.5 for `cpu.max` "250000
    100000"), or None: no limit. A thread is a whole one: round down, but not below 1.

    Both limits hold.

    About 5 lines.
    """
    todo("11.3")


# --- 11.4 ------------------------------------------------------------------------------------------------------------
def diagnose(facts: Facts, checks: Iterable[Check]) -> list[Finding]:
    """Put all checks to the facts, in the given order: one finding per check, none of them a consequence of another.

    `check.ask(facts)` gives a finding, whose status is "ok", "warn", "fail", "not here" or "not checked". But before
    a check is asked, look at what became of the checks that it names (they come before it):

    - If one in `check.needs` or `check.after` failed, do not ask. The finding is `not_checked("depends on: NAME")`.
    - Else, if one in `check.needs` is not here, do not ask. The finding is `not_here("depends on: NAME")`.
      (`after` means: must not have failed, but may be absent.)
    - Else ask it.

    Both spread: whatever stands on a check that was not asked is not asked either, and NAME is always the check at the
    bottom, the one that failed (or is absent) itself. If there are several, take that of the first name in `needs`,
    then `after`. "warn", and a check that answers "not checked" itself, stop nothing.

    Each finding carries its check's name and group: `replace(finding, name=check.name, group=check.group)`.

    About 18 lines.
    """
    todo("11.4")
