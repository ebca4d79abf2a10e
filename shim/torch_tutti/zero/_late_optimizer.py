"""Stages 1 to 3 without an optimizer: any optimizer that the program makes afterwards over the model's parameters steps
what this rank has of them: flat pieces, or whole parameters."""
from __future__ import annotations

import copy
import functools
import weakref
from typing import Any, Iterable

import torch
from torch import nn
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torch_tutti._optimizer_trial import OF_SCALER, optimizer_like, step_without_hooks
from torch_tutti.zero._core import Piece
from torch_tutti.zero._gradients import DividedGradient, Gradients
from torch_tutti.zero._hooks import Hook, Owners
from torch_tutti.zero._model import Manager
from torch_tutti.zero._optimizer import NoOptimizer, ZeroOptimizer, find_optimizer_reach
from torch_tutti.zero._sharded_optimizer import ShardedOptimizer

_ADVICE_WHEN_WHOLE = (", or run the earlier backward passes of a step in a block of zero.no_sync(model). With "
                      "gradients='whole' each backward pass averages, and reentrant checkpointing runs one for each "
                      "checkpoint: call torch.utils.checkpoint.checkpoint with use_reentrant=False")

# the LateSteps of a model's trained parameters
_steps_of = Owners()
# {model: a weak reference to its LateSteps, which a hook of the model keeps alive}
_steps_of_model: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


def optimizer_of_model(model: nn.Module) -> ZeroOptimizer | None:
    """Returns the optimizer inside a model that was sharded without one, or None."""
    steps = _steps_of_model[model]() if model in _steps_of_model else None
    return None if steps is None else steps.manager.optimizer


def await_optimizer(manager: Manager, has_whole_gradients: bool) -> nn.Module:
    """Connects the model of a manager, whose optimizer is a NoOptimizer, to the optimizer that the program makes next.
    Returns the model."""
    return LateSteps(manager, has_whole_gradients).manager.model


class LateOptimizer(ZeroOptimizer):
    """The ZeroOptimizer behind an optimizer that the program made after zero.shard. whole_gradients: {number of a
    parameter: its averaged gradient} for a step from whole gradients."""
    whole_gradients: dict[int, torch.Tensor] | None = None
    edit_call = "zero.edit(model)"
    advice_to_train = "set requires_grad before zero.shard"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises NotImplementedError, except when torch.optim.Optimizer's constructor calls it."""
        if hasattr(self, "_manager"):
            raise NotImplementedError("zero: a group cannot be added to the optimizer of a model that was sharded "
                                      "without one; give the optimizer all groups before its first step")
        super().add_param_group(param_group)

    def _piece(self, number: int) -> Piece:
        """Returns this rank's piece of a parameter, with the averaged gradient for the step."""
        piece = super()._piece(number)
        if self.whole_gradients is None:
            return piece
        whole = self.whole_gradients.get(number)
        flat = None if whole is None else self._manager.managed[number].flatten(whole)
        gradient = None if flat is None else flat[piece.at: piece.at + piece.value.numel()]
        return piece._replace(gradient=gradient, used=whole is not None)


