"""`minillm limits`: what a machine allows a model, by its datasheet or as it was measured."""

import json
import subprocess
import sys

import pytest
from in_process import call

from minillm.machine import limits as remembered
from minillm.machine.measure import compare_reads
from minillm.machine.roofline import Machine, bound_by, decode_limit, decode_work
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine that measures 30 GB/s and 150 GFLOP/s, in no time; how often it did is counted."""
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path))
    calls = []
    monkeypatch.setattr(remembered, "read_bandwidth", lambda device: calls.append(device) or 30e9)
    monkeypatch.setattr(remembered, "peak_matmul_flops", lambda device, dtype: 150e9)
    return calls


def test_a_datasheet_s_limits_are_those_of_the_roofline(capsys):
    code, out, _ = call(
        capsys, "limits", "llama-2-13b", "--gpu", "h100", "--context", "4096", "--batch", "32", "--json"
    )
    assert code == 0
    result = json.loads(out)
    h100, shape = find("h100"), BY_NAME["llama-2-13b"].shape
    paper = Machine(h100.bandwidth_bytes_per_s, h100.flops("bfloat16"))
    prefill, decode = result["passes"]
    assert decode["tokens_per_s"] == decode_limit(decode_work(shape, 32, 4096), 32, paper)
    assert (prefill["bound_by"], decode["bound_by"]) == ("compute", "memory")
    assert result["compute_bound_from_batch"] is None


def test_the_table_names_the_resource_that_binds_and_where_the_figures_are_from(capsys):
    code, out, _ = call(capsys, "limits", "llama-3-8b", "--gpu", "h100", "--context", "128", "--batch", "1", "500")
    assert code == 0
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert "memory" in rows["decode, batch 1"]
    assert "compute" in rows["decode, batch 500"]
    assert "from a batch of 438 on" in out
    assert find("h100").source.split(",")[0][:40] in out


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4.0), ("bfloat16", 2.0)])
def test_the_batch_from_which_on_arithmetic_limits_is_that_of_the_dtype(capsys, dtype, itemsize):
    _, out, _ = call(
        capsys, "limits", "llama-3-8b", "--gpu", "a100", "--dtype", dtype, "--context", "16", "--batch", "1", "--json"
    )
    a100, shape = find("a100"), BY_NAME["llama-3-8b"].shape
    paper = Machine(a100.bandwidth_bytes_per_s, a100.flops(dtype))
    turn = json.loads(out)["compute_bound_from_batch"]
    assert bound_by(decode_work(shape, turn, 16, itemsize, itemsize), paper) == "compute"
    assert bound_by(decode_work(shape, turn - 1, 16, itemsize, itemsize), paper) == "memory"


def test_the_knee_of_prefill_is_told_to_whoever_asks_about_a_prompt(capsys):
    _, asked, _ = call(capsys, "limits", "llama-3-8b", "--gpu", "h100", "--prompt", "2000")
    _, not_asked, _ = call(capsys, "limits", "llama-3-8b", "--gpu", "h100")
    _, result, _ = call(capsys, "limits", "llama-3-8b", "--gpu", "h100", "--json")
    assert "Prefill is compute-bound from a prompt of 317 tokens on." in asked
    assert "Prefill is" not in not_asked
    assert json.loads(result)["compute_bound_from_prompt"] == 317


def test_this_machine_is_measured_once_and_then_remembered(capsys, machine):
    first, again = (call(capsys, "limits", "--device", "cpu", "--dtype", "float32") for _ in range(2))
    assert first[0] == again[0] == 0
    assert len(machine) == 1
    assert "measuring this machine" in first[2]
    assert "measuring" not in again[2]
    assert first[1] == again[1]
    assert "30.0 GB/s" in again[1]
    assert "ridge at 5 FLOP per byte" in again[1]


def test_again_measures_again(capsys, machine):
    for flags in ((), ("--again",)):
        call(capsys, "limits", "--device", "cpu", *flags)
    assert len(machine) == 2


def test_half_a_measurement_is_completed(capsys, machine):
    """`--stats` measures the bandwidth alone."""
    remembered.measure_limits("cpu", [])
    code, out, _ = call(capsys, "limits", "--device", "cpu", "--dtype", "bfloat16")
    assert code == 0
    assert "bfloat16" in out


def test_with_experts_no_batch_is_named(capsys):
    code, out, _ = call(capsys, "limits", "mixtral-8x7b", "--gpu", "a100")
    assert code == 0
    assert "compute-bound" not in out


def test_of_a_machine_without_flops_the_bounds_of_its_memory_are_given(capsys):
    flags = ("limits", "llama-3-8b", "--gpu", "m1", "--context", "100", "--batch", "1", "4")
    code, out, _ = call(capsys, *flags, "--json")
    assert code == 0
    result = json.loads(out)
    assert result["machine"]["flops_per_s"] == {}
    assert result["compute_bound_from_batch"] is None
    _, one, four = result["passes"]
    assert {each["bound_by"] for each in result["passes"]} == {None}
    assert one["seconds"] == decode_work(BY_NAME["llama-3-8b"].shape, 1, 100).bytes / 68.3e9
    assert four["tokens_per_s"] == 4 / four["seconds"]
    code, out, _ = call(capsys, *flags)
    assert code == 0
    assert f"{one['tokens_per_s']:,.1f}" in out
    assert "No FLOP/s are published for it" in out
    for column in ("GFLOP", "FLOP/byte", "bound by", "compute-bound"):
        assert column not in out


def test_the_second_opinion_reads_as_much_in_another_way():
    ours, others = compare_reads(num_bytes=8 * 64 * 1024, rounds=1)
    assert ours > 0
    assert others > 0


def test_a_datasheet_needs_no_torch():
    code = "import sys; from minillm.limits import main; main(['--gpu', 'h100']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--gpu", "h999"], "no accelerator is called 'h999'"),
        (["--gpu", "m1", "--dtype", "int4"], "no figure for 'int4' on M1 16GB"),
        (["--gpu", "t4", "--dtype", "int4"], "no figure for 'int4'"),
        (["--gpu", "h100", "--dtype", ""], "no figure for ''"),
        (["--device", "cpu", "--dtype", ""], "no figure for ''"),
        (["--gpu", "h100", "--again"], "leave --again"),
        (["--gpu", "h100", "--check"], "leave --again, --check"),
        (["--gpu", "h100", "--context", "0"], "--context must be at least 1"),
        (["--gpu", "h100", "--batch", "1", "-3"], "--batch must be at least 1 and below 2^31, not -3"),
        (["--gpu", "h100", "--prompt", "99999999999"], "--prompt"),
        (["--gpu", "h100", "--batch", "1", "99999999999"], "not 99999999999"),
        (["no-such-model", "--gpu", "h100"], "no-such-model"),
        (["--device", "tpu"], "tpu"),
        (["--device", "cpu", "--dtype", "int8"], "no figure for 'int8'"),
    ],
)
def test_what_makes_no_sense_is_answered_in_one_sentence(capsys, machine, args, told):
    code, out, err = call(capsys, "limits", *args)
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("minillm limits: error: ")
    assert told in last
