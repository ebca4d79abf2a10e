"""Contexts of a model that zero.shard returned without an optimizer. If zero.shard returned an optimizer, too, they are
methods of that optimizer."""
from __future__ import annotations

from typing import Any

from torch import nn

from torch_tutti.zero._data_parallel import averages_of_model
from torch_tutti.zero._late_optimizer import optimizer_of_model


def no_sync(model: nn.Module) -> Any:
    """Returns a context in which the gradients of the model stay on their rank. They are added to those of the next
    backward pass outside, and averaged then."""
    return _owner_of_gradients("no_sync", model).no_sync()


def whole(model: nn.Module) -> Any:
    """Returns a context in which any code may read all parameters of the model. Collective if they are sharded."""
    return _owner_of_gradients("whole", model).whole()


def edit(model: nn.Module) -> Any:
    """Returns a context in which rank 0 may change the parameters of the model; afterwards all ranks have its values.
    Collective."""
    return _owner_of_gradients("edit", model).edit()


def _owner_of_gradients(call: str, model: nn.Module) -> Any:
    """Returns what manages the gradients of a model. Raises ValueError if zero.shard did not return it alone."""
    owner = averages_of_model(model) or optimizer_of_model(model)
    if owner is None:
        raise ValueError(f"zero.{call}: zero.shard was not called with this {type(model).__name__} alone; if it was "
                         f"called with an optimizer, use optimizer.{call}()")
    return owner
