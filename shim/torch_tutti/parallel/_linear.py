"""Linear layers that are divided among ranks, by columns of the product or by rows (Shoeybi et al. 2019), with the
sequence divided between them where asked for (Korthikanti et al. 2022). A product of ranks' pieces begins with this
rank's own, while the others travel."""
from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from torch_tutti.parallel._collectives import (Ranks, begin_gather, begin_reduce_scatter, begin_sum, divided, finish,
                                               gathered, over, share)
from torch_tutti.parallel._layers import Divided, cast, sequence_dim

__all__ = ["ColumnLinear", "RowLinear"]
PIECES = 2              # in which a sequence travels; with more, products are smaller


def cut(x: Tensor, dim: int, pieces: int) -> tuple[Tensor, ...]:
    return x.tensor_split(max(1, min(pieces, x.size(dim))), dim)


def product_of_all(x: Tensor, weight: Tensor, bias: Tensor | None, dim: int, pieces: int,
                   ranks: Ranks) -> tuple[Tensor, list[Tensor]]:
    """F.linear of all ranks' x put together along a dimension, and what has come of x, [ranks, …] for each piece.
    Products are computed in the order in which pieces come, this rank's own before any."""
    if not pieces:
        whole = gathered(x, dim, ranks)
        return F.linear(whole, weight, bias), [divided(whole, dim, ranks.size)]
    begun = [begin_gather(piece, ranks) for piece in cut(x, dim, pieces)]
    tiles: list[list[Tensor]] = [[] for _ in range(ranks.size)]
    tiles[ranks.rank].append(F.linear(x, weight, bias))
    come = []
    for piece in begun:
        come.append(finish(piece).unflatten(0, (ranks.size, -1)))
        for rank in range(ranks.size):
            if rank != ranks.rank:
                tiles[rank].append(F.linear(come[-1][rank], weight, bias))
    return torch.cat([tile for of_rank in tiles for tile in of_rank], dim), come


def rows(x: Tensor) -> Tensor:
    """As a matrix."""
    return x.reshape(-1, x.size(-1))


class _Column(Function):
    """A rank's columns of a product: x, or of sequence pieces all, times weight, transposed, plus bias. Back: the
    gradient of x is the sum over ranks, or a piece of it. While it travels that of the weight is computed, for which
    pieces are gathered again, while that of x is computed: so they need not be kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dim: int | None, pieces: int,
                ranks: Ranks) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dim, ctx.ranks, ctx.overlap = dim, ranks, pieces > 0
        if dim is None:
            return F.linear(x, weight, bias)
        return product_of_all(x, weight, bias, dim, pieces, ranks)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ranks, dim, (of_x, of_weight, of_bias) = ctx.ranks, ctx.dim, ctx.needs_input_grad[:3]
        all_x = x if dim is None or not of_weight else begin_gather(x, ranks)
        by_rank = rows(gradient if dim is None else divided(gradient, dim, ranks.size))
        if of_x and dim is None:
            dx = begin_sum((by_rank @ weight).view(x.shape), ranks)
        elif of_x:
            dx = begin_reduce_scatter((by_rank @ weight).view(-1, *x.shape[1:]), ranks)
        all_x = finish(all_x) if dim is not None and of_weight else all_x
        dw = by_rank.t() @ rows(all_x) if of_weight else None
        db = by_rank.sum(0) if of_bias else None
        return finish(dx) if of_x else None, dw, db, None, None, None


class _Row(Function):
    """The sum over ranks of x times weight, transposed, or a piece of the sequence of it. A piece travels while the
    next one is computed. Back: gradients of pieces are gathered, while the product of this rank's own is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dim: int | None, pieces: int, ranks: Ranks) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dim, ctx.ranks, ctx.pieces = dim, ranks, pieces
        if dim is None:
            return finish(begin_sum(F.linear(x, weight), ranks))
        begun = [begin_reduce_scatter(F.linear(piece, weight).flatten(0, 1), ranks)
                 for piece in cut(divided(x, dim, ranks.size), dim + 1, pieces)]
        return torch.cat([finish(piece) for piece in begun], dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        dim, (of_x, of_weight) = ctx.dim, ctx.needs_input_grad[:2]
        if dim is None:
            dx = gradient @ weight if of_x else None
            return dx, rows(gradient).t() @ rows(x) if of_weight else None, None, None, None
        dx, come = product_of_all(gradient, weight.t(), None, dim, min(ctx.pieces, 1), ctx.ranks)
        dw = rows(come[0]).t() @ rows(divided(x, dim, ctx.ranks.size)) if of_weight else None
        return dx if of_x else None, dw, None, None, None


class _Linear(Divided):
    """What both have: sizes, and how pieces of the sequence travel."""

    def __init__(self, in_features: int, out_features: int, bias: bool, group: dist.ProcessGroup | None,
                 sequence: bool, dim: int, pieces: int) -> None:
        super().__init__(group)
        self.in_features, self.out_features, self.biased = in_features, out_features, bias
        self.sequence, self.dim, self.pieces = sequence, dim, pieces
        self.features = in_features         # of what a rank's forward() takes
        if pieces < 0:
            raise ValueError(f"parallel: pieces={pieces}; it must be 0, for no overlap, or more")

    @classmethod
    def of(cls, linear: nn.Linear, group: dist.ProcessGroup | None = None, **options: Any) -> Any:
        """This rank's part of a layer that all ranks have with the same values; a copy. options: as of the class."""
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"parallel: {cls.__name__}.of takes an nn.Linear, not {type(linear).__name__}")
        made = cls(linear.in_features, linear.out_features, linear.bias is not None, group, device="meta", **options)
        made.take(linear)
        return made

    def shapes(self) -> dict[str, tuple[int, ...]]:
        weight = {"weight": (self.out_features, self.in_features)}
        return {**weight, "bias": (self.out_features,)} if self.biased else weight

    def like(self, **options: Any) -> nn.Module:
        return nn.Linear(self.in_features, self.out_features, self.biased, **options)

    def start(self, device: Any, dtype: Any) -> None:
        self.take(self.like(device=device, dtype=dtype))
        if not self.biased:
            self.register_parameter("bias", None)

    def sequence_of(self, x: Tensor) -> int | None:
        """The dimension, from 0, in which pieces of the sequence lie; None: it is not divided."""
        if x.dim() < 1 or x.size(-1) != self.features:
            raise ValueError(f"parallel: {type(self).__name__} has got {tuple(x.shape)} on rank {self.ranks.rank}; it "
                             f"takes {self.features} features")
        return sequence_dim(self.dim, x) if self.sequence else None

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.biased}, "
                f"sequence={self.sequence}, rank {self.ranks.rank} of {self.ranks.size}")


