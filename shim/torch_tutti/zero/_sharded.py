"""Sharded parameters, which are whole only while they are used: hooks tell the core when a use begins and ends.

In a forward pass a unit is used from the forward of the first module with parameters of the unit to the end of the
unit's own module. In a backward pass it is used from the first gradient of that module's output until the gradients of
its parameters are complete. Units that contain other units, like the model itself, stay whole from their forward() to
the step. So do units in a backward pass with create_graph."""
from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torch_tutti.zero._hooks import Hook

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
        # units that a backward pass with create_graph has used: whole until the step
        self.in_graph: set[int] = set()
        self.depth = 0                                  # nested blocks of whole()
        # True: state_dict() gathers the units and copies their values
        self.gathers_state = True
        for unit, module in enumerate(manager.modules):
            self._hook_forward(module, unit)
        # before the hooks that gather
        manager.model.register_state_dict_pre_hook(
            Hook(lambda module, *_: self._await_state_dict(manager) if module is manager.model else None))
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
        (self.core.use if _backward_pass() < 0 else self._use_backward)(unit)

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
        """Lets the core free a unit, unless a backward pass with create_graph has used it."""
        if unit not in self.in_graph:
            self.core.release(unit)

    def begin_backward(self, unit: int) -> None:
        """Called for each gradient of a unit's output: gathers the unit, once in each backward pass."""
        if torch.is_grad_enabled():
            self.in_graph.add(unit)
        if self.last_pass[unit] != _backward_pass():
            self.last_pass[unit] = _backward_pass()
            self._use_backward(unit)

    def _use_backward(self, unit: int) -> None:
        """Gathers a unit in a backward pass. The core ends the use with the unit's last gradient, or with the step if
        it stays whole."""
        (self.core.use if unit in self.outer_units or unit in self.in_graph else self.core.use_backward)(unit)

    def finish_step(self) -> None:
        """Does what follows each step: inside a block of whole(), gathers all units again. Collective there."""
        self.in_graph.clear()
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
