"""The GPU's stack, bottom to top: bus, kernel driver, device files, nvidia-smi, containers."""

import re
from collections.abc import Iterable

from minillm.machine.doctor.facts import Facts, PciDevice
from minillm.machine.doctor.finding import Finding, fail, not_checked, not_here, ok, warn
from minillm.machine.doctor.packages import ANY_DRIVER, BRANCH, other_modules

REBOOT = "sudo reboot"
LOG_THEN_REBOOT = f"sudo dmesg | grep -iE 'xid|nvrm' | tail   # then: {REBOOT}"


def bus(facts: Facts) -> Finding:
    """Is there a GPU at all? The PCI bus knows before any driver does."""
    gpus = [device for device in facts.pci or () if device.is_gpu]
    dead = [gpu for gpu in gpus if not gpu.answers]
    if facts.torch.hip and facts.torch.reaches_gpu:
        return not_here("an AMD GPU through ROCm: PyTorch sees it; the rest of this list is about NVIDIA")
    if facts.os == "Darwin":
        return not_here("a Mac has no NVIDIA GPU")
    if dead:
        return fail(
            f"the GPU at {_listed(gpu.address for gpu in dead)} fell off the bus: it is listed, but answers nothing",
            f"{REBOOT}   # a full power cycle if it comes back dead; then reseat or replace the card",
        )
    if gpus:
        return ok(f"{_count(gpus)}: {_listed(gpu.name for gpu in gpus)}")
    if facts.wsl and "dxg" in facts.device_files and (facts.torch.reaches_gpu or not facts.smi_output.missing):
        return ok("WSL2: Windows passes its GPU on through /dev/dxg")
    if facts.smi is not None:
        return ok(f"the bus is hidden in here, but the driver sees {_number(len(facts.smi.gpus), 'GPU')}")
    if facts.torch.reaches_gpu:
        return ok("no NVIDIA GPU on the PCI bus, but PyTorch uses one: a GPU in the processor's chip, as in a Jetson")
    if facts.pci is None:
        return not_here("no NVIDIA GPU seen, though the PCI bus could not be read; the CPU path is what you have")
    return not_here("no NVIDIA GPU on the PCI bus; the CPU path is what you have")


def kernel_driver(facts: Facts) -> Finding:
    """Is NVIDIA's kernel module loaded, and not another one in its place?"""
    if facts.wsl:
        return ok("WSL2: the driver is that of Windows; install none inside")
    if facts.driver_loaded and facts.driver_version is None:
        return warn("loaded, but its version could not be read", "cat /proc/driver/nvidia/version")
    if facts.driver_loaded:
        return ok(f"version {facts.driver_version}")
    if facts.smi is not None:
        return ok(f"version {facts.smi.driver}, as nvidia-smi says; /proc hides it in here")
    if facts.torch.reaches_gpu:
        return ok("there is one, for PyTorch reaches the GPU; its version is not stated")
    where = " on the host, outside this container" if facts.container else ""
    drivers = {device.driver for device in facts.pci or () if device.is_gpu}
    if "nouveau" in drivers or "nouveau" in (facts.modules or ()):
        return fail(
            f"nouveau, which cannot run CUDA, holds the GPU in the place of NVIDIA's driver{where}",
            'echo "blacklist nouveau" | sudo tee /etc/modprobe.d/blacklist-nouveau.conf'
            " && sudo update-initramfs -u && sudo reboot   # Fedora, RHEL: dracut -f for update-initramfs -u",
        )
    if "vfio-pci" in drivers:
        return fail(
            "the GPU is reserved for a virtual machine (vfio-pci), so this system cannot use it",
            "grep -rn vfio /etc/modprobe.d /etc/default/grub   # take the GPU's ids out, then reboot",
        )
    if facts.driver_installed:
        return why_no_gpu_started(facts) or fail(
            f"driver {facts.driver_installed} is installed, but not loaded{where}",
            "sudo modprobe nvidia && nvidia-smi   # if refused: mokutil --sb-state (Secure Boot wants it signed)",
        )
    return fail(
        f"there is no NVIDIA driver{where}",
        "sudo ubuntu-drivers install --gpgpu && sudo reboot   # Ubuntu; elsewhere: the distribution's NVIDIA package",
    )


