"""Reads of sharded parameters outside the uses that the forward of their own modules begins. Reads by another module's
forward, and by the backward pass of a graph from a block of whole(), gather the unit. Copies of a parameter that is not
whole raise an error."""
from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from torch_tutti.zero._hooks import Hook, Owners

if TYPE_CHECKING:
    from torch_tutti.zero._sharded import Uses

# the Uses of the model of a sharded parameter
_uses = Owners()


class WatchedParameters(dict[str, Any]):
    """The dict `_parameters` of a module with sharded parameters. A copy or pickle of it is an ordinary dict."""
    uses: weakref.ref[Uses]

    def __getitem__(self, name: str) -> Any:
        """Returns the parameter, for `module.name`. If a forward of the model reads it before its own module, gathers
        its unit."""
        parameter = super().__getitem__(name)
        if not torch.compiler.is_compiling() and (uses := self.uses()) is not None:
            uses.begin_read(parameter)
        return parameter

    def __reduce__(self) -> Any:
        return dict, (dict(self.items()),)


def watch_parameters(uses: Uses, model: nn.Module, parameters: list[nn.Parameter]) -> None:
    """Watches the reads of these sharded parameters by the modules of the model, and their copies."""
    reference = weakref.ref(uses)
    _uses.add(uses, parameters)
    for module in model.modules():
        watched = WatchedParameters(module._parameters)
        watched.uses = reference
        module._parameters = watched

    def count_forwards(change: int, called: nn.Module, *_: Any) -> None:
        if called is model and (found := reference()) is not None:
            found.forwards += change
    model.register_forward_pre_hook(Hook(functools.partial(count_forwards, 1)), prepend=True)
    model.register_forward_hook(Hook(functools.partial(count_forwards, -1)), always_call=True)
    if "__wrapped__" not in vars(nn.Parameter.__deepcopy__):
        for name in ("__deepcopy__", "__reduce_ex__"):
            setattr(nn.Parameter, name, _checked(getattr(nn.Parameter, name), lambda parameter, _: [parameter]))
        AveragedModel.update_parameters = _checked(AveragedModel.update_parameters,
                                                   lambda _, model: model.parameters())


def _checked(original: Callable[..., Any], read_parameters: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `original`, but raises RuntimeError if one of the parameters that it reads is
    sharded and not whole."""
    @functools.wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        for parameter in read_parameters(*arguments, **keywords):
            if (uses := _uses.find(parameter)) is not None:
                uses.check_whole(parameter)
        return original(*arguments, **keywords)
    return call
