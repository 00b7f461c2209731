"""The table of accelerators: its figures follow from what the chips are built of, and people's names find them."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from minillm.errors import InputError
from minillm.machine.specs import ACCELERATORS, DTYPES, PCIE_BYTES_PER_S, find

ROOT = Path(__file__).parents[1]
DATA = tomllib.loads((ROOT / "minillm" / "machine" / "accelerators.toml").read_text(encoding="utf-8"))
CARDS = [each for each in ACCELERATORS if each.dense_flops]

# The memory bus in bits, and the rate of one of its lines in Gbit/s. Sources: the architecture whitepapers; for HBM
# twice the memory clock that nvidia-smi shows (an H100 SXM: 2 x 2,619 MHz); LPDDR and its rate for Macs.
MEMORY = {
    "T4 16GB": (256, 10),
    "L4 24GB": (192, 12.5),
    "A10 24GB": (384, 12.5),
    "A10G 24GB": (384, 12.5),
    "L40S 48GB": (384, 18),
    "V100 SXM2 16GB": (4096, 1.754),
    "A100 SXM 40GB": (5120, 2.43),
    "A100 PCIe 80GB": (5120, 3.024),
    "A100 SXM 80GB": (5120, 3.186),
    "H100 PCIe 80GB": (5120, 3.186),
    "H100 SXM 80GB": (5120, 5.238),
    "H100 NVL 94GB": (6016, 5.238),
    "H200 SXM 141GB": (6016, 6.402),
    "H200 NVL 141GB": (6016, 6.402),
    "GH200 96GB": (6144, 5.238),
    "B200 180GB": (7680, 7.992),
    "RTX 3090 24GB": (384, 19.5),
    "RTX 4090 24GB": (384, 21),
    "RTX 5090 32GB": (512, 28),
    "RTX A6000 48GB": (384, 16),
    "RTX 6000 Ada 48GB": (384, 20),
    "MI300X 192GB": (8192, 5.2),
    "M1 16GB": (128, 4.266),
    "M1 Max 64GB": (512, 6.4),
    "M1 Ultra 128GB": (1024, 6.4),
    "M2 24GB": (128, 6.4),
    "M3 Pro 36GB": (192, 6.4),
    "M3 Ultra 512GB": (1024, 6.4),
    "M4 32GB": (128, 7.5),
    "M4 Pro 64GB": (256, 8.533),
    "M4 Max 128GB": (512, 8.533),
}

# SMs (compute units at AMD), 16-bit tensor FLOP per clock in one of them with sums in float32, boost clock in GHz.
# Per SM: 8 tensor cores of 64 multiply-adds in Volta and Turing; 4 of 256 in A100, of 512 in Hopper, of 128 in GA102
# and Ada, of which GeForce (and the A10G) use half where sums are kept in float32.
TENSOR = {
    "T4 16GB": (40, 1024, 1.59),
    "L4 24GB": (58, 1024, 2.04),
    "A10 24GB": (72, 1024, 1.695),
    "A10G 24GB": (80, 512, 1.71),
    "L40S 48GB": (142, 1024, 2.52),
    "V100 SXM2 16GB": (80, 1024, 1.53),
    "V100 SXM2 32GB": (80, 1024, 1.53),
    "V100 PCIe 16GB": (80, 1024, 1.38),
    "V100 PCIe 32GB": (80, 1024, 1.38),
    "A100 PCIe 40GB": (108, 2048, 1.41),
    "A100 SXM 40GB": (108, 2048, 1.41),
    "A100 PCIe 80GB": (108, 2048, 1.41),
    "A100 SXM 80GB": (108, 2048, 1.41),
    "H100 PCIe 80GB": (114, 4096, 1.62),
    "H100 SXM 80GB": (132, 4096, 1.83),
    "H200 SXM 141GB": (132, 4096, 1.83),
    "GH200 96GB": (132, 4096, 1.83),
    "RTX 3090 24GB": (82, 512, 1.695),
    "RTX 4090 24GB": (128, 512, 2.52),
    "RTX 5090 32GB": (170, 512, 2.407),
    "RTX A6000 48GB": (84, 1024, 1.8),
    "RTX 6000 Ada 48GB": (142, 1024, 2.505),
    "MI300X 192GB": (304, 2048, 2.1),
}
# Here the rate is stated for a clock below the highest: these are the highest, and the rate must stay below them.
TENSOR_BELOW = {
    "H100 NVL 94GB": (132, 4096, 1.785),
    "H200 NVL 141GB": (132, 4096, 1.785),
    "B200 180GB": (148, 8192, 1.965),
}

# Links per GPU, and GB/s of one of them, both directions together.
NVLINK = {
    "NVLink 2": {(6, 50)},
    "NVLink 3": {(12, 50)},
    "NVLink 3 bridge": {(12, 50), (4, 28.125)},
    "NVLink 4": {(18, 50)},
    "NVLink 4 bridge": {(12, 50), (18, 50)},
    "NVLink 5": {(18, 100)},
    "Infinity Fabric (7 links)": {(7, 128)},
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_bandwidth_is_the_width_of_the_bus_times_its_rate(name):
    bits, gbit_per_s = MEMORY[name]
    # 2.5 %: Apple rounds 102.4 to 100 and 819.2 to 800, NVIDIA 2,039 to 2,000.
    assert find(name).bandwidth_bytes_per_s == pytest.approx(bits * gbit_per_s * 1e9 / 8, rel=0.025)


@pytest.mark.parametrize("name", TENSOR)
def test_the_16_bit_rate_is_that_of_all_tensor_cores_at_the_boost_clock(name):
    units, flop_per_clock, ghz = TENSOR[name]
    assert find(name).flops("float16") == pytest.approx(units * flop_per_clock * ghz * 1e9, rel=0.02)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_no_rate_is_one_with_sparsity(card):
    units, flop_per_clock, ghz = {**TENSOR, **TENSOR_BELOW}[card.name]
    most = units * flop_per_clock * ghz * 1e9 * 1.02
    assert 0.8 * most < card.flops("float16") <= most, "twice this would be the figure with sparsity"


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_numbers_of_half_the_width_are_multiplied_at_twice_the_rate(card):
    rates = card.dense_flops
    geforce = card.name in ("RTX 3090 24GB", "RTX 4090 24GB", "RTX 5090 32GB")  # whose integer sums are not slowed
    int8_factor = 4 if geforce else 2
    expected = {"bfloat16": 1, "float8": 2, "int8": int8_factor, "float4": 2 * int8_factor}
    if card.name == "B200 180GB":
        expected["float4"] = 4
    if card.name.startswith("A10G") or geforce:
        expected["tf32"] = 0.5
    for dtype, factor in expected.items():
        if dtype in rates:
            assert rates[dtype] == pytest.approx(factor * rates["float16"], rel=0.02), dtype


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_tf32_has_half_the_rate_of_16_bits_and_float32_no_more_than_tf32(card):
    if "tf32" in card.dense_flops:
        assert card.flops("tf32") == pytest.approx(card.flops("float16") / 2, rel=0.03)
    assert card.flops("float32") <= card.flops("tf32") * 1.001


@pytest.mark.parametrize("card", [each for each in CARDS if each.link], ids=lambda card: card.name)
def test_a_link_has_the_rate_of_its_generation(card):
    rates = {links * gb_per_s * 1e9 for links, gb_per_s in NVLINK[card.link.name]}
    assert card.link.bytes_per_s in rates
    assert card.link.one_way_bytes_per_s * 2 == card.link.bytes_per_s


def test_an_architecture_has_its_generation_of_nvlink():
    generation = {"V100": "NVLink 2", "A100": "NVLink 3", "H100": "NVLink 4", "H200": "NVLink 4", "GH200": "NVLink 4"}
    generation |= {"B200": "NVLink 5", "RTX A6000": "NVLink 3", "RTX 3090": "NVLink 3", "MI300X": "Infinity Fabric"}
    for card in CARDS:
        if card.link:
            family = next(family for family in generation if card.name.startswith(family))
            assert card.link.name.startswith(generation[family]), card.name


def test_a_pcie_slot_has_the_rate_of_16_lanes_both_ways():
    for name, giga_transfers in {"PCIe 3.0 x16": 8, "PCIe 4.0 x16": 16, "PCIe 5.0 x16": 32}.items():
        both_ways = 2 * 16 * giga_transfers * 1e9 * (128 / 130) / 8
        assert PCIE_BYTES_PER_S[name] == pytest.approx(both_ways, rel=0.02)
    assert {each.pcie for each in ACCELERATORS} - {None} == set(PCIE_BYTES_PER_S)


@pytest.mark.parametrize("each", ACCELERATORS, ids=lambda each: each.name)
def test_the_memory_is_what_the_name_says_in_gib_less_what_is_kept_back(each):
    sold = int(re.search(r" (\d+)GB$", each.name).group(1)) * 2**30
    assert 15 / 16 * sold - 2**24 <= each.memory_bytes <= sold, "a sixteenth for ECC, at most"


def test_all_of_a_card_s_memory_is_usable_and_of_a_mac_s_what_metal_lends():
    for each in ACCELERATORS:
        mac = each.name.startswith(("M1", "M2", "M3", "M4"))
        assert each.vendor == ("Apple" if mac else "AMD" if each.name.startswith("MI") else "NVIDIA")
        share = each.usable_bytes / each.memory_bytes
        expected = 1 if not mac else 2 / 3 if each.memory_bytes <= 36 * 2**30 else 3 / 4
        assert share == pytest.approx(expected, abs=1e-4), each.name


def test_every_figure_has_a_document():
    for each in ACCELERATORS:
        assert len(each.source) > 20, each.name
        assert "memory: " in each.source or each.pcie is None, f"{each.name}: where is its memory from?"
    used = {key for entry in DATA["accelerator"] for key in entry["sources"]}
    assert used == set(DATA["sources"]), "a source that nothing is from"


def test_a_note_says_what_a_name_without_a_variant_means():
    for family in ("V100", "A100", "H100", "H200"):
        assert f"“{family}”" in find(family).note


def test_no_name_means_two_accelerators():
    for each in ACCELERATORS:
        for name in (each.name, *each.aliases):
            assert find(name) is each, name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("Tesla T4", "T4 16GB"),
        ("NVIDIA L4", "L4 24GB"),
        ("NVIDIA A10", "A10 24GB"),
        ("NVIDIA A10G", "A10G 24GB"),
        ("NVIDIA L40S", "L40S 48GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2 32GB"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe 16GB"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe 32GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM 80GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
        ("NVIDIA GH200 480GB", "GH200 96GB"),
        ("NVIDIA B200", "B200 180GB"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090 24GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090 24GB"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090 32GB"),
        ("NVIDIA RTX A6000", "RTX A6000 48GB"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada 48GB"),
        ("AMD Instinct MI300X", "MI300X 192GB"),
        ("Apple M4 Max", "M4 Max 128GB"),
    ],
)
def test_the_name_that_a_tool_prints_is_known(printed, name):
    assert find(printed).name == name


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("h100", "H100 SXM 80GB"),
        ("H100-SXM", "H100 SXM 80GB"),
        (" h100_pcie ", "H100 PCIe 80GB"),
        ("a100 80gb", "A100 SXM 80GB"),
        ("A100-40GB", "A100 SXM 40GB"),
        ("4090", "RTX 4090 24GB"),
        ("rtx4090", "RTX 4090 24GB"),
        ("a6000", "RTX A6000 48GB"),
        ("m3 ultra", "M3 Ultra 512GB"),
        ("m3", "M3 24GB"),
    ],
)
def test_a_name_as_people_type_it_is_known(typed, name):
    assert find(typed).name == name


@pytest.mark.parametrize(
    ("unknown", "proposed"),
    [
        ("h20", "H200 SXM 141GB"),
        ("4080", "RTX 4090 24GB"),
        ("rtx 6000", "RTX A6000 48GB or RTX 6000 Ada 48GB"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 24GB"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "H100 SXM 80GB"),
        ("xyz", "appendix on accelerators"),
        ("", "appendix on accelerators"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(unknown, proposed):
    with pytest.raises(InputError, match=re.escape(repr(unknown))) as refusal:
        find(unknown)
    assert proposed in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "dtype", "computed_in"),
    [
        ("a100", "float8", "bfloat16"),
        ("h100", "float4", "bfloat16"),
        ("v100", "int8", "float16"),
        ("t4", "bfloat16", "float32"),
        ("v100", "tf32", "float32"),
        ("h100", "float8", "float8"),
    ],
)
def test_a_type_without_units_of_its_own_is_widened(name, dtype, computed_in):
    accelerator = find(name)
    assert accelerator.flops(dtype) == accelerator.dense_flops[computed_in]


def test_every_card_has_a_rate_for_every_type():
    for card in CARDS:
        assert set(card.dense_flops) <= set(DTYPES)
        assert all(card.flops(dtype) > 0 for dtype in DTYPES)


def test_an_unknown_type_and_a_mac_are_refused_with_the_way_out():
    with pytest.raises(InputError, match=r"'float64'.*bfloat16"):
        find("h100").flops("float64")
    with pytest.raises(InputError, match=r"M4 Max 128GB: measure"):
        find("m4 max").flops("float16")


def test_the_figures_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        find("h100").dense_flops["bfloat16"] = 1979e12  # type: ignore[index]


def test_the_table_is_read_without_torch():
    code = "import sys; from minillm.machine import specs; specs.find('h100'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_appendix_has_the_figures_of_the_table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "chapters")
    script = importlib.import_module("hardware_table")
    page = (ROOT / "chapters" / "hardware.md").read_bytes().decode("utf-8")
    assert page == script.up_to_date(page), "run `python chapters/hardware_table.py`"
    for each in ACCELERATORS:
        cells = (
            "| " + each.name.replace(" ", "&nbsp;") + f" | {each.memory_bytes / 2**30:.1f}".removesuffix(".0") + " |"
        )
        assert cells in page
        assert f"**{each.name}.** " in page
