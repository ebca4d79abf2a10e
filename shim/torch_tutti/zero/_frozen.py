"""The parameters of a model that are not trained, which `precision` converts, too."""
from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from torch_tutti.zero._core import DTYPES
from torch_tutti.zero._parameters import batch_norm_parameters


class Part(NamedTuple):
    """A rank's part of the elements that a parameter had before it was converted, flat and padded with zeros to the
    length that all ranks have."""
    parameter: nn.Parameter
    values: torch.Tensor


class Frozen:
    """Converts parameters, and converts them back to the values that they had."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.parts: list[Part] = []

    @torch.no_grad()
    def convert(self, model: nn.Module, kept: set[torch.Tensor], dtype: torch.dtype) -> None:
        """Converts the parameters of a model that are not in `kept` and not of BatchNorm, and that are ordinary tensors
        of a type that zero has. They have the same values on all ranks."""
        kept = kept | batch_norm_parameters(model)
        for parameter in model.parameters():
            if (parameter not in kept and parameter.dtype in DTYPES and parameter.dtype != dtype
                    and type(parameter.data) is torch.Tensor and parameter.layout == torch.strided):
                self.parts.append(Part(parameter, self._own_part(parameter.detach())))
                parameter.data = parameter.data.to(dtype)

    def _own_part(self, values: torch.Tensor) -> torch.Tensor:
        """Returns a copy of this rank's part of a parameter."""
        length = -(-values.numel() // dist.get_world_size(self.group))
        own = values.flatten()[length * dist.get_rank(self.group):][:length]
        return torch.cat([own, own.new_zeros(length - len(own))])

    @torch.no_grad()
    def restore(self) -> None:
        """Converts the parameters back. Elements that the program has changed since then keep their values.
        Collective."""
        for parameter, part in self.parts:
            whole = part.new_empty(len(part) * dist.get_world_size(self.group))
            dist.all_gather_into_tensor(whole, part, group=self.group)
            before, now = whole[:parameter.numel()].view(parameter.shape), parameter.detach()
            parameter.data = torch.empty_like(now, dtype=part.dtype).copy_(
                torch.where(before.to(now.dtype) == now, before, now.to(part.dtype)))
        self.parts.clear()
