"""State values that are tensors made of other tensors, such as the quantized states of torchao's optimizers. torch's
operations on such a tensor may be missing, so zero sends and copies the tensors inside."""
from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch


def is_composite(value: Any) -> bool:
    """True for a tensor that names the tensors inside it, by torch's protocol __tensor_flatten__."""
    return torch.is_tensor(value) and hasattr(value, "__tensor_flatten__")


class Composite(NamedTuple):
    """Describes a composite tensor. parts: a description of each tensor inside, by its name. context: whatever its
    class needs besides."""
    kind: Any
    parts: dict[str, Any]
    context: Any
    shape: torch.Size
    stride: tuple[int, ...]

    def build(self, part_of: Callable[[str, Any], torch.Tensor | None]) -> torch.Tensor | None:
        """Returns a tensor of this kind. part_of(name, description) makes a tensor inside it; if part_of returns None,
        this rank has no such tensor, and the result is None."""
        made = {name: part_of(name, described) for name, described in self.parts.items()}
        if any(part is None for part in made.values()):
            return None
        built: torch.Tensor = self.kind.__tensor_unflatten__(made, self.context, self.shape, self.stride)
        return built


def describe(value: torch.Tensor, describe_part: Callable[[torch.Tensor], Any]) -> Composite:
    """Returns the description of a composite tensor. describe_part: describes a tensor inside."""
    names, context = value.__tensor_flatten__()         # type: ignore[attr-defined]
    return Composite(type(value), {name: describe_part(getattr(value, name)) for name in names}, context, value.shape,
                     value.stride())


def copied(value: Any) -> Any:
    """Returns a copy of a state value if it is a tensor, otherwise the value."""
    if not torch.is_tensor(value):
        return value
    if not is_composite(value):
        return value.clone()
    return describe(value, copied).build(lambda _, part: part)


def bytes_of(value: Any) -> int:
    """Returns the bytes that a state value has in memory; 0 if it is no tensor."""
    if not torch.is_tensor(value):
        return 0
    return sum(describe(value, bytes_of).parts.values()) if is_composite(value) else value.nbytes
