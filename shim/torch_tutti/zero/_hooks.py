"""Hooks that zero installs in torch's modules, and the replacement of torch.nn.utils.clip_grad_norm_."""
from __future__ import annotations

import functools
from typing import Any, Callable

import torch

# torch's clip_grad_norm_, once replace_clip_grad_norm() has replaced it
_replaced: list[Callable[..., Any]] = []


class Hook:
    """A hook that calls `call`, or does nothing with None. A copied or unpickled Hook does nothing, because zero does
    not manage copies of a model."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return None if self.call is None else self.call(*arguments)

    def __reduce__(self) -> Any:
        """Makes copy and pickle create a Hook without a call."""
        return Hook, ()


def replace_clip_grad_norm(manager_of: Callable[[torch.Tensor], Any]) -> None:
    """Replaces torch.nn.utils.clip_grad_norm_, once in a process, by a function that also clips gradients that zero
    keeps; torch's would find no .grad and clip nothing. A program that imported the function earlier still has torch's.
    manager_of: returns the Manager of a parameter, or None."""
    if _replaced:
        return
    original = torch.nn.utils.clip_grad_norm_
    _replaced.append(original)

    @functools.wraps(original)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                        foreach: bool | None = None) -> torch.Tensor:
        """Clips the parameters of one sharded model together; other parameters as torch does. Raises ValueError for a
        part of a model."""
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        managers = {manager_of(parameter) for parameter in listed}
        if not any(managers):
            return original(listed, max_norm, norm_type, error_if_nonfinite, foreach)
        present = [manager for manager in managers if manager]
        trained = {parameter for parameter in listed if parameter.requires_grad}
        if len(present) > 1 or trained != {entry.parameter for entry in present[0].managed}:
            raise ValueError("torch.nn.utils.clip_grad_norm_: some of these parameters are sharded by "
                             "torch_tutti.zero; clip all parameters of that model in one call, and no others")
        return present[0].optimizer.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        module.clip_grad_norm_ = clip_grad_norm_
