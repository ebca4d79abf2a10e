"""Collectives of tensor parallelism, and what gradients do on the way back: each is the transpose of another one
(Shoeybi et al. 2019; Korthikanti et al. 2022). All go through torch's functional collectives, which torch.compile
traces: begun, and waited for where the result is used, so that a product runs meanwhile."""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # noqa: F401  their gradients, and how they are traced
from torch import Tensor
from torch.autograd import Function

_calls = torch.ops._c10d_functional


class Ranks(NamedTuple):
    """A group as graphs and copies of a module can hold it: its name, how many ranks it has, which of them this is."""
    name: str
    size: int
    rank: int


def ranks_of(group: dist.ProcessGroup | None) -> Ranks:
    """None: the default group. Raises ValueError where there is none, or this rank is not in it."""
    if not dist.is_initialized():
        raise ValueError("parallel: call init_process_group first")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError(f"parallel: rank {dist.get_rank()} is in no such group; call this on the ranks of the group "
                         "only")
    return Ranks(chosen.group_name, dist.get_world_size(chosen), dist.get_rank(chosen))


def share(what: str, size: int, ranks: Ranks) -> int:
    """What each rank has of it. Raises ValueError where they would not have the same."""
    if size % ranks.size:
        raise ValueError(f"parallel: {what} of {size} cannot be divided among {ranks.size} ranks; the next possible "
                         f"size is {size + -size % ranks.size}")
    return size // ranks.size


# ---- without gradients; a result that was begun may be read after finish() ----
finish = _calls.wait_tensor


def begin_sum(x: Tensor, ranks: Ranks) -> Tensor:
    """x is the caller's own, and nobody else's: it becomes the sum, where no graph is traced."""
    if torch.compiler.is_compiling():
        return _calls.all_reduce(x, "sum", ranks.name)
    return _calls.all_reduce_(x.contiguous(), "sum", ranks.name)


def begin_gather(x: Tensor, ranks: Ranks) -> Tensor:
    """[n, …] of each rank: [ranks * n, …]."""
    return _calls.all_gather_into_tensor(x.contiguous(), ranks.size, ranks.name)


def begin_reduce_scatter(x: Tensor, ranks: Ranks) -> Tensor:
    """[ranks * n, …]: [n, …] of the sum."""
    return _calls.reduce_scatter_tensor(x.contiguous(), "sum", ranks.size, ranks.name)


def divided(x: Tensor, dim: int, size: int) -> Tensor:
    """A view [size, …] of the pieces along a dimension, from 0."""
    return x.unflatten(dim, (size, -1)).movedim(dim, 0)


def joined(x: Tensor, dim: int) -> Tensor:
    """What divided() has taken apart."""
    return x.movedim(0, dim).flatten(dim, dim + 1)


def gathered(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    return joined(finish(begin_gather(x, ranks)).unflatten(0, (ranks.size, -1)), dim)


def scattered(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    return finish(begin_reduce_scatter(divided(x, dim, ranks.size).flatten(0, 1), ranks))


def own(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    return divided(x, dim, ranks.size)[ranks.rank].contiguous()


def summed(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    return finish(_calls.all_reduce(x.contiguous(), "sum", ranks.name))


def unchanged(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    return x.view_as(x)


_WAYS = {"copy": (unchanged, summed), "reduce": (summed, unchanged), "gather": (gathered, own),
         "gather_partial": (gathered, scattered), "split": (own, gathered), "reduce_scatter": (scattered, gathered)}


class _Collective(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, way: str, dim: int, ranks: Ranks) -> Tensor:
        ctx.way, ctx.dim, ctx.ranks = way, dim, ranks
        return _WAYS[way][0](x, dim, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _WAYS[ctx.way][1](gradient, ctx.dim, ctx.ranks), None, None, None


def over(x: Tensor, way: str, ranks: Ranks, dim: int = 0) -> Tensor:
    """One of _WAYS, with gradients; nothing is to be done in a group of one rank."""
    if ranks.size == 1:
        return x
    dim %= x.dim()
    if way in ("split", "reduce_scatter"):
        share(f"dimension {dim}", x.size(dim), ranks)
    return _Collective.apply(x, way, dim, ranks)


# ---- for models ----
def copy(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """x, which is whole on each rank, where ranks begin to do different things with it: its gradient is their sum."""
    return over(x, "copy", ranks_of(group))


def reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """The sum of x over the ranks, on each of them; its gradient comes as it is."""
    return over(x, "reduce", ranks_of(group))


def gather(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -1, partial: bool = False) -> Tensor:
    """Pieces of the ranks put together along a dimension, [.., n, ..] to [.., ranks * n, ..]. partial: ranks do
    different things with it, so that its gradient is the sum of theirs; otherwise all have the whole gradient."""
    return over(x, "gather_partial" if partial else "gather", ranks_of(group), dim)


def split(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -1) -> Tensor:
    """This rank's piece of what is whole on each rank, [.., ranks * n, ..] to [.., n, ..]; the gradient is put together
    again. Raises ValueError where pieces would not be equal."""
    return over(x, "split", ranks_of(group), dim)


def reduce_scatter(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -2) -> Tensor:
    """This rank's piece of the sum over the ranks, [.., ranks * n, ..] to [.., n, ..]. Raises ValueError where pieces
    would not be equal."""
    return over(x, "reduce_scatter", ranks_of(group), dim)
