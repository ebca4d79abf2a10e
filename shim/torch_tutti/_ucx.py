"""Where the UCX library may be besides where the dynamic linker looks: in a wheel (`pip install libucx-cu12`, which the
extra `ucx` asks for). The core opens the first of TUTTI_UCX that can be loaded, when a group over several hosts needs
it, so the library of the system goes first, which knows the network of this machine.
"""
from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

SYSTEM = "libucp.so.0"


def of_wheel() -> Path | None:
    """The library in the package libucx, which is not imported for it."""
    try:
        package = find_spec("libucx")
    except (ImportError, ValueError):                   # half there, or put into sys.modules by hand
        return None
    for folder in (package.submodule_search_locations or []) if package else []:
        found = Path(folder) / "lib" / SYSTEM
        if found.is_file():
            return found
    return None


def look_for_wheel() -> None:
    """Tells the core, which reads its settings when the first group is made. What the user says stays."""
    if "TUTTI_UCX" not in os.environ and (found := of_wheel()):
        os.environ["TUTTI_UCX"] = f"{SYSTEM}:{found}"
