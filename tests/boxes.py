"""Machines for the doctor, made of recorded outputs: healthy ones, and what breaks in them."""

import dataclasses
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from minillm.machine.doctor.probe import WSL_SMI
from minillm.machine.doctor.system import Output, System

RECORDED = Path(__file__).parent / "recorded"
GB, GIB = 10**9, 2**30

SMI = "nvidia-smi -q"
CAPABILITY = "nvidia-smi --query-gpu=compute_cap --format=csv,noheader"
LSPCI = "lspci -Dnnk -d 10de:"
VERSION = "/proc/driver/nvidia/version"
LOST = (
    "Unable to determine the device handle for GPU0000:19:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
)
XID_79 = """[    9.104514] nvidia 0000:19:00.0: enabling device (0000 -> 0002)
[86022.560421] NVRM: GPU at PCI:0000:19:00: GPU-00000000-1111-2222-3333-444444444444
[86022.560430] NVRM: Xid (PCI:0000:19:00): 79, pid=4242, name=python3, GPU has fallen off the bus.
"""


NOT_STARTED = """[    5.559858] NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x22:0x56:884)
[    5.560313] NVRM: GPU 0000:19:00.0: rm_init_adapter failed, device minor number 0
"""
NEEDS_OPEN = f"""[    5.559842] NVRM: The NVIDIA GPU 0000:19:00.0 (PCI ID: 10de:2c58)
               NVRM: installed in this system requires use of the NVIDIA open kernel modules.
{NOT_STARTED}"""
NEEDS_CLOSED = """[ 1157.046099] NVRM: The NVIDIA GPU 0000:af:00.0 (PCI ID: 10de:1db5)
               NVRM: installed in this system is not supported by open
               NVRM: nvidia.ko because it does not include the required GPU
               NVRM: System Processor (GSP).
"""


def recorded(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def edited(text: str, *changes: tuple[str, str]) -> str:
    """The text with each change made once: a pattern, and what takes the place of its first match."""
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, count=1, flags=re.DOTALL)
        assert count == 1, f"{pattern!r} is not in the recorded text"
    return text


@dataclass
class Box(System):
    """A machine that answers from what it is given; whatever it was not given is not there."""

    commands: dict[str, Output] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    directories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    system: tuple[str, str] = ("Linux", "x86_64")
    num_cpus: tuple[int | None, int | None] = (64, 64)
    disks: dict[str, tuple[int, int]] = field(
        default_factory=lambda: {"weights": (2000 * GB, 900 * GB), "/dev/shm": (252 * GIB, 252 * GIB)}
    )
    weights_writable: bool = True
    directory_gone: bool = False
    process_limits: tuple[int | None, int | None] = (65536, 8 * 2**20)
    asked: list[str] = field(default_factory=list)

    def run(self, *command, limit_s=10.0):
        line = "torch" if command[0] == sys.executable else " ".join(command)
        if line == "torch" and "without-cuda" in command:
            line = "torch without-cuda"
        self.asked.append(line)
        return self.commands.get(line, Output(missing=True))

    def read(self, path):
        return self.files.get(path)

    def names(self, directory):
        return self.directories.get(directory)

    def exists(self, path):
        return path in self.files

    def link_name(self, path):
        return self.files.get(f"{path} ->")

    def platform(self):
        return self.system

    def environment(self, variable):
        return self.variables.get(variable)

    def cpus(self):
        return self.num_cpus

    def disk(self, path):
        return self.disks.get(path)

    def working_directory(self):
        return None if self.directory_gone else Path("/home/you")

    def weights(self):
        return (None, False) if self.directory_gone else ("weights", self.weights_writable)

    def limits(self):
        return self.process_limits

    def but(self, *, commands: Mapping = {}, files: Mapping = {}, directories: Mapping = {}, without=(), **changes):
        """A copy with other answers. `without`: commands and files that it does not have."""

        def merged(old, new):
            return {key: value for key, value in {**old, **new}.items() if key not in without}

        return dataclasses.replace(
            self,
            commands=merged(self.commands, {line: answer(text) for line, text in commands.items()}),
            files=merged(self.files, files),
            directories=merged(self.directories, directories),
            asked=[],
            **changes,
        )


def answer(text: str | Output) -> Output:
    return text if isinstance(text, Output) else Output(text, 0)


def torch_says(version="2.8.0+cu128", cuda="12.8", threads=64, arch="", capabilities=(), **more) -> str:
    said = {"minillm_doctor": 1, "version": version, "cuda": cuda, "threads": threads, "arch_list": arch.split()}
    return json.dumps({**said, "available": bool(capabilities), "capabilities": list(capabilities), **more}) + "\n"


