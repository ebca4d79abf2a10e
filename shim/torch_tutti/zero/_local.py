"""Steps the parameters that zero ignores and the given optimizer has: whole, and on this rank alone."""
from __future__ import annotations

from typing import Any

import torch

from torch_tutti._optimizer_trial import optimizer_like, step_without_hooks
from torch_tutti.zero._composite import copied


class LocalParameters:
    """The parameters of an optimizer that this rank steps by itself, from their ordinary gradients."""

    def __init__(self, given: torch.optim.Optimizer, ignored: set[torch.Tensor]) -> None:
        """Takes the options of `given`, and those of its parameters that are in `ignored`."""
        self.parameters = [p for group in given.param_groups for p in group["params"] if p in ignored]
        self.optimizer = optimizer_like(given, [{**group, "params": [p for p in group["params"] if p in ignored]}
                                                for group in given.param_groups])

    def step(self, groups: list[dict[str, Any]]) -> None:
        """Takes a step with the current options of these groups, and sets the gradients to None."""
        for own_group, group in zip(self.optimizer.param_groups, groups):
            own_group.update({name: value for name, value in group.items() if name != "params"})
        if self.parameters:
            step_without_hooks(self.optimizer)
            self.zero_grad()

    def zero_grad(self) -> None:
        """Sets the gradients to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def state(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Returns the state of a parameter, which only this rank has; {} before its first step."""
        return dict(self.optimizer.state.get(parameter, {}))

    def load(self, parameter: torch.Tensor, state: dict[str, Any]) -> None:
        """Replaces the state of one of these parameters by a copy of `state`."""
        if any(parameter is each for each in self.parameters):
            self.optimizer.state[parameter] = {name: copied(value) for name, value in state.items()}
