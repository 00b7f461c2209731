"""Texts of the GPU's tools -> values. Every function takes any text at all, and answers None where it says nothing."""

import re
from dataclasses import dataclass, field

from minillm.machine.doctor.facts import Gpu, GpuProcess, PciDevice, SmiReport, Xid

SLOWDOWNS = {
    "HW Slowdown": "hardware slowdown",
    "HW Thermal Slowdown": "too hot (hardware)",
    "HW Power Brake Slowdown": "power brake by the server",
    "SW Thermal Slowdown": "too hot (driver)",
}
"""Reasons for low clocks that are somebody's fault. Idle, and the power cap under load, are a GPU's ordinary life."""


@dataclass
class Node:
    """A line of `nvidia-smi -q`, with the lines that are indented below it."""

    key: str
    value: str
    children: list["Node"] = field(default_factory=list)

    def at(self, *keys: str) -> "Node | None":
        """The node below this one along the path of keys; None if there is none."""
        node: Node | None = self
        for key in keys:
            node = next((child for child in node.children if child.key == key), None) if node else None
        return node

    def text(self, *keys: str) -> str | None:
        """The value at the path; None for none, and for what the tool writes when there is nothing to say."""
        node = self.at(*keys)
        return None if node is None or node.value in _NOTHING else node.value

    def number(self, *keys: str) -> float | None:
        """The number at the path, without its unit."""
        return first_number(self.text(*keys))

    def yes(self, *keys: str) -> bool | None:
        """Whether the value at the path is Enabled, Active or Yes."""
        value = self.text(*keys)
        return None if value is None else value in ("Enabled", "Active", "Yes")


_NOTHING = {"", "N/A", "[N/A]", "Not Supported", "[Not Supported]", "Unknown Error", "[Unknown Error]"}


def first_number(text: str | None) -> float | None:
    """The number that a value begins with: "81559 MiB" -> 81559."""
    match = re.match(r"\s*(\d{1,18}(?:\.\d{1,9})?)", text or "", re.ASCII)
    return float(match.group(1)) if match else None


def indented(text: str) -> Node:
    """`nvidia-smi -q` as a tree: four more spaces are one level down. The root has no key."""
    root = Node("", "")
    open_nodes = [(-1, root)]
    for line in text.splitlines():
        if not line.strip():
            continue
        depth = len(line) - len(line.lstrip(" "))
        key, _, value = line.strip().partition(" : ") if " : " in line else (line.strip(), "", "")
        while open_nodes[-1][0] >= depth:
            open_nodes.pop()
        node = Node(key.strip(), value.strip())
        open_nodes[-1][1].children.append(node)
        open_nodes.append((depth, node))
    return root


def smi_report(text: str) -> SmiReport | None:
    """`nvidia-smi -q`; None if no GPU is described in it."""
    root = indented(text)
    found = [node for node in root.children if re.fullmatch(r"GPU [0-9A-Fa-f]+:[0-9A-Fa-f:.]+", node.key)]
    if not found:
        return None
    gpus = tuple(_gpu(index, node) for index, node in enumerate(found))
    return SmiReport(root.text("Driver Version"), root.text("CUDA Version"), gpus)


def _gpu(index: int, node: Node) -> Gpu:
    # Drivers before 535 call the sections by other names.
    power = node.at("GPU Power Readings") or node.at("Power Readings") or Node("", "")
    return Gpu(
        index=index,
        bus_id=node.key.removeprefix("GPU "),
        name=node.text("Product Name") or "GPU",
        uuid=node.text("GPU UUID"),
        persistence=node.yes("Persistence Mode"),
        display=node.yes("Display Active") or node.yes("Display Attached"),
        mig=node.yes("MIG Mode", "Current"),
        mig_pending=node.yes("MIG Mode", "Pending"),
        memory_total_mib=node.number("FB Memory Usage", "Total"),
        memory_free_mib=node.number("FB Memory Usage", "Free"),
        ecc=node.yes("ECC Mode", "Current") if node.at("ECC Mode") else node.yes("Ecc Mode", "Current"),
        uncorrectable_now=_uncorrectable(node.at("ECC Errors", "Volatile")),
        uncorrectable_ever=_uncorrectable(node.at("ECC Errors", "Aggregate")),
        remap_pending=node.yes("Remapped Rows", "Pending"),
        remap_failed=node.yes("Remapped Rows", "Remapping Failure Occurred"),
        slowdowns=_slowdowns(node.at("Clocks Event Reasons") or node.at("Clocks Throttle Reasons")),
        power_limit_w=power.number("Current Power Limit") or power.number("Power Limit"),
        power_default_w=power.number("Default Power Limit"),
        clock_set_mhz=node.number("Applications Clocks", "Graphics"),
        clock_default_mhz=node.number("Default Applications Clocks", "Graphics"),
        pcie_width=node.number("PCI", "GPU Link Info", "Link Width", "Current"),
        pcie_width_max=node.number("PCI", "GPU Link Info", "Link Width", "Max"),
        fabric=node.text("Fabric", "State"),
        processes=_processes(node.at("Processes")),
    )


