"""Rows in memory that the ranks of a host have in common: a token is written straight into the array of its expert, on
whichever rank that is, and what comes of it is read where it lies.

A batch has four arrays on each rank, so that nothing which autograd may ask for again is overwritten. They are taken
together, after the exchange of counts: whoever takes part in it is done with all earlier batches, so nobody reads any
more what was given back. An array that is used a second time, in a second backward pass, is waited for; what was in it
stays, as autograd may have handed it out.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch import Tensor

from torch_tutti.experts._core import Rows
from torch_tutti.experts._layout import told
from torch_tutti.experts._pool import Extent, up
from torch_tutti.experts._slots import OUTPUTS

if TYPE_CHECKING:
    from torch_tutti.experts._layout import Layout

SLOTS = 4


def room(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Bytes of a rank's arrays."""
    return SLOTS * up(rows * columns * dtype.itemsize)


class Direct:
    """Of one layout. at: where in its part each rank has taken the arrays."""

    def __init__(self, layout: Layout, extent: Extent, at: list[int], rows: list[int]) -> None:
        self._layout, self._used = layout, set[int]()
        each = layout.by_rank.shape[1] // len(at)
        row = layout.columns * layout.dtype.itemsize
        steps = torch.tensor([up(count * row) for count in rows])
        starts = torch.tensor([extent.pool.address(rank, at[rank]) for rank in range(len(at))])
        mine = starts.repeat_interleave(each) + layout.first[layout.rank] * row
        self._rows = [Rows(layout.chosen, layout.placed, mine + slot * steps.repeat_interleave(each), layout.columns,
                           layout.dtype) for slot in range(SLOTS)]
        extent.cut(room(layout.rows, layout.columns, layout.dtype))
        self._step, self._extent = int(steps[layout.rank]), extent

    def array(self, slot: int) -> Tensor:
        """This rank's, [rows, columns]."""
        shape = self._layout.rows, self._layout.columns
        return self._extent.tensor(slot * self._step, shape, self._layout.dtype)

    def _claim(self, slot: int) -> None:
        if slot in self._used:
            self._layout.meet()
        self._used.add(slot)

    def refuse(self) -> None:
        """Instead of what all others do: they are told."""
        self._layout.meet(wrong=True)

    def begin_scatter(self, slot: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        array = self.array(slot)
        with told(self.refuse):
            before = array.clone() if slot in self._used else None
        self._claim(slot)
        with told(self.refuse):
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
        self._claim(slot)
        array = self.array(slot)
        with told(self.refuse):
            if rows.data_ptr() != array.data_ptr():
                array.copy_(rows.view_as(array))
            out = torch.empty(len(self._layout.chosen), self._layout.columns, dtype=self._layout.dtype)
        self._layout.meet()
        self._rows[slot].gather(out, weights)
        return out

    def dot(self, tokens: Tensor) -> Tensor:
        out = torch.empty(self._layout.chosen.shape)
        self._rows[OUTPUTS].dot(tokens, out)
        return out
