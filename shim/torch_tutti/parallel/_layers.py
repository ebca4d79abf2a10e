"""The common base of layers that are divided among ranks: takes a rank's part from a whole layer, and joins the parts
again. A part has the name that the whole parameter has, so a state_dict has the names of that of one process."""
from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from torch_tutti.parallel._collectives import Ranks, begin_gather, finish, ranks_of


def part_of(whole: Tensor, dim: int, parts: int, ranks: Ranks) -> Tensor:
    """Returns a copy of this rank's share of each of `parts` equal parts of a dimension. If the dimension cannot be
    divided evenly, zeros are added at its end first."""
    missing = -whole.size(dim) % (parts * ranks.size)
    if missing:
        padding_shape = list(whole.shape)
        padding_shape[dim] = missing
        whole = torch.cat([whole, whole.new_zeros(padding_shape)], dim)
    return whole.unflatten(dim, (parts, ranks.size, -1)).select(dim + 1, ranks.rank).flatten(dim, dim + 1).clone()


def whole_of(part: Tensor, dim: int, parts: int, length: int, ranks: Ranks) -> Tensor:
    """Joins what part_of() has divided, and cuts the dimension to `length`, without added zeros. Collective."""
    of_all_ranks = part.clone() if ranks.size == 1 else finish(begin_gather(part, ranks))
    by_part = of_all_ranks.unflatten(0, (ranks.size, -1)).unflatten(dim + 1, (parts, -1))
    return by_part.movedim(0, dim + 1).flatten(dim, dim + 2).narrow(dim, 0, length)


class Divided(nn.Module):
    """A layer whose parameters are divided among the ranks of a group."""
    divided: ClassVar[dict[str, int]] = {}  # {name of a parameter: the dimension that is divided}; others are whole
    parts = 1                               # equal parts of that dimension, each of which is divided among the ranks

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.ranks = ranks_of(group)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the whole layer's parameters by name."""
        raise NotImplementedError

    def like(self, **options: Any) -> nn.Module:
        """Returns a new whole layer, with initial values of its own. options: device and dtype."""
        raise NotImplementedError

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Returns a copy of this rank's part of a whole parameter. Raises ValueError for a wrong shape."""
        shape = self.shapes()[name]
        if tuple(whole.shape) != shape:
            raise ValueError(f"parallel: {name} of {type(self).__name__} is {tuple(whole.shape)}, and the whole layer "
                             f"has {shape}")
        return part_of(whole, self.divided[name], self.parts, self.ranks) if name in self.divided else whole.clone()

    def whole(self, name: str, part: Tensor) -> Tensor:
        """Returns the whole parameter made of the ranks' parts; a parameter that is not divided, as it is.
        Collective."""
        if name not in self.divided:
            return part
        dim = self.divided[name]
        return whole_of(part, dim, self.parts, self.shapes()[name][dim], self.ranks)

    def take(self, layer: nn.Module) -> None:
        """Gives this layer its part of the parameters of a whole layer, as parameters of its own."""
        for name in self.shapes():
            whole_parameter = getattr(layer, name)
            self.register_parameter(name, nn.Parameter(self.part(name, whole_parameter.detach()),
                                                       whole_parameter.requires_grad))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets the initial values that the whole layer would get from the random generator, whose state must be the
        same on all ranks."""
        layer = self.like(device=self.weight.device, dtype=self.weight.dtype)
        for name in self.shapes():
            getattr(self, name).copy_(self.part(name, getattr(layer, name)))


def sequence_dim(dim: int, x: Tensor) -> int:
    """Returns `dim` of x [.., features], counted from 0. Raises ValueError if it does not exist or is the last one."""
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(f"parallel: dim={dim} of {tuple(x.shape)} cannot be the sequence: the last dimension has "
                         "the features")
    return dim % x.dim()


def cast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Converts tensors as autocast would, because it is off in the backward pass of our own autograd functions. None
    stays None."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [x if x is None or x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(device)) for x in tensors]
