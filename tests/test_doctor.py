"""The doctor on machines of recorded outputs: what is to be mended first is named, and nothing else blamed."""

import json
import subprocess
import sys

import pytest
from boxes import (
    A100_X8,
    BROKEN,
    CAPABILITY,
    CU128,
    H100,
    HEALTHY,
    LAPTOP,
    LSPCI,
    LSPCI_NO_DRIVER,
    LSPCI_NOUVEAU,
    MAC,
    NO_TORCH_GPU,
    NOT_STARTED,
    SMI,
    VERSION,
    WARNED,
    Box,
    Output,
    in_docker,
    recorded,
    torch_says,
)
from in_process import call
from rich.console import Console

from minillm.machine.doctor import parse_gpu, parse_host
from minillm.machine.doctor.diagnosis import CHECKS, findings
from minillm.machine.doctor.facts import Facts, Torch, Xid
from minillm.machine.doctor.finding import Check, diagnose, fail, first_failure, not_here, ok
from minillm.machine.doctor.host import usable_cpus
from minillm.machine.doctor.packages import install_driver, wheel
from minillm.machine.doctor.probe import examine
from minillm.machine.doctor.report import as_json, print_report, summary
from minillm.machine.doctor.torch_build import has_code_for, hides_every_gpu, runs, sees_the_gpu

STATUSES = {"ok", "warn", "fail", "not here", "not checked"}


def diagnosed(box):
    return {finding.name: finding for finding in findings(examine(box))}


@pytest.mark.parametrize("box", HEALTHY.values(), ids=HEALTHY)
def test_a_healthy_box_has_neither_failures_nor_warnings(box):
    bad = [finding for finding in diagnosed(box).values() if finding.status in ("warn", "fail")]
    assert not bad


@pytest.mark.parametrize(("box", "check", "mend"), BROKEN.values(), ids=BROKEN)
def test_the_first_failure_of_a_broken_box_is_its_cause(box, check, mend):
    first = first_failure(findings(examine(box)))
    assert first is not None, "this box is broken"
    assert first.name == check, first
    assert mend in first.mend


@pytest.mark.parametrize(("box", "check", "what", "mend"), WARNED.values(), ids=WARNED)
def test_what_slows_a_box_down_is_one_warning_and_no_failure(box, check, what, mend):
    found = diagnosed(box)
    assert first_failure(found.values()) is None
    assert [finding.name for finding in found.values() if finding.status == "warn"] == [check]
    assert what in found[check].what
    assert mend in found[check].mend


@pytest.mark.parametrize("name", [name for name in HEALTHY if name not in ("laptop", "mac")])
def test_a_gpu_box_is_followed_up_to_the_last_step(name):
    found = diagnosed(HEALTHY[name])
    assert found["PyTorch sees it"].status == "ok"
    assert summary(list(found.values())) == "Nothing failed: the GPU is ready."


@pytest.mark.parametrize("name", ["laptop", "mac"])
def test_a_box_without_a_gpu_is_no_failure(name):
    found = diagnosed(HEALTHY[name])
    assert found["GPU on the bus"].status == "not here"
    assert found["nvidia-smi"].status == "not here"
    assert found["nvidia-smi"].what == "depends on: GPU on the bus"
    assert summary(list(found.values())) == "Nothing failed: the CPU path is ready."


def test_everything_above_a_failure_waits_for_it_by_name():
    found = diagnosed(BROKEN["no driver"][0])
    waiting = [name for name, finding in found.items() if finding.what == "depends on: kernel driver"]
    assert waiting[:3] == ["device files", "nvidia-smi", "kernel log"]
    assert {found[name].status for name in waiting} == {"not checked"}
    assert {"CUDA versions", "PyTorch's CUDA", "PyTorch sees it", "GPU memory"} <= set(waiting)
    assert found["PyTorch"].status == "ok", "PyTorch itself does not stand on the driver"
    assert found["disk for weights"].status == "ok"


def test_what_waits_names_the_first_failure_not_the_one_between():
    def never(facts):
        raise AssertionError("it was asked although it waits")

    bottom = Check("bottom", "", lambda facts: fail("broken", "mend it"))
    middle, top = Check("middle", "", never, ("bottom",)), Check("top", "", never, ("middle",))
    assert [finding.what for finding in diagnose(Facts(), (bottom, middle, top))][1:] == ["depends on: bottom"] * 2


