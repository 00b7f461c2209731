"""What "auto" means."""

import platform
import subprocess
import sys

import pytest
import torch

from minillm.device import cpu_is_intel, cpu_multiplies, cpu_multiplies_tiles, pick_device, pick_dtype

X86_PLAIN = "processor\t: 0\nflags\t\t: fpu sse2 avx2 fma\n"
X86_AVX512 = "processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 amx_tile\n"
X86_AMX = "flags\t\t: amx_bf16 amx_tile\n"
ARM = "Features\t: fp asimd bf16 i8mm\n"
NAME_ONLY = "model name\t: bf16 avx512_bf16\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(X86_PLAIN, False), (X86_AVX512, True), (X86_AMX, True), (ARM, True), (NAME_ONLY, False), ("", False)],
)
def test_bfloat16_is_chosen_by_the_processors_flags(tmp_path, text, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    assert cpu_multiplies(torch.bfloat16, cpuinfo) is expected


def test_where_the_processor_states_nothing_the_answer_is_no(tmp_path):
    assert not cpu_multiplies(torch.bfloat16, tmp_path / "absent")


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)]
)
def test_on_cuda_the_dtype_follows_the_compute_capability(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert pick_dtype("auto", torch.device("cuda")) == dtype


def test_auto_is_cuda_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert pick_device("auto").type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto").type == "cpu"


def test_every_processor_multiplies_float32(tmp_path):
    assert cpu_multiplies(torch.float32, tmp_path / "absent")


def test_float16_has_flags_of_its_own(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags\t: avx512_bf16 avx512_fp16\n", encoding="utf-8")
    assert cpu_multiplies(torch.float16, cpuinfo)
    cpuinfo = tmp_path / "another"
    cpuinfo.write_text(X86_AVX512, encoding="utf-8")
    assert not cpu_multiplies(torch.float16, cpuinfo)


@pytest.mark.parametrize(("text", "expected"), [(X86_PLAIN, False), (X86_AVX512, False), (X86_AMX, True), (ARM, False)])
def test_tiles_are_multiplied_where_amx_is_stated(tmp_path, text, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    assert cpu_multiplies_tiles(torch.bfloat16, cpuinfo) is expected
    assert not cpu_multiplies_tiles(torch.float16, cpuinfo)
    assert not cpu_multiplies_tiles(torch.float32, cpuinfo)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu\n", True),
        ("vendor_id\t: AuthenticAMD\nmodel name\t: no GenuineIntel\n", False),
        (ARM, False),
    ],
)
def test_whose_processor_it_is_stands_behind_vendor_id(tmp_path, text, expected):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(text, encoding="utf-8")
    assert cpu_is_intel(cpuinfo) is expected


PAGES_ASKED_FOR_ANEW = """
import resource, torch
from minillm.device import keep_freed_memory

def like_a_pass():
    blocks = [torch.ones(2**21, dtype=torch.uint8) for _ in range(16)]  # all are freed at the end

def page_faults():
    like_a_pass()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    like_a_pass()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
keep_freed_memory()
print(page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that learns from a large block")
def test_memory_that_is_kept_is_not_asked_for_anew():
    """In a process of its own: this one may have freed large blocks before."""
    command = [sys.executable, "-c", PAGES_ASKED_FOR_ANEW]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    anew, kept = map(int, done.stdout.split())
    assert kept < anew / 4
