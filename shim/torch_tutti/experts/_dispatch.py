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
from torch_tutti.experts._arrays import GRAD_OUTPUTS, GRAD_TOKENS, OUTPUTS, TOKENS
from torch_tutti.experts._across import Across, is_suited
from torch_tutti.experts._direct import Direct, bytes_of_arrays
from torch_tutti.experts._hosts import Sends, plan_sends
from torch_tutti.experts._layout import Layout, abort_on_error, check_tensors, fail_all_on_error, in_step
from torch_tutti.experts._messages import Messages
from torch_tutti.experts._pool import Extent, Shared, abort_group, shared_of

# The columns that follow the counts in the exchange: choices of a token, VALID or INVALID arguments, columns and dtype
# of tokens, whether gradients are needed, offset and bytes of the rank's free shared memory.
CHOICES, STATUS, COLUMNS, DTYPE, NEEDS_GRADIENT, FREE_OFFSET, FREE_BYTES = range(-7, 0)
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
        """Starts to send the tokens. exchange: a Direct or Messages."""
        self._layout, self._exchange, self.combined = layout, exchange, False
        self._sent, self._await_rows = tokens, exchange.begin_scatter(TOKENS, tokens.detach(), None)
        self.dropped = int(((layout.placed < 0) & (layout.chosen >= 0)).sum())
        self.by_rank, self.counts = layout.by_rank, layout.mine.sum(0)
        self.tokens: Tensor = torch.empty(0)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `tokens`: [rows, columns], or with padding [my experts, ranks * capacity, columns]."""
        layout = self._layout
        if not layout.padded:
            return layout.rows, layout.columns
        return len(self.counts), len(layout.by_rank) * layout.padded, layout.columns

    @property
    def outputs(self) -> Tensor:
        """Returns an array for the experts' outputs. If rows travel through shared memory, combine() does not copy
        it."""
        if isinstance(self._exchange, Direct):
            return self._exchange.array(OUTPUTS).view(self.shape)
        return self.tokens.new_empty(self.shape)


class _Dispatch(torch.autograd.Function):
    """The autograd function of dispatch(): forward sends tokens to experts, backward sends their gradients back."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, batch: Batch) -> Tensor:
        """Waits for the rows of this rank's experts and returns them, in the shape of batch.tokens."""
        ctx.exchange, ctx.layout = batch._exchange, batch._layout
        with batch._layout.in_step("dispatch()"):
            rows = batch._await_rows()
        # view() would forbid experts to work in place
        return torch.ops.aten._unsafe_view.default(rows, batch.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Sends the gradients of the rows back, and returns the gradient of the tokens."""
        with ctx.layout.in_step("the backward pass of dispatch()"):
            return ctx.exchange.gather(GRAD_TOKENS, grad.contiguous(), None), None


class _Combine(torch.autograd.Function):
    """The autograd function of combine(). It also takes tokens, so that backward() reaches _Dispatch on all ranks:
    experts without rows may return outputs that do not depend on tokens."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, weights: Tensor, tokens: Tensor, batch: Batch) -> Tensor:
        """Sends the outputs back, and returns the weighted sum of each token's outputs."""
        ctx.exchange, ctx.layout, ctx.shape, ctx.dtype = batch._exchange, batch._layout, batch.shape, weights.dtype
        weights_used = weights.detach().to(batch._layout.compute_dtype).contiguous()
        ctx.save_for_backward(weights_used)
        with ctx.layout.in_step("combine()"):
            return batch._exchange.gather(OUTPUTS, outputs, weights_used)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Sends the gradients of the results to the experts, and returns the gradients of outputs and weights."""
        weights_used, grad = *ctx.saved_tensors, grad.contiguous()
        with ctx.layout.in_step("the backward pass of combine()"):
            grad_outputs = ctx.exchange.begin_scatter(GRAD_OUTPUTS, grad, weights_used)().view(ctx.shape)
        return grad_outputs, ctx.exchange.dot(grad).to(ctx.dtype), None, None


class Dispatcher:
    """Sends tokens to experts that are divided among the ranks of a group.

    experts: their number on all ranks; each rank has the same number, in the order of ranks. group: None: the default
    group. CPU tensors of float32, bfloat16 and float16 are exchanged through shared memory on a host, and by one
    message of a rank to each other host, if tutti is the backend; all others, and small batches over hosts, by
    all_to_all. capacity: the most rows that a rank sends to an expert; further rows are dropped; None: no limit. pad:
    arrays have the same shape for any choice of experts. Raises ValueError for invalid arguments."""

    def __init__(self, experts: int, group: dist.ProcessGroup | None = None, *, capacity: int | None = None,
                 pad: bool = False) -> None:
        """Checks the arguments. self.mine: the numbers of this rank's experts."""
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
        """Does dispatch(), expert(batch.tokens, batch.counts) and combine(), with the tokens in `chunks` parts: one
        part travels while experts work on the one before. `chunks` must be equal on all ranks. A capacity holds for
        each part. Returns [tokens, columns]. If `expert` raises an error, or if its outputs do not fit and rows
        travel by messages, aborts the group, so that the other ranks do not wait, but raise AbortedError."""
        if chunks < 1:
            raise ValueError(f"experts: {chunks} chunks; there must be 1 or more")
        parts = list(zip(*(part.tensor_split(chunks) for part in (tokens, weights, chosen))))
        out, begun = [], self._begin(parts[0][0], parts[0][2])
        for index, (_, part_weights, _) in enumerate(parts):
            following = self._begin(parts[index + 1][0], parts[index + 1][2]) if index + 1 < chunks else begun
            batch, begun = self._finish(begun), following
            with abort_on_error(lambda: abort_group(self.group)):
                outputs = expert(batch.tokens, batch.counts)
                # Messages cannot report a mistake to the other ranks
                if isinstance(batch._exchange, Messages):
                    self._check_outputs(outputs, part_weights, batch)
            out.append(self.combine(outputs, part_weights, batch))
        return torch.cat(out)

    def _finish(self, batch: Batch) -> Batch:
        """Waits for the rows of a batch that _begin() started, and returns the batch."""
        batch.tokens = _Dispatch.apply(batch._sent, batch)
        del batch._sent, batch._await_rows
        return batch

    def _begin(self, tokens: Tensor, chosen: Tensor) -> Batch:
        """Exchanges counts, lays out the batch, and starts to send its rows."""
        self._check_members()
        experts, placed, counts, problem = self._assign_places(tokens, chosen)
        memory, sends = self._memory(), None
        can_share = problem is None and tokens.device.type == "cpu" and tokens.dtype in _core.DTYPES
        shared = memory if can_share else None
        if memory and memory.hosts.count > 1:
            sends = plan_sends(memory.hosts, experts, placed, self.experts)
            counts = torch.cat([counts, sends.counts])
        extent = shared.take() if shared else None
        free_range = (extent.at, extent.size) if extent else (0, 0)
        of_ranks = self._exchange_counts(tokens, counts, experts.shape[1], free_range, problem)
        by_rank = of_ranks[:, :self.experts].contiguous()
        padded = self.capacity or 0 if self.pad else 0
        first, lengths = _core.offsets(by_rank, padded)
        layout = Layout(self.group, self.rank, experts, placed, by_rank, first, lengths[self.rank], padded,
                        tokens.shape[1], tokens.dtype, tokens.device)
        exchange = self._exchange(layout, shared, sends, extent, of_ranks, lengths)
        if torch.is_grad_enabled() and of_ranks[:, NEEDS_GRADIENT].any() and not tokens.requires_grad:
            tokens = tokens.detach().requires_grad_()           # either all ranks run the backward pass, or none
        return Batch(layout, exchange, tokens.contiguous())

    def _check_members(self) -> None:
        """Raises ValueError if the group has other ranks than those among which the experts were divided."""
        rank, ranks = self.group.rank(), self.group.size()
        if (rank, ranks) != (self.rank, self.ranks):
            raise ValueError(f"experts: the members of the group have changed: this was rank {self.rank} of "
                             f"{self.ranks}, and is rank {rank} of {ranks}; make a new Dispatcher on all ranks")

    def _memory(self) -> Shared | None:
        """Returns the memory that the ranks of a host share. On all ranks None if they share no memory."""
        return shared_of(self.group)

    def _exchange(self, layout: Layout, shared: Shared | None, sends: Sends | None, extent: Extent | None,
                  of_ranks: Tensor, lengths: list[int]) -> Any:
        """Returns the exchange of a batch: through shared memory if possible, with messages to other hosts, else by
        all_to_all. shared: the memory, or None. sends: the tokens for other hosts; None: there is one host. extent:
        free memory of `shared`. of_ranks: as _exchange_counts() returns it. lengths: for each rank, the rows of an
        array."""
        if shared is None or sends and not is_suited(layout, shared.hosts, int(of_ranks[:, CHOICES].max())):
            return Messages(layout)
        needed = [bytes_of_arrays(count, layout.columns, layout.dtype) for count in lengths]
        begins = of_ranks[:, FREE_OFFSET].tolist()
        if extent is None or any(need > has for need, has in zip(needed, of_ranks[:, FREE_BYTES].tolist())):
            extent, begins = shared.grow(max(needed)), [0] * self.ranks
        if sends is None:
            return Direct(layout, extent, begins, lengths)
        received = of_ranks[:, [self.experts + shared.hosts.own, CHOICES]].tolist()
        return Across(layout, shared, sends, received, extent, begins, lengths)

    def combine(self, outputs: Tensor, weights: Tensor, batch: Batch) -> Tensor:
        """Returns the results of this rank's tokens, [tokens, columns]: for each the sum of its rows of outputs times
        their weights, without dropped rows. outputs: the experts' results, with the shape and dtype of batch.tokens.
        weights: [tokens, choices]. May be called once for a batch. If one rank's arguments are invalid, the others
        raise ValueError if rows travel through the memory of one host, else AbortedError; if tutti is not the backend
        they wait until they time out, or until that rank ends."""
        with fail_all_on_error(batch._exchange.fail_others):
            self._check_outputs(outputs, weights, batch)
        batch.combined = True
        return _Combine.apply(outputs.contiguous(), weights, batch.tokens, batch)

    def _check_outputs(self, outputs: Tensor, weights: Tensor, batch: Batch) -> None:
        """Raises TypeError or ValueError for invalid arguments of combine()."""
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
        """Returns (chosen, placed, counts, None), as in _core.place(). If the arguments of dispatch() are invalid,
        returns the same for no tokens, and the error, which this rank raises after the exchange of counts."""
        try:
            self._check(tokens, chosen)
            experts = chosen.detach().to("cpu", torch.int64).contiguous()
            return (experts, *_core.place(experts, self.experts, self.capacity), None)
        except Exception as problem:        # any error: the exchange of counts reports it to the other ranks
            nothing = torch.empty(0, 1, dtype=torch.int64)
            return nothing, nothing, torch.zeros(self.experts, dtype=torch.int64), problem

    @staticmethod
    def _check(tokens: Tensor, chosen: Tensor) -> None:
        """Raises TypeError or ValueError for invalid arguments of dispatch()."""
        check_tensors("dispatch", tokens=tokens, chosen=chosen)
        if tokens.dim() != 2 or not tokens.shape[1] or tokens.dtype not in DTYPES:
            raise ValueError(f"dispatch: tokens are {_kind(tokens)}; they must be of a floating type and of shape "
                             "[tokens, columns]")
        if chosen.dim() != 2 or len(chosen) != len(tokens) or chosen.is_floating_point() or chosen.is_complex():
            raise ValueError(f"dispatch: the chosen experts are {_kind(chosen)}; they must be integers of shape "
                             f"[{len(tokens)}, choices]")

    def _exchange_counts(self, tokens: Tensor, counts: Tensor, choices: int, free_range: tuple[int, int],
                         problem: Exception | None) -> Tensor:
        """Exchanges counts. choices: of a token. free_range: (offset, bytes) of this rank's free shared memory.
        problem: the error of this rank's arguments, or None. Returns int64 [ranks, counts + 7]: each rank's counts,
        then CHOICES to FREE_BYTES.
        Raises `problem`, or ValueError if another rank's arguments are invalid or its rows differ in columns or
        dtype."""
        device = tokens.device if isinstance(tokens, Tensor) else torch.device("cpu")
        columns, dtype, needs_gradient = 0, -1, False
        if problem is None:
            columns, dtype = tokens.shape[1], DTYPES.index(tokens.dtype)
            needs_gradient = tokens.requires_grad and torch.is_grad_enabled()
        own_row = torch.cat([counts, torch.tensor([choices, VALID if problem is None else INVALID, columns, dtype,
                                                   needs_gradient, *free_range])])
        of_ranks = torch.empty(self.ranks, len(own_row), dtype=torch.int64, device=device)
        with in_step("dispatch()", self.rank, self.group):
            dist.all_gather(list(of_ranks), own_row.to(device), group=self.group)
        of_ranks = of_ranks.cpu()
        if problem is not None:
            raise problem
        invalid = of_ranks[:, STATUS].nonzero().flatten().tolist()
        if invalid:
            raise ValueError(f"dispatch: rank {invalid[0]} of the group got invalid arguments; its own error "
                             "describes them")
        for rank, (other_columns, other_dtype) in enumerate(of_ranks[:, [COLUMNS, DTYPE]].tolist()):
            if (other_columns, other_dtype) != (columns, dtype):
                raise ValueError(f"dispatch: rank {self.rank} of the group has rows of {columns} x {tokens.dtype}, "
                                 f"rank {rank} of {other_columns} x {DTYPES[other_dtype]}: all ranks must have the "
                                 "same kind")
        return of_ranks


def _kind(tensor: Tensor) -> str:
    """Returns shape and dtype as text, for errors."""
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
