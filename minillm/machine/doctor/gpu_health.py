"""GPUs that answer: are they sound, whole, free, and allowed to run at full speed?"""

import functools
from collections.abc import Callable

from minillm.machine.doctor.facts import Facts, Gpu
from minillm.machine.doctor.finding import Finding, fail, not_checked, not_here, ok, warn

BROKEN_XIDS = {
    48: "uncorrectable memory error",
    64: "bad memory could not be replaced by spare rows",
    79: "fell off the bus",
    95: "uncorrectable memory error, not contained",
}
PROGRAM_XIDS = {13: "exception in a kernel", 31: "access to unmapped memory", 43: "a program stopped", 45: "cleanup"}
"""Xid numbers: NVIDIA's catalog, docs.nvidia.com/deploy/xid-errors. The second kind is mostly a program's own fault."""


Ask = Callable[[Facts], Finding]


def _of_described_gpus(ask: Ask) -> Ask:
    """A check of what `nvidia-smi` tells of each GPU; where it tells nothing, there is nothing to be judged."""

    @functools.wraps(ask)
    def check(facts: Facts) -> Finding:
        return ask(facts) if _gpus(facts) else not_checked("nvidia-smi, which would tell, does not answer")

    return check


def kernel_log(facts: Facts) -> Finding:
    """What the driver has complained about since the machine started (Xid errors)."""
    if facts.kernel_log is None:
        return not_checked("this user may not read the kernel log", "sudo dmesg | grep -i xid")
    broken = next((xid for xid in facts.xids if xid.number in BROKEN_XIDS), None)
    if broken is not None:
        return fail(
            f"Xid {broken.number}: the GPU at {broken.address} {_as_verb(broken.number)}",
            "sudo reboot   # power cycle; if it returns: have the card replaced",
        )
    others = sorted({xid.number for xid in facts.xids} - set(PROGRAM_XIDS))
    if others:
        return warn(
            f"the driver reported Xid {', '.join(map(str, others))}: look them up in NVIDIA's Xid catalog",
            "sudo dmesg | grep -i xid",
        )
    if facts.xids:
        return ok("no broken hardware reported; only programs that crashed on the GPU")
    return ok("no errors reported by the driver")


def _as_verb(number: int) -> str:
    return BROKEN_XIDS[number] if number == 79 else f"reports: {BROKEN_XIDS[number]}"


@_of_described_gpus
def memory_errors(facts: Facts) -> Finding:
    """ECC: does the GPU's memory return what was written to it?"""
    gpus = _gpus(facts)
    for gpu in gpus:
        if gpu.remap_failed:
            return fail(
                f"GPU {gpu.index} has run out of spare memory rows: it must be replaced",
                "nvidia-smi -q -d ROW_REMAPPER",
            )
        if gpu.uncorrectable_now:
            return fail(
                f"GPU {gpu.index} had {gpu.uncorrectable_now} uncorrectable memory errors since its driver started:"
                " results may be wrong",
                f"sudo nvidia-smi --gpu-reset -i {gpu.index}   # end its programs first; if they return: replace it",
            )
    pending = next((gpu for gpu in gpus if gpu.remap_pending), None)
    if pending is not None:
        return warn(
            f"GPU {pending.index} replaces a bad memory row at its next reset",
            f"sudo nvidia-smi --gpu-reset -i {pending.index}",
        )
    old = next((gpu for gpu in gpus if gpu.uncorrectable_ever), None)
    if old is not None:
        return warn(
            f"GPU {old.index} had {old.uncorrectable_ever} uncorrectable memory errors in its life, none since its"
            " driver started",
            "nvidia-smi -q -d ECC,ROW_REMAPPER",
        )
    if all(gpu.ecc is None for gpu in gpus):
        return not_here("this GPU's memory has no ECC")
    if any(gpu.ecc is False for gpu in gpus):
        return warn("ECC is switched off: a flipped bit goes unnoticed", "sudo nvidia-smi -e 1 && sudo reboot")
    return ok("ECC is on, no uncorrectable errors")


