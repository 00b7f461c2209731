"""Write the tables of the appendix: `python chapters/hardware_table.py` brings hardware.md beside it up to date.

The figures are those of minillm/machine/accelerators.toml; what stands outside the two marks is left as it is.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from minillm.machine.specs import ACCELERATORS, Accelerator

PAGE = Path(__file__).parent / "hardware.md"
BEGIN = "<!-- written by chapters/hardware_table.py: change minillm/machine/accelerators.toml instead -->"
END = "<!-- end of what is written -->"

RATES = ("", "GiB", "GB/s", "float32", "tf32", "16 bits", "float8", "int8", "float4", "FLOP / byte")
LINKS = ("", "between GPUs", "GB/s", "PCIe, 16 lanes of generation")
MACS = ("", "largest memory, GiB", "GB/s")


def tables() -> str:
    """All of what stands between the marks."""
    cards = [each for each in ACCELERATORS if each.dense_flops]
    macs = [each for each in ACCELERATORS if not each.dense_flops]
    return "\n\n".join(
        (
            "## GPUs: memory and arithmetic",
            _table(RATES, map(_rates, cards)),
            "## GPUs: links",
            _table(LINKS, map(_links, cards)),
            "## Macs",
            _table(MACS, ((_name(mac), _gib(mac), _gb_per_s(mac)) for mac in macs)),
            "## Sources and remarks",
            "\n".join(map(_remark, ACCELERATORS)),
        )
    )


def up_to_date(page: str) -> str:
    """The page with its tables written anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _rates(card: Accelerator) -> tuple[str, ...]:
    def tera(dtype: str) -> str:
        return f"{card.dense_flops[dtype] / 1e12:,.4g}" if dtype in card.dense_flops else ""

    sixteen = tera("bfloat16") or f"{tera('float16')}&nbsp;ᶠ"
    per_byte = card.flops("float16") / card.bandwidth_bytes_per_s
    wider, narrower = map(tera, ("float32", "tf32")), map(tera, ("float8", "int8", "float4"))
    return (_name(card), _gib(card), _gb_per_s(card), *wider, sixteen, *narrower, f"{per_byte:.0f}")


def _links(card: Accelerator) -> tuple[str, ...]:
    link = (card.link.name, f"{card.link.bytes_per_s / 1e9:,g}") if card.link else ("", "")
    return (_name(card), *link, card.pcie.removeprefix("PCIe ").removesuffix(" x16") if card.pcie else "")


def _name(each: Accelerator) -> str:
    return each.name.replace(" ", "&nbsp;")


def _gib(each: Accelerator) -> str:
    return f"{each.memory_bytes / 2**30:.1f}".removesuffix(".0")


def _gb_per_s(each: Accelerator) -> str:
    return f"{each.bandwidth_bytes_per_s / 1e9:,g}"


def _remark(each: Accelerator) -> str:
    return (
        f"- **{each.name}.** {each.note + ' ' if each.note else ''}{'; '.join(map(_linked, each.source.split('; ')))}."
    )


def _linked(source: str) -> str:
    """A document's title as a link to its address, where it has one."""
    title, _, address = source.partition(", https://")
    return f"[{title}](https://{address})" if address else title


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, aligned, *rows))


if __name__ == "__main__":
    page = up_to_date(PAGE.read_text(encoding="utf-8"))
    PAGE.write_bytes(page.encode("utf-8"))  # bytes: the same line ends on every system
    print(PAGE.name, file=sys.stderr)
