"""Which commands and files tell about a machine: one pass over the system, from the bus upwards."""

import sys
from dataclasses import replace

from minillm.machine.doctor import parse_gpu, parse_host
from minillm.machine.doctor.facts import Cpu, Facts, PciDevice, Torch
from minillm.machine.doctor.system import System

WSL_SMI = "/usr/lib/wsl/lib/nvidia-smi"
"""Where Windows puts it; a shell whose PATH was written anew does not look there."""

SMI_LIMIT_S = 15.0
"""A healthy `nvidia-smi -q` takes a second or two on eight GPUs whose driver has to wake up first."""

TORCH_LIMIT_S = 40.0
"""The first import from a slow disk takes that long at worst; CUDA's start on eight GPUs is in it."""

TORCH_SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
said = {"minillm_doctor": 1, "version": str(torch.__version__), "cuda": torch.version.cuda}
said["hip"] = getattr(torch.version, "hip", None)
said["threads"] = torch.get_num_threads()
said["mps"] = torch.backends.mps.is_available()
try:
    if "without-cuda" in sys.argv:
        raise RuntimeError("not asked, because the driver is stuck")
    said["available"] = torch.cuda.is_available()
    torch.cuda.init()
    said["arch_list"] = torch.cuda.get_arch_list()
    devices = range(torch.cuda.device_count())
    said["capabilities"] = ["%d.%d" % torch.cuda.get_device_capability(device) for device in devices]
except Exception as error:
    said["error"] = str(error).strip().split(chr(10))[0][:200]
print(json.dumps(said))
"""
"""PyTorch is asked in a process of its own: one that crashes or hangs cannot take the doctor with it.

