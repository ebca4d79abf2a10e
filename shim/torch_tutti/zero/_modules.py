"""The modules of a model that is to be sharded: those that become units, and those on the meta device."""
from __future__ import annotations

import contextlib
import ctypes
from typing import Callable, Iterable

import torch
from torch import nn


def find_units(model: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """Returns the modules that are units, in the order of model.modules(), without the model itself. units: the
    caller's choice; None: the default units. Raises ValueError for a module outside the model."""
    if units is None:
        return _find_blocks(model)
    given, all_modules = list(units), set(model.modules())
    for unit in given:
        if unit not in all_modules:
            raise ValueError(f"zero.shard: {type(unit).__name__} is given as a unit, but is not part of the model")
    return [module for module in model.modules() if module in given and module is not model]


def _find_blocks(module: nn.Module) -> list[nn.Module]:
    """Returns the default units: the elements, if they have parameters, of the outermost ModuleLists and
    Sequentials."""
    found: list[nn.Module] = []
    for child in module.children():
        is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
        found += ([child] if any(True for _ in child.parameters()) else []) if is_list else _find_blocks(child)
    return found


def _own_tensors(module: nn.Module) -> Iterable[torch.Tensor]:
    """Returns the parameters and buffers of a module itself, without those of its children."""
    return (*module.parameters(recurse=False), *module.buffers(recurse=False))


def find_modules_on_meta(model: nn.Module, init: Callable[[nn.Module], None] | None) -> list[nn.Module]:
    """Returns the modules with tensors of their own on the meta device. Raises ValueError if `init` is None and such a
    module has no reset_parameters()."""
    found = [module for module in model.modules() if any(tensor.is_meta for tensor in _own_tensors(module))]
    for module in found:
        if init is None and not hasattr(module, "reset_parameters"):
            raise ValueError(f"zero.shard: a {type(module).__name__} has tensors on the meta device and no "
                             "reset_parameters(): give it one, or pass init=")
    return found


def materialize_untrained(module: nn.Module) -> None:
    """Replaces the parameters that zero does not manage, and the buffers, that a module has on the meta device by
    uninitialized CPU tensors."""
    for parameter in module.parameters(recurse=False):
        if parameter.is_meta:
            torch.utils.swap_tensors(parameter, nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype),
                                                             parameter.requires_grad))
    for name, tensor in module.named_buffers(recurse=False):
        if tensor.is_meta:
            setattr(module, name, torch.empty(tensor.shape, dtype=tensor.dtype))


def trim_heap() -> None:
    """Gives freed memory back to the system: the old memory of the parameters."""
    with contextlib.suppress(AttributeError):              # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
