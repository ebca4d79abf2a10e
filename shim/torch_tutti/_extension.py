"""Loads the C++ extension for the running torch, once. `_installation` chooses it and explains what may be wrong."""
from __future__ import annotations

import atexit
import ctypes
import os
from importlib import import_module
from types import ModuleType
from typing import Any

from torch_tutti._installation import check_library, check_one_torch, explain_load_error, extension_name
from torch_tutti._ucx import look_for_wheel

_loaded: ModuleType | None = None


def follow_torch_logs() -> None:
    """`TORCH_LOGS="+torch_tutti"` is to show what the library logs, as it does for any module of Python; the library
    reads TUTTI_LOG once, when it makes the first group, and TUTTI_LOG goes first where both are given."""
    levels = {"+": "debug", "-": "error"}
    for entry in os.environ.get("TORCH_LOGS", "").split(","):
        if entry.strip().lstrip("+-") == "torch_tutti":
            os.environ.setdefault("TUTTI_LOG", levels.get(entry.strip()[0], "info"))


def load() -> ModuleType:
    """The extension, which `torch_tutti._C` names, too. Raises ImportError that says what to do."""
    global _loaded
    if _loaded is None:
        import torch
        import torch.distributed  # noqa: F401  the base classes of ours
        name = extension_name(torch.__version__)
        check_one_torch()
        follow_torch_logs()
        look_for_wheel()
        try:
            extension = import_module(f"torch_tutti.{name}")
        except ImportError as error:
            raise explain_load_error(error) from None
        check_library(extension.tutti_version, extension.library_version)
        atexit.register(extension._quiesce)
        _loaded = extension
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