def _uncorrectable(section: Node | None) -> int | None:
    """Sum of the counters: "DRAM Uncorrectable" and the like; "Double Bit: Total" before Turing."""
    if section is None:
        return None
    counts = [first_number(child.value) for child in section.children if "Uncorrectable" in child.key]
    counts.append(section.number("Double Bit", "Total"))
    known = [int(count) for count in counts if count is not None]
    return sum(known) if known else None


def _slowdowns(section: Node | None) -> tuple[str, ...]:
    if section is None:
        return ()
    reasons = [*section.children, *(child for reason in section.children for child in reason.children)]
    return tuple(SLOWDOWNS[node.key] for node in reasons if node.key in SLOWDOWNS and node.value == "Active")


def _processes(section: Node | None) -> tuple[GpuProcess, ...]:
    if section is None:
        return ()
    found = []
    for node in section.children:
        pid = first_number(node.value)
        if node.key == "Process ID" and pid is not None:
            found.append(GpuProcess(int(pid), node.text("Name") or "?", node.number("Used GPU Memory")))
    return tuple(found)


def driver_version(text: str | None) -> str | None:
    """`/proc/driver/nvidia/version`, or any text with a driver's version in it: "580.95.05"."""
    match = re.search(r"\b(\d{3}\.\d{1,4}(?:\.\d{1,4})?)\b", text or "", re.ASCII)
    return match.group(1) if match else None


def version_tuple(version: str | None) -> tuple[int, ...] | None:
    """A version as numbers: "535.183.01" -> (535, 183, 1); None for anything else."""
    if version is None or not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,3}", version, re.ASCII):
        return None
    return tuple(int(part) for part in version.split("."))


_PCI_DEVICE = re.compile(
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d) [^\[]*\[([0-9a-f]{4})\]: "  # address, kind
    r"(.*?)(?: \[[0-9a-f]{4}:[0-9a-f]{4}\])(.*)"  # name, the rest
)


def lspci(text: str) -> tuple[PciDevice, ...]:
    """`lspci -Dnnk -d 10de:`: the NVIDIA devices of the bus."""
    devices: list[PciDevice] = []
    for line in text.splitlines():
        if start := _PCI_DEVICE.fullmatch(line.rstrip()):
            address, kind, name, rest = start.groups()
            name = name.removeprefix("NVIDIA Corporation ")
            devices.append(PciDevice(address, kind, name, answers="(rev ff)" not in rest))
        elif devices and (driver := re.fullmatch(r"\s+Kernel driver in use: (\S+)\s*", line)):
            last = devices[-1]
            devices[-1] = PciDevice(last.address, last.kind, last.name, driver.group(1), last.answers)
        elif devices and "Unknown header type 7f" in line:  # every bit read as one: nobody answers
            last = devices[-1]
            devices[-1] = PciDevice(last.address, last.kind, last.name, last.driver, answers=False)
    return tuple(devices)


def modules(text: str | None) -> frozenset[str] | None:
    """`/proc/modules`: the kernel's loaded modules."""
    return None if text is None else frozenset(line.split()[0] for line in text.splitlines() if line.strip())


def capabilities(text: str) -> tuple[str, ...]:
    """`nvidia-smi --query-gpu=compute_cap --format=csv,noheader`: ("9.0", "9.0", ...)."""
    return tuple(line.strip() for line in text.splitlines() if re.fullmatch(r"\d{1,2}\.\d", line.strip(), re.ASCII))


def mig_instances(text: str) -> tuple[int, ...] | None:
    """`nvidia-smi -L`: for each GPU, the number of MIG devices listed below it; None if it lists no GPU at all."""
    _, *gpus = re.split(r"^GPU \d+: ", text, flags=re.MULTILINE | re.ASCII)
    return tuple(len(re.findall(r"^\s+MIG .*\(UUID: MIG-", gpu, re.MULTILINE)) for gpu in gpus) or None


def topology(text: str) -> tuple[tuple[str, ...], ...] | None:
    """`nvidia-smi topo -m`: for each GPU, its links to all GPUs ("X" itself, "NV18", "PHB", "SYS", ...)."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    rows = [row[1:] for row in rows if row and re.fullmatch(r"GPU\d+", row[0]) and "X" in row]
    if not rows or any(len(row) < len(rows) for row in rows):
        return None
    return tuple(tuple(row[: len(rows)]) for row in rows)


def xids(text: str | None) -> tuple[Xid, ...]:
    """The driver's error reports in the kernel log: `NVRM: Xid (PCI:0000:19:00): 79, ...`.

    In MIG mode the slice follows the address, `(PCI:0000:19:00 GPU-I:05 GPU-CI:00)`.
    """
    found = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{1,20})[^)\n]{0,40}\): (\d{1,4})\b", text or "", re.ASCII)
    return tuple(Xid(int(number), address) for address, number in found)


def docker_runtimes(text: str) -> tuple[str, ...] | None:
    """`docker info`: the container runtimes that the daemon knows."""
    match = re.search(r"^\s*Runtimes: (.+)$", text, re.MULTILINE)
    return tuple(match.group(1).split()) if match else None


def toolkit_version(text: str) -> str | None:
    """`nvidia-ctk --version`."""
    match = re.search(r"NVIDIA Container Toolkit CLI version (\d{1,4}\.\d{1,4}\.\d{1,4}\S*)", text, re.ASCII)
    return match.group(1) if match else None
