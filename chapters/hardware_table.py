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

DTYPES = ("float32", "tf32", "16 bits", "float8", "int8", "float4")
COLUMNS = ("", "GiB", "GB/s", *DTYPES, "FLOP/byte", "link, GB/s", "PCIe")
APPLE_COLUMNS = ("", "largest memory, GiB", "GB/s")


def tables() -> str:
    """All of what stands between the marks."""
    cards = [each for each in ACCELERATORS if each.dense_flops]
    macs = [each for each in ACCELERATORS if not each.dense_flops]
    return "\n\n".join(
        (
            "## GPUs",
            _table(COLUMNS, map(_card, cards)),
            "## Macs",
            _table(APPLE_COLUMNS, ((mac.name, _gib(mac), _gb_per_s(mac)) for mac in macs)),
            "## Sources and remarks",
            "\n".join(map(_remark, ACCELERATORS)),
        )
    )


def up_to_date(page: str) -> str:
    """The page with its tables written anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _card(card: Accelerator) -> tuple[str, ...]:
    def tera(dtype: str) -> str:
        return f"{card.dense_flops[dtype] / 1e12:,g}" if dtype in card.dense_flops else ""

    sixteen = tera("bfloat16") or f"{tera('float16')} ᶠ"
    per_byte = card.flops("float16") / card.bandwidth_bytes_per_s
    link = f"{card.link.name}, {card.link.bytes_per_s / 1e9:,g}" if card.link else ""
    pcie = card.pcie.removeprefix("PCIe ") if card.pcie else ""
    wide, narrow = ("float32", "tf32"), ("float8", "int8", "float4")
    figures = (*map(tera, wide), sixteen, *map(tera, narrow), f"{per_byte:.0f}")
    return (card.name, _gib(card), _gb_per_s(card), *figures, link, pcie)


def _gib(each: Accelerator) -> str:
    return f"{each.memory_bytes / 2**30:.1f}".removesuffix(".0")


def _gb_per_s(each: Accelerator) -> str:
    return f"{each.bandwidth_bytes_per_s / 1e9:,g}"


def _remark(each: Accelerator) -> str:
    source = " ".join(f"<{word}>" if word.startswith("https://") else word for word in each.source.split(" "))
    source = source.replace(";>", ">;")
    return f"- **{each.name}.** {each.note + ' ' if each.note else ''}{source}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---"] + ["---:"] * (len(columns) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, aligned, *rows))


if __name__ == "__main__":
    page = up_to_date(PAGE.read_text(encoding="utf-8"))
    PAGE.write_bytes(page.encode("utf-8"))  # bytes: the same line ends on every system
    print(PAGE.name, file=sys.stderr)
