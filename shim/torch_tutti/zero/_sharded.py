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
    """Reports the uses of a manager's units to its core. All ranks have the same uses in the same order. reshard:
    release units after their forward."""

    def __init__(self, manager: Manager, reshard: bool) -> None:
        self.core, self.reshard = manager.core, reshard
        self.passes = [-1] * len(manager.modules)       # the last backward pass that used each unit
        self.kept = [unit for unit, module in enumerate(manager.modules)       # whole from their forward() to the step
                     if any(other in manager.modules for other in module.modules() if other is not module)]
        self.again: set[int] = set()                    # used in a backward pass with create_graph
        self.depth = 0                                  # nested blocks of whole()
        self.reads = True                               # a state_dict gathers and copies the values
        for unit, module in enumerate(manager.modules):
            self._watch(module, unit)
        unit_of = {p: unit for _, p, unit in manager.owned}
        for module in manager.model.modules():
            own = {p.untyped_storage().data_ptr(): unit_of[p] for p in module.parameters(recurse=False)
                   if p in unit_of}
            if own:
                self._watch_state(module, own)

    def _watch(self, module: nn.Module, unit: int) -> None:
        """Installs the hook after a module's forward. It checks its module, so that of a copied module does nothing."""
        uses = weakref.ref(self)

        def hook(called: nn.Module, _: Any, output: Any) -> None:
            if called is module and (found := uses()) is not None:
                found.end_forward(unit, output)
        module.register_forward_hook(Hook(hook))

    def _watch_state(self, module: nn.Module, own: dict[int, int]) -> None:
        """Makes state_dict() gather the module's units and copy their values. own: unit by storage address."""
        uses, units = weakref.ref(self), sorted(set(own.values()))

        def gather(called: nn.Module, *_: Any) -> None:
            for unit in units if called is module and (found := uses()) is not None and found.reads else ():
                found.core.use(unit)

        def write(called: nn.Module, state: dict[str, Any], *_: Any) -> None:
            if called is not module or (found := uses()) is None or not found.reads:
                return
            for name, value in state.items():
                if torch.is_tensor(value) and value.untyped_storage().data_ptr() in own:
                    state[name] = value.detach().clone()
            for unit in units:
                found.end(unit)
        module.register_state_dict_pre_hook(Hook(gather))
        module.register_state_dict_post_hook(Hook(write))

    # ---- events ----
    def begin(self, unit: int) -> None:
        """A use begins. A forward inside a backward pass (activation checkpointing) is a use of the backward pass."""
        (self.core.use if _backward_pass() < 0 else self._use_backward)(unit)

    @torch.compiler.disable
    def end_forward(self, unit: int, output: Any) -> None:
        """A unit's module has computed: releases the unit, and prepares its use in the backward pass."""
        if _backward_pass() >= 0:
            return
        results = [t for t in tree_leaves(output) if torch.is_tensor(t) and t.grad_fn is not None]
        for tensor in results:
            tensor.register_hook(functools.partial(_on_gradient, weakref.ref(self), unit))
        if not (results and (unit in self.kept or not self.reshard)):
            self.end(unit)

    def end(self, unit: int) -> None:
        """A use ends: the core may free the unit."""
        if unit not in self.again:
            self.core.release(unit)

    def begin_backward(self, unit: int) -> None:
        """A gradient of the unit's output exists: gathers the unit, once for each backward pass."""
        if torch.is_grad_enabled():
            self.again.add(unit)
        if self.passes[unit] != _backward_pass():
            self.passes[unit] = _backward_pass()
            self._use_backward(unit)

    def _use_backward(self, unit: int) -> None:
        (self.core.use if unit in self.kept or unit in self.again else self.core.use_backward)(unit)

    def stepped(self) -> None:
        """Called after a step."""
        self.again.clear()
        if self.depth:
            self.core.keep(True)

    @contextlib.contextmanager
    def without_gathering(self) -> Iterator[None]:
        """In this context state_dict() returns the parameters themselves, without gathering them."""
        self.reads = False
        try:
            yield
        finally:
            self.reads = True

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
    """The number of the backward pass that runs in this thread, or -1."""
    return torch._C._current_graph_task_id()


def _on_gradient(uses: Any, unit: int, _: torch.Tensor) -> None:
    if (found := uses()) is not None:
        found.begin_backward(unit)
