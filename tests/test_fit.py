"""`minillm fit`: the command line over `minillm.machine.memory` and `verdict`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from in_process import call

from minillm.errors import InputError
from minillm.fit import COMMON_GPUS, parse_memory
from minillm.machine import fit_report, footprint
from minillm.machine.memory import CUDA_CONTEXT_BYTES
from minillm.machine.specs import find
from minillm.machine.well_known import BY_NAME, WELL_KNOWN

GIB = 2**30
SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
}


def answer(capsys, *args: str) -> dict:
    code, out, err = call(capsys, "fit", *args, "--json")
    assert code == 0, err
    return json.loads(out)


def refusal(capsys, *args: str) -> str:
    code, out, err = call(capsys, "fit", *args)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.count("\n") == 1, f"one sentence, not: {err}"
    return err


def test_13b_at_batch_32_takes_100_gib_of_cache_and_does_not_fit_on_an_h100(capsys) -> None:
    found = answer(capsys, "llama-2-13b", "--gpu", "h100", "--batch", "32", "--dtype", "float16", "--block-size", "1")
    (verdict,) = found["verdicts"]
    assert found["kv_bytes_per_token"] == 819_200
    assert found["model"]["parameters"] == 13_015_864_320
    assert verdict["per_gpu"]["weights"] == 26_031_728_640
    assert verdict["per_gpu"]["kv_cache"] == 100 * GIB
    assert verdict["verdict"] == "does not fit"
    assert verdict["left_bytes"] == verdict["memory_bytes"] - verdict["per_gpu"]["total"] < 0
    assert verdict["gpus_needed"] == 2


@pytest.mark.parametrize(
    ("model", "gpu", "more", "expected"),
    [
        ("llama-2-13b", "a100 40gb", (), "fits"),
        ("llama-2-13b", "a100 80gb", ("--batch", "8"), "fits"),
        ("llama-3-8b", "a100 40gb", (), "fits"),
        ("llama-3-8b", "h100", ("--context", "8192", "--batch", "32"), "fits"),
        ("llama-3-70b", "h100", (), "does not fit"),
        ("llama-3-70b", "a100 80gb", ("--gpus", "2"), "fits"),
        ("llama-3-70b", "h100", ("--quantization", "int4"), "fits"),
        ("llama-3-70b", "h100", ("--quantization", "int8", "--batch", "8"), "tight"),
        ("llama-3.1-405b", "h100", ("--gpus", "8"), "does not fit"),
        ("llama-3.1-405b", "h100", ("--gpus", "8", "--quantization", "fp8"), "fits"),
    ],
)
def test_verdicts_on_well_known_models_and_gpus(model, gpu, more, expected, capsys) -> None:
    (verdict,) = answer(capsys, model, "--gpu", gpu, *more)["verdicts"]
    assert verdict["verdict"] == expected
    assert verdict["memory_bytes"] == find(gpu).memory_bytes


def test_without_a_gpu_there_is_a_verdict_for_each_of_the_common_ones(capsys) -> None:
    found = answer(capsys, "llama-3-8b")
    assert [verdict["where"] for verdict in found["verdicts"]] == [find(name).name for name in COMMON_GPUS]
    _, out, _ = call(capsys, "fit", "llama-3-8b")
    assert all(find(name).name in out for name in COMMON_GPUS)


def test_the_report_says_every_part_with_its_unit_and_the_ways_out(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    _, out, err = call(capsys, "fit", "llama-2-13b", "--gpu", "h100", "--batch", "32")
    assert err == ""
    for words in (
        "13,015,864,320 parameters",
        "26.03 GB",
        "24.24 GiB",
        "107.37 GB",
        "100.00 GiB",
        "32 x 4,096 tokens x 819,200 bytes",
        "does not fit, 48.71 GB too much",
        "context: 1,904 tokens at batch 32",
        "batch: 14 x 4,096 tokens",
        "GPUs: 2 with tensor parallelism",
    ):
        assert words in out, f"{words!r} is not in:\n{out}"


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_no_line_is_wider_than_the_terminal(columns: str, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for args in (
        ("llama-2-13b", "--gpu", "h100", "--batch", "32"),
        ("llama-3-8b", "--memory", "100GiB"),
        ("mixtral-8x7b",),
    ):
        _, out, _ = call(capsys, "fit", *args)
        assert max(map(len, out.splitlines())) <= int(columns)


def numbers(text: str) -> list[str]:
    return re.findall(r"-?\d[\d,.]*\d|\d", text)


def test_a_terminal_too_narrow_for_the_table_of_verdicts_gets_every_number_of_it(capsys, monkeypatch) -> None:
    said = {}
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        _, out, _ = call(capsys, "fit", "mixtral-8x7b")
        said[columns] = out[out.index("T4 16GB") :]
        assert "…" not in out
    assert sorted(numbers(said["40"])) == sorted(numbers(said["200"]))
    assert said["40"].count("does not fit") == said["200"].count("does not fit") == 8


def test_a_terminal_too_narrow_for_the_derivations_gets_them_below_the_figures(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = call(capsys, "fit", "llama-2-13b", "--gpu", "h100")
    assert "weights: 13,015,864,320 x 2 bytes" in out
    assert "1 x 4,096 tokens x 819,200 bytes" in " ".join(out.split())
    assert re.search(r"total +30\.21 GB +28\.14 GiB\n", out)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("where", [(), ("--gpu", "h100")], ids=["table", "bar"])
def test_where_the_encoding_has_no_blocks_the_bar_is_of_plain_signs(encoding: str, where) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"}
    command = [sys.executable, "-m", "minillm.fit", "llama-2-13b", "--batch", "8", *where]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, encoding=encoding, check=False)
    assert done.returncode == 0, done.stderr
    if where:
        assert re.search(r"\[#+=+-*:*\.+\]", done.stdout)
        assert "## weights  == KV cache  -- activations  :: overhead  .. free  [ ] memory" in done.stdout


def test_the_bar_is_drawn_to_scale() -> None:
    from minillm.machine.memory import Demand

    drawn = fit_report.bar(Demand(50, 20, 10, 0), 100, 50).plain
    assert drawn == "[" + "█" * 25 + "▓" * 10 + "▒" * 5 + "·" * 10 + "]"
    over = fit_report.bar(Demand(50, 150, 0, 0), 100, 50).plain
    assert over == "[" + "█" * 12 + "▓" * 13 + "]" + "▓" * 25


def test_a_model_of_experts_is_marked_as_not_dense(capsys) -> None:
    _, out, _ = call(capsys, "fit", "mixtral-8x7b", "--gpu", "h200")
    assert "not dense" in out
    assert answer(capsys, "mixtral-8x7b")["model"]["dense"] is False


def test_a_context_beyond_the_model_s_is_counted_with_a_warning(capsys) -> None:
    code, out, err = call(capsys, "fit", "llama-2-13b", "--gpu", "h100", "--context", "8192")
    assert code == 0
    assert "warning: 8,192 tokens are more than the 4,096 that llama-2-13b was made for" in err
    assert "8,192 tokens x 819,200 bytes" in " ".join(out.split())


def test_a_cpu_pays_no_overhead_and_has_this_machine_s_memory(capsys) -> None:
    (verdict,) = answer(capsys, "smollm2-135m", "--gpu", "cpu")["verdicts"]
    assert verdict["per_gpu"]["overhead"] == 0
    assert verdict["memory_bytes"] > GIB
    assert verdict["gpus_needed"] is None
    (verdict,) = answer(capsys, "smollm2-135m", "--memory", "24GB")["verdicts"]
    assert verdict["per_gpu"]["overhead"] == CUDA_CONTEXT_BYTES


def test_on_a_cpu_numbers_are_float32_unless_another_dtype_is_asked_for(capsys) -> None:
    found = answer(capsys, "smollm2-135m", "--gpu", "CPU")
    load, need = found["workload"], found["verdicts"][0]["per_gpu"]
    assert (load["weights"], load["dtype"], load["kv_dtype"]) == ("float32",) * 3
    assert need["weights"] == 4 * found["model"]["parameters"]
    asked = answer(capsys, "smollm2-135m", "--gpu", "cpu", "--dtype", "bfloat16")
    assert asked["verdicts"][0]["per_gpu"]["weights"] == need["weights"] // 2
    assert answer(capsys, "smollm2-135m", "--gpu", "h100")["workload"]["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("mac", "lent_mib"), [("m1", 10_922), ("m1 pro", 21_845), ("m1 max", 49_152), ("m2 max", 73_728)]
)
def test_a_mac_has_what_metal_lends_of_its_memory_and_pays_no_cuda_context(mac, lent_mib, capsys, monkeypatch) -> None:
    """The figures are Metal's recommendedMaxWorkingSetSize, as programs print it."""
    (verdict,) = answer(capsys, "llama-3-70b", "--gpu", mac)["verdicts"]
    assert verdict["memory_bytes"] == lent_mib * 2**20 < find(mac).memory_bytes
    assert verdict["per_gpu"]["overhead"] == 0
    assert verdict["gpus_needed"] is None
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = call(capsys, "fit", "llama-3-70b", "--gpu", mac)
    assert "CUDA" not in out
    assert "tensor parallelism" not in out
    assert f"what Metal lends, unless told otherwise, of {find(mac).memory_bytes // GIB} GiB" in out