CU128 = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120"
CU118 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_37 sm_90"
CPU_TORCH = torch_says("2.8.0+cpu", None, 64)

_LINUX = {
    "/proc/version": "Linux version 6.8.0-55-generic (buildd@lcy02-amd64-095) (x86_64-linux-gnu-gcc-13)",
    "/proc/modules": recorded("modules.txt"),
    "/proc/cpuinfo": recorded("cpuinfo-xeon.txt"),
    "/proc/meminfo": recorded("meminfo.txt"),
    "/proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
    "/proc/1/cgroup": "0::/init.scope\n",
    "/sys/devices/system/node/online": "0-1\n",
}
_DEV = ("nvidia-uvm", "nvidiactl", "null", "shm")
_CAPABILITIES = {"h100": "9.0", "t4": "7.5", "4090": "8.9"}
_DOCKER = {
    "docker info": recorded("docker-info.txt"),
    "nvidia-ctk --version": "NVIDIA Container Toolkit CLI version 1.17.4\n",
}


def _box(card: str, version: str, torch: str, **more) -> Box:
    commands = {
        LSPCI: recorded(f"lspci-{card}.txt"),
        SMI: recorded(f"nvidia-smi-q-{card}.txt"),
        CAPABILITY: _CAPABILITIES[card] + "\n",
        "dmesg": "[    0.000000] Linux version 6.8.0\n",
        "torch": torch,
        **_DOCKER,
    }
    return Box(directories={"/dev": ("nvidia0", *_DEV)}).but(
        commands=commands, files={**_LINUX, VERSION: version}, **more
    )


H100 = _box("h100", recorded("proc-driver-open.txt"), torch_says(arch=CU128, capabilities=["9.0"]))
T4 = _box(
    "t4",
    recorded("proc-driver-closed.txt").replace("535.183.01", "470.256.02"),
    torch_says("2.6.0+cu118", "11.8", 4, CU118, ["7.5"]),
    num_cpus=(4, 4),
)
RTX_4090 = _box(
    "4090",
    recorded("proc-driver-closed.txt").replace("535.183.01", "560.35.03"),
    torch_says("2.7.0+cu126", "12.6", 16, CU118, ["8.9"]),
    num_cpus=(32, 32),
)


def _eight(text: str) -> str:
    """One GPU's description -> eight, each at its own address."""
    head, one = text.split("GPU 00000000:07:00.0", 1)
    addresses = ("07", "0F", "47", "4E", "87", "90", "B7", "BD")
    return head.replace(": 1\n", ": 8\n") + "".join(f"GPU 00000000:{address}:00.0{one}" for address in addresses)


A100_X8 = H100.but(
    commands={
        LSPCI: recorded("lspci-8x-a100.txt"),
        SMI: _eight(recorded("nvidia-smi-q-a100.txt")),
        CAPABILITY: "8.0\n" * 8,
        "nvidia-smi topo -m": recorded("nvidia-smi-topo-8x-a100.txt"),
        "systemctl is-active nvidia-fabricmanager": "active\n",
        "torch": torch_says("2.7.0+cu126", "12.6", 64, CU118, ["8.0"] * 8),
    },
    files={VERSION: recorded("proc-driver-closed.txt")},
    directories={"/dev": (*(f"nvidia{index}" for index in range(8)), *_DEV)},
    num_cpus=(128, 128),
)
WSL2 = Box(directories={"/dev": ("dxg", "null")}, num_cpus=(16, 16)).but(
    commands={
        LSPCI: "",
        SMI: recorded("nvidia-smi-q-wsl2.txt"),
        CAPABILITY: "8.9\n",
        "dmesg": "[    0.000000] Linux version 5.15.167.4-microsoft-standard-WSL2\n",
        "torch": torch_says("2.7.0+cu126", "12.6", 8, CU118, ["8.9"]),
    },
    files={
        **_LINUX,
        "/proc/version": "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f)",
        "/proc/modules": "",
        "/sys/devices/system/node/online": "0\n",
    },
)
LAPTOP = Box(num_cpus=(16, 16)).but(
    commands={LSPCI: "", "torch": torch_says("2.8.0+cpu", None, 12)},
    files={
        **_LINUX,
        "/proc/cpuinfo": recorded("cpuinfo-laptop.txt"),
        "/sys/devices/system/node/online": "0\n",
    },
)
MAC = Box(
    system=("Darwin", "arm64"),
    num_cpus=(12, None),
    disks={"weights": (994 * GB, 400 * GB)},
    process_limits=(None, None),
).but(
    commands={
        "sysctl -n machdep.cpu.brand_string": "Apple M3 Pro\n",
        "sysctl -n hw.memsize": "38654705664\n",
        "torch": torch_says("2.8.0", None, 6, mps=True),
    }
)

