"""Parameters that are whole only while they are used: hooks that tell the core when a use begins, and when it is over.

A unit is used when a module that has parameters of it computes, and until the unit's own module has; again from when a
gradient of that module's output is there until those of its parameters are. Units that others are in, as the model
itself, stay from their forward() to the step, and so does what a backward pass goes through that keeps its graph."""
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
    """Of a manager's units, told to its core. All ranks make the same ones, in the same order."""

    def __init__(self, manager: Manager, reshard: bool) -> None:
        self.core, self.reshard = manager.core, reshard
        self.passes = [-1] * len(manager.modules)       # the last backward pass that has used a unit
        self.kept = [unit for unit, module in enumerate(manager.modules)       # from their forward() to the step
                     if any(other in manager.modules for other in module.modules() if other is not module)]
        self.again: set[int] = set()                    # whose backward pass can itself be gone back through
        self.depth = 0                                  # blocks of whole()
        self.reads = True                               # a state_dict's values
        for unit, module in enumerate(manager.modules):
            self._watch(module, unit)
        unit_of = {p: unit for _, p, unit in manager.owned}
        for module in manager.model.modules():
            own = {p.untyped_storage().data_ptr(): unit_of[p] for p in module.parameters(recurse=False)
                   if p in unit_of}
            if own:
                self._watch_state(module, own)

    def _watch(self, module: nn.Module, unit: int) -> None:
        """Closures: those of a copy of the module do nothing."""
        uses = weakref.ref(self)

        def hook(called: nn.Module, _: Any, output: Any) -> None:
            if called is module and (found := uses()) is not None:
                found.over(unit, output)
        module.register_forward_hook(Hook(hook))

    def _watch_state(self, module: nn.Module, own: dict[int, int]) -> None:
        """A state_dict has values of its own, gathered unit by unit. own: units by where their parameters lie."""
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

    # ---- what happens ----
    def begin(self, unit: int) -> None:
        """What is computed again in a backward pass belongs to that."""
        (self.core.use if _backward_pass() < 0 else self._use_backward)(unit)

    @torch.compiler.disable
    def over(self, unit: int, output: Any) -> None:
        if _backward_pass() >= 0:
            return
        results = [t for t in tree_leaves(output) if torch.is_tensor(t) and t.grad_fn is not None]
        for tensor in results:
            tensor.register_hook(functools.partial(_go_back, weakref.ref(self), unit))
        if not (results and (unit in self.kept or not self.reshard)):
            self.end(unit)

    def end(self, unit: int) -> None:
        if unit not in self.again:
            self.core.release(unit)

    def go_back(self, unit: int) -> None:
        if torch.is_grad_enabled():
            self.again.add(unit)
        if self.passes[unit] != _backward_pass():
            self.passes[unit] = _backward_pass()
            self._use_backward(unit)

    def _use_backward(self, unit: int) -> None:
        (self.core.use if unit in self.kept or unit in self.again else self.core.use_backward)(unit)

    def stepped(self) -> None:
        self.again.clear()
        if self.depth:
            self.core.keep(True)

    @contextlib.contextmanager
    def unread(self) -> Iterator[None]:
        """In the block a state_dict has the parameters themselves, which are not gathered."""
        self.reads = False
        try:
            yield
        finally:
            self.reads = True

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
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
    """The number of the one that runs in this thread, or -1."""
    return torch._C._current_graph_task_id()


def _go_back(uses: Any, unit: int, _: torch.Tensor) -> None:
    if (found := uses()) is not None:
        found.go_back(unit)
