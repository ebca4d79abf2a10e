"""Tensors of a model that zero leaves alone, because they are no replicas: parts of tensor parallel layers, and experts
of a rank's own."""
from __future__ import annotations

from typing import Any, Iterable

import torch
import torch.distributed as dist
from torch import nn

from torch_tutti.experts import Decoder, Dispatcher
from torch_tutti.parallel._layers import Divided


def find_ignored(model: nn.Module, ignored: Iterable[nn.Module | nn.Parameter]) -> set[torch.Tensor]:
    """Returns the parameters and buffers of the model that are ignored: the given ones, and all of the given modules.
    Raises ValueError for one outside the model and for a tensor on the meta device, and TypeError for anything that is
    neither a module nor a tensor."""
    modules, tensors, found = set(model.modules()), {*model.parameters(), *model.buffers()}, set()
    for each in ignored:
        if not isinstance(each, (nn.Module, torch.Tensor)):
            raise TypeError(f"zero.shard: ignored= has a {type(each).__name__}; it takes modules and parameters")
        if each not in (modules if isinstance(each, nn.Module) else tensors):
            raise ValueError(f"zero.shard: ignored= has a {type(each).__name__} that is not part of the model")
        found.update({*each.parameters(), *each.buffers()} if isinstance(each, nn.Module) else {each})
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor in found and tensor.is_meta:
            raise ValueError(f"zero.shard: {name} is ignored and on the meta device; give it values before zero.shard")
    return found


def check_replicas(model: nn.Module, group: dist.ProcessGroup, ignored: set[torch.Tensor]) -> None:
    """Raises ValueError if a tensor that is not ignored differs between ranks of the group by its kind: rank 0's values
    would replace those of the others."""
    ranks = dist.get_process_group_ranks(group)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            others = [] if parameter in ignored else _ranks_with_other_parts(module, name, parameter)
            if len(set(others) & set(ranks)) > 1:
                raise ValueError(f"zero.shard: parameter {full_name} is divided among ranks {others}, and ranks "
                                 f"{ranks} of zero's group would all get rank {ranks[0]}'s part; use a group of ranks "
                                 "with equal parts, or name the parameter or its module in ignored=")
            if isinstance(parameter, _dtensor()) and parameter not in ignored:
                raise ValueError(f"zero.shard: parameter {full_name} is a DTensor over ranks {others}, which zero "
                                 f"cannot keep for ranks {ranks}; name it or its module in ignored=")
    for path, dispatcher in _find_missed(model, ranks, ignored):
        raise ValueError(f"zero.shard: {path or 'the model'} has a {type(dispatcher).__name__} for experts that are "
                         f"divided among ranks {dist.get_process_group_ranks(dispatcher.group)}, and ranks {ranks} of "
                         f"zero's group would all get rank {ranks[0]}'s experts; name the module of the experts in "
                         "ignored=")


def _find_missed(model: nn.Module, ranks: list[int], ignored: set[torch.Tensor]) -> list[tuple[str, Any]]:
    """Returns path and dispatcher of the modules whose experts are divided among several of these ranks, but are not
    ignored. A module's experts are its parameters. Those of a module without parameters are the ignored tensors of the
    innermost module around it that has some which belong to no dispatcher further inside."""
    elsewhere, missed = [], []
    claimed: set[torch.Tensor] = set()
    for path, module in model.named_modules():
        dispatcher = next((value for value in vars(module).values() if isinstance(value, (Decoder, Dispatcher))), None)
        if dispatcher is None or len({*dist.get_process_group_ranks(dispatcher.group)} & {*ranks}) < 2:
            continue
        own = set(module.parameters())
        claimed |= ignored & own
        if not own:
            elsewhere.append((path, dispatcher))
        elif ignored.isdisjoint(own):
            missed.append((path, dispatcher))
    for depth in range(max((path.count(".") for path, _ in elsewhere), default=-1), -1, -1):
        # those of one depth may have the same experts
        found = {path: ignored & set(model.get_submodule(".".join(path.split(".")[:depth])).parameters()) - claimed
                 for path, _ in elsewhere if path.count(".") >= depth}
        elsewhere = [(path, dispatcher) for path, dispatcher in elsewhere if not found.get(path)]
        claimed.update(*found.values())
    return missed + elsewhere


def _dtensor() -> type:
    """Returns torch's DTensor, which is imported on first use."""
    from torch.distributed.tensor import DTensor
    return DTensor


def _ranks_with_other_parts(module: nn.Module, name: str, parameter: nn.Parameter) -> list[int]:
    """Returns the ranks of the default group among which a parameter is divided; [] if it is not."""
    if isinstance(parameter, _dtensor()):
        return parameter.device_mesh.mesh.flatten().tolist()
    if isinstance(module, Divided) and name in module.divided:
        names = dist.distributed_c10d._world.pg_names
        return dist.get_process_group_ranks(next(group for group in names if names[group] == module.ranks.name))
    return []
