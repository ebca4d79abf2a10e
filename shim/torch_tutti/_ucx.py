"""Finds the UCX library in a wheel (`pip install libucx-cu12`, which the extra `ucx` installs), where the dynamic
linker does not look. When a group over several hosts needs UCX, the core opens the first library of TUTTI_UCX that can
be loaded. The system's library is the first, because it supports the network of this machine.
"""
from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

LIBRARY_NAME = "libucp.so.0"           # also how the dynamic linker finds the system's library


def find_in_wheel() -> Path | None:
    """Returns the path of the UCX library in the package libucx, or None without it. Does not import the package."""
    try:
        package = find_spec("libucx")
    except (ImportError, ValueError):                   # the package is incomplete, or put into sys.modules by hand
        return None
    for folder in (package.submodule_search_locations or []) if package else []:
        path = Path(folder) / "lib" / LIBRARY_NAME
        if path.is_file():
            return path
    return None


def look_for_wheel() -> None:
    """Sets TUTTI_UCX to the system's library and the wheel's, if there is a wheel. Keeps a value that the user has set.
    Call it before the first group is made, when the core reads its settings."""
    if "TUTTI_UCX" not in os.environ and (path := find_in_wheel()):
        os.environ["TUTTI_UCX"] = f"{LIBRARY_NAME}:{path}"
