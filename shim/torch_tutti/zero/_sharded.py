"""Sharded parameters, which are whole only while they are used: hooks tell the core when a use begins and ends.

In a forward pass a unit is used from the forward of the first module with parameters of the unit to the end of the
unit's own module. In a backward pass it is used from the first gradient of that module's output until the gradients of
its parameters are complete. Units that contain other units, like the model itself, stay whole from their forward() to
the step. So do units in a backward pass with create_graph, and units that the forward of another module reads."""
from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torch_tutti.zero._hooks import Hook
from torch_tutti.zero._reads import watch_parameters

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager


class Uses:
    """Reports the uses of a manager's units to its core. All ranks have the same uses in the same order. reshard: units
    may be freed after their forward, and are gathered again for the backward pass."""

    def __init__(self, manager: Manager, reshard: bool) -> None:
        """Installs the hooks of the model's modules."""
        self.core, self.reshard = manager.core, reshard
        # for each unit, the number of the last backward pass that used it
        self.last_pass = [-1] * len(manager.modules)
        # units that contain other units: whole from their forward() to the step
        self.outer_units = [unit for unit, module in enumerate(manager.modules)
                            if any(other in manager.modules for other in module.modules() if other is not module)]
        # units that stay whole until the step: a backward pass with create_graph or another module has read them
        self.kept: set[int] = set()
        self.in_forward: set[int] = set()               # units that a forward uses
        self.forwards = 0                               # forwards of the model that run
        self.depth = 0                                  # nested blocks of whole()
        self.is_claimed = False                         # in a block of edit(), or while the model loads a state
        # True: state_dict() gathers the units and copies their values
        self.gathers_state = True
        for unit, module in enumerate(manager.modules):
            self._hook_forward(module, unit)
        # before the hooks that gather
        manager.model.register_state_dict_pre_hook(
            Hook(lambda module, *_: self._await_state_dict(manager) if module is manager.model else None))
        # {address of the storage of a parameter: (its name, its unit)}
        self.parameter_at = {parameter.untyped_storage().data_ptr(): (name, unit)
                             for name, parameter, unit in manager.managed}
        watch_parameters(self, manager.model, [parameter for _, parameter, _ in manager.managed])
        unit_of = {parameter: unit for _, parameter, unit in manager.managed}
        for module in manager.model.modules():
            unit_of_storage = {p.untyped_storage().data_ptr(): unit_of[p] for p in module.parameters(recurse=False)
                               if p in unit_of}
            if unit_of_storage:
                self._hook_state_dict(module, unit_of_storage)

    def _hook_forward(self, module: nn.Module, unit: int) -> None:
        """Installs the hook after a unit's forward. The hook checks its module, so that the hook of a copied module
        does nothing."""
        uses = weakref.ref(self)

        def hook(called: nn.Module, _: Any, output: Any) -> None:
            if called is module and (found := uses()) is not None:
                found.end_forward(unit, output)
        module.register_forward_hook(Hook(hook))

    def _hook_state_dict(self, module: nn.Module, unit_of_storage: dict[int, int]) -> None:
        """Makes state_dict() gather the module's units and copy their values. unit_of_storage: {address of the storage:
        unit}."""
        uses, units = weakref.ref(self), sorted(set(unit_of_storage.values()))

        def gather_units(called: nn.Module, *_: Any) -> None:
            for unit in units if called is module and (found := uses()) is not None and found.gathers_state else ():
                found.core.use(unit)

        def copy_values(called: nn.Module, state: dict[str, Any], *_: Any) -> None:
            """Replaces the module's parameters in a state_dict by copies, because their units may be freed next."""
            if called is not module or (found := uses()) is None or not found.gathers_state:
                return
            for name, value in state.items():
                if torch.is_tensor(value) and value.untyped_storage().data_ptr() in unit_of_storage:
                    state[name] = value.detach().clone()
            for unit in units:
                found.end_use(unit)
        module.register_state_dict_pre_hook(Hook(gather_units))
        module.register_state_dict_post_hook(Hook(copy_values))

    def _await_state_dict(self, manager: Manager) -> None:
        """Returns when all ranks have called state_dict() of the model, which then gathers its units."""
        if self.gathers_state and not self.depth:
            manager.await_all("state_dict() of a model whose parameters are sharded")

    # ---- events ----
    def begin_use(self, unit: int) -> None:
        """Gathers a unit for a use. A forward inside a backward pass (activation checkpointing) counts as a use of that
        pass."""
        if _backward_pass() >= 0:
            self._use_backward(unit)
            return
        self.core.use(unit)
        self.in_forward.add(unit)

    @torch.compiler.disable
    def end_forward(self, unit: int, output: Any) -> None:
        """Called when a unit's module has computed. Ends the use of the unit, and prepares its use in the backward
        pass."""
        if _backward_pass() >= 0:
            return
        results = [tensor for tensor in tree_leaves(output) if torch.is_tensor(tensor) and tensor.grad_fn is not None]
        for tensor in results:
            tensor.register_hook(functools.partial(_on_gradient, weakref.ref(self), unit))
        if not (results and (unit in self.outer_units or not self.reshard)):
            self.end_use(unit)

    def end_use(self, unit: int) -> None:
        """Ends the use of a unit in a forward. Lets the core free it, unless it stays whole until the step."""
        self.in_forward.discard(unit)
        if unit not in self.kept:
            self.core.release(unit)

    def keep_until_step(self, unit: int) -> None:
        """Gathers a unit, which then stays whole until the step."""
        self.kept.add(unit)
        self.core.use(unit)

    def begin_read(self, parameter: Any) -> None:
        """Called when a module's attribute is read. Gathers the parameter's unit if this is in a forward of the model,
        before the unit is used: the forward of another module reads it, and its backward pass may read it again."""
        if not self.forwards or self.depth or not isinstance(parameter, nn.Parameter):
            return
        _, unit = self.parameter_at.get(parameter.untyped_storage().data_ptr(), ("", -1))
        if unit >= 0 and unit not in self.in_forward and unit not in self.kept:
            self.keep_until_step(unit)

    def check_whole(self, parameter: nn.Parameter) -> None:
        """Raises RuntimeError if the program may not read a parameter here."""
        name, unit = self.parameter_at.get(parameter.untyped_storage().data_ptr(), ("", -1))
        is_whole = self.depth or self.is_claimed or unit in self.in_forward or unit in self.kept
        if unit >= 0 and not is_whole and _backward_pass() < 0:
            raise RuntimeError(f"zero: parameter {name} is sharded and not whole here, so a copy of it would be NaN; "
                               "copy, save or average the model in `with optimizer.whole():` on all ranks, or save "
                               "model.state_dict()")

    def _pack(self, tensor: torch.Tensor) -> Any:
        """Called for each tensor that an operation in a block of whole() saves for its backward pass. Returns what
        _unpack() needs."""
        at = tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0
        name, unit = self.parameter_at.get(at, ("", -1))
        return tensor if unit < 0 else (tensor, tensor._version, name, unit)

    def _unpack(self, packed: Any) -> torch.Tensor:
        """Returns the tensor, a parameter or a view of it with its unit gathered. Collective after the block. Raises
        RuntimeError if a step has changed it."""
        if torch.is_tensor(packed):
            return packed
        tensor, version, name, unit = packed
        if tensor._version != version:
            raise RuntimeError(f"zero: parameter {name} was modified by an inplace operation, a step, after a block of "
                               "optimizer.whole() had made this graph; run the backward pass before the step")
        if not self.depth and unit not in self.kept:
            self.keep_until_step(unit)
        return tensor

    def begin_backward(self, unit: int) -> None:
        """Called for each gradient of a unit's output: gathers the unit, once in each backward pass."""
        if torch.is_grad_enabled():
            self.kept.add(unit)
        if self.last_pass[unit] != _backward_pass():
            self.last_pass[unit] = _backward_pass()
            self._use_backward(unit)

    def _use_backward(self, unit: int) -> None:
        """Gathers a unit in a backward pass. The core ends the use with the unit's last gradient, or with the step if
        it stays whole."""
        (self.core.use if unit in self.outer_units or unit in self.kept else self.core.use_backward)(unit)

    def finish_step(self) -> None:
        """Does what follows each step: inside a block of whole(), gathers all units again. Collective there."""
        self.kept.clear()
        self.in_forward.clear()
        self.is_claimed = False
        if self.depth:
            self.core.keep(True)

    @contextlib.contextmanager
    def without_gathering(self) -> Iterator[None]:
        """In this context state_dict() returns the parameters themselves, without gathering them."""
        self.gathers_state = False
        try:
            yield
        finally:
            self.gathers_state = True

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """In this context all units are whole. Collective at its begin and end."""
        self.depth += 1
        try:
            if self.depth == 1:
                self.core.keep(True)
            with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
                yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.core.keep(False)


def _backward_pass() -> int:
    """Returns the number of the backward pass that runs in this thread, or -1."""
    return torch._C._current_graph_task_id()


def _on_gradient(uses: Any, unit: int, _: torch.Tensor) -> None:
    """A hook of a unit's output tensor: its gradient exists. uses: a weak reference to Uses."""
    if (found := uses()) is not None:
        found.begin_backward(unit)