def test_a_mac_is_not_several_gpus(capsys) -> None:
    assert "leave it out for a Mac (M1 16GB)" in refusal(capsys, "llama-3-8b", "--gpu", "m1", "--gpus", "2")


def test_an_amd_gpu_has_no_cuda_context_but_one_of_its_own(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    _, out, _ = call(capsys, "fit", "llama-3.1-405b", "--gpu", "mi300x")
    assert "HIP context and kernels" in out
    assert "CUDA context" not in out
    assert "8 with tensor parallelism" in out


@pytest.mark.parametrize(
    ("files", "where", "memory"),
    [
        ({}, "this machine's memory", None),
        ({"/sys/fs/cgroup/memory.max": "max\n"}, "this machine's memory", None),
        ({"/sys/fs/cgroup/memory.max": "1073741824\n"}, "this container's memory", GIB),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "1073741824\n"}, "this container's memory", GIB),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, "this machine's memory", None),
        ({"/sys/fs/cgroup/memory.max": str(2**59)}, "this machine's memory", None),
    ],
    ids=["no cgroup", "v2 without limit", "v2", "v1", "v1 without limit", "a limit above the memory there is"],
)
def test_in_a_container_the_memory_is_what_its_control_group_allows(files, where, memory, capsys, monkeypatch) -> None:
    monkeypatch.setattr("minillm.machine.doctor.system.System.read", lambda self, path: files.get(path))
    (verdict,) = answer(capsys, "smollm2-135m", "--gpu", "cpu")["verdicts"]
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert (verdict["where"], verdict["memory_bytes"]) == (where, memory or physical)


