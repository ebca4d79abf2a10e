"""A program that is written for DistributedDataParallel keeps it: its wrapper computes and synchronises buffers, zero
sums gradients and takes the steps."""
from __future__ import annotations

import contextlib
import copy
from types import MethodType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from torch_tutti.zero._hooks import Hook
from torch_tutti.zero._model import shard
from torch_tutti.zero._optimizer import ZeroOptimizer


def wrap_ddp(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, *, stage: int = 0,
             **options: Any) -> ZeroOptimizer:
    """Has zero sum the gradients of a DistributedDataParallel and take the steps of its optimizer; returns the
    optimizer to use in its place. Collective. The rest of the program stays as it is: calls of `ddp`, `ddp.no_sync()`,
    `ddp.zero_grad()`, buffers that follow rank 0's, torch.nn.utils.clip_grad_norm_, state dicts. But `grad` is None
    after backward(), and parameters are changed in `with optimizer.edit():`.

    stage: 0, each rank has all, as before; with ahead=True the step is taken while the next forward pass begins. 1 to 3
    divide, as in `zero.shard`, whose other arguments may follow. Hooks of communication and join() are refused, as no
    gradient passes through the wrapper any more: compression= of zero.shard (stages 1 to 3) is for the first."""
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(f"zero.wrap_ddp: a {type(ddp).__name__} is not a DistributedDataParallel; zero.shard takes "
                         "any model")
    for what, there in (("a communication hook", ddp._comm_hooks), ("mixed_precision", ddp.mixed_precision),
                        ("parameters that it ignores or delays", ddp.parameters_to_ignore
                         or ddp._delay_all_reduce_params)):
        if there:
            raise ValueError(f"zero.wrap_ddp: the DistributedDataParallel has {what}; make it without")
    model, sharded = shard(ddp.module, optimizer, stage=stage, group=ddp.process_group, **options)
    _rest(ddp, sharded)
    return sharded


def _rest(ddp: DistributedDataParallel, optimizer: ZeroOptimizer) -> None:
    """Its reducer sees no backward pass; buffers are synchronised as if it did."""
    was = {name: getattr(ddp, name)
           for name in ("require_backward_grad_sync", "find_unused_parameters", "static_graph")}
    ddp.reducer._remove_autograd_hooks()

    @contextlib.contextmanager
    def no_sync(_: DistributedDataParallel) -> Any:
        with optimizer.no_sync():
            yield

    def zero_grad(_: DistributedDataParallel, set_to_none: bool = True) -> None:
        optimizer.zero_grad(set_to_none)

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("zero.wrap_ddp: zero handles the gradients of this DistributedDataParallel; "
                                  "communication hooks, join() and static graphs are not supported")

    def note(called: torch.nn.Module, *_: Any) -> None:
        if called is ddp:               # as its own forward() does
            ddp.require_forward_param_sync = torch.is_grad_enabled() and not optimizer.holds

    def copied(_: DistributedDataParallel, memo: Any) -> DistributedDataParallel:
        """A copy is an ordinary one."""
        for name in ours:
            del vars(ddp)[name]
        vars(ddp).update(was)
        try:
            return copy.deepcopy(ddp, memo)
        finally:
            vars(ddp).update(ours)
    ours = {"no_sync": MethodType(no_sync, ddp), "zero_grad": MethodType(zero_grad, ddp),
            "__deepcopy__": MethodType(copied, ddp), **dict.fromkeys(was, False),
            **dict.fromkeys(("register_comm_hook", "join_hook", "join", "_set_static_graph"), refuse)}
    vars(ddp).update(ours)
    ddp.register_forward_hook(Hook(note))
