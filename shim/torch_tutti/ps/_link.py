"""Messages between a worker and a server: a header of five numbers, then the data of a slice for PUSH and VALUE. Each
pair has a group of two ranks, which the death of a third rank does not affect. One thread sends, in the order of an
outbox; another receives."""
from __future__ import annotations

import heapq
import threading
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor

FIRST, LAST = -1, 1 << 62               # priorities before and after those of all slices


class Header(NamedTuple):
    """The header of a message. kind: PUSH to START, below. number: that of the slice. clock: pushes of the worker so
    far. seen: in a VALUE, the fewest pushes of any worker that it contains. mask: in a PUSH, bit i is set if piece i of
    the slice has a gradient."""
    kind: int
    number: int = 0
    clock: int = 0
    seen: int = 0
    mask: int = 0


# PUSH: a gradient. PULL: a request for all slices of the server. LEAVE: the worker ends; a second one confirms BYE.
# FAIL: the sender has failed. VALUE: the values of a slice. BYE: the server's answer to LEAVE and FAIL. A worker sends
# the first four kinds, a server FAIL, VALUE and BYE. JOIN: a late worker asks to begin, and the server answers with the
# pushes of its slowest worker. START: the pushes with which the late worker begins.
PUSH, PULL, LEAVE, FAIL, VALUE, BYE, JOIN, START = range(8)


class Link:
    """This rank's end of the connection between a worker and a server. pair: their group of two ranks, or its backend.
    peer: the other's rank in the run. peer_in_pair: its rank in the pair. destroy_pair: destroys the pair."""

    def __init__(self, pair: Any, peer: int, peer_in_pair: int, destroy_pair: Callable[[], None]) -> None:
        self.peer, self._pair, self._peer_in_pair, self._destroy_pair = peer, pair, peer_in_pair, destroy_pair
        self.bytes_sent = self.bytes_received = 0

    def send(self, header: Header, data: Tensor | None = None) -> None:
        """Sends a header, and the data of a slice if given. Returns when they are sent."""
        self._send_tensor(torch.tensor(header, dtype=torch.int64))
        if data is not None:
            self._send_tensor(data)
            self.bytes_sent += data.nbytes

    def receive(self) -> Header:
        """Waits for a header and returns it. If data follows it, the caller must receive them by receive_into()."""
        numbers = torch.empty(len(Header._fields), dtype=torch.int64)
        self._receive_tensor(numbers)
        return Header(*numbers.tolist())

    def receive_into(self, data: Tensor) -> None:
        """Receives the data that follow a header."""
        self._receive_tensor(data)
        self.bytes_received += data.nbytes

    def destroy(self) -> None:
        """Destroys the group. A send or receive of the other thread then fails."""
        self._destroy_pair()

    def send_untrained(self, tensor: Tensor) -> None:
        """Sends a tensor of any dtype and layout, as its bytes."""
        if tensor.numel():
            self._send_tensor(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8))

    @torch.no_grad()
    def receive_untrained(self, tensor: Tensor) -> None:
        """Receives what send_untrained() of the peer sent, which must have the same shape and dtype."""
        if tensor.numel():
            values = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._receive_tensor(values.view(-1).view(torch.uint8))
            tensor.copy_(values)

    def _send_tensor(self, tensor: Tensor) -> None:
        """Sends one tensor, and returns when it is sent."""
        self._pair.send([tensor], self._peer_in_pair, 0).wait()

    def _receive_tensor(self, tensor: Tensor) -> None:
        """Waits for one tensor, and receives it."""
        self._pair.recv([tensor], self._peer_in_pair, 0).wait()


class Outbox:
    """Messages that wait to be sent, ordered by priority (lowest first), then by put()."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._changed = threading.Condition()
        self._count = self._unsent = 0
        self._closed = False

    def put(self, priority: int, *items: Any) -> None:
        """Adds messages. priority: the number of a slice, FIRST or LAST."""
        with self._changed:
            for item in items:
                heapq.heappush(self._heap, (priority, self._count, item))
                self._count += 1
                self._unsent += 1
            self._changed.notify_all()

    def get(self) -> Any:
        """Waits for a message and returns it. Returns None if the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)
            return None if self._closed else heapq.heappop(self._heap)[2]

    def mark_sent(self) -> None:
        """Reports that the message that get() returned last has been sent, so its memory may be reused."""
        with self._changed:
            self._unsent -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all messages are sent or the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or self._closed)

    def clear(self) -> None:
        """Drops all waiting messages but one of priority LAST (LEAVE, FAIL or BYE), for which the peer waits."""
        with self._changed:
            kept = [entry for entry in self._heap if entry[0] == LAST]
            self._unsent -= len(self._heap) - len(kept)
            self._heap = kept
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the waits of get() and drain(). Messages that still wait are not sent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