@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        (("--quantization", "int4"), "weights"),
        (("--kv-dtype", "float8"), "kv_cache"),
        (("--gpus", "2"), "weights"),
        (("--tokens-per-pass", "512"), "activations"),
        (("--block-size", "4096"), "kv_cache"),
        (("--dtype", "float32"), "weights"),
        (("--batch", "2"), "kv_cache"),
        (("--context", "2000"), "kv_cache"),
    ],
)
def test_every_flag_changes_the_part_that_it_is_about(flags, changed, capsys) -> None:
    base = ("llama-3-8b", "--gpu", "h100", "--context", "4000")
    before, after = (answer(capsys, *base, *more)["verdicts"][0]["per_gpu"] for more in ((), flags))
    assert before[changed] != after[changed]


def test_a_gguf_file_is_counted_as_it_is_stored_unless_another_format_is_asked_for(capsys, tmp_path) -> None:
    import gguf
    from checkpoints import hf_tensors, write_gguf

    path = str(write_gguf(tmp_path / "model.gguf", hf_tensors(), gguf.GGMLQuantizationType.Q8_0))
    stored = answer(capsys, path)
    assert stored["workload"]["weights"] == "as stored"
    asked = answer(capsys, path, "--quantization", "q4_0")
    assert asked["workload"]["weights"] == "q4_0"
    widened = answer(capsys, path, "--quantization", "none", "--dtype", "float32")
    assert widened["verdicts"][0]["per_gpu"]["weights"] == 4 * widened["model"]["parameters"]
    assert asked["verdicts"][0]["per_gpu"]["weights"] < stored["verdicts"][0]["per_gpu"]["weights"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--context", "0"), "context must be at least 1"),
        (("--context", "-4"), "context must be at least 1"),
        (("--context", "1e30"), "invalid int value: '1e30'"),
        (("--context", "1" + "0" * 30), "context must be at least 1 and below 2^31"),
        (("--batch", "0"), "batch must be at least 1"),
        (("--gpus", "3"), "3 GPUs cannot share 32 attention heads"),
        (("--gpus", "32", "--quantization", "int4"), "in whole blocks of 128 weights in int4: take 1, 2, 4, 8, 16"),
        (("--gpu", "h1000"), "h1000"),
        (("--gpu", ""), "no accelerator"),
        (("--memory", "abc"), "'abc' is no amount of memory"),
        (("--memory", "24GBB"), "'24GBB' is no amount of memory"),
        (("--memory", "0GB"), "no memory at all"),
        (("--memory", "24GB", "--gpu", "h100"), "not allowed with"),
        (("--quantization", "int3"), "invalid choice: 'int3'"),
        (("--plot", "picture.bmp"), "must end in .png, .svg, .pdf"),
        (("--plot", ""), "'' is no picture's name"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_sentence(args, words, capsys) -> None:
    assert words in refusal(capsys, "llama-3-8b", *args)


@pytest.mark.parametrize(
    "args", [("--measure", "--context", "5"), ("--measure", "--json"), ("--models", "--gpu", "h100")]
)
def test_flags_that_would_be_ignored_are_refused(args, capsys) -> None:
    assert "leave out" in refusal(capsys, *args)
    assert "leave it out" in refusal(capsys, "--gpu", "cpu", "--gpus", "3")


def test_weights_stored_quantized_are_warned_about_until_their_format_is_given(capsys, tmp_path) -> None:
    config = {"model_type": "llama", **SIZES, "quantization_config": {"quant_method": "awq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _, _, err = call(capsys, "fit", str(tmp_path))
    assert "stored quantized (awq); counted in bfloat16: see --quantization" in err
    _, _, err = call(capsys, "fit", str(tmp_path), "--quantization", "int4", "--context", "64")
    assert err == ""


def test_a_model_that_is_not_there_is_one_sentence(capsys, tmp_path) -> None:
    assert "has no config.json" in refusal(capsys, str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}', encoding="utf-8")
    assert "model_type 'gemma3' is not known" in refusal(capsys, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GB", 24 * 10**9), ("24GiB", 24 * GIB), ("24 gib", 24 * GIB), ("1.5TB", 15 * 10**11), ("4096", 4096)],
)
def test_memory_is_read_in_both_units(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "nan", "24 G B", "9" * 50])
def test_memory_that_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no amount of memory"):
        parse_memory(text)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_written_and_the_answer_still_printed(suffix: str, capsys, tmp_path: Path) -> None:
    file = tmp_path / f"fit.{suffix}"
    code, out, err = call(capsys, "fit", "llama-3-8b", "--gpu", "h100", "--plot", str(file))
    assert code == 0
    assert "fits" in out
    assert str(file) in err
    assert file.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml")


def test_without_matplotlib_the_picture_is_refused_in_one_sentence(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert 'pip install "minillm[book]"' in refusal(capsys, "llama-3-8b", "--plot", "fit.png")


def test_the_well_known_models_are_listed(capsys) -> None:
    code, out, _ = call(capsys, "fit", "--models")
    assert code == 0
    assert all(model.name in out for model in WELL_KNOWN)
    assert out.count("not dense") == 1


@pytest.mark.parametrize("flags", [(), ("--json",), ("--gpu", "h100"), ("--gpu", "cpu")])
def test_no_heavy_library_is_imported(flags: tuple[str, ...]) -> None:
    code = f"""
import sys
from minillm.fit import main
main(["llama-2-13b", *{flags!r}])
heavy = {{"torch", "numpy", "gguf", "matplotlib", "huggingface_hub", "transformers", "tokenizers", "jinja2"}}
print(sorted(heavy & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == "[]"


@pytest.mark.skipif(not footprint.STATUS.exists(), reason="the peak is read from Linux's /proc")
@pytest.mark.real_model
def test_the_predicted_peak_of_real_runs_is_within_a_tenth_of_the_measured(capsys) -> None:
    """Weights + KV cache + activations, at two contexts and two batch sizes; and what grows with them by itself."""
    shape = BY_NAME["smollm2-135m"].shape
    runs = [footprint.measure("smollm2-135m", shape, context, batch) for context, batch in footprint.POINTS]
    for run in runs:
        assert abs(run.error) < 0.1, f"{run.batch} x {run.context} tokens: {run}"
    smallest, largest = runs[0], runs[-1]
    predicted = largest.predicted.total - smallest.predicted.total
    measured = largest.measured - smallest.measured
    assert predicted == pytest.approx(measured, rel=0.1), "cache and activations alone: the weights are the same"


def test_a_measurement_that_fails_is_one_sentence(capsys, tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}), encoding="utf-8")
    code, _, err = call(capsys, "fit", str(tmp_path), "--measure")
    assert code == 2
    assert "1 x 256 tokens failed" in err
