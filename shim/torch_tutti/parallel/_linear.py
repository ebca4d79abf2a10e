"""Linear layers that are divided among ranks, by output features or by input features (Shoeybi et al. 2019), also with
a divided sequence between them (Korthikanti et al. 2022). A product of the pieces of all ranks begins with this rank's
own piece, while the others travel."""
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
PIECES = 2              # pieces in which a rank's part of a sequence travels; with more, products are smaller


def cut(x: Tensor, dim: int, pieces: int) -> tuple[Tensor, ...]:
    """Cuts x along a dimension into at most `pieces` pieces, at least 1."""
    return x.tensor_split(max(1, min(pieces, x.size(dim))), dim)


def product_of_all(x: Tensor, weight: Tensor, bias: Tensor | None, dim: int, pieces: int,
                   ranks: Ranks) -> tuple[Tensor, list[Tensor]]:
    """Computes F.linear of the ranks' x joined along `dim`. Returns it with the gathered x: a tensor [ranks, …] for
    each piece. pieces: how many travel one after another; products are computed in the order of arrival, this rank's
    own first. 0: gathers x before the product."""
    if not pieces:
        whole = gathered(x, dim, ranks)
        return F.linear(whole, weight, bias), [divided(whole, dim, ranks.size)]
    in_flight = [begin_gather(piece, ranks) for piece in cut(x, dim, pieces)]
    tiles: list[list[Tensor]] = [[] for _ in range(ranks.size)]
    tiles[ranks.rank].append(F.linear(x, weight, bias))
    arrived = []
    for piece in in_flight:
        arrived.append(finish(piece).unflatten(0, (ranks.size, -1)))
        for rank in range(ranks.size):
            if rank != ranks.rank:
                tiles[rank].append(F.linear(arrived[-1][rank], weight, bias))
    return torch.cat([tile for of_rank in tiles for tile in of_rank], dim), arrived


def rows(x: Tensor) -> Tensor:
    """Returns x as a matrix [rows, features]."""
    return x.reshape(-1, x.size(-1))


class _Column(Function):
    """The autograd function of ColumnLinear: x, or with `dim` the joined sequence pieces of all ranks, times the
    transposed weight, plus bias. backward() sums the gradient of x over the ranks, or gives each rank its piece of the
    sum. Meanwhile it computes the gradient of the weight. It gathers sequence pieces again, so that they need not be
    kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dim: int | None, pieces: int,
                ranks: Ranks) -> Tensor:
        """Computes this rank's output features. dim: the dimension of a divided sequence; None: x is whole on each
        rank."""
        ctx.save_for_backward(x, weight)
        ctx.dim, ctx.ranks, ctx.overlap = dim, ranks, pieces > 0
        if dim is None:
            return F.linear(x, weight, bias)
        return product_of_all(x, weight, bias, dim, pieces, ranks)[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Returns the gradients of x, weight and bias, None for those that are not needed."""
        x, weight = ctx.saved_tensors
        ranks, dim, (needs_x, needs_weight, needs_bias) = ctx.ranks, ctx.dim, ctx.needs_input_grad[:3]
        all_x = x if dim is None or not needs_weight else begin_gather(x, ranks)
        gradient_rows = rows(gradient if dim is None else divided(gradient, dim, ranks.size))
        if needs_x and dim is None:
            x_gradient = begin_sum((gradient_rows @ weight).view(x.shape), ranks)
        elif needs_x:
            x_gradient = begin_reduce_scatter((gradient_rows @ weight).view(-1, *x.shape[1:]), ranks)
        all_x = finish(all_x) if dim is not None and needs_weight else all_x
        weight_gradient = gradient_rows.t() @ rows(all_x) if needs_weight else None
        bias_gradient = gradient_rows.sum(0) if needs_bias else None
        return finish(x_gradient) if needs_x else None, weight_gradient, bias_gradient, None, None, None


class _Row(Function):
    """The autograd function of RowLinear: the sum over ranks of x times the transposed weight, or with `dim` this
    rank's sequence piece of the sum. A piece travels while the next one is computed. backward() gathers the pieces of
    the gradient while it computes the product of this rank's own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dim: int | None, pieces: int, ranks: Ranks) -> Tensor:
        """Computes the sum over the ranks. dim: the dimension in which the result is divided; None: each rank gets all
        of it."""
        ctx.save_for_backward(x, weight)
        ctx.dim, ctx.ranks, ctx.pieces = dim, ranks, pieces
        if dim is None:
            return finish(begin_sum(F.linear(x, weight), ranks))
        in_flight = [begin_reduce_scatter(F.linear(piece, weight).flatten(0, 1), ranks)
                     for piece in cut(divided(x, dim, ranks.size), dim + 1, pieces)]
        return torch.cat([finish(piece) for piece in in_flight], dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Returns the gradients of x and weight, None for those that are not needed."""
        x, weight = ctx.saved_tensors
        dim, (needs_x, needs_weight) = ctx.dim, ctx.needs_input_grad[:2]
        if dim is None:
            x_gradient = gradient @ weight if needs_x else None
            return x_gradient, rows(gradient).t() @ rows(x) if needs_weight else None, None, None, None
        x_gradient, gathered_gradient = product_of_all(gradient, weight.t(), None, dim, min(ctx.pieces, 1), ctx.ranks)
        weight_gradient = (rows(gathered_gradient[0]).t() @ rows(divided(x, dim, ctx.ranks.size))
                           if needs_weight else None)
        return x_gradient if needs_x else None, weight_gradient, None, None, None


