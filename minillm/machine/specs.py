"""What the accelerators that people rent and buy can do at most: memory, bandwidth, arithmetic, links. No torch.

The figures lie in accelerators.toml, one entry per accelerator, each with the document it is from. They are peaks, as
vendors state them: no program reaches them, and none exceeds them. Three rules make them comparable.

- FLOP/s are dense. A figure "with sparsity" counts products with zeros that are skipped: twice the work that is done.
- Memory is what `nvidia-smi` calls `memory.total`, before any program has started. Vendors' "80 GB" is nearly 80 GiB:
  81,920 MiB on an A100, 81,559 on an H100 (85.5 GB), for some is reserved. Cards with GDDR memory pay for ECC with a
  sixteenth of it: a T4's 16 GiB are 15. For a Mac it is the largest unified memory sold with the chip, which the
  system and all programs share.
- A link's rate is the total of both directions per GPU, as vendors print it: data that flow one way get half.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from minillm.errors import InputError

DTYPES = ("float32", "tf32", "float16", "bfloat16", "float8", "int8", "float4")

PCIE_BYTES_PER_S = MappingProxyType({"PCIe 3.0 x16": 32e9, "PCIe 4.0 x16": 64e9, "PCIe 5.0 x16": 128e9})
"""Both directions together, like a link's rate; one way is half of it."""

_WIDER: Mapping[str, tuple[str, ...]] = {
    "float4": ("bfloat16", "float16", "float32"),
    "float8": ("bfloat16", "float16", "float32"),
    "int8": ("bfloat16", "float16", "float32"),
    "bfloat16": ("float32",),
    "float16": ("float32",),
    "tf32": ("float32",),
}
"""What numbers of a type are turned into, in order of preference, where they cannot be multiplied as they are."""

_BRANDS = ("nvidia", "geforce", "tesla", "rtx", "amd", "instinct", "apple", "gpu")


@dataclass(frozen=True)
class Link:
    """What connects a GPU with its neighbours: `bytes_per_s` per GPU, both directions together."""

    name: str
    bytes_per_s: float

    @property
    def one_way_bytes_per_s(self) -> float:
        """The rate at which a GPU can send while it receives as much."""
        return self.bytes_per_s / 2


@dataclass(frozen=True)
class Accelerator:
    """One GPU (or Mac), as its vendor describes it: what memory_bytes and the others mean is said at the module's top.

    `dense_flops` has the types that there are units and a confirmed figure for, in operations per second, sums kept in
    float32. `link` is None where cards talk over PCIe alone; `pcie` is None where the CPU is reached another way.
    `source` names document and address. `usable_bytes` are what programs can have: all of the memory, but on a Mac what
    Metal lends of it. `vendor` is "NVIDIA", "AMD" or "Apple".
    """

    name: str
    vendor: str
    aliases: tuple[str, ...]
    memory_bytes: int
    usable_bytes: int
    bandwidth_bytes_per_s: float
    dense_flops: Mapping[str, float]
    link: Link | None
    pcie: str | None
    source: str
    note: str

    def flops(self, dtype: str) -> float:
        """Peak operations per second for products of `dtype`, one of DTYPES.

        A type without units of its own is widened before it is multiplied: types of 8 and 4 bits to 16 bits, types of
        16 bits to float32. So float8 on an A100 has the rate of bfloat16, and bfloat16 on a T4 that of float32.
        Raises InputError for an unknown dtype, and where no figure is published (Macs).
        """
        if dtype not in DTYPES:
            raise InputError(f"no accelerator here has a figure for {dtype!r}: choose one of {', '.join(DTYPES)}")
        for computed_in in (dtype, *_WIDER.get(dtype, ())):
            if computed_in in self.dense_flops:
                return self.dense_flops[computed_in]
        raise InputError(f"no FLOP/s are published for the {self.name}: measure a matrix product on one instead")


def find(name: str) -> Accelerator:
    """The accelerator that people, `nvidia-smi` or `torch.cuda.get_device_name` call `name`.

    Case, punctuation and brand do not count: "h100-sxm", "H100 SXM" and "NVIDIA H100 80GB HBM3" are one. A name that
    fits several variants means the one whose note says so ("h100" is the SXM module). Raises InputError with the
    nearest names for any other: a laptop's 4090 is not the card of that name, nor is a MIG slice the whole GPU.
    """
    key = _key(name)
    if key in _BY_KEY:
        return _BY_KEY[key]
    raise InputError(f"no accelerator is called {name!r} here; {_nearest(key)}")


def _nearest(key: str, most: int = 4) -> str:
    """What to propose for a name that is not known: variants of the same accelerator, then names spelled alike."""
    starts = sorted((known for known in _BY_KEY if len(known) > 2 and key.startswith(known)), key=len, reverse=True)
    within = [known for known in _BY_KEY if len(key) > 2 and key in known]
    alike = difflib.get_close_matches(key, _BY_KEY, n=most)
    names = list(dict.fromkeys(_BY_KEY[known].name for known in (*starts[:1], *within, *alike)))[:most]
    if not names:
        return "those that are known are in the book's appendix on accelerators"
    return f"did you mean {' or '.join(names)}?"


def _key(name: str) -> str:
    """What is left of a name without case, punctuation and brand: "NVIDIA A100-SXM4-80GB" becomes "a100sxm480gb"."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub("|".join(_BRANDS), "", letters)


def _read() -> tuple[Accelerator, ...]:
    text = resources.files("minillm.machine").joinpath("accelerators.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return tuple(_accelerator(entry, tables["sources"]) for entry in tables["accelerator"])


def _accelerator(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Accelerator:
    link = entry.get("link")
    return Accelerator(
        name=entry["name"],
        vendor=entry["vendor"],
        aliases=tuple(entry["aliases"]),
        memory_bytes=entry["memory_mib"] * 2**20,
        usable_bytes=entry.get("usable_mib", entry["memory_mib"]) * 2**20,
        bandwidth_bytes_per_s=entry["bandwidth_gb_per_s"] * 1e9,
        dense_flops=MappingProxyType({dtype: t * 1e12 for dtype, t in entry.get("dense_tflops", {}).items()}),
        link=Link(link["name"], link["gb_per_s"] * 1e9) if link else None,
        pcie=entry.get("pcie"),
        source="; ".join(sources[key] for key in entry["sources"]),
        note=entry.get("note", ""),
    )


ACCELERATORS = _read()
_BY_KEY = MappingProxyType({_key(name): each for each in ACCELERATORS for name in (each.name, *each.aliases)})