def device_files(facts: Facts) -> Finding:
    """The door from programs to the driver; in a container it is there only if the container was given it."""
    if facts.wsl:
        return ok("WSL2: /dev/dxg")
    gpus = [name for name in facts.device_files if re.fullmatch(r"nvidia\d+", name)]
    if facts.torch.reaches_gpu and not (gpus and "nvidia-uvm" in facts.device_files):
        return ok("PyTorch reaches the GPU without all of the usual /dev/nvidia*")
    if not gpus and facts.smi is None:
        if facts.container:
            return fail(
                f"this {facts.container} container was started without the host's GPU: there is no /dev/nvidia0",
                "nvidia.com/gpu: 1   # under resources.limits of the pod"
                if facts.container == "Kubernetes"
                else "docker run --gpus all ...   # the host needs the NVIDIA Container Toolkit",
            )
        return fail("the driver is loaded, but /dev/nvidia0 is missing", "sudo nvidia-modprobe -u -c 0")
    if "nvidia-uvm" not in facts.device_files:
        return warn(
            "/dev/nvidia-uvm is missing: nvidia-smi works without it, CUDA does not", "sudo nvidia-modprobe -u -c 0"
        )
    return ok(f"/dev/nvidia* for {_number(len(gpus), 'GPU')}" if gpus else "/dev/nvidia-uvm")


def nvidia_smi(facts: Facts) -> Finding:
    """Does the driver answer, for every GPU of the bus?"""
    output, text = facts.smi_output, facts.smi_output.text
    if output.hung:
        return fail(
            "nvidia-smi hangs: the driver is stuck, and so is every program that asks it",
            LOG_THEN_REBOOT,
        )
    if facts.smi is None and facts.torch.reaches_gpu and not any(device.is_gpu for device in facts.pci or ()):
        return not_here("nvidia-smi knows little of a GPU that is not on the PCI bus; PyTorch reaches it")
    if output.missing:
        return _no_tools(facts)
    if (facts.smi is None and "No devices were found" in text) or _num_silent(facts) > 0:
        reason = why_no_gpu_started(facts)
        if reason is not None:
            return reason
    for sign, what, mend in _LOST_GPU if facts.smi else (*_LOST_GPU, *_NO_ANSWER):
        if sign in text:
            return fail(what, mend)
    if facts.smi is None:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")[:80]
        return fail(f"nvidia-smi could not be read (exit code {output.exit_code}): {said!r}", "nvidia-smi")
    seen, silent = len(facts.smi.gpus), _num_silent(facts)
    if silent > 0:
        return fail(
            f"{seen + silent} GPUs on the bus, but the driver answers for {seen}: one was lost, or failed to start",
            LOG_THEN_REBOOT,
        )
    if not output.succeeded:
        return warn(f"nvidia-smi answers, but ends with exit code {output.exit_code}", "nvidia-smi; echo $?")
    return ok(f"driver {facts.smi.driver} answers for {_number(seen, 'GPU')}")


def _no_tools(facts: Facts) -> Finding:
    """nvidia-smi is not installed: programs may work without it, but nobody sees how their GPU is."""
    branch = (facts.driver_version or "").partition(".")[0] or str(BRANCH)
    mend = (
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ..."
        if facts.container
        else f"sudo apt install nvidia-utils-{branch}"
    )
    if facts.torch.reaches_gpu:
        return warn("PyTorch reaches the GPU, but no nvidia-smi tells of its health, memory and clocks", mend)
    if facts.container:
        return fail("the GPU is passed in, but not the driver's tools and libraries", mend)
    return fail("the driver is loaded, but nvidia-smi is not installed", mend)


def _num_silent(facts: Facts) -> int:
    """GPUs on the bus for which a driver that describes others does not answer; a container is given what it gets."""
    if facts.smi is None or facts.container is not None:
        return 0
    on_bus = [device for device in facts.pci or () if device.is_gpu and device.driver != "vfio-pci"]
    return len(on_bus) - len(facts.smi.gpus)


def why_no_gpu_started(facts: Facts) -> Finding | None:
    """The driver's own reason in the kernel log for a GPU that it could not start; None if it wrote none there."""
    log = facts.kernel_log or ""
    if "requires use of the NVIDIA open kernel modules" in log:
        return fail(
            "the driver has closed kernel modules, and this GPU runs only with the open ones",
            f"{other_modules(facts, open_modules=True)} && sudo reboot",
        )
    if "is not supported by open" in log:
        return fail(
            "the driver has open kernel modules, and this GPU is too old for them",
            f"{other_modules(facts, open_modules=False)} && sudo reboot",
        )
    if "RmInitAdapter failed" in log:
        return fail(
            "the driver could not start the GPU (RmInitAdapter failed): the driver does not fit it, or the card lacks"
            " power or room for its memory's addresses",
            f"{ANY_DRIVER} && sudo poweroff"
            "   # a driver that fits, a cold start; then: power cables, Above 4G Decoding in the firmware's setup",
        )
    return None


