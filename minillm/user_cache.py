"""Where what was measured or built on this machine is kept between runs."""

import os
from pathlib import Path

from minillm.errors import InputError


def user_cache() -> Path:
    """$MINILLM_CACHE, else minillm/ of the user's cache directory. It may not exist yet.

    Raises InputError where there is no such home directory as is meant.
    """
    named, cache = os.environ.get("MINILLM_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if named:
            return Path(named).expanduser()
        return (Path(cache) if cache else Path.home() / ".cache") / "minillm"
    except RuntimeError:
        what = (
            f"MINILLM_CACHE is {named!r}, and there is no such home directory"
            if named
            else "there is no home directory"
        )
        raise InputError(f"{what}: set MINILLM_CACHE to where measurements are to be kept") from None