The list of architectures is asked for at the end: a build without CUDA has none, and a GPU that is not seen hides it.
"""

PCI = "/sys/bus/pci/devices"
CGROUP = "/sys/fs/cgroup"


def examine(system: System) -> Facts:
    """Look at everything once. Takes seconds: each command has a limit, and none is asked again."""
    facts = _host(system)
    facts = _gpu_stack(system, facts)
    facts = _cpu_path(system, facts)
    return replace(facts, torch=_torch(system, ask_cuda=not facts.smi_output.hung))


def _host(system: System) -> Facts:
    os_name, arch = system.platform()
    wsl = "microsoft" in (system.read("/proc/version") or "").lower()
    return Facts(os=os_name, arch=arch, wsl=wsl, container=_container(system))


def _container(system: System) -> str | None:
    if system.environment("KUBERNETES_SERVICE_HOST"):
        return "Kubernetes"
    if system.exists("/.dockerenv"):
        return "Docker"
    if system.exists("/run/.containerenv"):
        return "Podman"
    return parse_host.container(system.read("/proc/1/cgroup"))


def _gpu_stack(system: System, facts: Facts) -> Facts:
    facts = replace(
        facts,
        pci=_pci(system),
        modules=parse_gpu.modules(system.read("/proc/modules")),
        driver_loaded=system.exists("/proc/driver/nvidia/version"),
        driver_version=parse_gpu.driver_version(system.read("/proc/driver/nvidia/version")),
        driver_open="Open Kernel Module" in (system.read("/proc/driver/nvidia/version") or ""),
        device_files=_device_files(system),
        visible_devices=system.environment("CUDA_VISIBLE_DEVICES"),
        **_kernel_log(system),
    )
    if facts.pci and not facts.driver_loaded:
        installed = system.run("modinfo", "-F", "version", "nvidia")
        facts = replace(facts, driver_installed=parse_gpu.driver_version(installed.text))
    facts = _nvidia_smi(system, facts)
    return _containers(system, facts)


def _pci(system: System) -> tuple[PciDevice, ...] | None:
    """From lspci, which knows names; else from the files that it reads itself."""
    listed = system.run("lspci", "-Dnnk", "-d", "10de:")
    if listed.succeeded:
        return parse_gpu.lspci(listed.text)
    addresses = system.names(PCI)
    if addresses is None:
        return None
    devices = []
    for address in addresses:
        if (system.read(f"{PCI}/{address}/vendor") or "").strip() == "0x10de":
            kind = (system.read(f"{PCI}/{address}/class") or "").strip()[2:6]
            device = (system.read(f"{PCI}/{address}/device") or "").strip().removeprefix("0x")
            driver = system.link_name(f"{PCI}/{address}/driver")
            devices.append(PciDevice(address, kind, f"NVIDIA device {device}", driver))
    return tuple(devices)


def _device_files(system: System) -> tuple[str, ...]:
    names = system.names("/dev") or ()
    return tuple(name for name in names if name.startswith("nvidia") or name == "dxg")


def _kernel_log(system: System) -> dict[str, object]:
    log = system.run("dmesg", limit_s=5.0)
    readable = log.succeeded and log.text.strip() != ""
    return {"kernel_log": log.text, "xids": parse_gpu.xids(log.text)} if readable else {}


def _nvidia_smi(system: System, facts: Facts) -> Facts:
    """`nvidia-smi -q` first: where it fails or hangs, nothing more is asked of the driver."""
    smi = "nvidia-smi"
    output = system.run(smi, "-q", limit_s=SMI_LIMIT_S)
    if output.missing and facts.wsl:
        smi = WSL_SMI
        output = system.run(smi, "-q", limit_s=SMI_LIMIT_S)
    report = parse_gpu.smi_report(output.text)
    facts = replace(facts, smi_output=output, smi=report)
    if report is None:
        return facts
    capability = system.run(smi, "--query-gpu=compute_cap", "--format=csv,noheader", limit_s=SMI_LIMIT_S)
    facts = replace(facts, capabilities=parse_gpu.capabilities(capability.text))
    if any(gpu.mig for gpu in report.gpus):
        instances = parse_gpu.mig_instances(system.run(smi, "-L", limit_s=SMI_LIMIT_S).text)
        facts = replace(facts, mig_instances=instances)
    if len(report.gpus) > 1:
        links = parse_gpu.topology(system.run(smi, "topo", "-m", limit_s=SMI_LIMIT_S).text)
        facts = replace(facts, topology=links)
    if any(device.is_nvswitch for device in facts.pci or ()):
        manager = system.run("systemctl", "is-active", "nvidia-fabricmanager")
        facts = replace(facts, fabric_manager=None if manager.missing else manager.text.strip())
    return facts


def _containers(system: System, facts: Facts) -> Facts:
    if facts.container is not None or facts.os != "Linux":
        return facts
    docker = system.run("docker", "info")
    toolkit = system.run("nvidia-ctk", "--version")
    cdi = [*(system.names("/etc/cdi") or ()), *(system.names("/var/run/cdi") or ())]
    return replace(
        facts,
        docker=docker,
        docker_runtimes=parse_gpu.docker_runtimes(docker.text),
        toolkit_version=parse_gpu.toolkit_version(toolkit.text),
        toolkit_hung=toolkit.hung,
        cdi=any(name.startswith("nvidia") for name in cdi),
    )


def _cpu_path(system: System, facts: Facts) -> Facts:
    weights_path, writable = system.weights()
    disk = None if weights_path is None else system.disk(weights_path)
    shm = system.disk("/dev/shm")
    open_files, locked_memory = system.limits()
    cpus, allowed = system.cpus()
    quota, memory_limit, memory_used = cgroup_limits(system)
    meminfo = system.read("/proc/meminfo")
    mac = facts.os == "Darwin"
    return replace(
        facts,
        directory_gone=system.working_directory() is None,
        weights_path=weights_path,
        weights_writable=writable,
        disk_free=disk[1] if disk else None,
        shm_size=shm[0] if shm else None,
        open_files=open_files,
        locked_memory=locked_memory,
        infiniband=bool(system.names("/sys/class/infiniband")),
        cpu=_mac_cpu(system) if mac else parse_host.cpu(system.read("/proc/cpuinfo")),
        cpus=cpus,
        cpus_allowed=allowed,
        cpu_quota=quota,
        memory_total=_mac_memory(system) if mac else parse_host.meminfo(meminfo, "MemTotal"),
        memory_available=parse_host.meminfo(meminfo, "MemAvailable"),
        memory_limit=memory_limit,
        memory_limit_used=memory_used,
        numa_nodes=parse_host.node_count(system.read("/sys/devices/system/node/online")),
    )


def _mac_cpu(system: System) -> Cpu:
    name = system.run("sysctl", "-n", "machdep.cpu.brand_string").text.strip()
    return Cpu(name or None)


def _mac_memory(system: System) -> int | None:
    return parse_host.byte_limit(system.run("sysctl", "-n", "hw.memsize").text)


def cgroup_limits(system: System) -> tuple[float | None, int | None, int | None]:
    """(CPUs, bytes of memory, bytes used): the narrowest limit of this process's control group and those above it."""
    quotas: list[float] = []
    memories: list[tuple[int, int | None]] = []
    for path in parse_host.cgroup_paths(system.read("/proc/self/cgroup")) or ("",):
        if (quota := parse_host.cpu_quota(system.read(f"{CGROUP}{path}/cpu.max"))) is not None:
            quotas.append(quota)
        if (limit := parse_host.byte_limit(system.read(f"{CGROUP}{path}/memory.max"))) is not None:
            memories.append((limit, _used(system, f"{CGROUP}{path}", "memory.current", "inactive_file")))
    old_quota = (system.read(f"{CGROUP}/cpu/cpu.cfs_{part}_us") for part in ("quota", "period"))  # cgroup v1
    if (quota := parse_host.cpu_quota(" ".join((text or "").strip() for text in old_quota))) is not None:
        quotas.append(quota)
    old = f"{CGROUP}/memory"
    if (limit := parse_host.byte_limit(system.read(f"{old}/memory.limit_in_bytes"))) is not None:
        memories.append((limit, _used(system, old, "memory.usage_in_bytes", "total_inactive_file")))
    limit, used = min(memories, key=lambda pair: pair[0]) if memories else (None, None)
    return min(quotas, default=None), limit, used


def _used(system: System, group: str, file: str, cache: str) -> int | None:
    """Bytes that a control group holds, without the pages of files that the kernel drops when it needs room."""
    used = parse_host.byte_limit(system.read(f"{group}/{file}"))
    if used is None:
        return None
    return max(0, used - parse_host.statistic(system.read(f"{group}/memory.stat"), cache))


def _torch(system: System, ask_cuda: bool) -> Torch:
    extra = () if ask_cuda else ("without-cuda",)
    output = system.run(sys.executable, "-c", TORCH_SCRIPT, *extra, limit_s=TORCH_LIMIT_S)
    if output.hung:
        return Torch(problem=f"`import torch` and CUDA's start did not end in {TORCH_LIMIT_S:.0f} s")
    return parse_host.torch(output.text) or Torch(problem=parse_host.last_line(output.text))
