"""The parameters of a model that the core manages: their order, their units, and checks of what the core can take."""
from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from torch_tutti.zero._core import DTYPES

# Norms that torch computes only with parameters of the type of their running statistics.
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Managed(NamedTuple):
    """A parameter that the core manages; its number is its position in Manager.managed. unit: the number of its unit,
    which is the position of the unit's module in Manager.modules."""
    name: str
    parameter: nn.Parameter
    unit: int

    # ---- the elements of the parameter, flat in the order of its memory ----
    def order(self) -> list[int]:
        """Returns the dimensions in the order of memory, from the outermost one on: [0, 2, 3, 1] for channels_last.
        Those of a parameter with gaps or shared elements are in their own order."""
        dims = list(range(self.parameter.dim()))
        found = sorted(dims, key=self.parameter.stride, reverse=True)
        return dims if self.parameter.is_contiguous() or not self._is_dense(found) else found

    def _is_dense(self, order: list[int]) -> bool:
        """True if the dimensions in this order have no gaps and share no elements."""
        return self.parameter.permute(order).is_contiguous()

    def flatten(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the elements of a tensor of the parameter's shape."""
        return tensor.permute(self.order()).reshape(-1)

    def shaped(self, flat: torch.Tensor) -> torch.Tensor:
        """Returns a view of all elements in the parameter's shape, with its strides unless it has gaps."""
        parameter = self.parameter
        if parameter.is_contiguous() or self._is_dense(self.order()):
            return flat.as_strided(parameter.shape, parameter.stride())
        return flat.view(parameter.shape)


def inverse_of(order: list[int]) -> list[int]:
    """Returns the permutation that undoes another."""
    return sorted(range(len(order)), key=order.__getitem__)


def collect_managed(modules: list[nn.Module], group_of: dict[nn.Parameter, int], ignored: set[torch.Tensor],
                    dtype: torch.dtype | None) -> tuple[list[Managed], list[nn.Module], list[torch.dtype]]:
    """Checks the trained parameters of a model. Returns them in the order of their units, and module and dtype of each
    unit. A module whose parameters have several dtypes becomes a unit for each.
    modules: the model, and the modules that may be units; those without parameters of their own are no units. group_of:
    {parameter: its group in the optimizer}. ignored: parameters to leave out. dtype: that of parameters in the core;
    None: their own."""
    unit_of = _innermost_units(modules)
    own_dtype = batch_norm_parameters(modules[0])
    for name, module in modules[0].named_modules():
        if getattr(module, "max_norm", None) is not None and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise ValueError(f"zero.shard: {name} is an embedding with max_norm, which changes its weight in "
                             "forward(), differently on each rank")
    found, dtypes = [], []
    for name, parameter in modules[0].named_parameters():
        if parameter.requires_grad and parameter not in ignored:
            _check_parameter(name, parameter, group_of)
            found.append(Managed(name, parameter, unit_of.get(parameter, 0)))
            dtypes.append(parameter.dtype if dtype is None or parameter in own_dtype else dtype)
    if not found:
        raise ValueError("zero.shard: the model has no parameter with requires_grad")
    others = set(group_of) - {entry.parameter for entry in found} - ignored
    if any(p.requires_grad for p in others):
        raise ValueError("zero.shard: the optimizer has parameters that are not in the model")
    keys = [(entry.unit, list(DTYPES).index(dtype)) for entry, dtype in zip(found, dtypes)]
    kept_units = sorted(set(keys))
    renumbered = (entry._replace(unit=kept_units.index(key)) for entry, key in zip(found, keys))
    return (sorted(renumbered, key=lambda entry: entry.unit), [modules[unit] for unit, _ in kept_units],
            [list(DTYPES)[dtype_number] for _, dtype_number in kept_units])


def batch_norm_parameters(model: nn.Module) -> set[torch.Tensor]:
    """Returns the parameters that keep their dtype with `precision`."""
    return {parameter for module in model.modules() if isinstance(module, _BATCH_NORMS)
            for parameter in module.parameters()}


def check_same_layout(managed: list[Managed], group: dist.ProcessGroup) -> None:
    """Raises ValueError on all ranks if the shape or the memory format of a parameter differs between ranks: they would
    exchange its elements in different orders. The core refuses different numbers of elements. Collective."""
    own = [(entry.name, tuple(entry.parameter.shape), entry.order()) for entry in managed]
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, own, group)
    for rank, others in enumerate(of_ranks):
        for (name, shape, order), (_, other_shape, other_order) in zip(of_ranks[0], others):
            if math.prod(shape) == math.prod(other_shape) and (shape, order) != (other_shape, other_order):
                raise ValueError(f"zero.shard: parameter {name} has the shape {shape} and its dimensions in the order "
                                 f"{order} in memory on rank 0, but {other_shape} and {other_order} on rank {rank}; "
                                 "give all ranks the same model in the same memory format")


def _innermost_units(modules: list[nn.Module]) -> dict[nn.Parameter, int]:
    """Returns {parameter: its innermost unit}, without parameters of the model alone, and without those that are in
    several units of which none lies inside all others."""
    holders: dict[nn.Parameter, list[int]] = {}
    for number, module in enumerate(modules[1:], 1):            # inner modules come after outer ones
        for parameter in module.parameters():
            holders.setdefault(parameter, []).append(number)
    modules_inside = [set(module.modules()) for module in modules]
    return {parameter: units[-1] for parameter, units in holders.items()
            if all(modules[units[-1]] in modules_inside[unit] for unit in units)}


def _check_parameter(name: str, parameter: nn.Parameter, group_of: dict[nn.Parameter, int]) -> None:
    """Raises ValueError if a trained parameter is not in the optimizer, is not an ordinary CPU or meta tensor, or has
    another dtype than those of DTYPES."""
    if parameter not in group_of:
        raise ValueError(f"zero.shard: the parameter {name} is not in the optimizer; pass it all parameters, or "
                         "set requires_grad=False")
    if parameter.device.type not in ("cpu", "meta") or parameter.layout != torch.strided:
        raise ValueError(f"zero.shard: parameter {name} is on {parameter.device}, {parameter.layout}; it "
                         "must be an ordinary CPU tensor")
    if parameter.dtype not in DTYPES:
        raise ValueError(f"zero.shard: parameter {name} is {parameter.dtype}; it must be one of "
                         f"{', '.join(map(str, DTYPES))}")