JETSON = Box(system=("Linux", "aarch64"), directories={"/dev": ("nvhost-gpu", "nvmap", "null")}, num_cpus=(12, 12)).but(
    commands={
        LSPCI: "",
        "dmesg": "[    0.000000] Linux version 5.15.136-tegra\n",
        "torch": torch_says("2.8.0", "12.6", 12, "sm_87", ["8.7"]),
    },
    files={
        **_LINUX,
        "/proc/version": "Linux version 5.15.136-tegra (buildbrain@mobile-u64)",
        "/proc/cpuinfo": recorded("cpuinfo-graviton.txt"),
        "/sys/devices/system/node/online": "0\n",
    },
)
WSL2_OFF_PATH = WSL2.but(
    commands={line.replace("nvidia-smi", WSL_SMI, 1): text for line, text in WSL2.commands.items()},
    without=(SMI, CAPABILITY),
)
ROCM = LAPTOP.but(commands={"torch": torch_says("2.8.0+rocm6.4", None, 12, "gfx942", ["9.4"], hip="6.4.43482")})

HEALTHY = {
    "h100": H100,
    "8x-a100": A100_X8,
    "t4": T4,
    "4090": RTX_4090,
    "wsl2": WSL2,
    "wsl2, nvidia-smi not on the path": WSL2_OFF_PATH,
    "jetson": JETSON,
    "rocm": ROCM,
    "laptop": LAPTOP,
    "mac": MAC,
}


def in_docker(box: Box, **changes) -> Box:
    """The box from inside a container that was given its GPU."""
    files = {"/.dockerenv": "", "/proc/self/cgroup": "0::/\n", "/proc/1/cgroup": "0::/\n", **changes.pop("files", {})}
    without = (*changes.pop("without", ()), "docker info", "nvidia-ctk --version", "dmesg")
    return box.but(files=files, without=without, **changes)


NO_SMI = (SMI, CAPABILITY)
NO_TORCH_GPU = torch_says(arch=CU128, error="No CUDA GPUs are available")
LSPCI_NOUVEAU = edited(recorded("lspci-h100.txt"), ("in use: nvidia", "in use: nouveau"))
LSPCI_NO_DRIVER = edited(recorded("lspci-h100.txt"), ("\tKernel driver in use: nvidia\n", ""))


def smi_failing(text: str, code: int = 9) -> dict[str, Output | str]:
    """Where the driver does not answer nvidia-smi, it does not answer PyTorch either."""
    return {SMI: Output(text, code), "torch": NO_TORCH_GPU}


MIG_OFF = r"(MIG Mode\s+Current +: )Disabled(\s+Pending +: )Disabled"


def _listed(index: int, *, slices: int) -> str:
    """A GPU in `nvidia-smi -L`, with this many slices."""
    gpu, *_ = recorded("nvidia-smi-L-mig.txt").splitlines(keepends=True)
    one = "  MIG 3g.40gb     Device  {}: (UUID: MIG-00000000-aaaa-bbbb-cccc-00000000{}00{})\n"
    return gpu.replace("GPU 0:", f"GPU {index}:") + "".join(one.format(part, index, part) for part in range(slices))


def smi_of(box: Box, *changes: tuple[str, str]) -> dict[str, str]:
    return {SMI: edited(box.commands[SMI].text, *changes)}


