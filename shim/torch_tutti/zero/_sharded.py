"""Parameters that are whole only while they are used: hooks that tell the core when a use begins, and when it is over.

A unit is used when a module that has parameters of it computes, and until the unit's own module has; again from when a
gradient of that module's output is there until those of its parameters are. Parameters of the model itself stay from
its forward() to their gradients."""
from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from torch_tutti.zero._model import Manager


class Uses:
    """Of a manager's units, told to its core. All ranks make the same ones, in the same order."""

    def __init__(self, manager: Manager, reshard: bool) -> None:
        self.core, self.reshard = manager.core, reshard
        self.passes = [-1] * len(manager.modules)       # the last backward pass that has used a unit
        of_model = manager.modules[0] is manager.model
        for unit, module in enumerate(manager.modules):
            self._watch(module, unit, kept=of_model and unit == 0)
        place = {p: (number, unit) for number, (_, p, unit) in enumerate(manager.owned)}
        for module in manager.model.modules():
            own = {name: place[p][1] for name, p in module.named_parameters(recurse=False) if p in place}
            if own:
                module.register_state_dict_post_hook(functools.partial(_write, weakref.ref(self), module, own))

    def _watch(self, module: nn.Module, unit: int, kept: bool) -> None:
        uses = weakref.ref(self)

        def hook(called: nn.Module, _: Any, output: Any) -> None:
            if called is module and (found := uses()) is not None:
                found.over(unit, kept, output)
        module.register_forward_hook(hook)

    def begin(self, unit: int) -> None:
        """What is computed again in a backward pass belongs to that."""
        if _backward_pass() < 0:
            self.core.use(unit)
        else:
            self.go_back(unit)

    @torch._dynamo.disable
    def over(self, unit: int, kept: bool, output: Any) -> None:
        if _backward_pass() >= 0:
            return
        results = [t for t in tree_leaves(output) if torch.is_tensor(t) and t.requires_grad]
        for tensor in results:
            tensor.register_hook(functools.partial(_go_back, weakref.ref(self), unit))
        if not (results and (kept or not self.reshard)):
            self.core.release(unit)

    def go_back(self, unit: int) -> None:
        if self.passes[unit] != _backward_pass():
            self.passes[unit] = _backward_pass()
            self.core.use_backward(unit)

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        self.core.keep(True)
        try:
            for unit in range(len(self.passes)):
                self.core.use(unit)
            yield
        finally:
            self.core.keep(False)


def _backward_pass() -> int:
    """The number of the one that runs in this thread, or -1."""
    return torch._C._current_graph_task_id()


def _go_back(uses: Any, unit: int, _: torch.Tensor) -> None:
    if (found := uses()) is not None:
        found.go_back(unit)


def _write(uses: Any, owner: nn.Module, own: dict[str, int], called: nn.Module, state: dict[str, Any], prefix: str,
           *_: Any) -> None:
    """A state_dict has values of its own, gathered unit by unit."""
    found = uses()
    for name, unit in own.items() if called is owner and found is not None else ():
        if prefix + name in state:
            found.core.use(unit)
            state[prefix + name] = state[prefix + name].detach().clone()
            found.core.release(unit)
