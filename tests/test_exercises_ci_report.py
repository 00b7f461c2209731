"""CI's look at the test report: what it accepts, and each thing that it refuses."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from minillm.exercises.manifest import EXERCISES

ROOT = Path(__file__).resolve().parents[1]


def _case(suite, name, *, outcome=None, **properties):
    case = ET.SubElement(suite, "testcase", classname="tests.some", name=name)
    if outcome is not None:
        ET.SubElement(case, outcome, message="for the report")
    for key, value in properties.items():
        ET.SubElement(ET.SubElement(case, "properties"), "property", name=key, value=value)


def _report(path, *, others=3000, real=1, outcome=None, real_outcome=None, exercises=EXERCISES):
    """A report with `others` passed tests, one of outcome `outcome`, `real` on the model, and untouched exercises."""
    suites = ET.Element("testsuites")
    suite = ET.SubElement(suites, "testsuite")
    for number in range(others):
        _case(suite, f"passes[{number}]")
    if outcome is not None:
        _case(suite, "the_odd_one", outcome=outcome)
    for number in range(real):
        _case(suite, f"on_the_model[{number}]", outcome=real_outcome, real_model="yes")
    for exercise in exercises:
        _case(suite, exercise.id, outcome="skipped", exercise=f"{exercise.id} untouched")
    ET.ElementTree(suites).write(path, encoding="utf-8")
    return path


def _look_at(report):
    command = [sys.executable, str(ROOT / ".ci" / "no_skips.py"), str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_whole_report_with_nothing_but_untouched_exercises_skipped_is_accepted(tmp_path):
    code, out = _look_at(_report(tmp_path / "report.xml"))
    assert code == 0, out


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"outcome": "skipped"}, "skipped: tests.some::the_odd_one"),
        ({"outcome": "failure"}, "failed: tests.some::the_odd_one"),
        ({"outcome": "error"}, "failed: tests.some::the_odd_one"),
        ({"real_outcome": "failure"}, "failed: tests.some::on_the_model[0]"),
        ({"real": 0}, "no test ran on the real model"),
        ({"others": 40}, "were some deselected?"),
        ({"exercises": EXERCISES[1:]}, f"not all the untouched ones: {EXERCISES[0].id} untouched"),
    ],
)
def test_a_report_with_something_amiss_is_refused_and_says_what(what, told, tmp_path):
    code, out = _look_at(_report(tmp_path / "report.xml", **what))
    assert code == 1, out
    assert told in out