def test_a_part_that_is_absent_hides_what_needs_it_but_not_what_merely_comes_after():
    absent = Check("absent", "", lambda facts: not_here("there is none"))
    needs = Check("needs", "", lambda facts: ok("asked"), needs=("absent",))
    after = Check("after", "", lambda facts: ok("asked"), after=("absent",))
    assert [finding.status for finding in diagnose(Facts(), (absent, needs, after))] == ["not here", "not here", "ok"]


def test_what_comes_after_a_failure_waits_for_it():
    broken = Check("broken", "", lambda facts: fail("broken", "mend it"))
    after = Check("after", "", lambda facts: ok("asked"), after=("broken",))
    assert diagnose(Facts(), (broken, after))[1].what == "depends on: broken"


def test_pytorch_is_not_blamed_for_a_gpu_in_mig_mode_or_without_its_fabric():
    assert diagnosed(BROKEN["MIG without instances"][0])["PyTorch sees it"].what == "depends on: MIG"
    assert diagnosed(BROKEN["fabric manager not running"][0])["PyTorch sees it"].what == "depends on: NVSwitch fabric"


def test_checks_stand_only_on_checks_before_them():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for position, check in enumerate(CHECKS):
        assert {*check.needs, *check.after} <= set(names[:position]), check.name


def test_a_stuck_driver_is_asked_once():
    box = BROKEN["nvidia-smi hangs"][0].but()
    examine(box)
    assert [line for line in box.asked if line.startswith("nvidia-smi")] == [SMI]
    assert diagnosed(box)["PyTorch"].status == "ok", "it was not asked about CUDA, where it would hang too"


def test_a_container_is_not_blamed_for_gpus_that_it_was_not_given():
    one = A100_X8.commands[SMI].text.split("GPU 00000000:0F:00.0")[0]
    found = diagnosed(in_docker(A100_X8, commands={SMI: one}))
    assert found["nvidia-smi"].status == "ok"
    assert found["nvidia-smi"].what == "driver 535.183.01 answers for 1 GPU"


def test_a_driver_that_answers_is_believed_where_the_bus_is_hidden():
    hidden = in_docker(H100, without=(LSPCI, "/proc/driver/nvidia/version", "/proc/modules"))
    found = diagnosed(hidden)
    assert "the driver sees 1 GPU" in found["GPU on the bus"].what
    assert found["kernel driver"].what.startswith("version 570.124.06")
    assert found["PyTorch sees it"].status == "ok"


def test_a_gpu_that_pytorch_uses_is_believed_though_it_is_not_on_the_bus():
    found = diagnosed(HEALTHY["jetson"])
    assert "as in a Jetson" in found["GPU on the bus"].what
    assert found["PyTorch's CUDA"].what == "built with CUDA 12.6, with code for compute capability 8.7"
    assert found["GPU memory"].what == "depends on: nvidia-smi"


def test_an_amd_gpu_is_said_to_be_one_and_nothing_of_nvidia_is_missed():
    found = diagnosed(HEALTHY["rocm"])
    expected = "an AMD GPU through ROCm: PyTorch sees it; the rest of this list is about NVIDIA"
    assert (found["GPU on the bus"].status, found["GPU on the bus"].what) == ("not here", expected)
    assert found["PyTorch sees it"].what == "PyTorch sees 1 GPU, through ROCm"
    assert found["kernel driver"].status == "not here"


def test_wsl2_is_asked_with_the_nvidia_smi_that_windows_brings():
    assert diagnosed(HEALTHY["wsl2, nvidia-smi not on the path"])["nvidia-smi"].what.startswith("driver 5")
    blind = HEALTHY["wsl2"].but(without=(SMI, CAPABILITY))
    assert diagnosed(blind)["PyTorch sees it"].status == "ok"


def test_a_missing_device_file_is_reported_only_where_cuda_has_not_made_it_by_starting():
    without_uvm = ("nvidia0", "nvidiactl")
    started = diagnosed(H100.but(directories={"/dev": without_uvm}))["device files"]
    assert started.status == "ok"
    stopped = diagnosed(BROKEN["no nvidia-uvm, whichever GPU is chosen"][0])["device files"]
    assert (stopped.status, stopped.mend) == ("warn", "sudo nvidia-modprobe -u -c 0")
    assert "/dev/nvidia-uvm is missing" in stopped.what


