"""Collectives of tensor parallelism with their gradients: the gradient of each is the transposed collective (Shoeybi et
al. 2019; Korthikanti et al. 2022). All use torch's functional collectives, which torch.compile traces. A begin_
function starts one, and finish() waits for it, so that a product can run between them."""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # noqa: F401  their gradients, and how they are traced
from torch import Tensor
from torch.autograd import Function

_calls = torch.ops._c10d_functional


class Ranks(NamedTuple):
    """A group in the form that graphs and copies of a module can hold: its name, its number of ranks, and this rank's
    number in it."""
    name: str
    size: int
    rank: int


def ranks_of(group: dist.ProcessGroup | None) -> Ranks:
    """Returns the Ranks of a group; None: the default group. Raises ValueError without a default group, or if this rank
    is not in the group."""
    if not dist.is_initialized():
        raise ValueError("parallel: call init_process_group first")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError(f"parallel: rank {dist.get_rank()} is in no such group; call this on the ranks of the group "
                         "only")
    return Ranks(chosen.group_name, dist.get_world_size(chosen), dist.get_rank(chosen))


def share(name: str, size: int, ranks: Ranks) -> int:
    """Returns the size of each rank's part of `size`. Raises ValueError, with `name`, if the parts would not be
    equal."""
    if size % ranks.size:
        raise ValueError(f"parallel: {name} of {size} cannot be divided among {ranks.size} ranks; the next possible "
                         f"size is {size + -size % ranks.size}")
    return size // ranks.size


# ---- without gradients ----
# Waits for a collective, and returns its result.
finish = _calls.wait_tensor


def begin_sum(x: Tensor, ranks: Ranks) -> Tensor:
    """Begins the sum of x over the ranks. The result may take the memory of x, so the caller must not use x again."""
    if torch.compiler.is_compiling():
        return _calls.all_reduce(x, "sum", ranks.name)
    return _calls.all_reduce_(x.contiguous(), "sum", ranks.name)


def begin_gather(x: Tensor, ranks: Ranks) -> Tensor:
    """Begins to gather [n, …] of each rank to [ranks * n, …], in the order of ranks."""
    return _calls.all_gather_into_tensor(x.contiguous(), ranks.size, ranks.name)


def begin_reduce_scatter(x: Tensor, ranks: Ranks) -> Tensor:
    """Begins the sum over ranks of [ranks * n, …], of which each rank gets its part [n, …]."""
    return _calls.reduce_scatter_tensor(x.contiguous(), "sum", ranks.size, ranks.name)


def divided(x: Tensor, dim: int, size: int) -> Tensor:
    """Divides a dimension, counted from 0, into `size` equal pieces: returns a view [size, …]."""
    return x.unflatten(dim, (size, -1)).movedim(dim, 0)


def joined(x: Tensor, dim: int) -> Tensor:
    """Joins the pieces of a view that divided() has made, along the same dimension."""
    return x.movedim(0, dim).flatten(dim, dim + 1)


def gathered(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    """Returns x of all ranks, joined along a dimension."""
    return joined(finish(begin_gather(x, ranks)).unflatten(0, (ranks.size, -1)), dim)


def scattered(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    """Returns this rank's piece, along a dimension, of the sum of x over the ranks."""
    return finish(begin_reduce_scatter(divided(x, dim, ranks.size).flatten(0, 1), ranks))


def own_piece(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    """Returns a copy of this rank's piece of x along a dimension."""
    return divided(x, dim, ranks.size)[ranks.rank].contiguous()


def summed(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    """Returns the sum of x over the ranks; dim is not used."""
    return finish(_calls.all_reduce(x.contiguous(), "sum", ranks.name))


def unchanged(x: Tensor, dim: int, ranks: Ranks) -> Tensor:
    """Returns a view of x; the other parameters are not used."""
    return x.view_as(x)


# {name: (forward, backward)}
_OPERATIONS = {"copy": (unchanged, summed), "reduce": (summed, unchanged), "gather": (gathered, own_piece),
               "gather_partial": (gathered, scattered), "split": (own_piece, gathered),
               "reduce_scatter": (scattered, gathered)}


class _Collective(Function):
    """The autograd function of _OPERATIONS."""
    @staticmethod
    def forward(ctx: Any, x: Tensor, operation: str, dim: int, ranks: Ranks) -> Tensor:
        ctx.operation, ctx.dim, ctx.ranks = operation, dim, ranks
        return _OPERATIONS[operation][0](x, dim, ranks)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _OPERATIONS[ctx.operation][1](gradient, ctx.dim, ctx.ranks), None, None, None


def over(x: Tensor, operation: str, ranks: Ranks, dim: int = 0) -> Tensor:
    """Runs one of _OPERATIONS over the ranks, with gradients. Returns x itself in a group of one rank. Raises
    ValueError if a dimension cannot be divided evenly."""
    if ranks.size == 1:
        return x
    dim %= x.dim()
    if operation in ("split", "reduce_scatter"):
        share(f"dimension {dim}", x.size(dim), ranks)
    return _Collective.apply(x, operation, dim, ranks)


# ---- for models ----
def copy(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns x, which is whole on each rank, before ranks use it differently: its gradient is the sum of the ranks'
    gradients."""
    return over(x, "copy", ranks_of(group))


def reduce(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Returns the sum of x over the ranks, on each of them. The gradient passes unchanged."""
    return over(x, "reduce", ranks_of(group))


def gather(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -1, partial: bool = False) -> Tensor:
    """Returns the pieces of all ranks joined along a dimension, [.., n, ..] to [.., ranks * n, ..]. partial: ranks use
    the result differently, so the gradient is the sum of their gradients; otherwise each rank has the whole
    gradient."""
    return over(x, "gather_partial" if partial else "gather", ranks_of(group), dim)


def split(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -1) -> Tensor:
    """Returns this rank's piece of x, which is whole on each rank, [.., ranks * n, ..] to [.., n, ..]. The gradient is
    gathered. Raises ValueError if pieces would not be equal."""
    return over(x, "split", ranks_of(group), dim)


def reduce_scatter(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -2) -> Tensor:
    """Returns this rank's piece of the sum over the ranks, [.., ranks * n, ..] to [.., n, ..]. Raises ValueError if
    pieces would not be equal."""
    return over(x, "reduce_scatter", ranks_of(group), dim)
