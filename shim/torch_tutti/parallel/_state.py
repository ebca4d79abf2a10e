"""Functions for models with divided layers: whole states, sums of gradients of modules that see only a piece of the
sequence, and clipping by the norm of the whole model."""
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
    """Returns {name in state_dict(): (layer, name in the layer)} for each parameter of divided layers."""
    return {f"{path}.{name}" if path else name: (layer, name)
            for path, layer in model.named_modules(remove_duplicate=False)
            if isinstance(layer, Divided) for name in layer.shapes()}


@torch.no_grad()
def full_state(model: nn.Module) -> dict[str, Any]:
    """Returns on every rank the state_dict that the undivided model would have. Divided parameters are copies; the
    others are the model's own. Collective: all ranks call it."""
    state, whole = model.state_dict(), {}
    for key, (layer, name) in parts_of(model).items():
        parameter = id(getattr(layer, name))                # an embedding may be the last layer's weight, too
        if parameter not in whole:
            whole[parameter] = layer.whole(name, state[key])
        state[key] = whole[parameter]
    return state


def load_full_state(model: nn.Module, state: dict[str, Any], strict: bool = True) -> Any:
    """Loads this rank's part of a state_dict of the undivided model. Returns what model.load_state_dict() returns, and
    raises what that raises; ValueError for shapes that are not those of the whole layers."""
    own_parts = {key: layer.part(name, state[key]) for key, (layer, name) in parts_of(model).items() if key in state}
    return model.load_state_dict({**state, **own_parts}, strict)


class _Sum:
    """A hook that sums a parameter's gradient over the ranks. Its method restore(), a hook before the module's forward,
    installs it again on copies of parameters: deepcopy, pickle and to_empty drop hooks of parameters and keep hooks of
    modules."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient if self.ranks.size == 1 else summed(gradient, 0, self.ranks)

    def restore(self, module: nn.Module, _: Any = None) -> None:
        """Installs this hook on the module's trained parameters that have none."""
        if torch.compiler.is_compiling():
            return
        for parameter in module.parameters():
            if parameter.requires_grad and not is_summed(parameter):
                parameter.register_hook(self)


def is_summed(parameter: Tensor) -> bool:
    """True if a _Sum is installed on the parameter."""
    return any(isinstance(hook, _Sum) for hook in (parameter._backward_hooks or {}).values())


def sum_gradients(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Sums the gradients of the module's parameters over the ranks from now on, in each backward pass, before they are
    added to .grad. For modules between layers with sequence=True, such as norms, which see a piece of the sequence.
    Copies of the module do so from their first forward pass that is not compiled.

    Raises ValueError if a divided layer is in the module, or its gradients are summed already."""
    ranks = ranks_of(group)
    divided = [path for path, layer in module.named_modules() if isinstance(layer, Divided)]
    summed = [name for name, parameter in module.named_parameters() if is_summed(parameter)]
    if divided:
        raise ValueError(f"parallel: {divided[0] or 'the module'} is a divided layer, whose gradients need no sum; "
                         "pass sum_gradients the modules between such layers")
    if summed:
        raise ValueError(f"parallel: gradients of {summed[0]} are summed already")
    hook = _Sum(ranks)
    module.register_forward_pre_hook(hook.restore)
    hook.restore(module)


@torch.no_grad()
def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor:
    """Does what torch.nn.utils.clip_grad_norm_ does for the whole model: scales gradients so that their norm is at most
    max_norm. The parts of a divided gradient count on all ranks, other gradients once. Returns the norm before
    clipping. Collective over the groups of the model's layers."""
    layers = parts_of(model).values()
    group_of = {id(getattr(layer, name)): layer.ranks for layer, name in layers if name in layer.divided}
    gradients = [(group_of.get(id(parameter)), parameter.grad) for parameter in model.parameters()
                 if parameter.grad is not None]
    total = torch.zeros((), device=next(model.parameters()).device)
    for ranks in [None, *sorted(set(group_of.values()))]:
        norms = [torch.linalg.vector_norm(gradient.float()) for its_ranks, gradient in gradients if its_ranks == ranks]
        square = torch.stack(norms).square().sum() if norms else torch.zeros_like(total)
        total = total + (square if ranks is None or ranks.size == 1 else summed(square.view(1), 0, ranks)[0])
    norm = total.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for _, gradient in gradients:
        gradient.mul_(scale.to(gradient.dtype))
    return norm
