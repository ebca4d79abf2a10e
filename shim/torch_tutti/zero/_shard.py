"""The function that divides a model among the ranks, and its arguments."""
from __future__ import annotations

import os
from typing import Any, Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._calls import group_of
from torch_tutti.compression import Compression
from torch_tutti.zero._data_parallel import average_model
from torch_tutti.zero._ignored import check_replicas, find_ignored
from torch_tutti.zero._late_optimizer import await_optimizer
from torch_tutti.zero._mesh import group_of_ranks
from torch_tutti.zero._model import Manager, Settings
from torch_tutti.zero._modules import find_units
from torch_tutti.zero._optimizer import NoOptimizer
from torch_tutti.zero._sharded_optimizer import ShardedOptimizer

_PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}
# The number of gradient buffers in stage 1, which keeps all gradients: no unit waits for a buffer.
UNLIMITED_BUFFERS = 1 << 20


def shard(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *, stage: int = 3, hosts: str | None = None,
          units: Iterable[nn.Module] | None = None, group: dist.ProcessGroup | DeviceMesh | None = None,
          buffers: int = 2, ahead: bool = False, prefetch: int = 1, reshard: bool = True,
          precision: str | None = None, reduce_dtype: torch.dtype | None = None,
          compression: str | Compression | None = None, state_directory: str | os.PathLike[str] | None = None,
          init: Callable[[nn.Module], None] | None = None, ignored: Iterable[nn.Module | nn.Parameter] = (),
          gradients: str = "shards") -> Any:
    """Lets the ranks of a group train the model together. Returns the model, and the optimizer that replaces the given
    one, a ZeroOptimizer. Collective: all ranks start with rank 0's parameters and buffers.

    Without an optimizer it returns only the model, whose optimizer is then the first one over its parameters that takes
    a step. With stage 0 any may, in any dtype and group. gradients="whole" then leaves whole averaged gradients in
    `grad`, as stage 0 always does. zero.no_sync, whole and edit take the model.

    stage: 0 divides nothing, like DistributedDataParallel; 1 divides the optimizer state among the ranks; 2 also the
    gradients; 3 also the parameters. hosts: the placement of parameters in stage 3. "shared": the ranks of a host map
    one copy, and each updates a part of it. "sharded": a rank has only its part, and a unit is gathered when it is
    used; then all ranks must use the same units in the same order, and parameters outside a use read as NaN, except in
    a `with optimizer.whole():` block. None: shared, or sharded with a warning if ranks cannot share. units: modules
    whose parameters are used together; each is summed and updated as a whole. Default: the elements of the model's
    outermost ModuleLists and Sequentials. A parameter belongs to its innermost unit, or else to the model. group:
    tutti's group, or a DeviceMesh.

    buffers: the number of buffers for gradients of units of one size (stages 2 and 3). ahead: step() returns when all
    ranks have called it, and modules wait for their parameters when they compute; units that are used first are summed,
    updated and sent first. Code that reads parameters outside the forward() of their module must then call
    optimizer.wait() first. For sharded parameters: prefetch is how many units are gathered before their use, in the
    order of the last step; reshard frees a unit's memory after forward(), and gathers it again for backward().

    precision: "bf16" or "fp16" converts parameters (not those of BatchNorm), frozen ones too, gradients and
    floating-point inputs of forward(); the optimizer keeps float32 values, which start as the model's.
    reduce_dtype=torch.float32 sums gradients of 16 bits in float32. compression: the form of gradients in messages
    ("int8"), or a Compression. If all hosts have equal numbers of ranks, only messages between hosts are compressed.
    state_directory: where a rank keeps its state in a file without a name; only that of three units is in memory.

    The model and the parameters of the optimizer may be on the meta device; then only rank 0 ever has the whole model
    in its own memory. init: called on rank 0 with each module that has parameters or buffers of its own on the meta
    device; it must set their first values. Default: reset_parameters(). ignored: modules and parameters that are no
    replicas, such as a rank's own experts. Each rank keeps its own values and gradients, and step() updates those of
    `optimizer` on this rank alone, and then sets their `grad` to None.

    Parameters are float32, bfloat16, float16 or float64; those without elements are left alone. They are in CPU memory
    and may not be moved or changed in place, except by rank 0 in a `with optimizer.edit():` block; otherwise the next
    step raises an error. After backward() `grad` has no memory: it can be clipped, scaled and asked for its norm, by
    all ranks together. Buffers start as rank 0's, and are each rank's own afterwards. AdamW, Adam and SGD run in C
    unless a parameter is float64, bit-identical to torch's. Any other optimizer is tried on small tensors: if it treats
    all elements in the same way it runs on flat parts, otherwise on whole parameters, each on one rank. Raises
    NotImplementedError for an optimizer that changes no parameter, for example because it wraps another one, and,
    unless stage is 0, for one that looks at several parameters together."""
    placement = _placement_of(stage, hosts)
    _check_arguments(model, optimizer, gradients, placement, precision, compression, state_directory)
    any_group = optimizer is None and stage == 0 and not isinstance(group, DeviceMesh)
    ranks, left_out = (group_of if any_group else group_of_ranks)("zero.shard", group), find_ignored(model, ignored)
    check_replicas(model, ranks, left_out)
    if optimizer is None and stage == 0:
        return average_model(model, ranks, left_out, ahead, reduce_dtype, units, precision, init)
    manager = Manager(model, optimizer or NoOptimizer(model), find_units(model, units), ranks, Settings(
        stage, placement, stage == 3 and hosts is None, UNLIMITED_BUFFERS if stage == 1 else buffers, ahead, prefetch,
        reshard, init, _PRECISIONS[precision], compression, left_out, state_directory, reduce_dtype))
    return (model, manager.optimizer) if optimizer else await_optimizer(manager, gradients == "whole")


