"""Commands that install a driver, or another build of PyTorch, in the kind that this GPU runs."""

from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.parse_gpu import version_tuple

BRANCH = 580
"""The driver to install where one is too old: it runs every CUDA version up to 13, on GPUs from Maxwell on."""

INDEX = "https://download.pytorch.org/whl"

FIRST_OPEN = (7, 5)
"""NVIDIA's driver has two kinds of kernel modules. The open ones run on GPUs from Turing on (compute capability 7.5),
and from Blackwell on (10.0) there are no others: the driver's README, "Open Linux Kernel Modules".
"""

FIRST_BLACKWELL = 570
"""The first branch of the driver that knows Blackwell GPUs."""

ANY_DRIVER = "sudo ubuntu-drivers install --gpgpu"
"""Chooses by the GPU's number on the bus. Elsewhere than on Ubuntu: the distribution's own package."""


def install_driver(facts: Facts) -> str:
    """The command for a newer driver: open modules wherever they run, the closed ones on older GPUs."""
    known = _known(facts.torch.capabilities or facts.capabilities)
    if facts.driver_open or (known and min(known) >= FIRST_OPEN):
        return driver_package(BRANCH, open_modules=True)
    return driver_package(BRANCH, open_modules=False) if known else ANY_DRIVER


def other_modules(facts: Facts, *, open_modules: bool) -> str:
    """The command for the other kind of modules: of the same branch, if it is one that has both for every GPU."""
    branch = (version_tuple(facts.driver_version or facts.driver_installed) or (BRANCH,))[0]
    return driver_package(branch if branch >= FIRST_BLACKWELL else BRANCH, open_modules=open_modules)


def driver_package(branch: int, *, open_modules: bool) -> str:
    """The command for one kind of Ubuntu's driver packages."""
    return f"sudo apt install nvidia-driver-{branch}-server{'-open' if open_modules else ''}"


def wheel(highest: str | None, capabilities: tuple[str, ...] = ()) -> str:
    """The newest PyTorch wheel for a driver and its GPUs, by its name in the index: "126" is built with CUDA 12.6.

    `highest` is the CUDA version that the driver states. Minor versions are compatible, but only from 12.8 on is there
    code for Blackwell GPUs, and only up to 12.6 for those before Turing: pytorch/pytorch, RELEASE.md, "CUDA Support
    Matrix".
    """
    stated = version_tuple(highest) or (12, 6)
    if any(capability < FIRST_OPEN for capability in _known(capabilities)):
        stated = min(stated, (12, 6))
    return next((name for first, name in _WHEELS if stated >= first), "118")


_WHEELS = (((13, 0), "130"), ((12, 8), "128"), ((12, 0), "126"))


def install_wheel(name: str) -> str:
    """The command that puts another build of PyTorch in the place of the installed one."""
    return f"pip install --force-reinstall torch --index-url {INDEX}/cu{name}"


def _known(capabilities: tuple[str, ...]) -> list[tuple[int, ...]]:
    return [known for known in map(version_tuple, capabilities) if known is not None]
