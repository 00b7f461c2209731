"""PyTorch: does it start, was it built for this driver and this GPU, does it see it?

CUDA's rules are NVIDIA's (docs.nvidia.com/deploy/cuda-compatibility, "Minor Version Compatibility"): a driver runs
programs of every older CUDA version, and of every version with the same major number, if the driver is at least the
first of that major. The exact first versions are those of the CUDA Toolkit release notes, table of minimum drivers.
"""

import re

from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.finding import Finding, fail, ok, warn
from minillm.machine.doctor.packages import INDEX, install_driver, install_wheel, wheel
from minillm.machine.doctor.parse_gpu import version_tuple

FIRST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580"}
"""CUDA's major version -> the first Linux driver that runs all its minor versions."""


def cuda_versions(facts: Facts) -> Finding:
    """Is the driver new enough for the CUDA version that PyTorch was built with?"""
    highest = facts.smi.cuda if facts.smi else None
    driver = (facts.smi.driver if facts.smi else None) or facts.driver_version
    built = facts.torch.cuda
    if built is None:
        return ok(f"the driver speaks CUDA up to {highest or '?'}; there is no CUDA in this PyTorch to compare it with")
    if facts.torch.reaches_gpu and not runs(built, highest, driver, wsl=facts.wsl):
        # Not read, or stretched by NVIDIA's package for forward compatibility (cuda-compat).
        return ok(f"PyTorch is built with CUDA {built}, and CUDA starts on driver {driver or '?'}")
    if runs(built, highest, driver, wsl=facts.wsl) is None:
        return warn(f"could not be compared: PyTorch says CUDA {built}, the driver {highest}", "nvidia-smi")
    if runs(built, highest, driver, wsl=facts.wsl):
        return ok(f"PyTorch is built with CUDA {built}; driver {driver} speaks up to {highest}")
    major = int(built.partition(".")[0])
    first = FIRST_DRIVER.get(major)
    needed = f", which needs driver {first} or newer" if first else ""
    return fail(
        f"driver {driver} speaks CUDA up to {highest}, but PyTorch is built with CUDA {built}{needed}",
        _build_or_driver(highest, driver, facts),
    )


def _build_or_driver(highest: str | None, driver: str | None, facts: Facts) -> str:
    """Another build of PyTorch is the smaller change, if there is one that this driver runs."""
    name = wheel(highest, facts.capabilities)
    build, newer = install_wheel(name), f"{install_driver(facts)} && sudo reboot"
    if facts.container or facts.wsl:  # the driver is not ours to change
        return build
    return f"{build}   # or: {newer}" if runs(f"{name[:-1]}.{name[-1]}", highest, driver) else newer


def runs(built: str, highest: str | None, driver: str | None, *, wsl: bool = False) -> bool | None:
    """Whether a driver runs a program that was built with CUDA `built`; None if a version cannot be read.

    `highest` is the CUDA version that the driver states, `driver` its own version. WSL2 states Windows' driver,
    whose numbers are others: there the stated CUDA version has to do.
    """
    asked, stated, version = version_tuple(built), version_tuple(highest), version_tuple(driver)
    if asked is None or stated is None:
        return None
    if asked[:2] <= stated[:2]:
        return True
    first = version_tuple(FIRST_DRIVER.get(asked[0]))
    if asked[0] != stated[0] or first is None:
        return False
    return wsl or (version is not None and version >= first)


def imports(facts: Facts) -> Finding:
    """Does PyTorch start at all?"""
    problem = facts.torch.problem
    if problem is None:
        return ok(f"version {facts.torch.version}")
    if facts.directory_gone:  # MKL, for one, cannot be loaded from there
        return fail("PyTorch does not start in the directory that you are in, for it was deleted", "cd")
    if "No module named 'torch'" in problem:
        return fail("PyTorch is not installed in this Python", "pip install torch")
    if "did not end" in problem:
        return fail(problem, 'time python -c "import torch"   # a slow network disk, or a stuck driver?')
    return fail(f"PyTorch does not start: {problem}", "pip install --force-reinstall --no-cache-dir torch")


def build(facts: Facts) -> Finding:
    """Was it built with CUDA, and with code for this GPU?"""
    torch = facts.torch
    if torch.hip and torch.reaches_gpu:
        return ok(f"built for AMD GPUs (ROCm {torch.hip})")
    if torch.hip:
        return fail(
            f"PyTorch {torch.version} is built for AMD GPUs (ROCm {torch.hip})", "pip install --force-reinstall torch"
        )
    if torch.cuda is None:
        highest = facts.smi.cuda if facts.smi else None
        return fail(
            f"PyTorch {torch.version} is built for the CPU alone: it cannot use this GPU",
            install_wheel(wheel(highest, facts.capabilities)),
        )
    capabilities = dict.fromkeys(torch.capabilities or facts.capabilities)
    unable = [capability for capability in capabilities if not has_code_for(capability, torch.arch_list)]
    if torch.arch_list and unable:
        return fail(
            f"the GPU has compute capability {unable[0]}, and PyTorch {torch.version} has code for"
            f" {', '.join(torch.arch_list)} only",
            _other_build(unable[0], facts),
        )
    known = f", with code for compute capability {', '.join(capabilities)}" if capabilities and torch.arch_list else ""
    return ok(f"built with CUDA {torch.cuda}{known}")


