"""What layers that are divided among ranks have in common: how a rank's part is taken from a whole layer, and put
together again. A part has the name that the whole has, so a state_dict has the same names as that of one process."""
from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn as nn
from torch import Tensor

from torch_tutti.parallel._collectives import Ranks, begin_gather, finish, ranks_of


def part_of(whole: Tensor, dim: int, parts: int, ranks: Ranks) -> Tensor:
    """A rank's share of each of the `parts` along a dimension, a copy; what is missing at its end is zeros."""
    missing = -whole.size(dim) % (parts * ranks.size)
    if missing:
        more = list(whole.shape)
        more[dim] = missing
        whole = torch.cat([whole, whole.new_zeros(more)], dim)
    return whole.unflatten(dim, (parts, ranks.size, -1)).select(dim + 1, ranks.rank).flatten(dim, dim + 1).clone()


def whole_of(part: Tensor, dim: int, parts: int, length: int, ranks: Ranks) -> Tensor:
    """What part_of has divided, with that length. Collective."""
    every = part.clone() if ranks.size == 1 else finish(begin_gather(part, ranks))
    by_part = every.unflatten(0, (ranks.size, -1)).unflatten(dim + 1, (parts, -1))
    return by_part.movedim(0, dim + 1).flatten(dim, dim + 2).narrow(dim, 0, length)


class Divided(nn.Module):
    """A layer of which each rank of a group has a part of the parameters."""
    divided: ClassVar[dict[str, int]] = {}  # parameters, and the dimension in which they are; others are whole
    parts = 1                               # of a divided dimension, each of which is divided

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.ranks = ranks_of(group)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters of the whole layer."""
        raise NotImplementedError

    def like(self, **options: Any) -> nn.Module:
        """The whole layer, with first values of its own."""
        raise NotImplementedError

    def part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of a parameter, a copy. Raises ValueError for what is not of this layer."""
        shape = self.shapes()[name]
        if tuple(whole.shape) != shape:
            raise ValueError(f"parallel: {name} of {type(self).__name__} is {tuple(whole.shape)}, and the whole layer "
                             f"has {shape}")
        return part_of(whole, self.divided[name], self.parts, self.ranks) if name in self.divided else whole.clone()

    def whole(self, name: str, part: Tensor) -> Tensor:
        """What the ranks' parts of a parameter are together. Collective."""
        if name not in self.divided:
            return part
        dim = self.divided[name]
        return whole_of(part, dim, self.parts, self.shapes()[name][dim], self.ranks)

    def take(self, layer: nn.Module) -> None:
        """Becomes this rank's part of a whole layer, with its own parameters."""
        for name in self.shapes():
            of = getattr(layer, name)
            self.register_parameter(name, nn.Parameter(self.part(name, of.detach()), of.requires_grad))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """First values, those of the whole layer for the state of the generator, which is the same on all ranks."""
        layer = self.like(device=self.weight.device, dtype=self.weight.dtype)
        for name in self.shapes():
            getattr(self, name).copy_(self.part(name, getattr(layer, name)))


def sequence_dim(dim: int, x: Tensor) -> int:
    """From 0, of x [.., features]. Raises ValueError where no sequence can lie there."""
    if not -x.dim() <= dim < x.dim() or dim % x.dim() == x.dim() - 1:
        raise ValueError(f"parallel: dim={dim} of {tuple(x.shape)} cannot be the sequence: the last dimension has "
                         "the features")
    return dim % x.dim()


def cast(*tensors: Tensor | None) -> list[Tensor | None]:
    """To what autocast would cast them, as the backward pass of a product of ours is outside of it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [x if x is None or x.dtype == torch.float64 else x.to(torch.get_autocast_dtype(device)) for x in tensors]
