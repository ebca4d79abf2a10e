"""Makes copies of a sharded model ordinary modules, without what zero has put into the model: torch.jit.script,
torch.export and another zero.shard take them."""
from __future__ import annotations

import collections
import copy
from typing import Any

from torch import nn

from torch_tutti.zero._hooks import Hook
from torch_tutti.zero._reads import WatchedParameters


class Copier:
    """The attribute `__deepcopy__` of a module that zero has changed. Pickle and torch.save write it with the module;
    when the module is loaded, it copies the loaded one."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, memo: dict[int, Any]) -> nn.Module:
        """Returns a deep copy of the module without what zero has put into it."""
        del vars(self._module)["__deepcopy__"]
        try:
            found = copy.deepcopy(self._module, memo)
        finally:
            vars(self._module)["__deepcopy__"] = self
        clean_module(found)
        return found

    def __reduce__(self) -> Any:
        return Copier, (self._module,)


def clean_copies(model: nn.Module) -> None:
    """Makes deep copies of the model, and of its modules, ordinary modules without the additions of zero."""
    for module in model.modules():
        vars(module)["__deepcopy__"] = Copier(module)


def clean_module(module: nn.Module) -> None:
    """Removes from a module, but not from its children, what zero has put there: hooks, methods, and the dict that
    watches reads of parameters. The program's own hooks and methods stay."""
    for name, value in list(vars(module).items()):
        method = getattr(value, "__func__", None)
        if isinstance(value, Copier) or getattr(method, "__module__", "").startswith("torch_tutti.zero."):
            del vars(module)[name]
        elif isinstance(value, WatchedParameters):
            vars(module)[name] = dict(value.items())
        elif isinstance(value, collections.OrderedDict):
            # torch wraps some hooks in an object with the attribute `hook`
            for key in [key for key, hook in value.items() if isinstance(getattr(hook, "hook", hook), Hook)]:
                del value[key]
