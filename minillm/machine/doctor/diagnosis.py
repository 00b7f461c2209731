"""All the checks, in the order in which a fresh GPU box is brought up."""

from dataclasses import replace

from minillm.machine.doctor import gpu_health, gpu_stack, host, torch_build
from minillm.machine.doctor.facts import Facts
from minillm.machine.doctor.finding import Check, Finding, diagnose

_DRIVER, _CUDA, _SPEED, _HOST = (
    "The GPU and its driver",
    "CUDA and PyTorch",
    "The GPU's memory and speed",
    "The machine around it",
)

CHECKS = (
    Check("GPU on the bus", _DRIVER, gpu_stack.bus),
    Check("kernel driver", _DRIVER, gpu_stack.kernel_driver, ("GPU on the bus",)),
    Check("device files", _DRIVER, gpu_stack.device_files, ("kernel driver",)),
    Check("nvidia-smi", _DRIVER, gpu_stack.nvidia_smi, ("device files",)),
    Check("kernel log", _DRIVER, gpu_health.kernel_log, ("kernel driver",)),
    Check("ECC", _DRIVER, gpu_health.memory_errors, ("nvidia-smi",)),
    Check("MIG", _DRIVER, gpu_health.mig, ("nvidia-smi",)),
    Check("NVSwitch fabric", _DRIVER, gpu_health.fabric, ("nvidia-smi",)),
    Check("CUDA versions", _CUDA, torch_build.cuda_versions, ("kernel driver",), after=("nvidia-smi",)),
    Check("container toolkit", _CUDA, gpu_stack.containers, ("nvidia-smi",)),
    Check("PyTorch", _CUDA, torch_build.imports),
    Check("PyTorch's CUDA", _CUDA, torch_build.build, ("PyTorch", "CUDA versions")),
    Check("PyTorch sees it", _CUDA, torch_build.sees_the_gpu, ("PyTorch's CUDA",), after=("MIG", "NVSwitch fabric")),
    Check("Apple GPU", _CUDA, torch_build.apple_gpu, ("PyTorch",)),
    Check("GPU memory", _SPEED, gpu_health.memory, ("nvidia-smi",)),
    Check("persistence", _SPEED, gpu_health.persistence, ("nvidia-smi",)),
    Check("power and clocks", _SPEED, gpu_health.power_and_clocks, ("nvidia-smi",)),
    Check("PCIe width", _SPEED, gpu_health.pcie, ("nvidia-smi",)),
    Check("GPU links", _SPEED, gpu_health.links, ("nvidia-smi",)),
    Check("disk for weights", _HOST, host.disk),
    Check("/dev/shm", _HOST, host.shared_memory),
    Check("limits", _HOST, host.limits),
    Check("processors", _HOST, host.cores),
    Check("vectors", _HOST, host.vectors),
    Check("memory", _HOST, host.host_memory),
    Check("NUMA", _HOST, host.numa),
)


def findings(facts: Facts) -> list[Finding]:
    """One finding per check that this kind of machine can have."""
    checks = [check for check in CHECKS if check.name != "Apple GPU" or facts.os == "Darwin"]
    if facts.torch.hip and facts.torch.reaches_gpu:  # an AMD GPU stands on none of NVIDIA's parts
        checks = [replace(check, needs=("PyTorch",)) if check.ask in _ALSO_AMD else check for check in checks]
    return diagnose(facts, checks)


_ALSO_AMD = (torch_build.build, torch_build.sees_the_gpu)
