"""Hooks that zero installs in torch's modules, and the replacement of the attribute `data` of parameters."""
from __future__ import annotations

import sys
import weakref
from typing import Any, Callable, Iterable

import torch
from torch.utils._pytree import tree_map_only

# torch's attribute `data` of tensors
_data: Any = torch.Tensor.data


class Owners:
    """Finds the owner of a parameter, the object that manages it. Keeps neither alive: an owner keeps its parameters
    alive, and its entries are removed when it ends."""

    def __init__(self) -> None:
        self._of_id: dict[int, weakref.ref[Any]] = {}   # by the id of the parameter

    def add(self, owner: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Records the owner of these parameters, which it keeps alive."""
        ids = [id(parameter) for parameter in parameters]

        def forget(reference: weakref.ref[Any]) -> None:
            for key in ids:
                if self._of_id.get(key) is reference:
                    del self._of_id[key]
        self._of_id.update(dict.fromkeys(ids, weakref.ref(owner, forget)))

    def remove(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Forgets the owner of these parameters."""
        for parameter in parameters:
            self._of_id.pop(id(parameter), None)

    def find(self, parameter: torch.nn.Parameter) -> Any:
        """Returns the owner of a parameter, or None."""
        reference = self._of_id.get(id(parameter))
        return None if reference is None else reference()


# the owners of parameters whose changes through `data` count in their versions
_counted = Owners()
# the Manager of each parameter whose values are in a core's memory
_managers = Owners()


class Hook:
    """A hook that calls `call`, or does nothing with None. A copied or unpickled Hook does nothing, because zero does
    not manage copies of a model."""

    def __init__(self, call: Callable[..., Any] | None = None) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> Any:
        return None if self.call is None else self.call(*arguments)

    def __reduce__(self) -> Any:
        """Makes copy and pickle create a Hook without a call."""
        return Hook, ()


def take_gradient(manager: Any, number: int, *_: Any) -> None:
    """A hook that autograd calls when the gradient of a parameter is complete, after all hooks of the program. manager:
    a weak reference, because the garbage collector cannot follow hooks of autograd's nodes."""
    if (found := manager()) is not None:
        found.take_gradient(number)


def make_room(manager: Any, number: int, gradients: tuple[torch.Tensor | None]) -> None:
    """A hook that autograd calls before it accumulates a gradient. manager: a weak reference. gradients: the new one,
    or None if this pass made none."""
    if gradients[0] is not None and (found := manager()) is not None:
        found.gradients.make_room(number)


def cast_inputs(dtype: torch.dtype, _: torch.nn.Module, arguments: Any, keywords: Any) -> Any:
    """A forward pre-hook that converts floating-point inputs to `dtype`. Returns the new (arguments, keywords)."""
    return tree_map_only(torch.Tensor,
                         lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor,
                         (arguments, keywords))


def _get_data(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the values of a parameter without autograd. A change of the result counts as a change of the parameter if
    it is in _counted."""
    return _data.__get__(parameter) if _counted.find(parameter) is None else parameter.detach()


def _set_data(parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
    """Assigns new memory to a parameter. A parameter in a core's memory stays there if the new memory has the same
    values, as after Module.to("cpu:0"). A sharded one stays there without a comparison if Module._apply() assigns
    memory on a device of the same type, because its unit may be gathered or freed during the comparison. Raises
    RuntimeError for another dtype. Other values are assigned, and the next step raises an error."""
    manager = _managers.find(parameter)
    if manager is None:
        _data.__set__(parameter, value)
    elif value.dtype != parameter.dtype:
        raise RuntimeError(f"zero: parameter {manager.managed[manager.number_of[parameter]].name} is {parameter.dtype} "
                           f"in zero's memory, where it stays, so it cannot become {value.dtype}; convert a model "
                           "before zero.shard, or a copy of it")
    elif manager.uses is not None and sys._getframe(1).f_code is torch.nn.Module._apply.__code__:
        if value.device.type != parameter.device.type:
            _data.__set__(parameter, value)
    elif not _has_same_bits(parameter.detach(), value):
        _data.__set__(parameter, value)


def _has_same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """True if two tensors of one floating-point dtype have the same elements. NaN, which sharded parameters have, is
    equal to itself."""
    as_int = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.dtype.itemsize]
    return (left.device.type == right.device.type and left.shape == right.shape
            and torch.equal(left.view(as_int), right.view(as_int)))


def manager_of(parameter: torch.nn.Parameter) -> Any:
    """Returns the Manager whose core has the values of a parameter, or None."""
    return _managers.find(parameter)


def keep_in_memory(manager: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Makes assignments to the attribute `data` of these parameters keep their memory, while the manager exists. Needs
    the property that count_data_changes() installs."""
    _managers.add(manager, parameters)


def release_from_memory(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Ends what keep_in_memory() does for these parameters."""
    _managers.remove(parameters)


def count_data_changes(owner: Any, parameters: Iterable[torch.nn.Parameter]) -> None:
    """Makes changes through the attribute `data` of these parameters count in their versions while the owner, which
    keeps them alive, exists; torch does not count such changes there. So Manager.check_parameters() finds them. The
    first call in a process replaces the attribute of torch.nn.Parameter; for other parameters it works as before."""
    _counted.add(owner, parameters)
    if "data" not in vars(torch.nn.Parameter):
        torch.nn.Parameter.data = property(_get_data, _set_data, _data.__delete__)
