"""Tokens to the ranks of their experts, and what these make of them back, with gradients both ways.

A mistake on one rank is told in the exchange of counts, in which all take part, so that none waits for rows that do not
come."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_tutti._calls import group_of
from torch_tutti.experts import _core
from torch_tutti.experts._direct import Direct, room
from torch_tutti.experts._layout import Layout, check_tensors, told
from torch_tutti.experts._messages import Messages
from torch_tutti.experts._pool import shared_of
from torch_tutti.experts._slots import GRAD_OUTPUTS, GRAD_TOKENS, OUTPUTS, TOKENS

STATUS, COLUMNS, DTYPE, GRAPH, AT, FREE = range(-6, 0)     # of what ranks tell each other, behind their counts
FINE, WRONG = 0, 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Batch:
    """What dispatch() has brought.

    tokens: rows of this rank's experts, [rows, columns], expert by expert, and of each from rank to rank; with padding
    [my experts, ranks * capacity, columns], zeros where there is none. counts: int64 [my experts], their rows.
    by_rank: int64 [ranks, experts], rows of all. dropped: choices of this rank's tokens that found no room.
    outputs: an array like `tokens` for what experts make, from which combine() need not copy; for inference.
    """

    def __init__(self, layout: Layout, way: Any, tokens: Tensor) -> None:
        self._layout, self._way, self.combined = layout, way, False
        self._sent, self._arrive = tokens, way.begin_scatter(TOKENS, tokens.detach(), None)
        self.dropped = int(((layout.placed < 0) & (layout.chosen >= 0)).sum())
        self.by_rank, self.counts = layout.by_rank, layout.mine.sum(0)
        self.tokens: Tensor = torch.empty(0)

    @property
    def shape(self) -> tuple[int, ...]:
        own = self._layout
        if not own.padded:
            return own.rows, own.columns
        return len(self.counts), len(own.by_rank) * own.padded, own.columns

    @property
    def outputs(self) -> Tensor:
        if isinstance(self._way, Direct):
            return self._way.array(OUTPUTS).view(self.shape)
        return self.tokens.new_empty(self.shape)


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, batch: Batch) -> Tensor:
        ctx.way = batch._way
        # view() would forbid experts to work in place
        return torch.ops.aten._unsafe_view.default(batch._arrive(), batch.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.way.gather(GRAD_TOKENS, grad.contiguous(), None), None


class _Combine(torch.autograd.Function):
    """Of tokens, too, so that backward() comes to _Dispatch on all ranks: experts that have no rows may have made
    outputs that are no function of tokens."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, weights: Tensor, tokens: Tensor, batch: Batch) -> Tensor:
        ctx.way, ctx.shape, ctx.dtype = batch._way, batch.shape, weights.dtype
        used = weights.detach().float().contiguous()
        ctx.save_for_backward(used)
        return batch._way.gather(OUTPUTS, outputs, used)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        used, grad = *ctx.saved_tensors, grad.contiguous()
        grad_outputs = ctx.way.begin_scatter(GRAD_OUTPUTS, grad, used)().view(ctx.shape)
        return grad_outputs, ctx.way.dot(grad).to(ctx.dtype), None, None


class Dispatcher:
    """experts: in all; the ranks of the group have as many each, in order. group: None, the default group; of tutti's
    ranks on one host, CPU tensors of float32, bfloat16 and float16 are written straight into each other's memory; all
    others travel by all_to_all. capacity: the most rows that a rank sends to an expert, the others are dropped, the
    last ones first; None: all go. pad: arrays have the same shape whatever is chosen. ValueError for what cannot be."""

    def __init__(self, experts: int, group: dist.ProcessGroup | None = None, *, capacity: int | None = None,
                 pad: bool = False) -> None:
        self.group = group_of("experts", group)
        self.rank, self.ranks = self.group.rank(), self.group.size()
        if experts < 1 or experts % self.ranks:
            raise ValueError(f"experts: {experts} experts cannot be divided evenly among {self.ranks} ranks: use a "
                             f"multiple of {self.ranks}")
        if capacity is not None and capacity < 1:
            raise ValueError(f"experts: a capacity of {capacity} rows drops every token; give 1 or more, or None for "
                             "all")
        if pad and capacity is None:
            raise ValueError("experts: pad needs a capacity: the rows of each rank and expert")
        self.experts, self.capacity, self.pad = experts, capacity, pad
        self.mine = range(self.rank * (experts // self.ranks), (self.rank + 1) * (experts // self.ranks))

    def dispatch(self, tokens: Tensor, chosen: Tensor) -> Batch:
        """tokens: [tokens, columns], as many as each rank has. chosen: [tokens, choices], of whole numbers, the experts
        of each; -1: none. Collective; so are its backward pass, combine() and that one's."""
        return self._finish(self._begin(tokens, chosen))

    def run(self, expert: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, weights: Tensor, chosen: Tensor,
            chunks: int = 1) -> Tensor:
        """combine(expert(batch.tokens, batch.counts), …) of dispatch(tokens, chosen), in so many pieces, as many on
        all ranks: one is on its way while experts work on the one before. A capacity is of each piece."""
        if chunks < 1:
            raise ValueError(f"experts: {chunks} chunks; there must be 1 or more")
        parts = list(zip(*(part.tensor_split(chunks) for part in (tokens, weights, chosen))))
        out, begun = [], self._begin(parts[0][0], parts[0][2])
        for here, (_, its, _) in enumerate(parts):
            following = self._begin(parts[here + 1][0], parts[here + 1][2]) if here + 1 < chunks else begun
            batch, begun = self._finish(begun), following
            out.append(self.combine(expert(batch.tokens, batch.counts), its, batch))
        return torch.cat(out)

    def _finish(self, batch: Batch) -> Batch:
        batch.tokens = _Dispatch.apply(batch._sent, batch)
        del batch._sent, batch._arrive
        return batch

    def _begin(self, tokens: Tensor, chosen: Tensor) -> Batch:
        experts, placed, counts, problem = self._placed(tokens, chosen)
        direct = problem is None and tokens.device.type == "cpu" and tokens.dtype in _core.DTYPES
        shared = shared_of(self.group) if direct else None
        extent = shared.take() if shared else None
        free = (extent.at, extent.size) if extent else (0, 0)
        said = self._exchange(tokens, counts, free, problem)
        by_rank = said[:, :self.experts].contiguous()
        padded = self.capacity or 0 if self.pad else 0
        first, rows = _core.offsets(by_rank, padded)
        layout = Layout(self.group, self.rank, experts, placed, by_rank, first, rows[self.rank], padded,
                        tokens.shape[1], tokens.dtype, tokens.device)
        way: Any = Messages(layout)
        if shared:
            needed = [room(count, layout.columns, layout.dtype) for count in rows]
            at = said[:, AT].tolist()
            if extent is None or any(need > has for need, has in zip(needed, said[:, FREE].tolist())):
                extent, at = shared.grow(max(needed)), [0] * self.ranks
            way = Direct(layout, extent, at, rows)
        if torch.is_grad_enabled() and said[:, GRAPH].any() and not tokens.requires_grad:
            tokens = tokens.detach().requires_grad_()           # all go backward, or none
        return Batch(layout, way, tokens.contiguous())

    def combine(self, outputs: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """outputs: what experts have made of batch.tokens, of the same shape and type. weights: [tokens, choices]. Of
        each token the sum of its rows times their weights, [tokens, columns]; of what was dropped, nothing. Once for
        each batch. An error of one rank is a ValueError of all others, where tokens do not travel as messages; else the
        others wait until they time out, or it ends."""
        with told(batch._way.refuse):
            self._check_outputs(outputs, weights, batch)
        batch.combined = True
        return _Combine.apply(outputs.contiguous(), weights, batch.tokens, batch)

    def _check_outputs(self, outputs: Tensor, weights: Tensor, batch: Batch) -> None:
        check_tensors("combine", outputs=outputs, weights=weights)
        expected = tuple(batch._layout.chosen.shape)
        if batch.combined:
            raise ValueError("combine: this batch has been combined; dispatch again")
        if tuple(outputs.shape) != tuple(batch.shape) or outputs.dtype != batch._layout.dtype:
            raise ValueError(f"combine: the experts' outputs are {_kind(outputs)} on rank {self.rank}, where tokens "
                             f"are {_kind(batch.tokens)}: they must be the same")
        if tuple(weights.shape) != expected or not weights.is_floating_point():
            raise ValueError(f"combine: weights are {_kind(weights)} on rank {self.rank}; they must be of a floating "
                             f"type and of shape {list(expected)}, as the chosen experts")

    def _placed(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Exception | None]:
        """What this rank asks for; or nothing, and what is wrong with it."""
        try:
            self._check(tokens, chosen)
            experts = chosen.detach().to("cpu", torch.int64).contiguous()
            return (experts, *_core.place(experts, self.experts, self.capacity), None)
        except Exception as problem:        # whatever it is, the others are told
            nothing = torch.empty(0, 1, dtype=torch.int64)
            return nothing, nothing, torch.zeros(self.experts, dtype=torch.int64), problem

    @staticmethod
    def _check(tokens: Tensor, chosen: Tensor) -> None:
        check_tensors("dispatch", tokens=tokens, chosen=chosen)
        if tokens.dim() != 2 or not tokens.shape[1] or tokens.dtype not in DTYPES:
            raise ValueError(f"dispatch: tokens are {_kind(tokens)}; they must be of a floating type and of shape "
                             "[tokens, columns]")
        if chosen.dim() != 2 or len(chosen) != len(tokens) or chosen.is_floating_point() or chosen.is_complex():
            raise ValueError(f"dispatch: the chosen experts are {_kind(chosen)}; they must be integers of shape "
                             f"[{len(tokens)}, choices]")

    def _exchange(self, tokens: Tensor, counts: Tensor, free: tuple[int, int], problem: Exception | None) -> Tensor:
        """Of each rank its counts, whether something is wrong, its columns and type, whether it asks for gradients, and
        its free memory."""
        device = tokens.device if isinstance(tokens, Tensor) else torch.device("cpu")
        columns, dtype, graph = 0, -1, False
        if problem is None:
            columns, dtype = tokens.shape[1], DTYPES.index(tokens.dtype)
            graph = tokens.requires_grad and torch.is_grad_enabled()
        mine = torch.cat([counts, torch.tensor([FINE if problem is None else WRONG, columns, dtype, graph, *free])])
        said = torch.empty(self.ranks, len(mine), dtype=torch.int64, device=device)
        dist.all_gather(list(said), mine.to(device), group=self.group)
        said = said.cpu()
        if problem is not None:
            raise problem
        wrong = said[:, STATUS].nonzero().flatten().tolist()
        if wrong:
            raise ValueError(f"dispatch: rank {wrong[0]} of the group got invalid arguments; its own error says which")
        for rank, (its, kind) in enumerate(said[:, [COLUMNS, DTYPE]].tolist()):
            if (its, kind) != (columns, dtype):
                raise ValueError(f"dispatch: rank {self.rank} of the group has rows of {columns} x {tokens.dtype}, "
                                 f"rank {rank} of {its} x {DTYPES[kind]}: all ranks must have the same kind")
        return said


def _kind(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
