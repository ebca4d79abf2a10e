"""The exchange of rows by messages: one all_to_all to the experts and one back, on any backend and device."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti.experts._arrays import OUTPUTS
from torch_tutti.experts._core import DTYPES, Rows
from torch_tutti.experts._layout import Layout
from torch_tutti.experts._pool import abort_group, shared_of


class Indices:
    """Does what _core.Rows does with torch's functions, for devices and dtypes that the C library does not handle.

    first: int64 [experts], the row of `buffer` where the rows for each expert begin."""

    def __init__(self, layout: Layout, first: Tensor, buffer: Tensor) -> None:
        is_placed = layout.placed >= 0
        row_of_choice = torch.where(is_placed, first[layout.chosen.clamp(min=0)] + layout.placed, -1)
        self._row_of_choice, self._buffer = row_of_choice.to(buffer.device), buffer
        self._compute_dtype = layout.compute_dtype

    def scatter(self, tokens: Tensor, weights: Tensor | None) -> None:
        """Copies each token into its rows of the buffer, times weights [tokens, choices] if given."""
        for choice, row_of_token in enumerate(self._row_of_choice.unbind(1)):
            has_row = row_of_token >= 0
            rows = tokens[has_row]
            if weights is not None:
                rows = (rows.to(self._compute_dtype) * weights[has_row, choice, None]).to(rows.dtype)
            self._buffer[row_of_token[has_row]] = rows

    def gather(self, out: Tensor, weights: Tensor | None) -> None:
        """Sets each token of `out` to the sum of its rows, times weights if given, computed in the layout's
        compute_dtype."""
        total = torch.zeros_like(out, dtype=self._compute_dtype)
        for choice in range(self._row_of_choice.shape[1]):
            rows = self._rows_of_choice(choice)
            total += rows if weights is None else rows * weights[:, choice, None]
        out.copy_(total)

    def dot(self, tokens: Tensor, out: Tensor) -> None:
        """Sets out, [tokens, choices], to the dot product of each token and each of its rows."""
        for choice in range(self._row_of_choice.shape[1]):
            out[:, choice] = (tokens.to(self._compute_dtype) * self._rows_of_choice(choice)).sum(-1)

    def _rows_of_choice(self, choice: int) -> Tensor:
        """Returns the row of each token's choice with this number, [tokens, columns] of the layout's compute_dtype;
        zeros for a dropped choice."""
        row_of_token, out = self._row_of_choice[:, choice], self._buffer.new_zeros(
            len(self._row_of_choice), self._buffer.shape[1], dtype=self._compute_dtype)
        out[row_of_token >= 0] = self._buffer[row_of_token[row_of_token >= 0]].to(self._compute_dtype)
        return out


class Messages:
    """The exchange of one batch by messages. Rows are sent in the order of experts, so in the order of their ranks.
    They arrive in the order of the sending ranks, and are then put in the order of experts."""

    def __init__(self, layout: Layout) -> None:
        """Computes from the layout how many rows this rank sends to each rank and gets from it, and where received rows
        belong."""
        self._layout, own_counts, ranks = layout, layout.by_rank[layout.rank], len(layout.by_rank)
        # [experts]: the row of the send buffer where the rows for each expert begin
        self._first = own_counts.cumsum(0) - own_counts
        self._sends, self._receives = own_counts.view(ranks, -1).sum(1).tolist(), layout.mine.sum(1).tolist()
        # received rows come in blocks of (sending rank, expert), and move from `before` to `first`
        lengths = layout.mine.flatten()
        first = layout.own_columns(layout.first).flatten()
        before = lengths.cumsum(0) - lengths
        moved = (first - before).repeat_interleave(lengths)
        self._row_of_received = (moved + torch.arange(sum(self._receives))).to(layout.device)
        self._back = torch.empty(0)                             # outputs that came back, for dot()

    def fail_others(self) -> None:
        """Aborts the group if tutti is its backend. Ranks of other groups wait until they time out."""
        if shared_of(self._layout.group):
            abort_group(self._layout.group)

    def _rows(self, buffer: Tensor) -> Any:
        """Returns an object with the methods of _core.Rows for this rank's rows in `buffer`, [rows sent, columns]."""
        layout = self._layout
        if layout.device.type != "cpu" or layout.dtype not in DTYPES:
            return Indices(layout, self._first, buffer)
        first = buffer.data_ptr() + self._first * (layout.columns * buffer.itemsize)
        return Rows(layout.chosen, layout.placed, first, layout.columns, layout.dtype)

    def begin_scatter(self, which: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        """Starts to send tokens, [tokens, columns], times weights if given. which is not used. Returns a function that
        waits for the rows of this rank's experts and returns them, [rows, columns]."""
        layout = self._layout
        sent, received = (tokens.new_empty(sum(counts), layout.columns) for counts in (self._sends, self._receives))
        self._rows(sent).scatter(tokens, weights)
        work = dist.all_to_all_single(received, sent, self._receives, self._sends, group=layout.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            rows = tokens.new_zeros(layout.rows, layout.columns) if layout.padded else torch.empty_like(received)
            return rows.index_copy_(0, self._row_of_received, received)
        return finish

    def gather(self, which: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Sends the experts' rows back, and returns the sum of each token's rows, times weights if given: [tokens,
        columns]. which: one of _arrays.py; dot() reads the rows of OUTPUTS."""
        layout = self._layout
        back = rows.new_empty(sum(self._sends), layout.columns)
        sent = rows.view(-1, layout.columns).index_select(0, self._row_of_received)
        dist.all_to_all_single(back, sent, self._sends, self._receives, group=layout.group)
        if which == OUTPUTS:
            self._back = back
        out = rows.new_empty(len(layout.chosen), layout.columns)
        self._rows(back).gather(out, weights)
        return out

    def dot(self, gradients: Tensor) -> Tensor:
        """Returns the dot product of each token's gradient, [tokens, columns], and each of its experts' outputs, which
        gather() keeps: [tokens, choices] of the layout's compute_dtype, the gradient of the weights."""
        layout = self._layout
        out = torch.empty(layout.chosen.shape, dtype=layout.compute_dtype, device=gradients.device)
        self._rows(self._back).dot(gradients, out)
        return out
