"""What zero has modules of torch call, and torch's own functions that it goes before."""
from __future__ import annotations

import functools
from typing import Any, Callable

import torch

_before: list[Callable[..., Any]] = []                  # torch's clip_grad_norm_, once it is gone before


class Hook:
    """A call at the module it was made for. A copy of it, as one that was pickled, does nothing: copies of a model are
    nobody's."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return None if self.call is None else self.call(*arguments)

    def __reduce__(self) -> Any:
        return Hook, ()


def clip_ours(manager_of: Callable[[torch.Tensor], Any]) -> None:
    """From now on torch.nn.utils.clip_grad_norm_ takes parameters whose gradients are zero's, too: it would find none,
    and clip nothing. Who has bound the function before has torch's. manager_of: of a parameter, or None."""
    if _before:
        return
    theirs = torch.nn.utils.clip_grad_norm_
    _before.append(theirs)

    @functools.wraps(theirs)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
                        foreach: bool | None = None) -> torch.Tensor:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        managers = {manager_of(p) for p in given}
        if not any(managers):
            return theirs(given, max_norm, norm_type, error_if_nonfinite, foreach)
        found = [manager for manager in managers if manager]
        trained = {p for p in given if p.requires_grad}
        if len(found) > 1 or trained != {o.parameter for o in found[0].owned}:
            raise ValueError("torch.nn.utils.clip_grad_norm_: some of these parameters are sharded by "
                             "torch_tutti.zero; clip all parameters of that model in one call, and no others")
        return found[0].optimizer.clip_grad_norm_(max_norm, norm_type, error_if_nonfinite)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        module.clip_grad_norm_ = clip_grad_norm_