@_of_described_gpus
def mig(facts: Facts) -> Finding:
    """Is a GPU cut into slices (MIG)? In MIG mode without a slice it computes nothing."""
    on = [gpu for gpu in _gpus(facts) if gpu.mig]
    change = next((gpu for gpu in _gpus(facts) if gpu.mig_pending is not None and gpu.mig_pending != gpu.mig), None)
    instances = facts.mig_instances or ()
    empty = [gpu for gpu in on if gpu.index < len(instances) and instances[gpu.index] == 0]
    if empty:
        which = ",".join(str(gpu.index) for gpu in empty)
        what = (
            f"GPU {which} is in MIG mode, but has no instance: no program can use it"
            if len(empty) == 1
            else f"GPUs {which} are in MIG mode, but have no instance: no program can use them"
        )
        slices = "nvidia-smi mig -lgip, then mig -cgi ID -C"
        mend = f"sudo nvidia-smi -i {which} -mig 0   # whole again; or slices: {slices}"
        return fail(what, mend) if len(empty) == len(_gpus(facts)) else warn(what, mend)
    if change is not None:
        return warn(
            f"MIG mode of GPU {change.index} changes at its next reset",
            f"sudo nvidia-smi --gpu-reset -i {change.index}",
        )
    if on and facts.mig_instances is None:
        return warn("MIG is on; its instances could not be read", "nvidia-smi -L")
    if on:
        return ok(f"MIG is on, {sum(instances)} instances; a program sees one slice's memory, not the GPU's")
    if all(gpu.mig is None for gpu in _gpus(facts)):
        return not_here("this GPU cannot be cut into slices")
    return ok("MIG is off: the GPU is whole")


@_of_described_gpus
def fabric(facts: Facts) -> Finding:
    """HGX boards: the switches between the GPUs need their manager before CUDA starts on any of the GPUs."""
    states = {gpu.fabric for gpu in _gpus(facts)} - {None}
    start = "sudo systemctl enable --now nvidia-fabricmanager && systemctl status nvidia-fabricmanager"
    if facts.fabric_manager in ("inactive", "failed", "unknown", "not-found"):
        return fail(f"the board has NVSwitches, but their fabric manager is {facts.fabric_manager}", start)
    if states - {"Completed"}:
        return fail(f"the GPUs are not joined to the NVSwitch fabric yet: {', '.join(sorted(map(str, states)))}", start)
    if states or facts.fabric_manager == "active":
        return ok("the GPUs are joined by NVSwitches, and their fabric is up")
    if any(device.is_nvswitch for device in facts.pci or ()):
        return not_checked("there are NVSwitches; their fabric manager runs outside", start)
    return not_here("no NVSwitch on this board")


@_of_described_gpus
def memory(facts: Facts) -> Finding:
    """Is the GPUs' memory free, and if not, who holds it?"""
    known = [gpu for gpu in _gpus(facts) if gpu.memory_total_mib and gpu.memory_free_mib is not None]
    if not known:
        return not_checked("the driver does not say how much memory is free", "nvidia-smi")
    least = min(known, key=_share_free)
    free = f"{_gib(least.memory_free_mib)} of {_gib(least.memory_total_mib)} GiB free"
    where = f"GPU {least.index}: {free}" if len(known) > 1 else free
    if _share_free(least) >= 0.9:
        return ok(f"{free}, on each of {len(known)} GPUs" if len(known) > 1 else free)
    holders = sorted(least.processes, key=lambda process: -(process.memory_mib or 0))
    named = ", ".join(f"{process.pid} ({process.name.split('/')[-1][:30]})" for process in holders[:3])
    held = f"{where}; held by process {named}" if named else f"{where}; its holder is not visible from here"
    look = "nvidia-smi" if not holders else f"ps -fp {','.join(str(process.pid) for process in holders[:3])}"
    if max(_share_free(gpu) for gpu in known) < 0.1:
        return fail(held, f"{look}   # then end the program, if it is yours to end")
    return warn(held, f"{look}   # then end the program, or choose another GPU: CUDA_VISIBLE_DEVICES")


