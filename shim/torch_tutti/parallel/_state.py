"""Models that have divided layers: whole states, gradients of what is whole on each rank but used on a piece of the
sequence, and norms of gradients."""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from torch_tutti.parallel._collectives import Ranks, ranks_of, summed
from torch_tutti.parallel._layers import Divided

__all__ = ["clip_grad_norm_", "full_state", "load_full_state", "sum_gradients"]


def parts_of(model: nn.Module) -> dict[str, tuple[Divided, str]]:
    """Of each parameter of divided layers, under its name in state_dict(): the layer, and its name there."""
    return {f"{at}.{name}" if at else name: (layer, name) for at, layer in model.named_modules(remove_duplicate=False)
            if isinstance(layer, Divided) for name in layer.shapes()}


@torch.no_grad()
def full_state(model: nn.Module) -> dict[str, Any]:
    """model.state_dict() as that of the same model in one process, on each rank, of which divided parameters are copies
    and others the model's own. Collective: all ranks call it."""
    state, whole = model.state_dict(), {}
    for key, (layer, name) in parts_of(model).items():
        parameter = id(getattr(layer, name))                # an embedding may be the last layer's weight, too
        if parameter not in whole:
            whole[parameter] = layer.whole(name, state[key])
        state[key] = whole[parameter]
    return state


def load_full_state(model: nn.Module, state: dict[str, Any], strict: bool = True) -> Any:
    """model.load_state_dict() of a state_dict of one process, of which each rank takes its part. Raises ValueError for
    shapes that are not those of the whole layers, and what load_state_dict raises."""
    mine = {key: layer.part(name, state[key]) for key, (layer, name) in parts_of(model).items() if key in state}
    return model.load_state_dict({**state, **mine}, strict)


class _Sum:
    """A hook of parameters, which sums their gradients, and one of their module, before its forward pass: a copy of a
    parameter, by deepcopy, pickle or to_empty, has lost its hooks, and a module has kept them."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient if self.ranks.size == 1 else summed(gradient, 0, self.ranks)

    def restore(self, module: nn.Module, _: Any = None) -> None:
        if torch.compiler.is_compiling():
            return
        for parameter in module.parameters():
            if parameter.requires_grad and not is_summed(parameter):
                parameter.register_hook(self)


def is_summed(parameter: Tensor) -> bool:
    return any(isinstance(hook, _Sum) for hook in (parameter._backward_hooks or {}).values())


def sum_gradients(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """From now on gradients of the module's parameters, as those of a norm between layers with sequence=True, which
    sees a piece of the sequence, are summed over the ranks in each backward pass, before they are added to .grad.
    So are those of copies of the module, from its first forward pass that is not compiled.

    Raises ValueError where a divided layer is in the module, or the gradients are summed already.
    """
    ranks = ranks_of(group)
    divided = [at for at, layer in module.named_modules() if isinstance(layer, Divided)]
    known = [name for name, p in module.named_parameters() if is_summed(p)]
    if divided:
        raise ValueError(f"parallel: {divided[0] or 'the module'} is a divided layer, whose gradients need no sum; "
                         "pass sum_gradients the modules between such layers")
    if known:
        raise ValueError(f"parallel: gradients of {known[0]} are summed already")
    hook = _Sum(ranks)
    module.register_forward_pre_hook(hook.restore)
    hook.restore(module)


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor:
    """torch.nn.utils.clip_grad_norm_ of the whole model: gradients are scaled so that their norm is max_norm at most.
    Of divided parameters all ranks' gradients count, of others one. Returns the norm before. Collective, in the groups
    of the model's layers."""
    layers = parts_of(model).values()
    group_of = {id(getattr(layer, name)): layer.ranks for layer, name in layers if name in layer.divided}
    gradients = [(group_of.get(id(p)), p.grad) for p in model.parameters() if p.grad is not None]
    total = torch.zeros((), device=next(model.parameters()).device)
    for ranks in [None, *sorted(set(group_of.values()))]:
        of = [torch.linalg.vector_norm(g.float()) for where, g in gradients if where == ranks]
        square = torch.stack(of).square().sum() if of else torch.zeros_like(total)
        total = total + (square if ranks is None or ranks.size == 1 else summed(square.view(1), 0, ranks)[0])
    norm = total.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm
