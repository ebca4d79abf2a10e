"""Sends tokens to the ranks of their experts, and the experts' outputs back, with gradients in both directions.

All ranks exchange the counts of their rows first. A rank with invalid arguments reports that in this exchange, so no
other rank waits for its rows."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_tutti._calls import group_of
from torch_tutti.experts import _core
from torch_tutti.experts._direct import Direct, bytes_of_arrays
from torch_tutti.experts._layout import Layout, check_tensors, fail_all_on_error
from torch_tutti.experts._messages import Messages
from torch_tutti.experts._pool import shared_of
from torch_tutti.experts._slots import GRAD_OUTPUTS, GRAD_TOKENS, OUTPUTS, TOKENS

# The columns that follow the counts in the exchange: VALID or INVALID arguments, columns and dtype of tokens, whether
# gradients are needed, offset and bytes of the free shared memory.
STATUS, COLUMNS, DTYPE, GRAPH, AT, FREE = range(-6, 0)
VALID, INVALID = 0, 1
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Batch:
    """The result of dispatch().

    tokens: the rows for this rank's experts, [rows, columns], ordered by expert and then by sending rank; with padding
    [my experts, ranks * capacity, columns], with zeros in unused rows. counts: int64 [my experts], rows of each.
    by_rank: int64 [ranks, experts], rows that each rank sends to each expert. dropped: how many choices of this rank's
    tokens exceeded the capacity. outputs: an array like `tokens` that combine() need not copy; for inference only.
    """

    def __init__(self, layout: Layout, exchange: Any, tokens: Tensor) -> None:
        self._layout, self._exchange, self.combined = layout, exchange, False
        self._sent, self._await_rows = tokens, exchange.begin_scatter(TOKENS, tokens.detach(), None)
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
        if isinstance(self._exchange, Direct):
            return self._exchange.array(OUTPUTS).view(self.shape)
        return self.tokens.new_empty(self.shape)


class _Dispatch(torch.autograd.Function):
    """The autograd node of dispatch(): forward sends tokens to experts, backward sends their gradients back."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, batch: Batch) -> Tensor:
        ctx.exchange = batch._exchange
        # view() would forbid experts to work in place
        return torch.ops.aten._unsafe_view.default(batch._await_rows(), batch.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.exchange.gather(GRAD_TOKENS, grad.contiguous(), None), None


class _Combine(torch.autograd.Function):
    """The autograd node of combine(). It also takes tokens, so that backward() reaches _Dispatch on all ranks: experts
    without rows may return outputs that do not depend on tokens."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, weights: Tensor, tokens: Tensor, batch: Batch) -> Tensor:
        ctx.exchange, ctx.shape, ctx.dtype = batch._exchange, batch.shape, weights.dtype
        used = weights.detach().float().contiguous()
        ctx.save_for_backward(used)
        return batch._exchange.gather(OUTPUTS, outputs, used)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        used, grad = *ctx.saved_tensors, grad.contiguous()
        grad_outputs = ctx.exchange.begin_scatter(GRAD_OUTPUTS, grad, used)().view(ctx.shape)
        return grad_outputs, ctx.exchange.dot(grad).to(ctx.dtype), None, None


class Dispatcher:
    """Sends tokens to experts that are divided among the ranks of a group.

    experts: their number on all ranks; each rank has the same number, in the order of ranks. group: None: the default
    group. CPU tensors of float32, bfloat16 and float16 are exchanged through shared memory if all ranks are on one host
    and tutti is the backend; all others by all_to_all. capacity: the most rows that a rank sends to an expert; later
    rows are dropped; None: no limit. pad: arrays have the same shape for any choice. Raises ValueError for invalid
    arguments."""

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
        """Sends tokens, [tokens, columns], to their experts. Ranks may have different numbers of tokens. chosen:
        integers [tokens, choices], the experts of each token; -1: no expert. Collective, as are combine() and both
        backward passes."""
        return self._finish(self._begin(tokens, chosen))

    def run(self, expert: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, weights: Tensor, chosen: Tensor,
            chunks: int = 1) -> Tensor:
        """dispatch(), expert(batch.tokens, batch.counts) and combine(), with the tokens in `chunks` parts: one part
        travels while experts work on the one before. `chunks` must be equal on all ranks. A capacity holds for each
        part. Returns [tokens, columns]."""
        if chunks < 1:
            raise ValueError(f"experts: {chunks} chunks; there must be 1 or more")
        parts = list(zip(*(part.tensor_split(chunks) for part in (tokens, weights, chosen))))
        out, begun = [], self._begin(parts[0][0], parts[0][2])
        for index, (_, part_weights, _) in enumerate(parts):
            following = self._begin(parts[index + 1][0], parts[index + 1][2]) if index + 1 < chunks else begun
            batch, begun = self._finish(begun), following
            out.append(self.combine(expert(batch.tokens, batch.counts), part_weights, batch))
        return torch.cat(out)

    def _finish(self, batch: Batch) -> Batch:
        """Waits for the rows of a batch that _begin() started."""
        batch.tokens = _Dispatch.apply(batch._sent, batch)
        del batch._sent, batch._await_rows
        return batch

    def _begin(self, tokens: Tensor, chosen: Tensor) -> Batch:
        """Exchanges counts, lays out the batch, and starts to send its rows: through shared memory if all ranks can,
        else by messages."""
        experts, placed, counts, problem = self._assign_places(tokens, chosen)
        direct = problem is None and tokens.device.type == "cpu" and tokens.dtype in _core.DTYPES
        shared = shared_of(self.group) if direct else None
        extent = shared.take() if shared else None
        free = (extent.at, extent.size) if extent else (0, 0)
        of_ranks = self._exchange_counts(tokens, counts, free, problem)
        by_rank = of_ranks[:, :self.experts].contiguous()
        padded = self.capacity or 0 if self.pad else 0
        first, rows = _core.offsets(by_rank, padded)
        layout = Layout(self.group, self.rank, experts, placed, by_rank, first, rows[self.rank], padded,
                        tokens.shape[1], tokens.dtype, tokens.device)
        exchange: Any = Messages(layout)
        if shared:
            needed = [bytes_of_arrays(count, layout.columns, layout.dtype) for count in rows]
            at = of_ranks[:, AT].tolist()
            if extent is None or any(need > has for need, has in zip(needed, of_ranks[:, FREE].tolist())):
                extent, at = shared.grow(max(needed)), [0] * self.ranks
            exchange = Direct(layout, extent, at, rows)
        if torch.is_grad_enabled() and of_ranks[:, GRAPH].any() and not tokens.requires_grad:
            tokens = tokens.detach().requires_grad_()           # either all ranks run the backward pass, or none
        return Batch(layout, exchange, tokens.contiguous())

    def combine(self, outputs: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """Returns the results of this rank's tokens, [tokens, columns]: for each the sum of its rows of outputs times
        their weights, without dropped rows. outputs: the experts' results, with the shape and dtype of batch.tokens.
        weights: [tokens, choices]. May be called once for a batch. If one rank's arguments are invalid, the others
        raise ValueError if rows travel through shared memory; by messages they wait until they time out, or until that
        rank ends."""
        with fail_all_on_error(batch._exchange.refuse):
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

    def _assign_places(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Exception | None]:
        """Returns (experts, places, counts, None) as of _core.place(). If the arguments are invalid, returns the same
        without rows, and the error, which this rank raises after the exchange of counts."""
        try:
            self._check(tokens, chosen)
            experts = chosen.detach().to("cpu", torch.int64).contiguous()
            return (experts, *_core.place(experts, self.experts, self.capacity), None)
        except Exception as problem:        # of any kind: the exchange reports it to the other ranks
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

    def _exchange_counts(self, tokens: Tensor, counts: Tensor, free: tuple[int, int],
                         problem: Exception | None) -> Tensor:
        """Exchanges counts. free: (offset, bytes) of this rank's free shared memory. Returns int64 [ranks, experts +
        6]: each rank's counts, then STATUS to FREE. Raises this rank's `problem`, or ValueError if another rank's
        arguments are invalid or its rows differ in columns or dtype."""
        device = tokens.device if isinstance(tokens, Tensor) else torch.device("cpu")
        columns, dtype, graph = 0, -1, False
        if problem is None:
            columns, dtype = tokens.shape[1], DTYPES.index(tokens.dtype)
            graph = tokens.requires_grad and torch.is_grad_enabled()
        mine = torch.cat([counts, torch.tensor([VALID if problem is None else INVALID, columns, dtype, graph, *free])])
        of_ranks = torch.empty(self.ranks, len(mine), dtype=torch.int64, device=device)
        dist.all_gather(list(of_ranks), mine.to(device), group=self.group)
        of_ranks = of_ranks.cpu()
        if problem is not None:
            raise problem
        invalid = of_ranks[:, STATUS].nonzero().flatten().tolist()
        if invalid:
            raise ValueError(f"dispatch: rank {invalid[0]} of the group got invalid arguments; its own error says "
                             "which")
        for rank, (its_columns, its_dtype) in enumerate(of_ranks[:, [COLUMNS, DTYPE]].tolist()):
            if (its_columns, its_dtype) != (columns, dtype):
                raise ValueError(f"dispatch: rank {self.rank} of the group has rows of {columns} x {tokens.dtype}, "
                                 f"rank {rank} of {its_columns} x {DTYPES[its_dtype]}: all ranks must have the same "
                                 "kind")
        return of_ranks


def _kind(tensor: Tensor) -> str:
    """Shape and dtype, for errors."""
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
