"""What "auto" means."""

import pytest
import torch

from minillm.device import cpu_multiplies, pick_device, pick_dtype

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
