"""Replaces functions of torch by wrappers, and puts torch's own back. Callers check with parameters_of() that torch's
function has the parameters that the wrapper expects."""
from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable


class Replacements:
    """A list of replaced functions, which undo() restores."""

    def __init__(self) -> None:
        self._made: list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]] = []

    def put(self, module: ModuleType, name: str, wrapper: Callable[..., Any]) -> None:
        """Replaces the function `name` of the module by the wrapper."""
        self._made.append((module, name, getattr(module, name), wrapper))
        setattr(module, name, wrapper)

    def undo(self) -> None:
        """Puts the original functions back. If other code has replaced a wrapper meanwhile, the wrapper remains in use,
        and must pass calls on to the original."""
        for module, name, original, wrapper in self._made:
            if getattr(module, name) is wrapper:
                setattr(module, name, original)
        self._made.clear()


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of a function's parameters, in order."""
    return tuple(inspect.signature(function).parameters)
