"""Loads the C++ extension for the running torch, once. `_installation` chooses it and explains what may be wrong."""
from __future__ import annotations

import atexit
import ctypes
import os
from importlib import import_module
from types import ModuleType
from typing import Any

from torch_tutti import _debug
from torch_tutti._installation import check_library, check_one_torch, explain_load_error, extension_name
from torch_tutti._ucx import look_for_wheel

_loaded: ModuleType | None = None


def set_log_level() -> None:
    """Sets TUTTI_LOG from TORCH_LOGS, unless TUTTI_LOG is set: "torch_tutti" shows what the library logs at level info,
    "+torch_tutti" debug and "-torch_tutti" error, as for any module of Python. The library reads TUTTI_LOG once, when
    it makes the first group. TUTTI_DEBUG shows what is logged at level info, too."""
    levels = {"+": "debug", "-": "error"}
    for entry in os.environ.get("TORCH_LOGS", "").split(","):
        if entry.strip().lstrip("+-") == "torch_tutti":
            os.environ.setdefault("TUTTI_LOG", levels.get(entry.strip()[0], "info"))
    if _debug.is_on():
        os.environ.setdefault("TUTTI_LOG", "info")


def load() -> ModuleType:
    """Returns the extension, which is also `torch_tutti._C`, and loads it the first time. Raises ImportError that says
    what to do."""
    global _loaded
    if _loaded is None:
        import torch
        import torch.distributed  # noqa: F401  it has the base classes of the extension's classes
        name = extension_name(torch.__version__)
        check_one_torch()
        set_log_level()
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
    """Returns a group's backend for tensors of the device if that is tutti's, else None. Looks inside the wrapper that
    TORCH_DISTRIBUTED_DEBUG=DETAIL puts around backends."""
    import torch
    try:
        backend = group._get_backend(torch.device(device))
    except RuntimeError:                # the group has no backend for this kind of device
        return None
    backend = getattr(backend, "wrapped_pg", backend)
    return backend if isinstance(backend, load().ProcessGroupTutti) else None


def hosts_of(backend: Any, ranks: int) -> list[int]:
    """Returns the number of the host of each rank in a tutti group. Hosts are numbered in the order of their first
    ranks. backend: a ProcessGroupTutti; ranks: the size of the group."""
    from torch_tutti._library import _check, _library
    host, local_rank, hosts = ctypes.c_int(), ctypes.c_int(), []
    for rank in range(ranks):
        _check(_library().tutti_comm_place(ctypes.c_void_p(backend._communicator), rank, ctypes.byref(host),
                                           ctypes.byref(local_rank)))
        hosts.append(host.value)
    return hosts
