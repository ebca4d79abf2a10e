"""The exchange of rows by messages: one all_to_all to the experts and one back, on any backend and device."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti.experts._core import DTYPES, Rows
from torch_tutti.experts._layout import Layout
from torch_tutti.experts._slots import OUTPUTS


class Indices:
    """Does what _core.Rows does with torch's functions, for devices and dtypes that the C library does not handle.

    begin: int64 [experts], the row of `buffer` where the rows for each expert begin."""

    def __init__(self, layout: Layout, begin: Tensor, buffer: Tensor) -> None:
        taken = layout.placed >= 0
        at = torch.where(taken, begin[layout.chosen.clamp(min=0)] + layout.placed, -1)
        self._at, self._buffer = at.to(buffer.device), buffer

    def scatter(self, tokens: Tensor, weights: Tensor | None) -> None:
        """Copies each token into its rows of the buffer, times weights [tokens, choices] if given."""
        for k, at in enumerate(self._at.unbind(1)):
            taken = at >= 0
            rows = tokens[taken]
            if weights is not None:
                rows = (rows.float() * weights[taken, k, None]).to(rows.dtype)
            self._buffer[at[taken]] = rows

    def gather(self, out: Tensor, weights: Tensor | None) -> None:
        """Sets each token of `out` to the (weighted) sum of its rows, computed in float32."""
        total = torch.zeros_like(out, dtype=torch.float32)
        for k in range(self._at.shape[1]):
            part = self._choices(k)
            total += part if weights is None else part * weights[:, k, None]
        out.copy_(total)

    def dot(self, tokens: Tensor, out: Tensor) -> None:
        """Sets out, [tokens, choices], to the dot product of each token and each of its rows."""
        for k in range(self._at.shape[1]):
            out[:, k] = (tokens.float() * self._choices(k)).sum(-1)

    def _choices(self, k: int) -> Tensor:
        """The row of each token's k-th choice, float32 [tokens, columns]; zeros for a dropped choice."""
        at, out = self._at[:, k], self._buffer.new_zeros(len(self._at), self._buffer.shape[1], dtype=torch.float32)
        out[at >= 0] = self._buffer[at[at >= 0]].float()
        return out


class Messages:
    """The exchange of one batch by messages. Rows are sent in the order of experts, so in the order of their ranks.
    They arrive in the order of the sending ranks, and are then put in the order of experts."""

    def __init__(self, layout: Layout) -> None:
        self._layout, mine, ranks = layout, layout.by_rank[layout.rank], len(layout.by_rank)
        self._begin = mine.cumsum(0) - mine                     # row of the send buffer, [experts]
        self._sends, self._receives = mine.view(ranks, -1).sum(1).tolist(), layout.mine.sum(1).tolist()
        lengths = layout.mine.flatten()
        first = layout.own(layout.first).flatten()
        before = lengths.cumsum(0) - lengths
        moved = (first - before).repeat_interleave(lengths)
        self._row_of_received = (moved + torch.arange(sum(self._receives))).to(layout.device)
        self._back = torch.empty(0)

    def refuse(self) -> None:
        """Does nothing: no message can tell the other ranks, so they time out."""

    def _rows(self, buffer: Tensor) -> Any:
        """Access to this rank's rows in `buffer`, [rows sent, columns]."""
        layout = self._layout
        if layout.device.type != "cpu" or layout.dtype not in DTYPES:
            return Indices(layout, self._begin, buffer)
        first = buffer.data_ptr() + self._begin * (layout.columns * buffer.itemsize)
        return Rows(layout.chosen, layout.placed, first, layout.columns, layout.dtype)

    def begin_scatter(self, slot: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        """Starts to send tokens, [tokens, columns], times weights if given. Returns a function that waits and returns
        the rows of this rank's experts, [rows, columns]."""
        layout = self._layout
        sent, received = (tokens.new_empty(sum(counts), layout.columns) for counts in (self._sends, self._receives))
        self._rows(sent).scatter(tokens, weights)
        work = dist.all_to_all_single(received, sent, self._receives, self._sends, group=layout.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            rows = tokens.new_zeros(layout.rows, layout.columns) if layout.padded else torch.empty_like(received)
            return rows.index_copy_(0, self._row_of_received, received)
        return finish

    def gather(self, slot: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Sends the experts' rows back, and returns the (weighted) sum of each token's rows, [tokens, columns]."""
        layout = self._layout
        back = rows.new_empty(sum(self._sends), layout.columns)
        sent = rows.view(-1, layout.columns).index_select(0, self._row_of_received)
        dist.all_to_all_single(back, sent, self._sends, self._receives, group=layout.group)
        if slot == OUTPUTS:
            self._back = back
        out = rows.new_empty(len(layout.chosen), layout.columns)
        self._rows(back).gather(out, weights)
        return out

    def dot(self, tokens: Tensor) -> Tensor:
        """Returns the dot product of each token's gradient and each of its experts' outputs, which gather() keeps:
        float32 [tokens, choices], the gradient of the weights."""
        out = torch.empty(self._layout.chosen.shape, device=tokens.device)
        self._rows(self._back).dot(tokens, out)
        return out
