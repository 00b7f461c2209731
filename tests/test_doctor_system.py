"""The doctor's door to the real machine: nothing behind it raises, and nothing hangs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from minillm.machine.doctor.parse_host import torch
from minillm.machine.doctor.probe import TORCH_SCRIPT
from minillm.machine.doctor.system import MOST_BYTES, System

PYTHON = sys.executable
ROOT = Path(__file__).parents[1]


def test_a_command_s_text_and_exit_code_are_kept():
    output = System().run(PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (output.text, output.exit_code, output.missing, output.hung) == ("out\nerr\n", 3, False, False)


def test_a_command_that_is_not_installed_is_missing():
    assert System().run("no-such-command-anywhere").missing


def test_a_command_that_does_not_end_is_hung_and_leaves_no_process_behind(tmp_path):
    mark = tmp_path / "alive"
    code = f"import time; time.sleep(1.5); open({str(mark)!r}, 'w')"
    output = System().run(
        PYTHON, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}])", limit_s=0.5
    )
    assert output.hung
    time.sleep(2)
    assert not mark.exists(), "its child went on"


def test_a_command_is_asked_in_the_language_that_the_parsers_read():
    script = "import os; print(os.environ['LC_ALL'])"
    assert System().run(PYTHON, "-c", script).text == "C\n"


def test_bytes_that_are_no_text_are_read_all_the_same(tmp_path):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00" * (MOST_BYTES // 2))
    assert len(System().read(str(path))) <= MOST_BYTES


def test_what_is_not_there_is_none():
    system = System()
    assert system.read("/no/such/file") is None
    assert system.read("/no/such\0file") is None
    assert system.names("/no/such/directory") is None
    assert system.disk("/no/such/directory") is None
    assert system.link_name("/no/such/link") is None


def test_the_disk_is_that_of_the_directory_which_will_hold_the_weights(tmp_path, monkeypatch):
    monkeypatch.setenv("MINILLM_WEIGHTS", str(tmp_path / "not" / "made" / "yet"))
    assert System().weights() == (str(tmp_path), True)


def test_from_a_deleted_directory_the_weights_are_found_all_the_same(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("MINILLM_WEIGHTS", str(tmp_path))
    assert System().weights() == (str(tmp_path), True)
    monkeypatch.setenv("MINILLM_WEIGHTS", "weights")
    assert System().weights() == (None, False)


def test_the_doctor_reports_from_a_deleted_directory(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.rmdir({str(gone)!r}); from minillm import doctor; doctor.main(['--json'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MINILLM_WEIGHTS": "weights"}
    done = subprocess.run(
        [PYTHON, "-c", code], cwd=gone, env=environment, capture_output=True, timeout=120, check=False, encoding="utf-8"
    )
    said = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert said["disk for weights"]["mend"] == "cd", done.stderr
    assert said["PyTorch"]["status"] == "ok" or said["PyTorch"]["mend"] == "cd"


def test_pytorch_is_asked_in_a_process_of_its_own():
    answered = torch(System().run(PYTHON, "-c", TORCH_SCRIPT, limit_s=120.0).text)
    assert answered is not None
    assert answered.version is not None
    assert answered.threads is not None


def test_the_doctor_itself_never_imports_torch():
    code = "import sys; from minillm import doctor; doctor.main(['--json']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([PYTHON, "-c", code], capture_output=True, timeout=120, check=False).returncode == 0
