"""Loads the C++ extension, once, after making sure that it was built for the torch that is here: with another one the
dynamic linker's message would name a mangled symbol and nothing that helps.
"""
from __future__ import annotations

import atexit
import ctypes
import os
from types import ModuleType
from typing import Any

from torch_tutti._ucx import look_for_wheel

_loaded: ModuleType | None = None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_torch(built_for: str, installed: str) -> None:
    """Raises ImportError when the two versions of torch differ in more than the patch level."""
    if _minor(built_for) == _minor(installed):
        return
    raise ImportError(
        f"torch_tutti was built for torch {_minor(built_for)}, but torch {installed} is installed. Build it again with "
        "this torch: in a checkout of tutti run script/setup, or pip install --no-build-isolation --no-deps "
        f"--force-reinstall . there; or install torch {_minor(built_for)} again")


def follow_torch_logs() -> None:
    """`TORCH_LOGS="+torch_tutti"` is to show what the library logs, as it does for any module of Python; the library
    reads TUTTI_LOG once, when it makes the first group, and TUTTI_LOG goes first where both are given."""
    levels = {"+": "debug", "-": "error"}
    for entry in os.environ.get("TORCH_LOGS", "").split(","):
        if entry.strip().lstrip("+-") == "torch_tutti":
            os.environ.setdefault("TUTTI_LOG", levels.get(entry.strip()[0], "info"))


def load() -> ModuleType:
    """The module torch_tutti._C. Raises ImportError that says what to do."""
    global _loaded
    if _loaded is None:
        import torch
        import torch.distributed  # noqa: F401  the base classes of ours
        try:
            from torch_tutti import _build
        except ImportError:
            raise ImportError("torch_tutti has not been built: run script/setup in the checkout, or "
                              "pip install --no-build-isolation -e .") from None
        check_torch(_build.TORCH_VERSION, torch.__version__)
        follow_torch_logs()
        look_for_wheel()
        from torch_tutti import _C
        atexit.register(_C._quiesce)
        _loaded = _C
    return _loaded


def backend_of(group: Any, device: Any = "cpu") -> Any:
    """A group's backend for tensors of the device, if it is tutti's, also inside of what TORCH_DISTRIBUTED_DEBUG=DETAIL
    puts around it; else None."""
    import torch
    try:
        found = group._get_backend(torch.device(device))
    except RuntimeError:                # it has none for this kind of device
        return None
    found = getattr(found, "wrapped_pg", found)
    return found if isinstance(found, load().ProcessGroupTutti) else None


def hosts_of(backend: Any, ranks: int) -> list[int]:
    """Of each rank of a group of tutti's: a number for its host, in the order of their first ranks."""
    from torch_tutti._library import _check, _library
    host, index, found = ctypes.c_int(), ctypes.c_int(), []
    for rank in range(ranks):
        _check(_library().tutti_comm_place(ctypes.c_void_p(backend._communicator), rank, ctypes.byref(host),
                                           ctypes.byref(index)))
        found.append(host.value)
    return found
