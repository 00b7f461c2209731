"""What was measured of this machine is remembered, and the better of two measurements counts."""

import json
import os
import stat
from pathlib import Path

import pytest

from minillm.errors import InputError
from minillm.machine import limits
from minillm.machine.limits import Limits, device_title, known_limits, measure_limits


@pytest.fixture
def measured(monkeypatch):
    """Let the machine measure these figures."""

    def use(bandwidth, flops):
        monkeypatch.setattr(limits, "read_bandwidth", lambda device: bandwidth)
        monkeypatch.setattr(limits, "peak_matmul_flops", lambda device, dtype: flops)

    return use


def test_nothing_is_known_before_it_was_measured(tmp_path):
    assert known_limits(file=tmp_path / "limits.json") is None


def test_a_measurement_is_remembered_with_its_day(tmp_path, measured):
    measured(30e9, 150e9)
    file = tmp_path / "deep" / "limits.json"
    first = measure_limits("cpu", ["float32"], file)
    assert (
        known_limits("cpu", file) == first == Limits(device_title("cpu"), 30e9, {"float32": 150e9}, first.measured_on)
    )
    assert len(first.measured_on) == len("2026-11-29")


def test_other_programs_make_a_machine_slower_and_never_faster_so_the_best_counts(tmp_path, measured):
    file = tmp_path / "limits.json"
    measured(30e9, 100e9)
    measure_limits("cpu", ["float32", "bfloat16"], file)
    measured(20e9, 150e9)
    again = measure_limits("cpu", ["float32"], file)
    assert again.bandwidth_bytes_per_s == 30e9
    assert again.flops_per_s == {"float32": 150e9, "bfloat16": 100e9}


def test_another_machine_s_figures_are_not_this_one_s(tmp_path, measured, monkeypatch):
    file = tmp_path / "limits.json"
    measured(30e9, 100e9)
    measure_limits("cpu", ["float32"], file)
    monkeypatch.setattr(limits, "device_title", lambda device: "another processor")
    assert known_limits("cpu", file) is None
    measure_limits("cpu", ["float32"], file)
    assert len(json.loads(file.read_text(encoding="utf-8"))) == 2, "both are kept"


GOOD = {"device": "x", "bandwidth_bytes_per_s": 1.0, "flops_per_s": {"float32": 1.0}, "measured_on": "2026-11-29"}


def test_a_good_entry_is_read(tmp_path):
    file = tmp_path / "limits.json"
    file.write_text(json.dumps({device_title("cpu"): GOOD}), encoding="utf-8")
    assert known_limits("cpu", file) == Limits(**GOOD)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"%s": 7}',
        b"[" * 200_000,
        b'{"%s": {"bandwidth_bytes_per_s": 1}}',
        *(
            b'{"%s": ' + json.dumps({**GOOD, **wrong}).encode() + b"}"
            for wrong in (
                {"bandwidth_bytes_per_s": "fast"},
                {"bandwidth_bytes_per_s": -1},
                {"bandwidth_bytes_per_s": 1e300},
                {"flops_per_s": {"float32": 1e300}},
                {"flops_per_s": []},
                {"flops_per_s": {"float32": float("nan")}},
                {"measured_on": "a day"},
                {"more": 1},
            )
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_as_if_there_were_none(tmp_path, measured, content):
    file = tmp_path / "limits.json"
    file.write_bytes(content.replace(b"%s", device_title("cpu").encode()))
    assert known_limits("cpu", file) is None
    measured(30e9, 100e9)
    measure_limits("cpu", ["float32"], file)
    assert known_limits("cpu", file) is not None, "and it is replaced by one that does"


def test_where_nothing_can_be_written_the_measurement_is_still_good(tmp_path, measured):
    (tmp_path / "a file").write_text("", encoding="utf-8")
    measured(30e9, 100e9)
    assert measure_limits("cpu", [], tmp_path / "a file" / "limits.json").bandwidth_bytes_per_s == 30e9


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a directory", "a pipe"])
def test_what_is_no_file_is_not_read_and_nothing_is_left_beside_it(tmp_path, measured, make):
    file = tmp_path / "limits.json"
    make(file)
    measured(30e9, 100e9)
    assert known_limits("cpu", file) is None
    assert measure_limits("cpu", ["float32"], file).bandwidth_bytes_per_s == 30e9
    assert list(tmp_path.iterdir()) == [file], "a temporary file was left behind"


def test_others_may_read_the_file_if_they_may_read_what_a_user_writes(tmp_path, measured):
    measured(30e9, 100e9)
    before = os.umask(0o022)
    try:
        measure_limits("cpu", ["float32"], tmp_path / "limits.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "limits.json").stat().st_mode) == 0o644


def test_a_cache_directory_in_nobody_s_home_keeps_nothing_and_ends_no_request(monkeypatch, measured):
    monkeypatch.setenv("MINILLM_CACHE", "~nosuchuser/x")
    assert known_limits("cpu") is None
    measured(30e9, 150e9)
    assert measure_limits("cpu", []).bandwidth_bytes_per_s == 30e9
    with pytest.raises(InputError, match=r"MINILLM_CACHE is '~nosuchuser/x', and there is no such home directory"):
        limits.limits_file()


def test_a_dtype_that_was_not_measured_is_named():
    known = Limits("x", 1e9, {"float32": 2e9}, "2026-11-29")
    assert known.machine("float32").ridge_point == 2.0
    with pytest.raises(InputError, match="'float8' was not measured here \\(measured: float32\\)"):
        known.machine("float8")


def test_the_file_is_in_the_user_s_cache_directory_or_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.delenv("MINILLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert limits.limits_file() == tmp_path / "minillm" / "limits.json"
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "mine"))
    assert limits.limits_file() == tmp_path / "mine" / "limits.json"
