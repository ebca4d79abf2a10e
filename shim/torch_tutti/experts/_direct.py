"""The exchange of rows through shared memory: a rank writes a token into the array of its expert, on the rank that has
the expert, and reads the result from there.

A batch has four arrays on each rank (_slots.py), because autograd may use each of them again. A rank takes all four
after the exchange of counts. A rank that takes part in that exchange has finished all earlier batches, so no rank still
reads memory that was given back. Before an array is used a second time (a second backward pass) all ranks meet in a
barrier, and its old contents are restored afterwards, because autograd may have returned them to the program.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch import Tensor

from torch_tutti.experts._core import Rows
from torch_tutti.experts._layout import fail_all_on_error
from torch_tutti.experts._pool import Extent, round_up
from torch_tutti.experts._slots import OUTPUTS

if TYPE_CHECKING:
    from torch_tutti.experts._layout import Layout

SLOTS = 4


def bytes_of_arrays(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes of one rank's four arrays of [rows, columns]."""
    return SLOTS * round_up(rows * columns * dtype.itemsize)


class Direct:
    """The exchange of one batch through shared memory. extent: this rank's memory, cut to the arrays. at: for each
    rank, the byte of its part of the pool at which its arrays begin. rows: for each rank, the rows of an array."""

    def __init__(self, layout: Layout, extent: Extent, at: list[int], rows: list[int]) -> None:
        self._layout, self._used = layout, set[int]()
        each = layout.by_rank.shape[1] // len(at)
        row = layout.columns * layout.dtype.itemsize
        steps = torch.tensor([round_up(count * row) for count in rows])
        starts = torch.tensor([extent.pool.address(rank, at[rank]) for rank in range(len(at))])
        mine = starts.repeat_interleave(each) + layout.first[layout.rank] * row
        self._rows = [Rows(layout.chosen, layout.placed, mine + slot * steps.repeat_interleave(each), layout.columns,
                           layout.dtype) for slot in range(SLOTS)]
        extent.cut(bytes_of_arrays(layout.rows, layout.columns, layout.dtype))
        self._step, self._extent = int(steps[layout.rank]), extent

    def array(self, slot: int) -> Tensor:
        """This rank's array of a slot (_slots.py), [rows, columns]."""
        shape = self._layout.rows, self._layout.columns
        return self._extent.tensor(slot * self._step, shape, self._layout.dtype)

    def _claim(self, slot: int) -> None:
        """Waits for all ranks before a slot is used again: they may still read it."""
        if slot in self._used:
            self._layout.meet()
        self._used.add(slot)

    def refuse(self) -> None:
        """Joins the barrier in which the other ranks wait, and makes it fail on all of them."""
        self._layout.meet(failed=True)

    def begin_scatter(self, slot: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        """Writes tokens, [tokens, columns], times weights if given, into the arrays of their experts' ranks. Returns a
        function that waits for the rows of all ranks and returns this rank's array, [rows, columns]."""
        array = self.array(slot)
        with fail_all_on_error(self.refuse):
            before = array.clone() if slot in self._used else None
        self._claim(slot)
        with fail_all_on_error(self.refuse):
            self._rows[slot].scatter(tokens, weights)

        def finish() -> Tensor:
            self._layout.meet()
            self._layout.clear_padding(array)
            if before is None:
                return array
            found = array.clone()
            array.copy_(before)
            return found
        return finish

    def gather(self, slot: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Puts this rank's rows into its array, waits for all ranks, and returns the (weighted) sum of the rows of each
        token of this rank, [tokens, columns]."""
        self._claim(slot)
        array = self.array(slot)
        with fail_all_on_error(self.refuse):
            if rows.data_ptr() != array.data_ptr():
                array.copy_(rows.view_as(array))
            out = torch.empty(len(self._layout.chosen), self._layout.columns, dtype=self._layout.dtype)
        self._layout.meet()
        self._rows[slot].gather(out, weights)
        return out

    def dot(self, tokens: Tensor) -> Tensor:
        """Returns the dot product of each token's gradient, [tokens, columns], and each of its experts' outputs:
        float32 [tokens, choices], the gradient of the weights."""
        out = torch.empty(self._layout.chosen.shape)
        self._rows[OUTPUTS].dot(tokens, out)
        return out
