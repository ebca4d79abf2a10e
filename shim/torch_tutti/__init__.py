"""tutti: a communication backend for torch.distributed.

    torchrun --nproc-per-node 2 train.py    with dist.init_process_group("tutti") in train.py; no import is needed

This module has more for users: `take_over()` for programs that ask for another backend, `monitored_barrier()`,
`options()` for the calls of a block, `all_reduce()` without torch's overhead, `all_reduce_norm()` for inference,
tensors that peers can read in place (`empty()`, `shared_tensors()`, `share_buckets()`), ZeRO (`zero.shard()`),
gradients in fewer bytes (`compression.compress()`), grids of ranks that work together (`grid()`), layers that are
divided among ranks (`parallel`), schedules of pipelines and their runner (`Pipeline`), mixtures of experts (`experts`),
a parameter server (`ps.join()`), a change of the members after a failure (`reconfigure()`), `info()`, `waiting()`,
`predict()`, `schedule()`, `dump_trace()`, `stream()`, `get_include()`, `Options` and the exceptions.
Importing this module imports neither torch nor the library: torch itself imports it at start-up, through the entry
point in `_autoload`, so each part loads when it is first used.
"""
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_tutti import compression, experts, parallel, ps, zero
    from torch_tutti._C import Options, ProcessGroupTutti
    from torch_tutti._calls import all_reduce
    from torch_tutti._compatibility import monitored_barrier
    from torch_tutti._grid import Grid, grid
    from torch_tutti._library import algorithms, get_include, info, schedule, waiting
    from torch_tutti._norm import all_reduce_norm, norm_rows
    from torch_tutti._memory import empty, share_buckets, shared_tensors
    from torch_tutti._model.prediction import predict
    from torch_tutti._options import options
    from torch_tutti._pipeline import Pipeline
    from torch_tutti._reconfigure import reconfigure, reconfigure_handle
    from torch_tutti._recorder import dump_trace
    from torch_tutti._stream import stream
    from torch_tutti._takeover import TakeOver, take_over
    from torch_tutti.exceptions import (AbortedError, Error, ForkedError, InternalError, MismatchError, PeerError,
                                        ResultError, SystemError, TimeoutError)

_MODULES = {
    "torch_tutti._takeover": ("take_over", "TakeOver"),
    "torch_tutti._compatibility": ("monitored_barrier",),
    "torch_tutti._reconfigure": ("reconfigure", "reconfigure_handle"),
    "torch_tutti._recorder": ("dump_trace",),
    "torch_tutti._library": ("info", "schedule", "algorithms", "get_include", "waiting"),
    "torch_tutti.exceptions": ("Error", "TimeoutError", "MismatchError", "PeerError", "AbortedError", "ForkedError",
                               "SystemError", "ResultError", "InternalError"),
    "torch_tutti._calls": ("all_reduce",),
    "torch_tutti._grid": ("grid", "Grid"),
    "torch_tutti._norm": ("all_reduce_norm", "norm_rows"),
    "torch_tutti._model.prediction": ("predict",),
    "torch_tutti._options": ("options",),
    "torch_tutti._pipeline": ("Pipeline",),
    "torch_tutti._stream": ("stream",),
    "torch_tutti._memory": ("empty", "share_buckets", "shared_tensors"),
    "torch_tutti._C": ("Options", "ProcessGroupTutti"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("compression", "experts", "parallel", "ps", "zero")
__all__ = sorted([*_MODULE_OF, *_SUBMODULES])


def __getattr__(name: str) -> Any:
    """Returns a public name or a submodule, and imports the module that has it when the name is first used."""
    if name == "__version__":
        from importlib.metadata import version
        return version("torch-tutti")
    if name in _SUBMODULES:
        return import_module(f"torch_tutti.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Returns all public names, also those that have not been imported yet."""
    return sorted([*globals(), *__all__, "__version__"])
