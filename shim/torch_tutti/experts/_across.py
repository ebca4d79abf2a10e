"""The exchange of rows over several hosts: through shared memory on a rank's host, by one message to each other host.

A token crosses to another host once, however many of its experts are there. _hosts.py chooses its receiver there.
That rank writes the rows into the arrays of its host, as if the token were its own. On the way back it sums the rows of
its host, and sends one row back. The sender adds these rows after those of its own host, in the order of hosts. So a
sum is rounded once for each host that has several of its terms, and results do not depend on timing.

Messages of one rank to another, in order: dispatch() sends tokens and their choices. combine() sends weights there and
sums back. Backward, combine() sends gradients there and those of the weights back, dispatch() sends sums back.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import Tensor

from torch_tutti.experts import _core
from torch_tutti.experts._arrays import OUTPUTS, TOKENS
from torch_tutti.experts._direct import Direct
from torch_tutti.experts._hosts import Hosts, Sends
from torch_tutti.experts._layout import abort_on_error
from torch_tutti.experts._pool import Extent, Shared, abort_group

if TYPE_CHECKING:
    from torch_tutti.experts._layout import Layout

TAG = 1 << 25                               # programs, and pipelines, use lower tags
MOST_CHOICES = 64                           # most rows of a token in _core.Rows
ALIGNED = 64                                # bytes
# If the rows of no rank have this many bytes, all_to_all_single is faster, because it has fewer steps.
LEAST_BYTES = 512 << 10


def is_suited(layout: Layout, hosts: Hosts, most_choices: int) -> bool:
    """Returns True, on all ranks, if a batch is to be exchanged by Across: if it is large enough, and its tokens have
    few enough choices, where a message to a host counts as a choice. most_choices: of any rank's tokens."""
    rows = int(layout.by_rank.sum(1).max())
    return (rows * layout.columns * layout.dtype.itemsize >= LEAST_BYTES
            and most_choices + len(hosts.others) <= MOST_CHOICES)


class Post:
    """Messages between this rank and others: started in the order of calls, and kept until they are over."""

    def __init__(self, group: Any) -> None:
        self._group, self._works = group, list[tuple[Any, Tensor]]()

    def send(self, tensor: Tensor, rank: int) -> None:
        """Starts to send a tensor; without elements does nothing."""
        if tensor.numel():
            self._works.append((self._group.send([tensor], rank, TAG), tensor))

    def receive(self, tensor: Tensor, rank: int) -> None:
        """Starts to receive a tensor; without elements does nothing."""
        if tensor.numel():
            self._works.append((self._group.recv([tensor], rank, TAG), tensor))

    def finish(self) -> None:
        """Waits until all messages are over."""
        for work, _ in self._works:
            work.wait()
        self._works.clear()


def cut(buffer: Tensor, layout: Layout, count: int, choices: int) -> tuple[Tensor, Tensor]:
    """Returns the parts of the message of dispatch(), in bytes: rows, [count, columns], and choices, int32 [count,
    choices]."""
    row_bytes = count * layout.columns * layout.dtype.itemsize
    rows = buffer[:row_bytes].view(layout.dtype).view(count, layout.columns)
    return rows, buffer[len(buffer) - count * choices * 4:].view(torch.int32).view(count, choices)