def has_code_for(capability: str, arch_list: tuple[str, ...]) -> bool:
    """Whether a build has code that a GPU of this compute capability ("8.9") runs.

    Machine code `sm_86` runs on its own major version at the same minor or a later one (8.6, 8.9, not 9.0);
    `sm_90a` on exactly 9.0. PTX, `compute_90`, is compiled for any later GPU when it is loaded.
    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    major, _, minor = capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()):
        return False
    gpu = (int(major), int(minor))
    for arch in arch_list:
        match = re.fullmatch(r"(sm|compute)_(\d{1,3})(\d)([af]?)", arch, re.ASCII)
        if match is None:
            continue
        code = (int(match.group(2)), int(match.group(3)))
        same_major = code[0] == gpu[0] and code <= gpu
        if match.group(4) == "a":
            if code == gpu:
                return True
        elif same_major or (match.group(1) == "compute" and code <= gpu and not match.group(4)):
            return True
    return False


def _other_build(capability: str, facts: Facts) -> str:
    newest = max((version_tuple(_dotted(arch)) or (0,) for arch in facts.torch.arch_list), default=(0,))
    highest = facts.smi.cuda if facts.smi else None
    if (version_tuple(capability) or (0,)) > newest:
        # Blackwell (10.0, 12.0) came with CUDA 12.8: an older wheel of the same PyTorch has no code for it.
        name = max(wheel(highest, facts.capabilities), "128")
        return f"pip install --upgrade torch --index-url {INDEX}/cu{name}   # a newer PyTorch"
    name = min(wheel(highest, facts.capabilities), "126")
    return f"{install_wheel(name)}   # these still have code for older GPUs"


def _dotted(arch: str) -> str | None:
    match = re.fullmatch(r"(?:sm|compute)_(\d{1,3})(\d)[af]?", arch, re.ASCII)
    return f"{match.group(1)}.{match.group(2)}" if match else None


def sees_the_gpu(facts: Facts) -> Finding:
    """The last step: `torch.cuda.is_available()`."""
    torch = facts.torch
    if torch.reaches_gpu:
        through = ", through ROCm" if torch.hip else ""
        return ok(f"PyTorch sees {len(torch.capabilities)} GPU{'' if len(torch.capabilities) == 1 else 's'}{through}")
    if not torch.available and hides_every_gpu(facts.visible_devices, facts):
        return fail(
            f"CUDA_VISIBLE_DEVICES={facts.visible_devices!r} hides every GPU from PyTorch", "unset CUDA_VISIBLE_DEVICES"
        )
    said = torch.error or "no reason given"
    ask = 'python -c "import torch; torch.cuda.init()"'
    if "nvidia-uvm" not in facts.device_files and not facts.wsl:
        return fail(
            f"PyTorch sees no usable GPU, for lack of /dev/nvidia-uvm: {said}", f"sudo nvidia-modprobe -u -c 0 && {ask}"
        )
    return fail(f"PyTorch sees no usable GPU: {said}", f"{ask}   # the whole message; after a suspended laptop: reboot")


def hides_every_gpu(visible: str | None, facts: Facts) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES leaves no GPU, None standing for a variable that is not set.

    CUDA reads the list up to the first entry that names no GPU, so everything is hidden if that is the first one.
    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    if visible is None:
        return False
    first = visible.split(",")[0].strip()
    if first in ("", "-1", "NoDevFiles"):
        return True
    gpus = facts.smi.gpus if facts.smi else ()
    if not gpus:  # what there is to be named is not known
        return False
    if re.fullmatch(r"\d{1,9}", first, re.ASCII):
        return int(first) >= len(gpus)
    if first.startswith("MIG-"):  # a slice; whether there is one is another check's question
        return not any(gpu.mig for gpu in gpus)
    return not any(gpu.uuid is None or gpu.uuid.startswith(first) for gpu in gpus)


def apple_gpu(facts: Facts) -> Finding:
    """On a Mac: Metal in the place of CUDA."""
    if facts.torch.mps:
        return ok("PyTorch reaches the Apple GPU (mps); minillm uses the CPU")
    return warn("PyTorch does not reach the Apple GPU (mps); minillm uses the CPU", "pip install --upgrade torch")