class WholeGradients(Gradients):
    """Sets `grad` to whole averaged gradients at the end of a backward pass."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        # running_pass: the number of the backward pass whose end has not come, or -1; an error may have ended it
        self.manager, self.running_pass = weakref.ref(manager), -1

    def show(self, number: int) -> None:
        """Called for each gradient in a backward pass; at its end sets `grad` of all parameters. In no_sync `grad` is a
        DividedGradient, by which zero knows later whether the program has cleared it."""
        manager = self.manager()
        if manager is not None and manager.optimizer.holds:
            return super().show(number)
        if manager is None or self.running_pass == torch._C._current_graph_task_id():
            return
        self.running_pass = torch._C._current_graph_task_id()
        Variable._execution_engine.queue_callback(self._show_all)

    def take(self) -> dict[int, torch.Tensor] | None:
        """Removes the gradients from `grad`. Returns {number of a parameter: its gradient} of those that the program
        left; None if there are only those of passes in no_sync, which no rank has averaged."""
        found = {number: parameter.grad for number, parameter in enumerate(self.parameters)
                 if parameter.grad is not None}
        for parameter in self.parameters:
            parameter.grad = None
        whole = {number: gradient for number, gradient in found.items() if not isinstance(gradient, DividedGradient)}
        is_cleared = self.are_shown and not found
        return whole if whole or self.pieces or is_cleared else None

    @torch.no_grad()
    def _show_all(self) -> None:
        """Waits until all gradients are averaged, and sets `grad` of the parameters that have one on any rank, and None
        for the others. Collective."""
        manager = self.manager()
        if manager is None:
            return
        self._settle()
        self.are_shown, self.running_pass = True, -1
        for number, parameter in enumerate(self.parameters):
            piece = self.core.piece(number)
            self.make_room(number)
            if piece.used:
                own = parameter.new_empty(0) if piece.gradient is None else piece.gradient.to(parameter.dtype)
                parameter.grad = manager.optimizer._checkpoint._gather_whole(number, "gradient", parameter.shape, own)


class LateSteps:
    """Connects a sharded model to the optimizer that the program makes of its parameters."""

    def __init__(self, manager: Manager, has_whole_gradients: bool) -> None:
        """Installs a hook in the steps of all torch optimizers, and replaces their load_state_dict(), once in a
        process."""
        self.manager = manager
        if has_whole_gradients:
            manager.gradients = WholeGradients(manager)
            manager.core.advice_on_late_gradients = _ADVICE_WHEN_WHOLE
        self.given: torch.optim.Optimizer | None = None
        self._hook: Any = None          # the handle of the hook in the steps of self.given
        manager.optimizer = LateOptimizer(manager, NoOptimizer(manager.model))
        _steps_of.add(self, [entry.parameter for entry in manager.managed])
        _steps_of_model[manager.model] = weakref.ref(self)

        def drop_cleared(model: nn.Module, *_: Any) -> None:
            if model is manager.model:
                self.drop_cleared_gradients()
        manager.model.register_forward_pre_hook(Hook(drop_cleared))
        if not _installed:
            _installed.append(register_optimizer_step_pre_hook(_before_step))
            torch.optim.Optimizer.load_state_dict = _load_state_dict    # type: ignore[method-assign]

    def drop_cleared_gradients(self) -> None:
        """Called before the model computes: drops the gradients if the program has set `grad` of all parameters to
        None, as torch's zero_grad() does, or if an error has ended a backward pass before `grad` of any parameter was
        set. Collective then."""
        gradients = self.manager.gradients
        is_unfinished = torch._C._current_graph_task_id() == -1 and (
            bool(self.manager.written) or isinstance(gradients, WholeGradients) and gradients.running_pass != -1)
        if ((gradients.are_shown or is_unfinished) and torch.is_grad_enabled()
                and all(p.grad is None for p in gradients.parameters)):
            self.manager.optimizer.zero_grad()
            if isinstance(gradients, WholeGradients):
                gradients.running_pass = -1

    def prepare_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when an optimizer with parameters of the model begins a step, before its own hooks. Adopts the first
        one. Raises RuntimeError for another one."""
        if self.given is None:
            self._adopt(optimizer)
        if self.given is not optimizer:
            raise RuntimeError(f"zero: a second optimizer, {type(optimizer).__name__}, steps parameters of a model "
                               f"that was sharded without an optimizer; a {type(self.given).__name__} has stepped "
                               "them before. Make one optimizer with several groups")
        # after all hooks that the program has registered by now
        if self._hook is not None:
            self._hook.remove()
        self._hook = optimizer.register_step_pre_hook(self._take_step)

    def _adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the optimizer the model's: its state is divided from now on, and its calls are for all ranks."""
        if isinstance(optimizer, ShardedOptimizer):
            raise ValueError("zero: the optimizer is of zero.sharded, which needs a model of stage 0; zero.shard has "
                             "divided this model, so make one of torch's")
        if any(p.requires_grad and p not in self.manager.number_of and p not in self.manager.unmanaged
               for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(f"zero: the {type(optimizer).__name__} has trained parameters that are not in the model "
                             "that zero.shard divided; make another optimizer for them")
        before = self.manager.optimizer
        self.manager.finding = find_optimizer_reach(optimizer, "none", self.manager.core.placement)
        own = LateOptimizer(self.manager, optimizer)
        own.arrival_timeout = before.arrival_timeout
        self.given, self.manager.optimizer = optimizer, own
        for parameter in self.manager.number_of:
            optimizer.state.pop(parameter, None)
        for name in ("state_dict", "load_state_dict", "zero_grad", "add_param_group"):
            setattr(optimizer, name, getattr(own, name))

    def _take_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> Any:
        """The hook in the steps of the adopted optimizer: steps the pieces. Returns the arguments of its own step: a
        stand-in, so that this step changes nothing, and the closure's result in place of the closure."""
        own, closure = self.manager.optimizer, keywords.get("closure", (*arguments, None)[1])
        assert isinstance(own, LateOptimizer)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if isinstance(own._gradients, WholeGradients):
            own.whole_gradients = own._gradients.take()
        if _unscale(own, optimizer):
            step_without_hooks(own)
        own.whole_gradients = None
        return ((_stand_in(optimizer), *([] if closure is None else [lambda: result])),
                {name: value for name, value in keywords.items() if name != "closure"})


@torch.no_grad()
def _unscale(own: LateOptimizer, optimizer: torch.optim.Optimizer) -> bool:
    """Does what a fused optimizer does in its step for torch.amp.GradScaler: divides the gradients by the scale, which
    GradScaler has stored in an attribute of the optimizer. Returns False if a gradient is not finite on some rank; then
    the caller takes no step."""
    scale, found_inf = (getattr(optimizer, name, None) for name in OF_SCALER)
    if found_inf is not None and found_inf.item():
        return False
    if scale is not None and own.whole_gradients is None:
        own._gradients.scale /= scale.item()
    elif scale is not None:
        for gradient in own.whole_gradients.values():
            gradient.div_(scale.item())
    return True


def _stand_in(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Returns an optimizer of the same class and options with one tiny parameter of zeros in each group, whose gradient
    is zeros: some classes count steps in the options of their groups, or fail in a step without gradients."""
    groups = []
    for group in optimizer.param_groups:
        shape = (1,) * max((p.dim() for p in group["params"]), default=1)
        zeros = nn.Parameter(torch.zeros(shape))
        zeros.grad = torch.zeros(shape)
        options = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        groups.append({**copy.deepcopy(options), "params": [zeros]})
    return optimizer_like(optimizer, groups)


# the handle of the hook in the steps of all optimizers
_installed: list[Any] = []


def _before_step(optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
    """The hook in the steps of all optimizers."""
    parameters: Iterable[Any] = (p for group in optimizer.param_groups for p in group["params"])
    steps = next((found for p in parameters if (found := _steps_of.find(p)) is not None), None)
    if steps is not None and not isinstance(optimizer, ZeroOptimizer):
        steps.prepare_step(optimizer)


# torch's method, which _load_state_dict() replaces
_load_in_torch = torch.optim.Optimizer.load_state_dict


@functools.wraps(_load_in_torch)
def _load_state_dict(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Does what torch's method does, but for 16-bit parameters whose model was sharded without an optimizer keeps the
    types of the state. torch rounds the state to 16 bits; zero steps such parameters in float32."""
    narrow = {p for group in optimizer.param_groups for p in group["params"]
              if p.dtype.itemsize == 2 and _steps_of.find(p) is not None}
    if not narrow:
        return _load_in_torch(optimizer, state_dict)
    loaded = [state_dict]

    def record(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        loaded.append(state)            # hooks of the program may have changed it
    handles = [optimizer.register_load_state_dict_pre_hook(record), optimizer.register_load_state_dict_post_hook(
        lambda _: _restore_types(optimizer, loaded[-1], narrow), prepend=True)]
    try:
        _load_in_torch(optimizer, state_dict)
    finally:
        for handle in handles:
            handle.remove()


def _restore_types(optimizer: torch.optim.Optimizer, loaded: dict[str, Any], parameters: set[torch.Tensor]) -> None:
    """Gives an optimizer the values of a loaded state that torch has converted, for these parameters."""
    saved_ids = (each for group in loaded["param_groups"] for each in group["params"])
    own = (each for group in optimizer.param_groups for each in group["params"])
    for saved_id, parameter in zip(saved_ids, own):
        state = optimizer.state.get(parameter, {}) if parameter in parameters else {}
        saved = loaded["state"].get(saved_id, {})
        state.update({name: saved[name] for name, value in state.items() if torch.is_tensor(value)
                      and torch.is_tensor(saved.get(name)) and saved[name].dtype != value.dtype})
