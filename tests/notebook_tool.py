"""`notebooks/build.py` as a module: it is a program beside the notebooks, not a part of the package."""

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).parents[1] / "notebooks" / "build.py"
_spec = importlib.util.spec_from_file_location("notebook_build", _path)
assert _spec is not None
assert _spec.loader is not None
build_tool = importlib.util.module_from_spec(_spec)
sys.modules["notebook_build"] = build_tool
_spec.loader.exec_module(build_tool)