@pytest.mark.parametrize(
    ("commands", "files"),
    [
        ({LSPCI: LSPCI_NO_DRIVER}, {}),
        ({LSPCI: LSPCI_NO_DRIVER, "modinfo -F version nvidia": "570.124.06\n"}, {}),
        ({LSPCI: LSPCI_NOUVEAU}, {"/proc/modules": "nouveau 2285568 1 - Live 0x0\n"}),
    ],
    ids=["none", "not loaded", "nouveau"],
)
def test_a_container_says_that_the_driver_is_to_be_mended_on_its_host(commands, files):
    box = BROKEN["container on a host without a driver"][0].but(commands=commands, files=files)
    assert "on the host, outside this container" in diagnosed(box)["kernel driver"].what
    at_home = H100.but(commands={**commands, "torch": NO_TORCH_GPU}, files=files, without=(SMI, CAPABILITY, VERSION))
    assert diagnosed(at_home)["kernel driver"].status == "fail"
    assert "container" not in diagnosed(at_home)["kernel driver"].what


def test_a_program_that_runs_is_not_refuted_by_version_numbers():
    compat = H100.but(commands={"torch": torch_says("2.9.0+cu130", "13.0", 64, CU128, ["9.0"])})
    found = diagnosed(compat)
    assert found["CUDA versions"].what == "PyTorch is built with CUDA 13.0, and CUDA starts on driver 570.124.06"
    assert first_failure(found.values()) is None


def test_of_a_gpu_that_nobody_describes_nothing_is_claimed():
    found = diagnosed(H100.but(without=(SMI, CAPABILITY)))
    silent = (
        "ECC",
        "MIG",
        "NVSwitch fabric",
        "GPU memory",
        "persistence",
        "power and clocks",
        "PCIe width",
        "GPU links",
    )
    assert {found[name].status for name in silent} == {"not checked"}


def test_a_kernel_log_that_may_not_be_read_is_said_and_not_failed():
    denied = Output("dmesg: read kernel buffer failed: Operation not permitted\n", 1)
    finding = diagnosed(H100.but(commands={"dmesg": denied}))["kernel log"]
    assert (finding.status, finding.mend) == ("not checked", "sudo dmesg | grep -i xid")


@pytest.mark.parametrize("slice_of_it", ["", " GPU-I:05", " GPU-I:05 GPU-CI:00"])
def test_an_xid_is_read_from_a_whole_gpu_and_from_a_slice_of_one(slice_of_it):
    line = f"[1.0] NVRM: Xid (PCI:0000:19:00{slice_of_it}): 95, pid=4242, Uncontained ECC error\n"
    assert parse_gpu.xids(line) == (Xid(95, "0000:19:00"),)


def test_programs_that_crashed_on_a_gpu_are_no_fault_of_the_box():
    log = "[1.0] NVRM: Xid (PCI:0000:19:00): 31, pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault\n"
    assert diagnosed(H100.but(commands={"dmesg": log}))["kernel log"].status == "ok"


def test_values_that_a_user_may_not_see_are_unknown_not_a_failure():
    text = H100.commands[SMI].text.replace("81008 MiB", "Insufficient Permissions")
    found = diagnosed(H100.but(commands={SMI: text}))
    assert first_failure(found.values()) is None
    assert found["GPU memory"].status == "not checked"


def test_a_gpu_in_slices_says_how_many():
    sliced = H100.commands[SMI].text.replace("Disabled\n        Pending", "Enabled\n        Pending", 1)
    sliced = sliced.replace(
        "Pending                           : Disabled", "Pending                           : Enabled", 1
    )
    found = diagnosed(H100.but(commands={SMI: sliced, "nvidia-smi -L": recorded("nvidia-smi-L-mig.txt")}))
    assert found["MIG"].what.startswith("MIG is on, 2 instances")


def test_links_between_gpus_tell_nvlink_from_pcie():
    assert diagnosed(A100_X8)["GPU links"].what == "every pair by NVLink (NV12)"
    pcie = A100_X8.but(commands={"nvidia-smi topo -m": recorded("nvidia-smi-topo-8x-4090.txt")})
    assert "all through PCIe (SYS)" in diagnosed(pcie)["GPU links"].what


