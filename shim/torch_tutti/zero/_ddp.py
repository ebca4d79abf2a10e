"""Lets a program that is written for DistributedDataParallel keep it: the wrapper still computes and synchronises
buffers, but zero sums the gradients and takes the steps."""
from __future__ import annotations

import contextlib
import copy
from types import MethodType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_tutti.zero._hooks import Hook
from torch_tutti.zero._shard import shard
from torch_tutti.zero._optimizer import ZeroOptimizer


def wrap_ddp(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, *, stage: int = 0,
             **options: Any) -> ZeroOptimizer:
    """Lets zero sum the gradients of a DistributedDataParallel and take the steps of its optimizer. Returns the
    optimizer to use in its place. Collective. The rest of the program stays as it is: calls of `ddp`, `ddp.no_sync()`,
    `ddp.zero_grad()`, buffers that follow rank 0's, clipping by torch.nn.utils, state dicts. But `grad` has no memory
    after backward(), and parameters are changed in `with optimizer.edit():`.

    stage: 0: nothing is divided, as in DistributedDataParallel; with ahead=True the step is taken while the next
    forward pass begins. 1 to 3 divide as in `zero.shard`, whose other arguments may follow. Communication hooks and
    join() raise an error, because no gradient passes through the wrapper any more; instead of a hook, use compression=
    of zero.shard (stages 1 to 3)."""
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"zero.wrap_ddp: a {type(ddp).__name__} is not a DistributedDataParallel; zero.shard takes "
                         "any model")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"zero.wrap_ddp: a {type(optimizer).__name__} is not an optimizer; for several optimizers use "
                         "zero.shard_several with the wrapper's module")
    for feature, is_used in (("a communication hook", ddp._comm_hooks), ("mixed_precision", ddp.mixed_precision),
                             ("parameters that it ignores or delays", ddp.parameters_to_ignore
                              or ddp._delay_all_reduce_params)):
        if is_used:
            raise ValueError(f"zero.wrap_ddp: the DistributedDataParallel has {feature}; make it without")
    _, sharded = shard(ddp.module, optimizer, stage=stage, group=ddp.process_group, **options)
    sharded.shares_model = "is in a DistributedDataParallel, which would average no gradients any more"
    _take_over_gradients(ddp, sharded)
    return sharded


def _take_over_gradients(ddp: DistributedDataParallel, optimizer: ZeroOptimizer) -> None:
    """Removes the wrapper's own reduction of gradients, and replaces its methods that concern gradients by the
    optimizer's. The wrapper still synchronises buffers."""
    original_flags = {name: getattr(ddp, name)
                      for name in ("require_backward_grad_sync", "find_unused_parameters", "static_graph")}
    ddp.reducer._remove_autograd_hooks()

    @contextlib.contextmanager
    def no_sync(_: DistributedDataParallel) -> Any:
        """Replaces the wrapper's no_sync() by the optimizer's."""
        with optimizer.no_sync():
            yield

    def zero_grad(_: DistributedDataParallel, set_to_none: bool = True) -> None:
        """Replaces the wrapper's zero_grad() by the optimizer's."""
        optimizer.zero_grad(set_to_none)

    def raise_unsupported(*_: Any, **__: Any) -> Any:
        """Raises NotImplementedError, in place of the methods that need the wrapper's own gradients."""
        raise NotImplementedError("zero.wrap_ddp: zero handles the gradients of this DistributedDataParallel; "
                                  "communication hooks, join() and static graphs are not supported")

    def set_buffer_sync(module: torch.nn.Module, *_: Any) -> None:
        """A forward hook. The next forward synchronises buffers if this one was part of training, outside no_sync().
        DistributedDataParallel.forward() decides this by require_backward_grad_sync, which is False here, so this
        hook corrects its decision."""
        if module is ddp:               # a shallow copy of the wrapper shares this hook
            ddp.require_forward_param_sync = torch.is_grad_enabled() and not optimizer.holds

    def deepcopy_original(_: DistributedDataParallel, memo: Any) -> DistributedDataParallel:
        """Returns an ordinary DistributedDataParallel: copies the wrapper with its own methods and flags restored."""
        for name in replacements:
            del vars(ddp)[name]
        vars(ddp).update(original_flags)
        try:
            return copy.deepcopy(ddp, memo)
        finally:
            vars(ddp).update(replacements)
    replacements = {
        "no_sync": MethodType(no_sync, ddp), "zero_grad": MethodType(zero_grad, ddp),
        "__deepcopy__": MethodType(deepcopy_original, ddp), **dict.fromkeys(original_flags, False),
        **dict.fromkeys(("register_comm_hook", "join_hook", "join", "_set_static_graph"), raise_unsupported)}
    vars(ddp).update(replacements)
    # in a deep copy or after unpickling, a Hook does nothing
    ddp.register_forward_hook(Hook(set_buffer_sync))