_LOST_GPU = (
    (
        "GPU is lost",
        "a GPU fell off the bus while it was in use",
        f"{LOG_THEN_REBOOT} (power cycle); if it returns, reseat or replace the card",
    ),
    (
        "Unable to determine the device handle",
        "a GPU does not answer its driver: it fell off the bus, or failed to start",
        f"{LOG_THEN_REBOOT} (power cycle); if it returns, reseat or replace the card",
    ),
)
"""What nvidia-smi writes -> what it means, what to do. The first that is in the text counts; these also beside
the description of GPUs that do answer.
"""

_NO_ANSWER = (
    (
        "Driver/library version mismatch",
        "the driver was updated, but the old one is still in the kernel: library and module differ in version",
        REBOOT,
    ),
    (
        "couldn't communicate with the NVIDIA driver",
        "nvidia-smi finds no running driver: its module was not built for this kernel, or not loaded",
        "sudo modprobe nvidia || sudo apt install --reinstall linux-headers-$(uname -r) && sudo dkms autoinstall",
    ),
    (
        "Insufficient Permissions",
        "this user may not open /dev/nvidia*",
        "ls -l /dev/nvidia* && sudo usermod -aG video,render $USER   # then log in again",
    ),
    (
        "Failed to initialize NVML: Unknown Error",
        "this container lost its right to the GPU (the host's systemd was reloaded): restart it",
        "docker restart CONTAINER   # for good: run it with --device nvidia.com/gpu=all (CDI)",
    ),
    (
        "GPU access blocked by the operating system",
        "WSL2 is too old for this driver, or Windows keeps the GPU to itself",
        "wsl.exe --update && wsl.exe --shutdown",
    ),
    (
        "Failed to initialize NVML",
        "the driver's library cannot reach the driver",
        "nvidia-smi; ls -l /dev/nvidia*; sudo dmesg | grep -i nvrm | tail",
    ),
    (
        "No devices were found",
        "the driver is loaded, but could start no GPU",
        LOG_THEN_REBOOT,
    ),
)
"""The same, for a driver that describes no GPU at all."""


def containers(facts: Facts) -> Finding:
    """Can a container be given the GPU? Only for those who serve from containers: a gap here is a warning."""
    if facts.container is not None:
        return ok(f"inside a {facts.container} container that was given the GPU")
    if facts.docker.missing:
        return not_here("no Docker on this machine; needed only to serve from containers")
    if facts.docker.hung:
        return warn("the Docker daemon does not answer", "sudo systemctl restart docker")
    if "permission denied" in facts.docker.text.lower():
        return not_checked("this user may not ask Docker", "sudo docker info   # or: sudo usermod -aG docker $USER")
    if facts.docker_runtimes is None:
        return warn("Docker is installed, but its daemon does not run", "sudo systemctl enable --now docker")
    configure = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
    if facts.toolkit_hung:
        return warn("nvidia-ctk hangs: whether Docker can hand on the GPU is not known", "time nvidia-ctk --version")
    if facts.toolkit_version is None:
        return warn(
            "Docker cannot hand on the GPU: there is no NVIDIA Container Toolkit",
            f"sudo apt install nvidia-container-toolkit && {configure}   # from NVIDIA's apt repository",
        )
    if "nvidia" not in facts.docker_runtimes and not facts.cdi:
        return warn(f"the toolkit {facts.toolkit_version} is installed, but Docker does not know it", configure)
    return ok(f"NVIDIA Container Toolkit {facts.toolkit_version}, known to Docker")


def _count(gpus: list[PciDevice]) -> str:
    return _number(len(gpus), "GPU")


def _number(count: int, thing: str) -> str:
    return f"{count} {thing}" + ("" if count == 1 else "s")


def _listed(names: Iterable[str]) -> str:
    """Each name once: eight equal GPUs are one name."""
    return ", ".join(dict.fromkeys(names))
