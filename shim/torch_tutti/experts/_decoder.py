"""Sends tokens to experts and back in one round each, for decoding: arrays have a fixed size, so ranks exchange no
counts. There are no gradients."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import group_of
from torch_tutti.experts import _core
from torch_tutti.experts._layout import check_tensors, barrier, fail_all_on_error, in_step
from torch_tutti.experts._pool import round_up, shared_of

# Dispatches use three sets of arrays in turn. A rank may be in a dispatch that others have not called yet, so it must
# not write to the arrays of the last two dispatches that they have called.
TURNS = 3


class Decoder:
    """Sends tokens to experts in arrays of fixed size. Collective; all ranks must be on one host, with tutti as
    backend.

    experts, group: as in Dispatcher. capacity: the most tokens of a rank in a call. A token sends at most one row to an
    expert, so no row is dropped. columns: elements of a token; dtype: their type. Raises ValueError for invalid sizes,
    and for a group on several hosts or of another backend."""

    def __init__(self, experts: int, columns: int, capacity: int, group: dist.ProcessGroup | None = None,
                 dtype: torch.dtype = torch.float32) -> None:
        """Checks the arguments, and allocates three sets of arrays in shared memory. Collective."""
        self.group = group_of("experts", group)
        self.rank, self.ranks, self.experts = self.group.rank(), self.group.size(), experts
        shared = shared_of(self.group)
        if shared is None or shared.hosts.count > 1:
            raise ValueError("experts: a Decoder needs all ranks of the group on one host, and tutti as its "
                             "backend; a Dispatcher needs neither")
        if experts < 1 or experts % self.ranks or capacity < 1 or columns < 1 or dtype not in _core.DTYPES:
            raise ValueError(f"experts: {experts} experts on {self.ranks} ranks, {capacity} tokens of {columns} x "
                             f"{dtype}: the experts must be a multiple of the ranks, the other sizes 1 or more, the "
                             "type float32, bfloat16 or float16")
        self.capacity, self.columns, self.dtype, self._turn = capacity, columns, dtype, 0
        self._per_rank = experts // self.ranks
        self._array_bytes = round_up(self._per_rank * self.ranks * capacity * columns * dtype.itemsize)
        self._counts_bytes = round_up(self._per_rank * self.ranks * 8)
        pool_bytes = TURNS * (2 * self._array_bytes + self._counts_bytes)
        self._extent, self._shared = shared.make_pool(pool_bytes).take(), shared
        self._addresses = self._row_addresses()
        self._chosen = self._placed = torch.empty(0, 1, dtype=torch.int64)

    def _offset(self, turn: int, array: int) -> int:
        """Returns the byte of this rank's memory at which an array of a turn begins. array: 0 tokens, 1 outputs, 2
        counts."""
        return turn * (2 * self._array_bytes + self._counts_bytes) + array * self._array_bytes

    def _rows(self, chosen: Tensor, placed: Tensor, array: int) -> _core.Rows:
        """Returns this rank's rows in the arrays of all ranks for this turn. array: 0 tokens, 1 outputs."""
        return _core.Rows(chosen, placed, self._addresses[self._turn, array], self.columns, self.dtype)

    def _row_addresses(self) -> Tensor:
        """Returns the addresses at which this rank's rows for each expert begin: int64 [turns, arrays, experts]."""
        row_bytes, pool = self.columns * self.dtype.itemsize, self._extent.pool
        return torch.tensor([[[
            pool.address(expert // self._per_rank, self._offset(turn, array))
            + (expert % self._per_rank * self.ranks + self.rank) * self.capacity * row_bytes
            for expert in range(self.experts)]
            for array in range(2)] for turn in range(TURNS)])

    def dispatch(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Sends tokens to the ranks of their experts. tokens: [tokens, columns], at most `capacity` of them. chosen:
        integers [tokens, choices], the experts of each token, no expert twice; -1: no expert.

        Returns the rows that this rank's experts got, [my experts, ranks, capacity, columns], and how many of them are
        valid, int64 [my experts, ranks]; the other rows have arbitrary contents. Both stay valid until the second
        dispatch after this. Collective. If one rank's arguments are invalid, all ranks raise ValueError (TypeError
        on that rank if an argument is no tensor)."""
        self._turn = (self._turn + 1) % TURNS
        with torch.no_grad():
            with fail_all_on_error(self._fail_others):
                self._chosen, self._placed = self._place(tokens, chosen)
                self._rows(self._chosen, self._placed, 0).scatter(tokens.contiguous(), None)
            with in_step("dispatch()", self.rank, self.group):
                barrier(self.group)
        shape = self._per_rank, self.ranks, self.capacity, self.columns
        counts = self._extent.tensor(self._offset(self._turn, 2), (self._per_rank, self.ranks), torch.int64)
        return self._extent.tensor(self._offset(self._turn, 0), shape, self.dtype), counts

    def _fail_others(self) -> None:
        """Joins the barrier in which the other ranks wait, and makes it raise ValueError on them."""
        barrier(self.group, failed=True)

    def _place(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Checks the arguments of dispatch(), places the tokens, and writes the number of this rank's rows into the
        owners' arrays. Returns (chosen, placed), as in _core.place()."""
        check_tensors("experts", tokens=tokens, chosen=chosen)
        if shared_of(self.group) is not self._shared:
            raise ValueError("experts: the members of the group have changed since this Decoder was made; make a new "
                             "one on all ranks")
        if tokens.shape[1:] != (self.columns,) or len(tokens) > self.capacity or tokens.dtype != self.dtype:
            raise ValueError(f"experts: tokens are {list(tokens.shape)} of {tokens.dtype}; this Decoder takes at most "
                             f"{self.capacity} of {self.columns} x {self.dtype}")
        if chosen.dim() != 2 or len(chosen) != len(tokens) or chosen.is_floating_point():
            raise ValueError(f"experts: the chosen experts are {list(chosen.shape)} of {chosen.dtype}; they must be "
                             f"integers of shape [{len(tokens)}, choices]")
        experts = chosen.to(torch.int64).contiguous()
        placed, counts = _core.place(experts, self.experts, self.capacity)
        if ((placed < 0) & (experts >= 0)).any():
            raise ValueError("experts: a token chooses an expert twice, which is not allowed")
        for owner, owner_counts in enumerate(counts.view(self.ranks, self._per_rank)):
            self._counts_at(owner).copy_(owner_counts)
        return experts, placed

    def _counts_at(self, owner: int) -> Tensor:
        """Returns this rank's column of the owner's array of counts: its rows for each expert of the owner."""
        return self._extent.tensor(self._offset(self._turn, 2), (self._per_rank, self.ranks), torch.int64,
                                   owner)[:, self.rank]

    @property
    def outputs(self) -> Tensor:
        """Returns the array of this turn's outputs. Experts may write into it, which saves combine() a copy."""
        return self._extent.tensor(self._offset(self._turn, 1),
                                   (self._per_rank, self.ranks, self.capacity, self.columns), self.dtype)

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Returns the results of this rank's tokens, [tokens, columns]: for each the sum of its rows of outputs times
        their weights. outputs: one row for each row of dispatch(), in the same shape. weights: [tokens, choices].
        Collective. If one rank's arguments are invalid, all ranks raise ValueError (TypeError
        on that rank if an argument is no tensor)."""
        with torch.no_grad():
            with fail_all_on_error(self._fail_others):
                self._share_outputs(outputs, weights)
                weights_used = weights.float().contiguous()
                out = torch.empty(len(self._chosen), self.columns, dtype=self.dtype)
            with in_step("combine()", self.rank, self.group):
                barrier(self.group)
            self._rows(self._chosen, self._placed, 1).gather(out, weights_used)
        return out

    def _share_outputs(self, outputs: Tensor, weights: Tensor) -> None:
        """Checks the arguments of combine(), and copies outputs into the array that other ranks read, unless they are
        there."""
        check_tensors("experts", outputs=outputs, weights=weights)
        own_outputs = self.outputs
        if outputs.shape != own_outputs.shape or outputs.dtype != self.dtype or weights.shape != self._chosen.shape:
            raise ValueError(f"experts: outputs are {list(outputs.shape)} of {outputs.dtype}, weights "
                             f"{list(weights.shape)}; this Decoder takes {list(own_outputs.shape)} of {self.dtype}, "
                             f"and {list(self._chosen.shape)}")
        if outputs.data_ptr() != own_outputs.data_ptr():
            own_outputs.copy_(outputs)