def test_the_fast_dtype_follows_the_processor():
    assert "bfloat16 is the fast dtype" in diagnosed(H100)["vectors"].what
    assert "float32 is the fast dtype" in diagnosed(LAPTOP)["vectors"].what
    arm = LAPTOP.but(files={"/proc/cpuinfo": recorded("cpuinfo-graviton.txt")}, system=("Linux", "aarch64"))
    assert diagnosed(arm)["vectors"].what == "NEON, SVE, Arm BF16; bfloat16 is the fast dtype"
    old = LAPTOP.but(files={"/proc/cpuinfo": "processor : 0\nflags : fpu sse sse2 avx\n"})
    assert diagnosed(old)["vectors"].status == "warn"


@pytest.mark.parametrize(("quota", "usable"), [(0.5, 1), (2.5, 2), (None, 64), (100.0, 64)])
def test_threads_are_whole_processors_within_the_quota_and_one_at_least(quota, usable):
    assert usable_cpus(Facts(cpus=64, cpus_allowed=64, cpu_quota=quota)) == usable


def test_pages_of_files_do_not_count_as_used_memory():
    group = {
        "memory.max": "4294967296",
        "memory.current": "4000000000",
        "memory.stat": "anon 5\ninactive_file 3000000000",
    }
    box = LAPTOP.but(files={f"/sys/fs/cgroup/{name}": text for name, text in group.items()})
    assert diagnosed(box)["memory"].what == "3.1 of 4.0 GiB free (this container's limit)"


@pytest.mark.parametrize(
    ("text", "count"), [("0\n", 1), ("0-1\n", 2), ("0,2-3\n", 3), ("", None), (None, None), ("x", None)]
)
def test_numa_nodes_are_counted_from_their_ranges(text, count):
    assert parse_host.node_count(text) == count


@pytest.mark.parametrize(
    ("built", "highest", "driver", "expected"),
    [
        ("12.6", "12.8", "570.124.06", True),  # older CUDA on a newer driver
        ("11.8", "12.8", "570.124.06", True),  # an older major too
        ("12.8", "12.2", "535.183.01", True),  # newer minor: minor version compatibility
        ("12.8", "12.0", "525.60.13", True),  # the very first driver of the major
        ("12.8", "12.0", "525.53", False),  # one before it
        ("11.8", "11.0", "450.80.02", True),
        ("11.8", "11.0", "450.51.06", False),
        ("13.0", "12.9", "575.51.03", False),  # a newer major
        ("13.1", "13.0", "580.65.06", True),
        ("12.8", None, "570.124.06", None),
        ("banana", "12.8", "570.124.06", None),
        ("12.8", "12.8", None, True),
    ],
)
def test_a_driver_runs_older_cuda_and_newer_minor_versions_of_its_own_major(built, highest, driver, expected):
    assert runs(built, highest, driver) is expected


@pytest.mark.parametrize(
    ("capability", "arch_list", "expected"),
    [
        ("9.0", "sm_80 sm_90", True),
        ("8.9", "sm_80 sm_86", True),  # same major, earlier minor
        ("8.0", "sm_86", False),  # same major, later minor
        ("12.0", "sm_80 sm_90", False),
        ("12.0", "sm_80 compute_90", True),  # PTX, compiled when it is loaded
        ("9.0", "sm_90a", True),
        ("10.0", "sm_90a", False),
        ("12.1", "sm_120", True),
        ("7.0", "sm_75 sm_80", False),
        ("7.0", "", False),
        ("x", "sm_80", False),
    ],
)
def test_machine_code_stays_in_its_major_version_and_ptx_does_not(capability, arch_list, expected):
    assert has_code_for(capability, tuple(arch_list.split())) is expected


@pytest.mark.parametrize(
    ("highest", "capabilities", "name"),
    [
        ("13.0", ["9.0"], "130"),
        ("13.0", ["7.5"], "130"),
        ("13.0", ["7.0"], "126"),  # Volta is not in builds for CUDA 13
        ("13.0", ["9.0", "6.1"], "126"),  # one old GPU among others
        ("12.9", ["10.0"], "128"),
        ("12.4", ["7.0"], "126"),
        ("11.4", ["7.0"], "118"),
        ("13.0", [], "130"),
        (None, ["9.0"], "126"),
    ],
)
def test_the_wheel_is_the_newest_that_the_driver_runs_and_that_has_code_for_every_gpu(highest, capabilities, name):
    assert wheel(highest, tuple(capabilities)) == name


