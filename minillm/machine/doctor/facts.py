"""What is known about a machine. None means everywhere: not there, or could not be read."""

from dataclasses import dataclass, field

from minillm.machine.doctor.system import Output


@dataclass(frozen=True)
class PciDevice:
    """One NVIDIA device on the PCI bus; `kind` is the bus's class number, 0300 or 0302 for GPUs."""

    address: str
    kind: str
    name: str
    driver: str | None = None
    answers: bool = True

    @property
    def is_gpu(self) -> bool:
        """VGA controllers (0300) and 3D controllers without a display (0302); not the audio or switch beside them."""
        return self.kind in ("0300", "0302")

    @property
    def is_nvswitch(self) -> bool:
        """A bridge (0680) is the switch between the GPUs of an HGX board."""
        return self.kind == "0680"


@dataclass(frozen=True)
class GpuProcess:
    """A program with memory on a GPU. `memory_mib` is None where the driver does not say (WSL2)."""

    pid: int
    name: str
    memory_mib: float | None


@dataclass(frozen=True)
class Gpu:
    """One GPU as `nvidia-smi -q` describes it. Memory in MiB, power in watts."""

    index: int
    bus_id: str
    name: str = "GPU"
    uuid: str | None = None
    persistence: bool | None = None
    display: bool | None = None
    mig: bool | None = None
    mig_pending: bool | None = None
    memory_total_mib: float | None = None
    memory_free_mib: float | None = None
    ecc: bool | None = None
    uncorrectable_now: int | None = None
    uncorrectable_ever: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowdowns: tuple[str, ...] = ()
    power_limit_w: float | None = None
    power_default_w: float | None = None
    clock_set_mhz: float | None = None
    clock_default_mhz: float | None = None
    pcie_width: float | None = None
    pcie_width_max: float | None = None
    fabric: str | None = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class SmiReport:
    """`nvidia-smi -q`: the driver's version, the highest CUDA version that it speaks, the GPUs."""

    driver: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Torch:
    """What PyTorch says of itself, in a process of its own; `problem` if it could not even be asked."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    available: bool = False
    mps: bool = False
    arch_list: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    threads: int | None = None
    error: str | None = None
    problem: str | None = None

    @property
    def reaches_gpu(self) -> bool:
        """Whether CUDA, or ROCm, started in it: then everything below it works, whatever could not be read of it."""
        return self.available and self.error is None


@dataclass(frozen=True)
class Xid:
    """A driver's error report in the kernel log: its number, and the GPU's bus address."""

    number: int
    address: str


@dataclass(frozen=True)
class Cpu:
    """The processor: its name, logical processors, instruction flags."""

    name: str | None = None
    logical: int | None = None
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    """Everything that the checks look at."""

    os: str = "Linux"
    arch: str = "x86_64"
    wsl: bool = False
    container: str | None = None
    # the GPU's stack
    pci: tuple[PciDevice, ...] | None = None
    modules: frozenset[str] | None = None
    driver_loaded: bool = False
    driver_version: str | None = None
    driver_open: bool = False
    driver_installed: str | None = None
    device_files: tuple[str, ...] = ()
    smi_output: Output = field(default_factory=lambda: Output(missing=True))
    smi: SmiReport | None = None
    capabilities: tuple[str, ...] = ()
    mig_instances: tuple[int, ...] | None = None
    topology: tuple[tuple[str, ...], ...] | None = None
    kernel_log: str | None = None
    xids: tuple[Xid, ...] = ()
    fabric_manager: str | None = None
    toolkit_version: str | None = None
    toolkit_hung: bool = False
    docker: Output = field(default_factory=lambda: Output(missing=True))
    docker_runtimes: tuple[str, ...] | None = None
    cdi: bool = False
    visible_devices: str | None = None
    torch: Torch = field(default_factory=Torch)
    # the host
    directory_gone: bool = False
    weights_path: str | None = None
    weights_writable: bool = True
    disk_free: int | None = None
    shm_size: int | None = None
    open_files: int | None = None
    locked_memory: int | None = None
    infiniband: bool = False
    cpu: Cpu = field(default_factory=Cpu)
    cpus: int | None = None
    cpus_allowed: int | None = None
    cpu_quota: float | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    memory_limit: int | None = None
    memory_limit_used: int | None = None
    numa_nodes: int | None = None
