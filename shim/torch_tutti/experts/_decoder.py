"""Tokens to experts and back in one round each, for decoding: arrays of fixed size, no exchange of counts, no
gradients."""
from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._calls import group_of
from torch_tutti.experts import _core
from torch_tutti.experts._layout import check_tensors, meet, told
from torch_tutti.experts._pool import Pool, shared_of, up

# Arrays are used in turns. A rank may be in a dispatch that others have not called yet: it must not write to the arrays
# of the last two that they have called.
TURNS = 3


class Decoder:
    """experts, group: as of Dispatcher. capacity: the most tokens of a rank in a call, each of which sends at most one
    row to an expert, so nothing is ever dropped. columns, dtype: of tokens. Collective. ValueError for what cannot be:
    it needs tutti's ranks on one host."""

    def __init__(self, experts: int, columns: int, capacity: int, group: dist.ProcessGroup | None = None,
                 dtype: torch.dtype = torch.float32) -> None:
        self.group = group_of("experts", group)
        self.rank, self.ranks, self.experts = self.group.rank(), self.group.size(), experts
        shared = shared_of(self.group)
        if shared is None:
            raise ValueError("experts: a Decoder needs all ranks of the group on one host, and tutti as its "
                             "backend; a Dispatcher needs neither")
        if experts < 1 or experts % self.ranks or capacity < 1 or columns < 1 or dtype not in _core.DTYPES:
            raise ValueError(f"experts: {experts} experts on {self.ranks} ranks, {capacity} tokens of {columns} x "
                             f"{dtype}: the experts must be a multiple of the ranks, the other sizes 1 or more, the "
                             "type float32, bfloat16 or float16")
        self.capacity, self.columns, self.dtype, self._turn = capacity, columns, dtype, 0
        self._each = experts // self.ranks
        self._array = up(self._each * self.ranks * capacity * columns * dtype.itemsize)
        self._counts = up(self._each * self.ranks * 8)
        size = TURNS * (2 * self._array + self._counts)
        self._extent = Pool(*shared.of, size).take()
        self._first = self._first_rows()
        self._chosen = self._placed = torch.empty(0, 1, dtype=torch.int64)

    def _at(self, turn: int, part: int) -> int:
        """Where tokens (0), outputs (1) and counts (2) of a turn begin."""
        return turn * (2 * self._array + self._counts) + part * self._array

    def _rows(self, chosen: Tensor, placed: Tensor, part: int) -> _core.Rows:
        """Of this turn's tokens or outputs, on all ranks."""
        return _core.Rows(chosen, placed, self._first[self._turn, part], self.columns, self.dtype)

    def _first_rows(self) -> Tensor:
        """[turns, parts, experts]: where this rank's rows begin."""
        row, pool = self.columns * self.dtype.itemsize, self._extent.pool
        return torch.tensor([[[
            pool.address(e // self._each, self._at(turn, part))
            + (e % self._each * self.ranks + self.rank) * self.capacity * row for e in range(self.experts)]
            for part in range(2)] for turn in range(TURNS)])

    def dispatch(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """tokens: [tokens, columns], at most `capacity`; chosen: [tokens, choices] of whole numbers, no expert twice;
        -1: none. Rows of this rank's experts, [my experts, ranks, capacity, columns], and how many of each count,
        int64 [my experts, ranks]; what is behind those is anything. Both are there until the second dispatch after
        this. Collective; an error of one rank is a ValueError of all others."""
        self._turn = (self._turn + 1) % TURNS
        with torch.no_grad():
            with told(self._refuse):
                self._chosen, self._placed = self._check(tokens, chosen)
                self._rows(self._chosen, self._placed, 0).scatter(tokens.contiguous(), None)
            meet(self.group)
        shape = self._each, self.ranks, self.capacity, self.columns
        counts = self._extent.tensor(self._at(self._turn, 2), (self._each, self.ranks), torch.int64)
        return self._extent.tensor(self._at(self._turn, 0), shape, self.dtype), counts

    def _refuse(self) -> None:
        meet(self.group, wrong=True)

    def _check(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """And says how many rows come, once nothing is wrong."""
        check_tensors("experts", tokens=tokens, chosen=chosen)
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
        for owner, part in enumerate(counts.view(self.ranks, self._each)):
            self._counts_at(owner).copy_(part)
        return experts, placed

    def _counts_at(self, owner: int) -> Tensor:
        """Where this rank says how many rows it sends to the experts of another: a column there."""
        return self._extent.tensor(self._at(self._turn, 2), (self._each, self.ranks), torch.int64, owner)[:, self.rank]

    @property
    def outputs(self) -> Tensor:
        """Where experts may write what they make, so that combine() need not copy."""
        return self._extent.tensor(self._at(self._turn, 1), (self._each, self.ranks, self.capacity, self.columns),
                                   self.dtype)

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """outputs: of the rows, in their shape. weights: [tokens, choices]. Of each token the sum of its rows times
        their weights, [tokens, columns]. Collective; an error of one rank is a ValueError of all others."""
        with torch.no_grad():
            with told(self._refuse):
                self._take(outputs, weights)
                used = weights.float().contiguous()
                out = torch.empty(len(self._chosen), self.columns, dtype=self.dtype)
            meet(self.group)
            self._rows(self._chosen, self._placed, 1).gather(out, used)
        return out

    def _take(self, outputs: Tensor, weights: Tensor) -> None:
        """Checks both, and puts outputs where the others read them."""
        check_tensors("experts", outputs=outputs, weights=weights)
        mine = self.outputs
        if outputs.shape != mine.shape or outputs.dtype != self.dtype or weights.shape != self._chosen.shape:
            raise ValueError(f"experts: outputs are {list(outputs.shape)} of {outputs.dtype}, weights "
                             f"{list(weights.shape)}; this Decoder takes {list(mine.shape)} of {self.dtype}, and "
                             f"{list(self._chosen.shape)}")
        if outputs.data_ptr() != mine.data_ptr():
            mine.copy_(outputs)
