"""Fail if the test report has a skipped test, or no test on the real model at all."""

import sys
import xml.etree.ElementTree as ET

cases = list(ET.parse(sys.argv[1]).iter("testcase"))
skipped = [f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None]
real = [case for case in cases if case.find("properties/property[@name='real_model']") is not None]
print(f"{len(cases)} tests, {len(real)} on the real model, {len(skipped)} skipped")
if skipped:
    sys.exit("skipped: " + ", ".join(skipped))
if not real:
    sys.exit("no test ran on the real model")
