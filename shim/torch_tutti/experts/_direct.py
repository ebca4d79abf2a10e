"""The exchange of rows through shared memory: a rank writes a token into the array of its expert, on the rank that has
the expert, and reads the result from there.

A batch has four arrays on each rank (_arrays.py), because autograd may use each of them again. A rank takes all four
after the exchange of counts. A rank that takes part in that exchange has finished all earlier batches, so no rank still
reads memory that was given back. Before an array is used a second time (a second backward pass) all ranks meet in a
barrier, and its old contents are restored afterwards, because autograd may have returned them to the program.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
from torch import Tensor

from torch_tutti.experts._arrays import OUTPUTS
from torch_tutti.experts._core import Rows
from torch_tutti.experts._layout import barrier, fail_all_on_error
from torch_tutti.experts._pool import Extent, round_up

if TYPE_CHECKING:
    from torch_tutti.experts._layout import Layout

ARRAYS = 4


def bytes_of_arrays(rows: int, columns: int, dtype: torch.dtype) -> int:
    """Returns the bytes of one rank's four arrays of [rows, columns]."""
    return ARRAYS * round_up(rows * columns * dtype.itemsize)


class Direct:
    """The exchange of one batch through shared memory."""

    def __init__(self, layout: Layout, extent: Extent, begins: list[int], lengths: list[int]) -> None:
        """Takes the four arrays out of `extent`, this rank's memory. begins: for each rank, the byte of its part of the
        pool at which its arrays begin. lengths: for each rank, the rows of an array."""
        self._layout, self._extent, self._used = layout, extent, set[int]()
        experts_per_rank = layout.by_rank.shape[1] // len(begins)
        self._row_bytes = layout.columns * layout.dtype.itemsize
        array_bytes = torch.tensor([round_up(count * self._row_bytes) for count in lengths])
        addresses = torch.tensor([extent.pool.address(rank, begin) for rank, begin in enumerate(begins)])
        # For each expert: where the arrays of its rank begin, and the bytes of each
        self._arrays = addresses.repeat_interleave(experts_per_rank)
        self._array_bytes = array_bytes.repeat_interleave(experts_per_rank)
        extent.cut(bytes_of_arrays(layout.rows, layout.columns, layout.dtype))
        self._own_array_bytes = int(array_bytes[layout.rank])

    def _first(self, rank: int, which: int) -> Tensor:
        """Returns the addresses of a rank's first rows for each expert, int64 [experts]; on other hosts they are
        meaningless. which: one of _arrays.py."""
        return self._arrays + which * self._array_bytes + self._layout.first[rank] * self._row_bytes

    def _rows(self, which: int) -> Rows:
        """Returns this rank's rows in the arrays of all ranks. which: one of _arrays.py."""
        layout = self._layout
        return Rows(layout.chosen, layout.placed, self._first(layout.rank, which), layout.columns, layout.dtype)

    def array(self, which: int) -> Tensor:
        """Returns this rank's array, [rows, columns]. which: one of _arrays.py."""
        shape = self._layout.rows, self._layout.columns
        return self._extent.tensor(which * self._own_array_bytes, shape, self._layout.dtype)

    def _await_readers(self, which: int) -> None:
        """If an array was used before, waits in a barrier: other ranks may still read it. which: one of _arrays.py."""
        if which in self._used:
            self._barrier()
        self._used.add(which)

    def fail_others(self) -> None:
        """Joins the barrier in which the other ranks wait, and makes it raise ValueError on them."""
        barrier(self._layout.group, failed=True)

    def _barrier(self) -> None:
        """Waits for all ranks that write to the arrays of this rank or read them."""
        barrier(self._layout.group)

    def begin_scatter(self, which: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        """Writes tokens, [tokens, columns], times weights if given, into the arrays of their experts' ranks. which: one
        of _arrays.py. Returns a function that waits for the rows of all ranks and returns this rank's array, [rows,
        columns]."""
        array = self.array(which)
        with fail_all_on_error(self.fail_others):
            old_contents = array.clone() if which in self._used else None
        self._await_readers(which)
        complete = self._write(which, tokens, weights)

        def finish() -> Tensor:
            """Returns the array of the batch, or a copy of it if its old contents had to be restored."""
            complete()
            self._barrier()
            self._layout.clear_padding(array)
            if old_contents is None:
                return array
            result = array.clone()
            array.copy_(old_contents)
            return result
        return finish

    def _write(self, which: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], None]:
        """Writes tokens as begin_scatter() does. Returns a function that is called before the barrier."""
        with fail_all_on_error(self.fail_others):
            self._rows(which).scatter(tokens, weights)
        return lambda: None

    def gather(self, which: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Puts this rank's rows into its array, waits for all ranks, and returns for each token of this rank the sum of
        its rows, times weights if given: [tokens, columns]. which: one of _arrays.py."""
        self._await_readers(which)
        array = self.array(which)
        with fail_all_on_error(self.fail_others):
            if rows.data_ptr() != array.data_ptr():
                array.copy_(rows.view_as(array))
            out = torch.empty(len(self._layout.chosen), self._layout.columns, dtype=self._layout.dtype)
        self._barrier()
        self._read(which, out, weights)
        return out

    def _read(self, which: int, out: Tensor, weights: Tensor | None) -> None:
        """Sets each token of `out` to the sum of its rows, times weights if given. which: one of _arrays.py."""
        self._rows(which).gather(out, weights)

    def dot(self, gradients: Tensor) -> Tensor:
        """Returns the dot product of each token's gradient, [tokens, columns], and each of its experts' outputs:
        float32 [tokens, choices], the gradient of the weights."""
        out = torch.empty(self._layout.chosen.shape)
        self._rows(OUTPUTS).dot(gradients, out)
        return out
