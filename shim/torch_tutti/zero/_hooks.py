"""Hooks that zero installs in torch's modules."""
from __future__ import annotations

from typing import Any, Callable


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