@pytest.mark.parametrize(
    ("facts", "command"),
    [
        (Facts(capabilities=("12.0",)), "sudo apt install nvidia-driver-580-server-open"),
        (Facts(capabilities=("7.5",)), "sudo apt install nvidia-driver-580-server-open"),
        (Facts(capabilities=("7.0",)), "sudo apt install nvidia-driver-580-server"),
        (Facts(capabilities=("9.0", "6.1")), "sudo apt install nvidia-driver-580-server"),
        (Facts(driver_open=True), "sudo apt install nvidia-driver-580-server-open"),
        (Facts(), "sudo ubuntu-drivers install --gpgpu"),
    ],
)
def test_a_driver_is_installed_in_the_kind_that_the_gpu_runs(facts, command):
    assert install_driver(facts) == command


def test_the_open_kind_of_driver_is_read_from_its_version_file():
    assert examine(H100).driver_open
    assert not examine(A100_X8).driver_open


def test_no_driver_is_installed_inside_wsl2():
    assert "apt" not in diagnosed(BROKEN["PyTorch for CUDA 13 on WSL2"][0])["CUDA versions"].mend


UUID = "GPU-00000000-1111-2222-3333-444444444444"


@pytest.mark.parametrize(
    ("visible", "hidden"),
    [
        (None, False),
        ("", True),
        ("-1", True),
        ("NoDevFiles", True),
        ("0", False),
        (" 0", False),
        ("1", True),
        ("0,7", False),  # the first is there
        ("7,0", True),  # CUDA stops reading at the 7
        (UUID, False),
        (UUID[:10], False),  # so much of it as names one GPU
        ("GPU-ffff", True),
        ("MIG-00000000-aaaa-bbbb-cccc-000000000001", True),
        ("banana", True),
    ],
)
def test_only_a_list_that_begins_with_no_gpu_hides_them_all(visible, hidden):
    assert hides_every_gpu(visible, examine(H100)) is hidden


def test_what_is_hidden_is_not_guessed_where_the_gpus_are_not_known():
    assert not hides_every_gpu("3", Facts())
    assert hides_every_gpu("-1", Facts())


def test_a_visible_device_is_not_blamed_and_pytorch_s_own_words_are_shown():
    chosen = diagnosed(BROKEN["CUDA does not start, whichever GPU is chosen"][0])["PyTorch sees it"]
    assert chosen.what == "PyTorch sees no usable GPU: CUDA unknown error - Error 999: unknown error"
    no_uvm = diagnosed(BROKEN["no nvidia-uvm, whichever GPU is chosen"][0])["PyTorch sees it"]
    assert no_uvm.what == "PyTorch sees no usable GPU, for lack of /dev/nvidia-uvm: CUDA unknown error"


def test_a_list_of_devices_is_not_blamed_where_pytorch_sees_a_gpu_and_cannot_start_it():
    facts = Facts(visible_devices="-1", torch=Torch(available=True, error="CUDA error: out of memory"))
    assert "out of memory" in sees_the_gpu(facts).what


def test_a_gpu_that_answers_is_not_blamed_for_a_start_that_failed_before():
    assert diagnosed(H100.but(commands={"dmesg": NOT_STARTED}))["nvidia-smi"].status == "ok"


def test_a_gpu_with_the_wrong_kind_of_modules_is_not_called_broken():
    for name in ("closed modules on a GPU that needs the open ones", "open modules on a GPU that is too old for them"):
        first = first_failure(findings(examine(BROKEN[name][0])))
        assert "kernel modules" in first.what
        assert "dmesg" not in first.mend


def test_pytorch_is_not_reinstalled_because_of_a_deleted_directory():
    assert diagnosed(BROKEN["PyTorch in a directory that was deleted"][0])["PyTorch"].mend == "cd"