def _share_free(gpu: Gpu) -> float:
    return (gpu.memory_free_mib or 0) / gpu.memory_total_mib if gpu.memory_total_mib else 0.0


def _gib(mib: float | None) -> str:
    return f"{(mib or 0) / 1024:.1f}"


@_of_described_gpus
def persistence(facts: Facts) -> Finding:
    """Does the driver stay awake between programs?"""
    off = [gpu for gpu in _gpus(facts) if gpu.persistence is False and not gpu.display]
    if off:
        return warn(
            f"the driver lets go of GPU {off[0].index} when no program runs: every start then waits for it for seconds",
            "sudo nvidia-smi -pm 1   # for good: sudo systemctl enable --now nvidia-persistenced",
        )
    return ok("the driver stays awake between programs")


@_of_described_gpus
def power_and_clocks(facts: Facts) -> Finding:
    """Is anything holding the GPU's clocks down?"""
    for gpu in _gpus(facts):
        limit, default = gpu.power_limit_w, gpu.power_default_w
        if gpu.slowdowns:
            return warn(
                f"GPU {gpu.index} slows itself down: {', '.join(gpu.slowdowns)}",
                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER   # then look at fans, airflow and power cables",
            )
        if limit is not None and default is not None and limit < default:
            return warn(
                f"GPU {gpu.index} is capped at {limit:.0f} W, and made for {default:.0f} W: long prompts are slower",
                f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}",
            )
        if gpu.clock_set_mhz and gpu.clock_default_mhz and gpu.clock_set_mhz < gpu.clock_default_mhz:
            return warn(
                f"GPU {gpu.index} is set to {gpu.clock_set_mhz:.0f} MHz; default: {gpu.clock_default_mhz:.0f} MHz",
                f"sudo nvidia-smi -i {gpu.index} -rac",
            )
    limits = [gpu.power_limit_w for gpu in _gpus(facts) if gpu.power_limit_w]
    return ok(f"no slowdown; power limit {limits[0]:.0f} W" if limits else "no slowdown")


@_of_described_gpus
def pcie(facts: Facts) -> Finding:
    """Is the slot as wide as the card? (Its speed drops when idle, its width does not.)"""
    known = [gpu for gpu in _gpus(facts) if gpu.pcie_width and gpu.pcie_width_max]
    narrow = next((gpu for gpu in known if (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0)), None)
    if narrow is not None:
        return warn(
            f"GPU {narrow.index} has {narrow.pcie_width:.0f} PCIe lanes of {narrow.pcie_width_max:.0f}: loading weights"
            " takes longer",
            "nvidia-smi -q | grep -A 2 'Link Width'   # seat the card in a full slot, check risers",
        )
    if not known:
        return not_here("the width of the slot is not stated")
    return ok(f"{known[0].pcie_width:.0f} of {known[0].pcie_width_max:.0f} lanes")


@_of_described_gpus
def links(facts: Facts) -> Finding:
    """Several GPUs: by NVLink, or through PCIe and the processors?"""
    if len(_gpus(facts)) < 2:
        return not_here("one GPU has no links to others")
    if facts.topology is None:
        return not_checked("the links between the GPUs could not be read", "nvidia-smi topo -m")
    between = {link for row, links in enumerate(facts.topology) for column, link in enumerate(links) if row != column}
    nvlinks = sorted(link for link in between if link.startswith("NV"))
    others = sorted(between - set(nvlinks))
    if not others:
        return ok(f"every pair by NVLink ({', '.join(nvlinks)})")
    if nvlinks:
        return warn(
            f"some pairs by NVLink ({', '.join(nvlinks)}), others through PCIe ({', '.join(others)}):"
            " split a model over the former only",
            "nvidia-smi topo -m",
        )
    return ok(f"all through PCIe ({', '.join(others)}): a model split over them waits for it at every layer")


def _gpus(facts: Facts) -> tuple[Gpu, ...]:
    return facts.smi.gpus if facts.smi else ()
