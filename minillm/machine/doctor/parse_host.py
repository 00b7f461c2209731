"""Texts of the host and of PyTorch -> values. Every function takes any text at all."""

import json
import re
from typing import Any

from minillm.machine.doctor.facts import Cpu, Torch

NO_LIMIT = 2**60
"""cgroup v1 writes "no limit" as the largest number of pages; nobody has an EiB of memory."""


def cpu(text: str | None) -> Cpu:
    """`/proc/cpuinfo`, of an x86 or an Arm machine."""
    text = text or ""
    name = re.search(r"^model name\s*:[ \t]*(\S.*)$", text, re.MULTILINE)
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    logical = len(re.findall(r"^processor\s*:", text, re.MULTILINE))
    plain = re.sub(r"\((?:R|TM)\)", "", name.group(1)).strip() if name else None
    return Cpu(plain, logical or None, frozenset(" ".join(flags[:1]).split()))


def meminfo(text: str | None, what: str) -> int | None:
    """A line of `/proc/meminfo`, in bytes. (It says kB and means KiB.)"""
    match = re.search(rf"^{what}:\s+(\d{{1,18}}) kB$", text or "", re.MULTILINE | re.ASCII)
    return int(match.group(1)) * 1024 if match else None


def cpu_quota(text: str | None) -> float | None:
    """Cgroup v2's `cpu.max`, "200000 100000" (microseconds of CPU time per microseconds): 2.0 CPUs; None: no limit."""
    match = re.fullmatch(r"\s*(\d{1,15}) (\d{1,15})\s*", text or "", re.ASCII)
    return int(match.group(1)) / int(match.group(2)) if match and int(match.group(2)) > 0 else None


def byte_limit(text: str | None) -> int | None:
    """`memory.max` or `memory.limit_in_bytes`; None: no limit."""
    match = re.fullmatch(r"\s*(\d{1,20})\s*", text or "", re.ASCII)
    return int(match.group(1)) if match and int(match.group(1)) < NO_LIMIT else None


def statistic(text: str | None, name: str) -> int:
    """A line of `memory.stat`, "inactive_file 4096", in bytes; 0 if it is not there."""
    match = re.search(rf"^{name} (\d{{1,18}})$", text or "", re.MULTILINE | re.ASCII)
    return int(match.group(1)) if match else 0


def cgroup_paths(text: str | None) -> tuple[str, ...]:
    """`/proc/self/cgroup`: this process's own group in the one hierarchy (v2), and all groups above it."""
    match = re.search(r"^0::(/\S*)$", text or "", re.MULTILINE)
    parts = [part for part in match.group(1).split("/") if part not in ("", "..")][:64] if match else []
    return tuple("/".join(["", *parts[:length]]) for length in range(len(parts), -1, -1))


def container(cgroup: str | None) -> str | None:
    """`/proc/1/cgroup`: the name of what manages our first process, if that is a container's."""
    match = re.search(r"(docker|kubepods|containerd|libpod|lxc)", cgroup or "")
    names = {"docker": "Docker", "kubepods": "Kubernetes", "libpod": "Podman"}
    return names.get(match.group(1), match.group(1)) if match else None


def node_count(text: str | None) -> int | None:
    """`/sys/devices/system/node/online`, "0-1" or "0,2-3": the number of NUMA nodes."""
    parts = (text or "").strip().split(",")
    if not all(re.fullmatch(r"\d{1,4}(-\d{1,4})?", part, re.ASCII) for part in parts):
        return None
    ends = [[int(end) for end in part.split("-")] for part in parts]
    return sum(end[-1] - end[0] + 1 for end in ends)


def torch(text: str) -> Torch | None:
    """The line of JSON that `probe.TORCH_SCRIPT` prints, among whatever else the import printed."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"minillm_doctor"'):
            try:
                return _torch(json.loads(line))
            except (ValueError, RecursionError):
                return None
    return None


def _torch(said: dict[str, Any]) -> Torch:
    def text(key: str) -> str | None:
        return said[key] if isinstance(said.get(key), str) else None

    def texts(key: str) -> tuple[str, ...]:
        value = said.get(key)
        return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()

    threads = said.get("threads")
    return Torch(
        version=text("version"),
        cuda=text("cuda"),
        hip=text("hip"),
        available=said.get("available") is True,
        mps=said.get("mps") is True,
        arch_list=texts("arch_list"),
        capabilities=texts("capabilities"),
        threads=threads if isinstance(threads, int) else None,
        error=text("error"),
    )


def last_line(text: str) -> str:
    """A traceback's last line, cut to a line's length: the error itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"