def _check_arguments(model: nn.Module, optimizer: torch.optim.Optimizer | None, gradients: str, placement: str,
                     precision: str | None, compression: str | Compression | None, state_directory: Any) -> None:
    """Raises ValueError for a DistributedDataParallel model, an optimizer of zero.sharded, and invalid arguments.
    Raises NotImplementedError for compression with stage 0, and for state_directory= without an optimizer."""
    if isinstance(model, DistributedDataParallel):
        raise ValueError("zero.shard: the model is a DistributedDataParallel, which sums gradients itself; pass its "
                         "module, or use zero.wrap_ddp")
    if isinstance(optimizer, ShardedOptimizer):
        raise ValueError("zero.shard: the optimizer is of zero.sharded, which already divides its state; pass one of "
                         "torch's")
    if gradients not in ("shards", "whole") or (gradients == "whole" and optimizer is not None):
        raise ValueError(f"zero.shard: gradients={gradients!r}; it must be 'shards', or 'whole' without an optimizer")
    if state_directory is not None and optimizer is None:
        raise NotImplementedError("zero.shard: state_directory= needs the optimizer; one that is made afterwards runs "
                                  "in Python and has its state in memory")
    if placement == "whole" and compression is not None:
        raise NotImplementedError("zero.shard: stage 0 does not compress gradients; DistributedDataParallel does with "
                                  "torch_tutti.compression.compress, and so do stages 1 to 3")
    if precision not in _PRECISIONS:
        raise ValueError(f"zero.shard: precision={precision!r}; it must be 'bf16', 'fp16' or None")


def _placement_of(stage: int, hosts: str | None) -> str:
    """Returns the placement that a stage and the argument `hosts` select: "shared", "sharded", "replicated" or "whole".
    Raises ValueError for invalid arguments."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"zero.shard: stage {stage!r}; it must be 0, 1, 2 or 3")
    allowed = ("shared", "sharded") if stage == 3 else ("replicated",) if stage else ("whole",)
    if hosts not in (None, *allowed):
        raise ValueError(f"zero.shard: hosts={hosts!r} with stage {stage}; it can be "
                         f"{' or '.join(map(repr, allowed))}")
    return hosts or allowed[0]