# name -> (box, the first check that fails, a part of the command that mends it)
BROKEN: dict[str, tuple[Box, str, str]] = {
    "fallen off the bus, as lspci sees it": (
        H100.but(commands={LSPCI: recorded("lspci-fallen.txt"), **smi_failing(LOST, 15), "dmesg": XID_79}),
        "GPU on the bus",
        "reseat",
    ),
    "fallen off the bus, as nvidia-smi sees it": (
        H100.but(commands={**smi_failing(LOST, 15), "dmesg": XID_79}),
        "nvidia-smi",
        "sudo reboot",
    ),
    "one of eight GPUs lost": (
        A100_X8.but(
            commands={SMI: A100_X8.commands[SMI].text.split("GPU 00000000:BD:00.0")[0]},
        ),
        "nvidia-smi",
        "xid",
    ),
    "one of eight GPUs lost, in a container": (
        in_docker(
            A100_X8,
            commands={SMI: Output(A100_X8.commands[SMI].text.split("GPU 00000000:BD:00.0")[0] + LOST, 15)},
        ),
        "nvidia-smi",
        "power cycle",
    ),
    "no devices": (H100.but(commands=smi_failing("No devices were found\n", 6)), "nvidia-smi", "dmesg"),
    "closed modules on a GPU that needs the open ones": (
        H100.but(
            commands={**smi_failing("No devices were found\n", 6), "dmesg": NEEDS_OPEN},
            files={VERSION: recorded("proc-driver-closed.txt").replace("535.183.01", "575.57.08")},
        ),
        "nvidia-smi",
        "sudo apt install nvidia-driver-575-server-open && sudo reboot",
    ),
    "open modules on a GPU that is too old for them": (
        T4.but(
            commands={
                LSPCI: edited(recorded("lspci-t4.txt"), ("\tKernel driver in use: nvidia\n", "")),
                "modinfo -F version nvidia": "515.43.04\n",
                "dmesg": NEEDS_CLOSED,
                "torch": NO_TORCH_GPU,
            },
            without=(*NO_SMI, VERSION),
        ),
        "kernel driver",
        "sudo apt install nvidia-driver-580-server && sudo reboot",
    ),
    "a GPU that the driver cannot start": (
        H100.but(commands={**smi_failing("No devices were found\n", 6), "dmesg": NOT_STARTED}),
        "nvidia-smi",
        "Above 4G Decoding",
    ),
    "one of eight GPUs that the driver cannot start": (
        A100_X8.but(
            commands={SMI: A100_X8.commands[SMI].text.split("GPU 00000000:BD:00.0")[0], "dmesg": NOT_STARTED},
        ),
        "nvidia-smi",
        "Above 4G Decoding",
    ),
    "no driver": (
        H100.but(commands={LSPCI: LSPCI_NO_DRIVER, "torch": CPU_TORCH}, without=(*NO_SMI, VERSION)),
        "kernel driver",
        "ubuntu-drivers install --gpgpu",
    ),
    "driver installed but not loaded": (
        H100.but(
            commands={
                LSPCI: LSPCI_NO_DRIVER,
                "modinfo -F version nvidia": "570.124.06\n",
                "torch": NO_TORCH_GPU,
            },
            without=(*NO_SMI, VERSION),
        ),
        "kernel driver",
        "sudo modprobe nvidia",
    ),
    "nouveau in the way": (
        H100.but(
            commands={LSPCI: LSPCI_NOUVEAU, "torch": NO_TORCH_GPU},
            files={"/proc/modules": "nouveau 2285568 1 - Live 0x0\n"},
            without=(*NO_SMI, VERSION),
        ),
        "kernel driver",
        "blacklist nouveau",
    ),
    "reserved for a virtual machine": (
        H100.but(
            commands={
                LSPCI: edited(recorded("lspci-h100.txt"), ("in use: nvidia", "in use: vfio-pci")),
                "torch": NO_TORCH_GPU,
            },
            without=(*NO_SMI, VERSION),
        ),
        "kernel driver",
        "vfio",
    ),
    "no lspci, and no driver": (
        H100.but(
            commands={"torch": NO_TORCH_GPU},
            files={
                "/sys/bus/pci/devices/0000:19:00.0/vendor": "0x10de\n",
                "/sys/bus/pci/devices/0000:19:00.0/class": "0x030200\n",
                "/sys/bus/pci/devices/0000:19:00.0/device": "0x2330\n",
                "/sys/bus/pci/devices/0000:00:00.0/vendor": "0x8086\n",
                "/sys/bus/pci/devices/0000:00:00.0/class": "0x060000\n",
            },
            directories={"/sys/bus/pci/devices": ("0000:00:00.0", "0000:19:00.0")},
            without=(*NO_SMI, VERSION, LSPCI),
        ),
        "kernel driver",
        "ubuntu-drivers",
    ),
    "container without GPU": (
        in_docker(H100, commands={"torch": NO_TORCH_GPU}, directories={"/dev": ("null", "shm")}, without=NO_SMI),
        "device files",
        "docker run --gpus all",
    ),
    "pod without GPU": (
        in_docker(
            H100,
            commands={"torch": NO_TORCH_GPU},
            directories={"/dev": ("null",)},
            variables={"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            without=NO_SMI,
        ),
        "device files",
        "nvidia.com/gpu: 1",
    ),
    "container on a host without a driver": (
        in_docker(H100, commands={LSPCI: LSPCI_NO_DRIVER, "torch": NO_TORCH_GPU}, without=(*NO_SMI, VERSION)),
        "kernel driver",
        "ubuntu-drivers",
    ),
    "no device files on the host": (
        H100.but(directories={"/dev": ("null",)}, commands=smi_failing("No devices were found\n", 6)),
        "device files",
        "nvidia-modprobe -u -c 0",
    ),
    "container without the driver's tools": (
        in_docker(H100, commands={"torch": NO_TORCH_GPU}, without=NO_SMI),
        "nvidia-smi",
        "compute,utility",
    ),
    "no nvidia-smi": (
        H100.but(commands={"torch": NO_TORCH_GPU}, without=NO_SMI),
        "nvidia-smi",
        "apt install nvidia-utils-570",
    ),
    "nvidia-smi hangs": (
        H100.but(commands={SMI: Output(hung=True), "torch": Output(hung=True), "torch without-cuda": NO_TORCH_GPU}),
        "nvidia-smi",
        "sudo reboot",
    ),
    "driver and library differ": (
        H100.but(
            commands=smi_failing(
                "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133\n", 18
            )
        ),
        "nvidia-smi",
        "sudo reboot",
    ),
    "driver not running": (
        H100.but(
            commands=smi_failing(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the"
                " latest NVIDIA driver is installed and running.\n\n"
            )
        ),
        "nvidia-smi",
        "modprobe nvidia",
    ),
    "container that lost its GPU": (
        in_docker(H100, commands=smi_failing("Failed to initialize NVML: Unknown Error\n", 255)),
        "nvidia-smi",
        "docker restart",
    ),
    "nvidia-smi says something new": (
        H100.but(commands=smi_failing("Segmentation fault\n", 139)),
        "nvidia-smi",
        "nvidia",
    ),
    "Xid 48 in the kernel log": (
        H100.but(commands={"dmesg": XID_79.replace("79,", "48,")}),
        "kernel log",
        "power cycle",
    ),
    "Xid 95 of a slice in the kernel log": (
        H100.but(commands={"dmesg": XID_79.replace("19:00): 79,", "19:00 GPU-I:05): 95,")}),
        "kernel log",
        "power cycle",
    ),
    "Xid 64 in the kernel log": (
        H100.but(commands={"dmesg": XID_79.replace("79,", "64,")}),
        "kernel log",
        "power cycle",
    ),
    "uncorrectable memory errors": (
        H100.but(commands=smi_of(H100, (r"DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 3"))),
        "ECC",
        "--gpu-reset -i 0",
    ),
    "no spare memory rows left": (
        H100.but(commands=smi_of(H100, (r"(Failure Occurred        : )No", r"\1Yes"))),
        "ECC",
        "ROW_REMAPPER",
    ),
    "MIG without instances": (
        H100.but(
            commands={
                **smi_of(H100, (r"(MIG Mode\s+Current +: )Disabled(\s+Pending +: )Disabled", r"\1Enabled\2Enabled")),
                "nvidia-smi -L": recorded("nvidia-smi-L-mig.txt").split("\n  MIG")[0] + "\n",
                "torch": NO_TORCH_GPU,
            }
        ),
        "MIG",
        "-mig 0",
    ),
    "fabric manager not running": (
        A100_X8.but(
            commands={
                "systemctl is-active nvidia-fabricmanager": Output("inactive\n", 3),
                "torch": torch_says(arch=CU128, error="CUDA error 802: system not yet initialized"),
            }
        ),
        "NVSwitch fabric",
        "systemctl enable --now nvidia-fabricmanager",
    ),
    "driver too old for PyTorch's CUDA": (
        T4.but(
            commands={
                "torch": torch_says(
                    "2.8.0+cu128", "12.8", 4, CU128, error="The NVIDIA driver on your system is too old"
                )
            }
        ),
        "CUDA versions",
        "whl/cu118   # or: sudo apt install nvidia-driver-580-server-open && sudo reboot",
    ),
    "driver too old for any PyTorch": (
        T4.but(
            commands={
                **smi_of(T4, (r"CUDA Version +: 11\.4", "CUDA Version : 10.2"), (r": 470\.256\.02", ": 440.33.01")),
                CAPABILITY: Output('Field "compute_cap" is not a valid field to query.\n', 2),
                "torch": torch_says("2.8.0+cu128", "12.8", 4, CU128, error="driver too old"),
            }
        ),
        "CUDA versions",
        "sudo ubuntu-drivers install --gpgpu && sudo reboot",
    ),
    "PyTorch for CUDA 13 on Volta": (
        T4.but(
            commands={
                **smi_of(T4, (r"CUDA Version +: 11\.4", "CUDA Version : 12.8")),
                CAPABILITY: "7.0\n",
                "torch": torch_says("2.9.0+cu130", "13.0", 4, CU128, error="driver too old"),
            },
        ),
        "CUDA versions",
        "whl/cu126   # or: sudo apt install nvidia-driver-580-server && sudo reboot",
    ),
    "PyTorch for CUDA 13 on Blackwell": (
        H100.but(
            commands={CAPABILITY: "10.0\n", "torch": torch_says("2.9.0+cu130", "13.0", 64, error="driver too old")},
        ),
        "CUDA versions",
        "whl/cu128   # or: sudo apt install nvidia-driver-580-server-open && sudo reboot",
    ),
    "PyTorch for CUDA 13 on WSL2": (
        WSL2.but(commands={"torch": torch_says("2.9.0+cu130", "13.0", 8, error="driver too old")}),
        "CUDA versions",
        "whl/cu126",
    ),
    "CPU build on Volta with the newest driver": (
        T4.but(
            commands={
                **smi_of(T4, (r"CUDA Version +: 11\.4", "CUDA Version : 13.0")),
                CAPABILITY: "7.0\n",
                "torch": torch_says("2.8.0+cpu", None, 4),
            }
        ),
        "PyTorch's CUDA",
        "whl/cu126",
    ),
    "PyTorch for CUDA 13 on a driver for 12": (
        H100.but(commands={"torch": torch_says("2.9.0+cu130", "13.0", 64, CU128, error="driver too old")}),
        "CUDA versions",
        "whl/cu128",
    ),
    "no PyTorch": (
        H100.but(
            commands={"torch": Output("Traceback:\n\nModuleNotFoundError: No module named 'torch'\n", 1)},
        ),
        "PyTorch",
        "pip install torch",
    ),
    "PyTorch that does not start": (
        H100.but(commands={"torch": Output("ImportError: libcudnn.so.9: cannot open shared object file\n", 1)}),
        "PyTorch",
        "--force-reinstall",
    ),
    "PyTorch in a directory that was deleted": (
        LAPTOP.but(
            commands={"torch": Output("Intel oneMKL FATAL ERROR: Cannot load libtorch_cpu.so.\n", 2)},
            directory_gone=True,
        ),
        "PyTorch",
        "cd",
    ),
    "PyTorch that hangs": (LAPTOP.but(commands={"torch": Output(hung=True)}), "PyTorch", "slow network disk"),
    "CPU build on a GPU box": (H100.but(commands={"torch": CPU_TORCH}), "PyTorch's CUDA", "whl/cu128"),
    "ROCm build on a GPU box": (
        H100.but(commands={"torch": torch_says("2.8.0+rocm6.4", None, 64, hip="6.4")}),
        "PyTorch's CUDA",
        "pip install",
    ),
    "a GPU newer than PyTorch": (
        RTX_4090.but(
            commands={
                **smi_of(
                    RTX_4090, ("RTX 4090", "RTX 5090"), (r": 12\.6", ": 12.8"), (r": 560\.35\.03", ": 570.124.06")
                ),
                CAPABILITY: "12.0\n",
                "torch": torch_says("2.6.0+cu124", "12.4", 16, CU118, ["12.0"]),
            }
        ),
        "PyTorch's CUDA",
        "whl/cu128",
    ),
    "a GPU older than PyTorch": (
        T4.but(
            commands={
                CAPABILITY: "7.0\n",
                "torch": torch_says("2.8.0+cu118", "11.8", 4, "sm_75 sm_80 sm_86 sm_90", ["7.0"]),
            }
        ),
        "PyTorch's CUDA",
        "whl/cu118",
    ),
    "hidden by CUDA_VISIBLE_DEVICES": (
        H100.but(commands={"torch": NO_TORCH_GPU}, variables={"CUDA_VISIBLE_DEVICES": ""}),
        "PyTorch sees it",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "hidden by a number that no GPU has": (
        A100_X8.but(commands={"torch": NO_TORCH_GPU}, variables={"CUDA_VISIBLE_DEVICES": "8"}),
        "PyTorch sees it",
        "unset CUDA_VISIBLE_DEVICES",
    ),
    "CUDA does not start, whichever GPU is chosen": (
        H100.but(
            commands={"torch": torch_says(arch=CU128, error="CUDA unknown error - Error 999: unknown error")},
            variables={"CUDA_VISIBLE_DEVICES": "0"},
        ),
        "PyTorch sees it",
        "torch.cuda.init()",
    ),
    "no nvidia-uvm, whichever GPU is chosen": (
        H100.but(
            commands={"torch": torch_says(arch=CU128, error="CUDA unknown error")},
            directories={"/dev": ("nvidia0", "nvidiactl")},
            variables={"CUDA_VISIBLE_DEVICES": "0"},
        ),
        "PyTorch sees it",
        "sudo nvidia-modprobe -u -c 0",
    ),
    "CUDA does not start": (
        H100.but(
            commands={"torch": torch_says(arch=CU128, error="CUDA unknown error")},
            directories={"/dev": ("nvidia0", "nvidiactl")},
        ),
        "PyTorch sees it",
        "nvidia-modprobe -u -c 0",
    ),
    "GPU memory full": (
        H100.but(
            commands=smi_of(
                H100,
                (r"(Free +: )81008", r"\g<1>2011"),
                (
                    r"    Processes +: None",
                    "    Processes\n        GPU instance ID                   : N/A\n"
                    "        Process ID                        : 4242\n            Type                          : C\n"
                    "            Name                          : /opt/venv/bin/python3\n"
                    "            Used GPU Memory               : 78990 MiB",
                ),
            )
        ),
        "GPU memory",
        "ps -fp 4242",
    ),
    "disk full": (LAPTOP.but(disks={"weights": (500 * GB, GB // 5)}), "disk for weights", "MINILLM_WEIGHTS"),
    "memory full": (
        LAPTOP.but(files={"/proc/meminfo": "MemTotal:        8000000 kB\nMemAvailable:     400000 kB\n"}),
        "memory",
        "ps aux",
    ),
    "container with half a GiB": (
        in_docker(
            LAPTOP,
            files={
                "/sys/fs/cgroup/memory.max": "536870912\n",
                "/sys/fs/cgroup/memory.current": "104857600\n",
                "/sys/fs/cgroup/memory.stat": "anon 94371840\ninactive_file 10485760\n",
            },
        ),
        "memory",
        "ps aux",
    ),
}

# name -> (box, the check that warns, a part of its sentence, a part of the command that mends it)
WARNED: dict[str, tuple[Box, str, str, str]] = {
    "MIG instances on one of eight GPUs": (
        A100_X8.but(
            commands={
                SMI: re.sub(MIG_OFF, r"\1Enabled\2Enabled", A100_X8.commands[SMI].text),
                "nvidia-smi -L": "".join(_listed(index, slices=2 if index == 3 else 0) for index in range(8)),
            }
        ),
        "MIG",
        "GPUs 0,1,2,4,5,6,7 are in MIG mode, but have no instance",
        "sudo nvidia-smi -i 0,1,2,4,5,6,7 -mig 0",
    ),
    "MIG without instances beside a whole GPU": (
        A100_X8.but(
            commands={
                **smi_of(A100_X8, (MIG_OFF, r"\1Enabled\2Enabled")),
                "nvidia-smi -L": "".join(_listed(index, slices=0) for index in range(8)),
            }
        ),
        "MIG",
        "GPU 0 is in MIG mode, but has no instance",
        "sudo nvidia-smi -i 0 -mig 0",
    ),
    "no nvidia-smi, but CUDA works": (
        H100.but(without=NO_SMI),
        "nvidia-smi",
        "PyTorch reaches the GPU",
        "apt install nvidia-utils-570",
    ),
    "no nvidia-smi in a container where CUDA works": (
        in_docker(H100, without=NO_SMI),
        "nvidia-smi",
        "PyTorch reaches the GPU",
        "compute,utility",
    ),
    "a damaged infoROM": (
        H100.but(commands={SMI: Output(H100.commands[SMI].text + "WARNING: infoROM is corrupted at gpu\n", 14)}),
        "nvidia-smi",
        "exit code 14",
        "nvidia-smi",
    ),
    "bad row waits for a reset": (
        H100.but(commands=smi_of(H100, (r"(Uncorrectable Error +: 0\s+Pending +: )No", r"\1Yes"))),
        "ECC",
        "next reset",
        "--gpu-reset -i 0",
    ),
    "memory errors of long ago": (
        H100.but(commands=smi_of(H100, (r"(Aggregate.*?DRAM Uncorrectable +: )0", r"\g<1>2"))),
        "ECC",
        "2 uncorrectable memory errors in its life",
        "ECC,ROW_REMAPPER",
    ),
    "NVLink error in the kernel log": (
        H100.but(commands={"dmesg": XID_79.replace("79,", "74,")}),
        "kernel log",
        "Xid 74",
        "dmesg",
    ),
    "memory held by another program": (
        RTX_4090.but(commands=smi_of(RTX_4090, (r"(Free +: )23798", r"\g<1>11000"))),
        "GPU memory",
        "10.7 of 24.0 GiB free; held by process 2113 (Xorg), 2390 (gnome-shell)",
        "ps -fp 2113,2390",
    ),
    "three tenths of the memory held": (
        RTX_4090.but(commands=smi_of(RTX_4090, (r"(Free +: )23798", r"\g<1>17000"))),
        "GPU memory",
        "16.6 of 24.0 GiB free",
        "ps -fp 2113,2390",
    ),
    "power brake": (
        H100.but(commands=smi_of(H100, (r"(HW Power Brake Slowdown +: )Not ", r"\1"))),
        "power and clocks",
        "GPU 0 slows itself down: power brake by the server",
        "nvidia-smi -q -d PERFORMANCE",
    ),
    "power cap lowered": (
        A100_X8.but(commands=smi_of(A100_X8, (r"(Current Power Limit +: )400", r"\g<1>250"))),
        "power and clocks",
        "capped at 250 W, and made for 400 W",
        "sudo nvidia-smi -i 0 -pl 400",
    ),
    "power cap lowered, old driver": (
        T4.but(commands=smi_of(T4, (r"(    Power Limit +: )70", r"\g<1>60"))),
        "power and clocks",
        "capped at 60 W",
        "-pl 70",
    ),
    "too hot": (
        T4.but(commands=smi_of(T4, (r"(HW Slowdown +: )Not ", r"\1"), (r"(HW Thermal Slowdown +: )Not ", r"\1"))),
        "power and clocks",
        "too hot",
        "nvidia-smi -q -d PERFORMANCE",
    ),
    "clocks set low": (
        A100_X8.but(commands=smi_of(A100_X8, (r"(    Applications Clocks\s+Graphics +: )1275", r"\g<1>765"))),
        "power and clocks",
        "765 MHz",
        "-rac",
    ),
    "persistence mode off": (
        H100.but(commands=smi_of(H100, (r"(Persistence Mode +: )Enabled", r"\1Disabled"))),
        "persistence",
        "lets go of GPU 0",
        "sudo nvidia-smi -pm 1",
    ),
    "narrow slot": (
        RTX_4090.but(commands=smi_of(RTX_4090, (r"(Current +: )16x", r"\g<1>4x"))),
        "PCIe width",
        "4 PCIe lanes of 16",
        "Link Width",
    ),
    "docker without the toolkit": (
        H100.but(
            commands={"docker info": recorded("docker-info.txt").replace(" nvidia runc", " runc")},
            without=("nvidia-ctk --version",),
        ),
        "container toolkit",
        "no NVIDIA Container Toolkit",
        "apt install nvidia-container-toolkit",
    ),
    "toolkit that hangs": (
        H100.but(commands={"nvidia-ctk --version": Output(hung=True)}),
        "container toolkit",
        "nvidia-ctk hangs",
        "time nvidia-ctk --version",
    ),
    "toolkit that docker does not know": (
        H100.but(commands={"docker info": recorded("docker-info.txt").replace(" nvidia runc", " runc")}),
        "container toolkit",
        "Docker does not know it",
        "nvidia-ctk runtime configure --runtime=docker",
    ),
    "64 MiB of /dev/shm in a container": (
        in_docker(A100_X8, disks={"weights": (2000 * GB, 900 * GB), "/dev/shm": (64 * 2**20, 64 * 2**20)}),
        "/dev/shm",
        "64 MiB",
        "--shm-size",
    ),
    "little disk for a GPU": (
        H100.but(disks={"weights": (50 * GB, 9 * GB)}),
        "disk for weights",
        "8 billion",
        "MINILLM_WEIGHTS",
    ),
    "2 CPUs of 64 allotted": (
        in_docker(
            LAPTOP,
            files={"/sys/fs/cgroup/cpu.max": "200000 100000\n"},
            commands={"torch": CPU_TORCH},
            num_cpus=(64, 64),
        ),
        "processors",
        "64 threads, but gets 2 processors of the machine's 64",
        "export OMP_NUM_THREADS=2",
    ),
    "2 CPUs of 64 allotted, cgroup v1": (
        LAPTOP.but(
            files={
                "/proc/self/cgroup": "4:memory:/\n1:cpu:/\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            commands={"torch": CPU_TORCH},
            num_cpus=(64, 64),
        ),
        "processors",
        "gets 2 processors",
        "OMP_NUM_THREADS=2",
    ),
    "quota of a group above": (
        LAPTOP.but(
            files={"/sys/fs/cgroup/user.slice/cpu.max": "400000 100000\n"},
        ),
        "processors",
        "gets 4 processors",
        "OMP_NUM_THREADS=4",
    ),
    "bound to 4 processors": (LAPTOP.but(num_cpus=(16, 4)), "processors", "gets 4 processors", "OMP_NUM_THREADS=4"),
    "few open files": (LAPTOP.but(process_limits=(256, None)), "limits", "256 open files", "ulimit -n"),
    "InfiniBand with little memory to lock": (
        A100_X8.but(directories={"/sys/class/infiniband": ("mlx5_0",)}),
        "limits",
        "InfiniBand",
        "ulimit -l unlimited",
    ),
}
