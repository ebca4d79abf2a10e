"""Divides a model with several optimizers, each of which has other parameters of it."""
from __future__ import annotations

import contextlib
import gc
from typing import Any, Iterable, Iterator, Sequence

import torch
from torch import nn

from torch_tutti.zero._ignored import check_replicas, find_ignored
from torch_tutti.zero._mesh import group_of_ranks
from torch_tutti.zero._model import restore_model
from torch_tutti.zero._optimizer import ZeroOptimizer
from torch_tutti.zero._shard import shard


def shard_several(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, stage: int = 3,
                  hosts: str | None = None, ignored: Iterable[nn.Module | nn.Parameter] = (),
                  **options: Any) -> tuple[nn.Module, list[ZeroOptimizer]]:
    """Does what zero.shard does, for a model whose trained parameters belong to several optimizers, such as Muon for
    the matrices and AdamW for all else. Returns the model, and the optimizers that replace the given ones, in their
    order. Each has its own step(), zero_grad(), clip_grad_norm_() and state; zero.clip_grad_norm_ clips all together,
    and model.zero_grad() calls zero_grad() of each. All ranks call the optimizers in the same order. Collective.

    If an optimizer is refused, the parameters keep the memory and the values that they had. For this each rank keeps
    the old memory of all parameters until the call ends. The arguments are those of zero.shard. Not for sharded
    parameters, for a model on the meta device and for unshard(), divide_again() and add_param_group(), which raise
    NotImplementedError."""
    if hosts == "sharded" or any(parameter.is_meta for parameter in model.parameters()):
        raise NotImplementedError("zero.shard_several: parameters cannot be sharded or on the meta device if a model "
                                  "has several optimizers; use hosts='shared' or stages 0 to 2, and a model on the CPU")
    parameters_of = [[p for group in optimizer.param_groups for p in group["params"]] for optimizer in optimizers]
    name_of, owned = {parameter: name for name, parameter in model.named_parameters()}, set()
    for parameter in (each for parameters in parameters_of for each in parameters):
        if parameter in owned:
            raise ValueError(f"zero.shard_several: parameter {name_of.get(parameter)} is in several optimizers")
        owned.add(parameter)
    left_out = find_ignored(model, ignored)
    check_replicas(model, group_of_ranks("zero.shard_several", options.get("group")), left_out)
    found: list[ZeroOptimizer] = []
    with _undone_on_error(model, found):
        for optimizer, own in zip(optimizers, parameters_of):
            others = [p for parameters in parameters_of if parameters is not own for p in parameters if p in name_of]
            _, sharded = shard(model, optimizer, stage=stage, hosts="shared" if stage == 3 else hosts,
                               ignored=[*left_out, *others], **options)
            found.append(sharded)
    for sharded in found:
        sharded.has_siblings = len(found) > 1
        sharded.advice_to_train = "set requires_grad before zero.shard_several"
        # parameters of the other optimizers are replicas; because all optimizers have one list `checked`, a clip of all
        # their gradients compares its factor between ranks once
        sharded._gradients.has_ignored = bool(left_out)
        sharded._gradients.checked = found[0]._gradients.checked
    return model, found


@contextlib.contextmanager
def _undone_on_error(model: nn.Module, found: list[ZeroOptimizer]) -> Iterator[None]:
    """After an error in the block the model is as before it, and `found`, the optimizers so far, is empty. But buffers
    and untrained parameters may have the values of rank 0."""
    memory = {parameter: parameter.data for parameter in model.parameters()}
    try:
        yield
    except BaseException:
        restore_model(model, memory)
        found.clear()
        gc.collect()                    # a Manager refers to itself; with it the core's memory goes
        raise
