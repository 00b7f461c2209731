"""Fail if the test report has a skipped or failed test, too few tests, or no test on the real model at all.

The only skips that may be are exercises for the reader that nobody has touched; each of them must be in the report,
and its stub must still be the one that `minillm exercises reset` gives back.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from minillm.exercises.manifest import EXERCISES

STUBS = Path("minillm/exercises")
# A deselected test leaves nothing in the report, so only the number of the others tells. There were 2,816 tests when
# this was set. Raise it as they grow; lower it only together with the change that takes tests away.
FEWEST_TESTS = 2_500


def named(case: ET.Element) -> str:
    """The test's place and name."""
    return f"{case.get('classname')}::{case.get('name')}"


def properties(case: ET.Element) -> dict[str, str]:
    """What the test wrote into the report about itself."""
    return {p.get("name", ""): p.get("value", "") for p in case.iterfind("properties/property")}


cases = list(ET.parse(sys.argv[1]).iter("testcase"))
exercises = {properties(case)["exercise"]: case for case in cases if "exercise" in properties(case)}
untouched = {f"{exercise.id} untouched" for exercise in EXERCISES}
allowed = [exercises[name] for name in untouched & set(exercises)]
skipped = [named(case) for case in cases if case.find("skipped") is not None and case not in allowed]
broken = [named(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]
real = [case for case in cases if "real_model" in properties(case)]
print(f"{len(cases)} tests, {len(real)} on the real model, {len(allowed)} untouched exercises, {len(skipped)} skipped")
if broken:
    sys.exit("failed: " + ", ".join(broken))
if len(cases) < FEWEST_TESTS:
    sys.exit(f"only {len(cases)} tests ran, and there are at least {FEWEST_TESTS}: were some deselected?")
if skipped:
    sys.exit("skipped: " + ", ".join(skipped))
if not real:
    sys.exit("no test ran on the real model")
if set(exercises) != untouched:
    sys.exit(
        "the exercises in the report are not all the untouched ones: " + ", ".join(sorted(set(exercises) ^ untouched))
    )
for name in sorted({exercise.file_name for exercise in EXERCISES}):
    if (STUBS / name).read_bytes() != (STUBS / "pristine" / name).read_bytes():
        sys.exit(f"{STUBS / name} and its pristine copy differ: give out the same stub in both")
