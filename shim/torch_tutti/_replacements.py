"""Functions of ours that stand before functions of torch. Each is put there only where torch's function takes what
tutti knows that it takes, and all of them can be taken away again."""
from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable


class Replacements:
    def __init__(self) -> None:
        self._made: list[tuple[ModuleType, str, Callable[..., Any], Callable[..., Any]]] = []

    def put(self, module: ModuleType, name: str, ours: Callable[..., Any]) -> None:
        self._made.append((module, name, getattr(module, name), ours))
        setattr(module, name, ours)

    def undo(self) -> None:
        """Where somebody else stands before ours meanwhile, ours stays behind, and must let everything through."""
        for module, name, original, ours in self._made:
            if getattr(module, name) is ours:
                setattr(module, name, original)
        self._made.clear()


def parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)