class _Linear(Divided):
    """The base of ColumnLinear and RowLinear: sizes, and the division of the sequence."""

    def __init__(self, in_features: int, out_features: int, bias: bool, group: dist.ProcessGroup | None,
                 sequence: bool, dim: int, pieces: int) -> None:
        super().__init__(group)
        self.in_features, self.out_features, self.has_bias = in_features, out_features, bias
        self.sequence, self.dim, self.pieces = sequence, dim, pieces
        self.features = in_features         # last dimension of the input of this rank's forward()
        if pieces < 0:
            raise ValueError(f"parallel: pieces={pieces}; it must be 0, for no overlap, or more")

    @classmethod
    def of(cls, linear: nn.Linear, group: dist.ProcessGroup | None = None, **options: Any) -> Any:
        """Returns this rank's part of a layer that has the same values on all ranks, as a copy. options: those of the
        class."""
        if not isinstance(linear, nn.Linear):
            raise ValueError(f"parallel: {cls.__name__}.of takes an nn.Linear, not {type(linear).__name__}")
        result = cls(linear.in_features, linear.out_features, linear.bias is not None, group, device="meta", **options)
        result.take(linear)
        return result

    def shapes(self) -> dict[str, tuple[int, ...]]:
        weight = {"weight": (self.out_features, self.in_features)}
        return {**weight, "bias": (self.out_features,)} if self.has_bias else weight

    def like(self, **options: Any) -> nn.Module:
        return nn.Linear(self.in_features, self.out_features, self.has_bias, **options)

    def init_parameters(self, device: Any, dtype: Any) -> None:
        """Sets the parameters: this rank's part of a new whole layer."""
        self.take(self.like(device=device, dtype=dtype))
        if not self.has_bias:
            self.register_parameter("bias", None)

    def sequence_of(self, x: Tensor) -> int | None:
        """Checks the shape of x. Returns the dimension, from 0, along which the sequence is divided, or None if it is
        not."""
        if x.dim() < 1 or x.size(-1) != self.features:
            raise ValueError(f"parallel: {type(self).__name__} has got {tuple(x.shape)} on rank {self.ranks.rank}; it "
                             f"takes {self.features} features")
        return sequence_dim(self.dim, x) if self.sequence else None

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, bias={self.has_bias}, "
                f"sequence={self.sequence}, rank {self.ranks.rank} of {self.ranks.size}")


class ColumnLinear(_Linear):
    """nn.Linear whose output features are divided among the ranks: weight [out / ranks, in], bias [out / ranks].

    forward(x): [.., in] to [.., out / ranks], or to [.., out] with gather_output. x is whole on each rank, and its
    gradient is summed over the ranks. sequence: x is this rank's piece, [.., length / ranks, .., in], along dimension
    `dim`; the pieces of all ranks are gathered, and the gradient comes back as a piece. All ranks must pass pieces of
    equal length. Each piece travels in `pieces` parts, while products of the parts that have come are computed; 0: it
    is gathered first, then multiplied. parts: the output features are this many parts of equal size, for example
    queries, keys and values in one layer, each of which is divided. pad: if the output features cannot be divided
    evenly, the last ranks get padding, whose outputs are -inf, so that a softmax ignores it.

    Initial values are those of nn.Linear for the state of the random generator, which must be the same on all ranks.
    Raises ValueError if sizes cannot be divided."""
    divided: ClassVar[dict[str, int]] = {"weight": 0, "bias": 0}

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: dist.ProcessGroup | None = None,
                 *, gather_output: bool = False, sequence: bool = False, dim: int = -2, pieces: int = PIECES,
                 parts: int = 1, pad: bool = False, device: Any = None, dtype: torch.dtype | None = None) -> None:
        """Checks the sizes and sets the parameters. self.valid: the output features of this rank that are not
        padding."""
        super().__init__(in_features, out_features, bias, group, sequence, dim, pieces)
        self.gather_output, self.parts = gather_output, parts
        if parts < 1 or out_features % parts or pad and parts > 1:
            raise ValueError(f"parallel: out_features={out_features} in parts={parts}; parts must be of equal size, "
                             "because they are not padded")
        if pad:
            per_rank = -(-out_features // self.ranks.size)
            self.valid = min(per_rank, max(0, out_features - per_rank * self.ranks.rank))
        else:
            self.valid = share("out_features" if parts == 1 else f"out_features / {parts}", out_features // parts,
                               self.ranks) * parts
        self.init_parameters(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Returns this rank's output features, or all of them with gather_output; see the class."""
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
    """nn.Linear whose input features are divided among the ranks: weight [out, in / ranks]. Each rank has the whole
    bias [out], which is added once, to the sum.

    forward(x): [.., in / ranks], or [.., in] without input_is_parallel, to [.., out], the sum over the ranks, on each
    of them. sequence: returns this rank's piece of the sum, [.., length / ranks, .., out], along dimension `dim`, in
    `pieces` parts: one is summed while the next is computed. Then the gradient of the bias is summed over the ranks,
    too.

    Initial values are those of nn.Linear for the state of the random generator, which must be the same on all ranks.
    Raises ValueError if sizes cannot be divided."""
    divided: ClassVar[dict[str, int]] = {"weight": 1}

    def __init__(self, in_features: int, out_features: int, bias: bool = True, group: dist.ProcessGroup | None = None,
                 *, input_is_parallel: bool = True, sequence: bool = False, dim: int = -2, pieces: int = PIECES,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_features, out_features, bias, group, sequence, dim, pieces)
        self.input_is_parallel = input_is_parallel
        per_rank = share("in_features", in_features, self.ranks)
        self.features = per_rank if input_is_parallel else in_features
        self.init_parameters(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum over the ranks, or this rank's sequence piece of it; see the class."""
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