class ColumnLinear(_Linear):
    """nn.Linear of which each rank has some of the out features: weight [out / ranks, in], bias [out / ranks].

    forward(x): [.., in] to [.., out / ranks], or to [.., out] with gather_output. x is whole on each rank, and its
    gradient summed over the ranks. sequence: x is a piece, [.., length / ranks, .., in], of dimension `dim`; pieces of
    all ranks are gathered, and the gradient comes back as a piece (pieces of equal length: all ranks see to that).
    They travel in so many `pieces`, while products of what has come are computed; 0: first gathered, then multiplied.
    parts: the out features are so many parts of equal size, as the queries, keys and values of one layer, each of which
    is divided. pad: out features that do not divide get more, with outputs of -inf, which have no share in a softmax.

    First values are those of nn.Linear for the state of the generator, the same on all ranks. Raises ValueError where
    sizes cannot be divided.
    """
    divided: ClassVar[dict[str, int]] = {"weight": 0, "bias": 0}

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: dist.ProcessGroup | None = None,
                 *, gather_output: bool = False, sequence: bool = False, dim: int = -2, pieces: int = PIECES,
                 parts: int = 1, pad: bool = False, device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_features, out_features, bias, group, sequence, dim, pieces)
        self.gather_output, self.parts = gather_output, parts
        if parts < 1 or out_features % parts or pad and parts > 1:
            raise ValueError(f"parallel: out_features={out_features} in parts={parts}; parts must be of equal size, "
                             "because they are not padded")
        if pad:
            here = -(-out_features // self.ranks.size)
            self.valid = min(here, max(0, out_features - here * self.ranks.rank))
        else:
            self.valid = share("out_features" if parts == 1 else f"out_features / {parts}", out_features // parts,
                               self.ranks) * parts
        self.start(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        dim = self.sequence_of(x)
        if self.ranks.size == 1:
            return F.linear(x, self.weight, self.bias)
        y = _Column.apply(*cast(x, self.weight, self.bias), dim, self.pieces, self.ranks)
        if self.valid < self.weight.size(0) and not self.gather_output:
            y = torch.cat([y[..., :self.valid], y.new_full(y[..., self.valid:].shape, float("-inf"))], -1)
        if self.gather_output:
            y = over(y, "gather", self.ranks, -1)
            y = y.unflatten(-1, (self.ranks.size, self.parts, -1)).transpose(-3, -2).flatten(-3)
            y = y[..., :self.out_features]
        return y


class RowLinear(_Linear):
    """nn.Linear of which each rank has some of the in features: weight [out, in / ranks], bias [out], which is added
    once, to the sum.

    forward(x): [.., in / ranks], or [.., in] without input_is_parallel, to [.., out], the sum over the ranks, on each
    of them. sequence: to a piece of it, [.., length / ranks, .., out], of dimension `dim`, in so many `pieces`: one is
    summed while the next is computed. Then the gradient of the bias is summed over the ranks, too.

    First values are those of nn.Linear for the state of the generator, the same on all ranks. Raises ValueError where
    sizes cannot be divided.
    """
    divided: ClassVar[dict[str, int]] = {"weight": 1}

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: dist.ProcessGroup | None = None,
                 *, input_is_parallel: bool = True, sequence: bool = False, dim: int = -2, pieces: int = PIECES,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_features, out_features, bias, group, sequence, dim, pieces)
        self.input_is_parallel = input_is_parallel
        here = share("in_features", in_features, self.ranks)
        self.features = here if input_is_parallel else in_features
        self.start(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        dim = self.sequence_of(x)
        if self.ranks.size == 1:
            return F.linear(x, self.weight, self.bias)
        if dim is not None:
            share("a sequence", x.size(dim), self.ranks)
        if not self.input_is_parallel:
            x = over(x, "split", self.ranks, -1)
        x, weight, bias = cast(x, self.weight, self.bias)
        y = _Row.apply(x, weight, dim, self.pieces, self.ranks)
        if bias is None:
            return y
        return y + (bias if dim is None else over(bias, "copy", self.ranks))