def message_bytes(layout: Layout, count: int, choices: int) -> int:
    """Returns the bytes of the message of dispatch() with so many tokens."""
    return -(-count * layout.columns * layout.dtype.itemsize // ALIGNED) * ALIGNED + count * choices * 4


class Guest:
    """The tokens of a rank on another host, for which this rank reads and writes rows. count: how many tokens. choices:
    of each token. chosen, placed: as in Layout, after dispatch(). weights: of combine(). gradients: of the results."""

    def __init__(self, rank: int, count: int, choices: int) -> None:
        self.rank, self.count, self.choices = rank, count, choices
        self.chosen = self.placed = self.weights = self.gradients = torch.empty(0)


class Across(Direct):
    """The exchange of one batch over several hosts. Ranks of a host meet in barriers, those of different hosts do not.
    So an error of one rank aborts the group."""

    def __init__(self, layout: Layout, shared: Shared, sends: Sends, received: list[list[int]], extent: Extent,
                 begins: list[int], lengths: list[int]) -> None:
        """received: for each rank the tokens that it sends to this host, and the choices of each. The rest as in
        Direct."""
        super().__init__(layout, extent, begins, lengths)
        self._hosts, self._host_group, self._sends = shared.hosts, shared.host_group, sends
        self._guests = [Guest(rank, *received[rank]) for rank in self._hosts.sources]

    def fail_others(self) -> None:
        """Aborts the group and the communicator of the host."""
        abort_group(self._layout.group)

    def _barrier(self) -> None:
        """Waits for the ranks of this host."""
        with abort_on_error(self.fail_others):
            self._host_group.barrier()

    def _rows_of(self, rank: int, which: int, chosen: Tensor, placed: Tensor, messages: list[Tensor]) -> _core.Rows:
        """Returns the rows of a rank's tokens in an array of this host. messages: for each other host the tokens that
        it gets, or the sums that it returns; each host counts as a further expert."""
        first = self._first(rank, which)
        if messages:
            first = torch.cat([first, torch.tensor([rows.data_ptr() for rows in messages])])
        return _core.Rows(chosen, placed, first, self._layout.columns, self._layout.dtype)

    def _own_rows(self, which: int, messages: list[Tensor]) -> _core.Rows:
        """Returns the rows of this rank's tokens in an array of this host and in messages."""
        return self._rows_of(self._layout.rank, which, self._sends.targets, self._sends.places, messages)

    def _guest_rows(self, guest: Guest, which: int) -> _core.Rows:
        """Returns the rows of a guest's tokens in an array of this host."""
        return self._rows_of(guest.rank, which, guest.chosen, guest.placed, [])

    def _with_ones(self, weights: Tensor | None) -> Tensor | None:
        """Returns weights, [tokens, choices], with weights of 1 for the rows of messages."""
        return None if weights is None else torch.cat(
            [weights, weights.new_ones(len(weights), len(self._hosts.others))], 1)

    def _new_rows(self, count: int) -> Tensor:
        """Returns a tensor for so many rows."""
        return torch.empty(count, self._layout.columns, dtype=self._layout.dtype)

    def _write(self, which: int, tokens: Tensor, weights: Tensor | None) -> Callable[[], None]:
        """Writes the rows of this host, starts the messages to others, and returns a function that writes the rows of
        the messages that come from others."""
        with abort_on_error(self.fail_others):
            post, choices = Post(self._layout.group), which == TOKENS
            rows, messages, received = [], [], []
            for tokens_sent in self._sends.choices:
                count, columns = tokens_sent.shape
                messages.append(torch.empty(message_bytes(self._layout, count, columns if choices else 0),
                                            dtype=torch.uint8))
                parts = cut(messages[-1], self._layout, count, columns if choices else 0)
                rows.append(parts[0])
                if choices:
                    parts[1].copy_(tokens_sent)
            self._own_rows(which, rows).scatter(tokens, self._with_ones(weights))
            for message, receiver in zip(messages, self._hosts.receivers):
                post.send(message, receiver)
            for guest in self._guests:
                received.append(torch.empty(message_bytes(self._layout, guest.count, guest.choices if choices else 0),
                                            dtype=torch.uint8))
                post.receive(received[-1], guest.rank)

        def complete() -> None:
            with abort_on_error(self.fail_others):
                post.finish()
                for guest, message in zip(self._guests, received):
                    self._write_guest(which, guest, message, weights is not None)
        return complete

    def _write_guest(self, which: int, guest: Guest, message: Tensor, is_weighted: bool) -> None:
        """Writes the rows of a message that has come."""
        tokens, choices = cut(message, self._layout, guest.count, guest.choices if which == TOKENS else 0)
        if which == TOKENS:
            guest.chosen = choices.long()
            guest.placed, _ = _core.place(guest.chosen, self._layout.by_rank.shape[1], None)
        if is_weighted:
            guest.gradients = tokens
        self._guest_rows(guest, which).scatter(tokens, guest.weights if is_weighted else None)

    def gather(self, which: int, rows: Tensor, weights: Tensor | None) -> Tensor:
        """Does what Direct.gather() does. Weights are on their way while the ranks of a host meet."""
        if weights is not None:
            with abort_on_error(self.fail_others):
                self._weights = Post(self._layout.group)
                for tokens, receiver in zip(self._sends.tokens, self._hosts.receivers):
                    self._weights.send(weights[tokens], receiver)
                for guest in self._guests:
                    guest.weights = torch.empty(guest.count, guest.choices, dtype=weights.dtype)
                    self._weights.receive(guest.weights, guest.rank)
        return super().gather(which, rows, weights)

    def _read(self, which: int, out: Tensor, weights: Tensor | None) -> None:
        """Sets each token of `out` to the sum of its rows, times weights if given."""
        with abort_on_error(self.fail_others):
            if weights is not None:
                self._weights.finish()
            post, sums = Post(self._layout.group), [self._new_rows(len(tokens)) for tokens in self._sends.tokens]
            for rows, receiver in zip(sums, self._hosts.receivers):
                post.receive(rows, receiver)
            for guest in self._guests:
                rows = self._new_rows(guest.count)
                self._guest_rows(guest, which).gather(rows, None if weights is None else guest.weights)
                post.send(rows, guest.rank)
            post.finish()
            self._own_rows(which, sums).gather(out, self._with_ones(weights))

    def dot(self, gradients: Tensor) -> Tensor:
        """Does what Direct.dot() does. The ranks that have received the gradients return the products of their
        host."""
        with abort_on_error(self.fail_others):
            post = Post(self._layout.group)
            back = [torch.empty(choices.shape) for choices in self._sends.choices]
            for products, receiver in zip(back, self._hosts.receivers):
                post.receive(products, receiver)
            for guest in self._guests:
                products = torch.empty(guest.count, guest.choices)
                self._guest_rows(guest, OUTPUTS).dot(guest.gradients, products)
                guest.gradients = torch.empty(0)
                post.send(products, guest.rank)
            out = torch.empty(self._layout.chosen.shape)
            self._rows_of(self._layout.rank, OUTPUTS, self._sends.local, self._layout.placed, []).dot(gradients, out)
            post.finish()
            for tokens, products in zip(self._sends.tokens, back):
                out.index_add_(0, tokens, products)
        return out
