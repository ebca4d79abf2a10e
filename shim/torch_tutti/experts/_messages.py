"""Rows that travel as messages: one all_to_all there, one back, between any ranks, on any backend and device."""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti.experts._core import DTYPES, Rows
from torch_tutti.experts._layout import Layout
from torch_tutti.experts._slots import OUTPUTS


class Indices:
    """What core.Rows does, of rows in one tensor, by torch's own functions: for its other devices and types."""

    def __init__(self, layout: Layout, begin: Tensor, buffer: Tensor) -> None:
        taken = layout.placed >= 0
        at = torch.where(taken, begin[layout.chosen.clamp(min=0)] + layout.placed, -1)
        self._at, self._buffer = at.to(buffer.device), buffer

    def scatter(self, tokens: Tensor, weights: Tensor | None) -> None:
        for k, at in enumerate(self._at.unbind(1)):
            taken = at >= 0
            rows = tokens[taken]
            if weights is not None:
                rows = (rows.float() * weights[taken, k, None]).to(rows.dtype)
            self._buffer[at[taken]] = rows

    def gather(self, out: Tensor, weights: Tensor | None) -> None:
        total = torch.zeros_like(out, dtype=torch.float32)
        for k in range(self._at.shape[1]):
            part = self._choices(k)
            total += part if weights is None else part * weights[:, k, None]
        out.copy_(total)

    def dot(self, tokens: Tensor, out: Tensor) -> None:
        for k in range(self._at.shape[1]):
            out[:, k] = (tokens.float() * self._choices(k)).sum(-1)

    def _choices(self, k: int) -> Tensor:
        """Of each token the row of its k-th choice, in float32; zeros where it was not taken."""
        at, out = self._at[:, k], self._buffer.new_zeros(len(self._at), self._buffer.shape[1], dtype=torch.float32)
        out[at >= 0] = self._buffer[at[at >= 0]].float()
        return out


class Messages:
    """Of one batch. What is sent lies by expert, so by owner; what comes lies by rank, and is put in the order of
    experts."""

    def __init__(self, layout: Layout) -> None:
        self._layout, mine, ranks = layout, layout.by_rank[layout.rank], len(layout.by_rank)
        self._begin = mine.cumsum(0) - mine                     # of this rank's rows for each expert
        self._sends, self._comes = mine.view(ranks, -1).sum(1).tolist(), layout.mine.sum(1).tolist()
        lengths = layout.mine.flatten()
        first = layout.own(layout.first).flatten()
        before = lengths.cumsum(0) - lengths
        self._lands = ((first - before).repeat_interleave(lengths) + torch.arange(sum(self._comes))).to(layout.device)
        self._back = torch.empty(0)

    def refuse(self) -> None:
        """Nobody can be told: others learn by their timeouts."""

    def _rows(self, buffer: Tensor) -> Any:
        layout = self._layout
        if layout.device.type != "cpu" or layout.dtype not in DTYPES:
            return Indices(layout, self._begin, buffer)
        first = buffer.data_ptr() + self._begin * (layout.columns * buffer.itemsize)
        return Rows(layout.chosen, layout.placed, first, layout.columns, layout.dtype)

    def begin_scatter(self, slot: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], Tensor]:
        layout = self._layout
        sent, come = (tokens.new_empty(sum(counts), layout.columns) for counts in (self._sends, self._comes))
        self._rows(sent).scatter(tokens, weights)
        work = dist.all_to_all_single(come, sent, self._comes, self._sends, group=layout.group, async_op=True)

        def finish() -> Tensor:
            work.wait()
            rows = tokens.new_zeros(layout.rows, layout.columns) if layout.padded else torch.empty_like(come)
            return rows.index_copy_(0, self._lands, come)
        return finish

    def gather(self, slot: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        layout = self._layout
        back = rows.new_empty(sum(self._sends), layout.columns)
        sent = rows.view(-1, layout.columns).index_select(0, self._lands)
        dist.all_to_all_single(back, sent, self._sends, self._comes, group=layout.group)
        if slot == OUTPUTS:
            self._back = back
        out = rows.new_empty(len(layout.chosen), layout.columns)
        self._rows(back).gather(out, weights)
        return out

    def dot(self, tokens: Tensor) -> Tensor:
        out = torch.empty(self._layout.chosen.shape, device=tokens.device)
        self._rows(self._back).dot(tokens, out)
        return out
