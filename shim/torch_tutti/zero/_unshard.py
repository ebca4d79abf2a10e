"""Ends the division of a model, for good or to divide it again with other parameters."""
from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from torch_tutti._optimizer_trial import HOOKS_OF_STEPS, optimizer_like
from torch_tutti.zero._parameters import collect_managed

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager
    from torch_tutti.zero._optimizer import ZeroOptimizer


class Ended:
    """Takes the place of the Manager and its parts in an optimizer after unshard(), or after an error in
    divide_again(): each use raises RuntimeError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError("zero: this optimizer has ended by unshard(), or by an error in divide_again(); use the "
                           "optimizer that unshard() returned, or continue from a checkpoint")

    def __bool__(self) -> bool:
        return self.__getattr__("")


def unshard(optimizer: ZeroOptimizer) -> torch.optim.Optimizer:
    """Does what ZeroOptimizer.unshard() documents."""
    if optimizer.shares_model:
        raise NotImplementedError(f"zero: optimizer.unshard() of a model that {optimizer.shares_model}; save "
                                  "model.state_dict() and optimizer.state_dict(), and load them into new objects")
    result, state, _ = _leave_division(optimizer, "optimizer.unshard()")
    for parameter, found in state.items():
        result.state[parameter] = {
            name: value.to(parameter.dtype) if torch.is_tensor(value) and value.is_floating_point() and value.dim()
            else value for name, value in found.items() if name != "master"}
    vars(optimizer).update(dict.fromkeys(optimizer._of_manager, Ended()))
    gc.collect()                        # the Manager refers to itself; with it the core's memory goes
    return result


def divide_again(optimizer: ZeroOptimizer, added: dict[str, Any] | None = None) -> None:
    """Does what ZeroOptimizer.divide_again() documents. added: a new parameter group for the optimizer, or None. If
    optimizer and model do not fit together, changes nothing and raises ValueError."""
    manager = optimizer._manager
    call = "optimizer.add_param_group()" if added else "optimizer.divide_again()"
    groups = [*optimizer.param_groups, *([_complete(added)] if added else [])]
    group_of = {p: number for number, group in enumerate(groups) for p in group["params"]}
    model, units, group, settings = manager.model, manager.given_units, manager.group, manager.settings
    collect_managed([model, *units], group_of, manager.unmanaged, manager.dtype)
    kind = type(manager)
    del manager                         # this frame would keep it alive
    ordinary, state, residuals = _leave_division(optimizer, call)
    ordinary.state.update(state)
    if added:
        ordinary.add_param_group(added)
    for name in optimizer._of_manager:
        del vars(optimizer)[name]
    gc.collect()                        # before the new memory is allocated
    try:
        fresh = kind(model, ordinary, units, group, settings)
    except BaseException:
        vars(optimizer).update(dict.fromkeys(optimizer._of_manager, Ended()))
        raise
    optimizer._of_manager = fresh.optimizer._of_manager
    vars(optimizer).update({name: vars(fresh.optimizer)[name] for name in optimizer._of_manager})
    fresh.optimizer = optimizer._checkpoint.optimizer = optimizer
    optimizer._checkpoint._load_residuals(residuals)


def _complete(group: dict[str, Any]) -> dict[str, Any]:
    """Returns a parameter group whose "params" is a list of tensors, as torch's add_param_group makes it."""
    given = group["params"]
    parameters = [given] if torch.is_tensor(given) else list(given)
    return {**group, "params": [each[1] if isinstance(each, tuple) else each for each in parameters]}


@torch.no_grad()
def _leave_division(optimizer: ZeroOptimizer, call: str) -> tuple[torch.optim.Optimizer, dict[torch.Tensor, Any],
                                                                  dict[str, torch.Tensor]]:
    """Moves all parameters into ordinary memory, and removes what zero has put into the model. Returns an ordinary
    optimizer with the groups of the given one and without state; the state of each parameter, in float32 or float64;
    and the residuals of compression by name. call: for error texts. Collective."""
    manager = optimizer._manager
    if optimizer.has_siblings:
        raise NotImplementedError(f"zero: {call} of a model with several optimizers; save model.state_dict() and the "
                                  "state_dict() of each, and load them into new objects")
    if optimizer._gradients.are_shown:
        raise RuntimeError(f"zero: {call} between a backward pass and its step, whose gradients would be lost; take "
                           "the step first, or drop them with zero_grad()")
    manager.check_parameters(finds_new=False)
    manager.await_all(call)
    state = optimizer._checkpoint.state_dict(on_all_ranks=True)
    with manager.whole():
        values = [_whole_value(manager, number) for number in range(len(manager.managed))]
    manager.detach()
    manager.frozen.restore()
    for (_, parameter, _), value in zip(manager.managed, values):
        parameter.data = value
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return (_ordinary_optimizer(optimizer), {parameters[index]: found for index, found in state["state"].items()},
            state.get("lost", {}))


def _whole_value(manager: Manager, number: int) -> torch.Tensor:
    """Returns the values of a parameter in the type that it had before zero divided the model. Collective."""
    parameter = manager.managed[number].parameter
    if manager.given_dtypes[number] == parameter.dtype:
        return parameter.detach().clone()
    # the optimizer's values, of which the bfloat16 parameter is a rounded copy
    value = manager.core.piece(number).value
    return manager.optimizer._checkpoint._gather_whole(number, "master", parameter.shape, value)


def _ordinary_optimizer(optimizer: ZeroOptimizer) -> torch.optim.Optimizer:
    """Returns an optimizer of the class of the given one, with the groups and hooks of `optimizer`."""
    result = optimizer_like(optimizer._bare, optimizer.param_groups)
    for name in HOOKS_OF_STEPS:
        setattr(result, name, getattr(optimizer, name))
    return result
