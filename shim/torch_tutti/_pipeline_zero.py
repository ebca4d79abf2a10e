"""Pipelines whose stages zero.shard has divided: zero adds up the gradients of all microbatches of a step, and averages
them over the ranks once, at its end."""
from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterable, Iterator

import torch
from torch import nn


class ShardedStages:
    """The parameters of a rank's stages that zero manages; there may be none. is_held: the program calls step() inside
    a block of no_sync(), so zero averages the gradients of several steps together, later."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        """Finds the managers of parameters. modules: the stages."""
        zero = sys.modules.get("torch_tutti.zero._model")
        # {Manager: numbers of its parameters}
        self._numbers_of: dict[Any, set[int]] = {}
        for parameter in (p for module in modules for p in module.parameters()) if zero else ():
            manager = zero._managers.get(parameter, lambda: None)()
            if manager is not None:
                self._numbers_of.setdefault(manager, set()).add(manager.number_of[parameter])
        self.is_held = any(manager.optimizer.holds for manager in self._numbers_of)

    @property
    def parameters(self) -> set[nn.Parameter]:
        """Returns the parameters that zero manages."""
        return {manager.managed[number].parameter for manager, numbers in self._numbers_of.items()
                for number in numbers}

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """A block of no_sync() of all managers."""
        with contextlib.ExitStack() as blocks:
            for manager in self._numbers_of:
                blocks.enter_context(manager.optimizer.no_sync())
            yield

    @torch.no_grad()
    def finish(self, factor: float) -> None:
        """Multiplies the gradients by a factor, and lets zero average them over its groups, at optimizer.step() at the
        latest. Does nothing if the program holds the gradients (is_held). Collective over the groups of zero."""
        for manager, numbers in self._numbers_of.items() if not self.is_held else ():
            for number in sorted(numbers, reverse=True):
                parameter = manager.managed[number].parameter
                make_room([parameter])
                if parameter.requires_grad and _multiply(manager, number, factor):
                    # one more backward pass: it adds 0, and zero's hooks then average the gradient
                    torch.autograd.backward([parameter], [parameter.new_zeros(()).expand_as(parameter)])


def _multiply(manager: Any, number: int, factor: float) -> bool:
    """Multiplies what zero has of a gradient, and what is in `grad`. Returns False if there is no gradient."""
    parameter = manager.managed[number].parameter
    buffer, has_gradient = manager.core.gradient(number)
    if has_gradient and factor != 1.0:
        buffer.mul_(factor)
    if parameter.grad is not None and factor != 1.0:
        parameter.grad.mul_(factor)
    return has_gradient or parameter.grad is not None


def make_room(parameters: Iterable[nn.Parameter]) -> None:
    """Removes the gradients that zero shows in `grad`: torch's functions for divided backward passes add to `grad`."""
    gradients = sys.modules.get("torch_tutti.zero._gradients")
    for parameter in parameters if gradients else ():
        if isinstance(parameter.grad, gradients.DividedGradient):
            parameter.grad = None