HOSTILE = {
    "empty": "",
    "binary": bytes(range(256)).decode("latin-1") * 20,
    "localised": "Mémoire totale : 81 559 Mo\nGPU 0 : inconnu\nFehler: Gerät nicht gefunden\n",
    "huge": "GPU 00000000:19:00.0\n" + "    x : 9\n" * 4_000,
    "deep": "".join(" " * depth + "k : v\n" for depth in range(500)),
    "numbers": "9" * 5000 + " " + "9" * 5000 + "\nprocessor : 0\nMemTotal: " + "9" * 5000 + " kB\n",
    "json": '{"minillm_doctor": 1, "version": 7, "arch_list": {"a": [null]}, "threads": "many", "capabilities": [1]}\n',
    "json cut": '{"minillm_doctor": 1, "version": "2.8.0", "arch_li',
    "json deep": '{"minillm_doctor"' + ": [" * 100_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("box", [H100, LAPTOP, MAC], ids=["h100", "laptop", "mac"])
def test_no_text_of_any_tool_or_file_makes_the_doctor_raise(box, text):
    for line in box.commands:
        findings(examine(box.but(commands={line: text})))
    for path in box.files:
        findings(examine(box.but(files={path: text})))
    everything = box.but(commands=dict.fromkeys(box.commands, text), files=dict.fromkeys(box.files, text))
    assert {finding.status for finding in findings(examine(everything))} <= STATUSES


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_only_boxes_of_several_gpus_are_asked_may_be_anything_too(text):
    assert parse_gpu.topology(text) is None
    assert parse_gpu.mig_instances(text) is None


@pytest.mark.parametrize("line", H100.commands)
def test_a_recorded_text_that_breaks_off_anywhere_does_not_make_it_raise(line):
    text = H100.commands[line].text
    for length in range(0, len(text), max(1, len(text) // 25)):
        findings(examine(H100.but(commands={line: text[:length]})))


def test_a_machine_of_which_nothing_can_be_read_is_no_traceback():
    found = findings(examine(Box(num_cpus=(None, None), disks={}, process_limits=(None, None))))
    assert {finding.status for finding in found} <= STATUSES
    assert first_failure(found).name == "PyTorch"


def test_every_warning_and_failure_of_all_boxes_says_how_to_mend_it():
    boxes = [box for box, *_ in (*BROKEN.values(), *WARNED.values())]
    for finding in (finding for box in boxes for finding in findings(examine(box))):
        assert finding.what, finding
        assert finding.mend or finding.status not in ("warn", "fail"), finding
        assert "\n" not in finding.what + finding.mend, finding


def text_of(box, width=80):
    console = Console(width=width, file=None, record=True, color_system=None)
    with console.capture() as capture:
        print_report(findings(examine(box)), console)
    return capture.get()


def test_the_report_fits_eighty_columns_but_for_commands_which_stay_whole():
    for box in (*HEALTHY.values(), *(box for box, *_ in BROKEN.values())):
        lines = text_of(box).splitlines()
        wide = [line for line in lines if len(line) > 80 and not line.startswith(("      $ ", "Mend first: "))]
        assert not wide
        assert not [line for line in lines if line != line.rstrip()], "no blanks at the ends of lines"


def test_the_report_ends_with_what_to_mend_first():
    text = text_of(BROKEN["no driver"][0])
    assert "Mend first: kernel driver. There is no NVIDIA driver.\n      $ sudo ubuntu-drivers" in text
    assert "not checked  2 checks" not in text.splitlines()[0]


def test_the_report_shows_brackets_as_they_are():
    odd = H100.but(commands={"torch": Output("ImportError: [bold]libcuda[/bold]\n", 1)})
    assert "[bold]libcuda[/bold]" in text_of(odd, width=200)


def test_json_has_every_finding_and_the_first_failure():
    found = findings(examine(BROKEN["no driver"][0]))
    said = json.loads(as_json(found))
    assert said["first_failure"] == "kernel driver"
    assert [entry["name"] for entry in said["findings"]] == [finding.name for finding in found]
    assert sum(said["counts"].values()) == len(found)
    assert set(said["findings"][0]) == {"group", "name", "status", "what", "mend"}


def test_the_doctor_runs_on_this_machine():
    command = [sys.executable, "-m", "minillm.doctor", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, encoding="utf-8")
    said = json.loads(done.stdout)
    assert done.returncode == (1 if said["first_failure"] else 0), done.stderr
    assert {entry["status"] for entry in said["findings"]} <= STATUSES
    assert all(entry["what"] for entry in said["findings"])
    assert {check.name for check in CHECKS} - {entry["name"] for entry in said["findings"]} <= {"Apple GPU"}


def test_a_wrong_call_is_one_sentence_and_exit_code_2(capsys):
    code, out, err = call(capsys, "doctor", "--jason-voorhees")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_the_exit_code_is_1_exactly_if_something_failed(capsys, monkeypatch):
    monkeypatch.setattr("minillm.machine.doctor.system.System", lambda: LAPTOP)
    assert call(capsys, "doctor")[0] == 0
    monkeypatch.setattr("minillm.machine.doctor.system.System", lambda: BROKEN["disk full"][0])
    code, out, _ = call(capsys, "doctor")
    assert code == 1
    assert "Mend first: disk for weights" in out
