"""Messages between a worker and a server: a header of five numbers, then the data of a slice, if there is any. Each
pair has a group of two ranks, which the death of a third rank does not affect. One thread sends, in the order of an
outbox; another receives."""
from __future__ import annotations

import heapq
import threading
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

FIRST, LAST = -1, 1 << 62               # priorities before and after those of all slices


class Header(NamedTuple):
    """The header of a message. kind: below. number: the slice. clock: pushes of the worker so far. seen: in a VALUE,
    the fewest pushes of any worker that it contains. mask: in a PUSH, the bits of the pieces that have a gradient."""
    kind: int
    number: int = 0
    clock: int = 0
    seen: int = 0
    mask: int = 0


PUSH, PULL, LEAVE, FAIL, VALUE, BYE = range(6)         # a worker sends the first four, a server the last three


class Link:
    """This rank's end of a pair. pair: the group of two ranks. peer: the other's global rank."""

    def __init__(self, pair: dist.ProcessGroup, peer: int) -> None:
        self.peer, self._pair = peer, pair
        self._other = dist.get_group_rank(pair, peer)
        self.bytes_sent = self.bytes_received = 0

    def send(self, header: Header, data: Tensor | None = None) -> None:
        dist.send(torch.tensor(header, dtype=torch.int64), group=self._pair, group_dst=self._other)
        if data is not None:
            dist.send(data, group=self._pair, group_dst=self._other)
            self.bytes_sent += data.nbytes

    def receive(self) -> Header:
        words = torch.empty(len(Header._fields), dtype=torch.int64)
        dist.recv(words, group=self._pair, group_src=self._other)
        return Header(*words.tolist())

    def receive_into(self, data: Tensor) -> None:
        dist.recv(data, group=self._pair, group_src=self._other)
        self.bytes_received += data.nbytes

    def destroy(self) -> None:
        """Destroys the group. A send or receive of the other thread then fails."""
        dist.destroy_process_group(self._pair)


class Outbox:
    """The messages that wait to be sent, in the order of priority (lowest first), then of put()."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._changed = threading.Condition()
        self._count = self._unsent = 0
        self._closed = False

    def put(self, priority: int, *items: Any) -> None:
        """Adds messages. priority: a slice number, FIRST or LAST."""
        with self._changed:
            for item in items:
                heapq.heappush(self._heap, (priority, self._count, item))
                self._count += 1
                self._unsent += 1
            self._changed.notify_all()

    def get(self) -> Any:
        """Waits for a message and returns it; None if the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)
            return None if self._closed else heapq.heappop(self._heap)[2]

    def sent(self) -> None:
        """Reports that the message that get() returned last has been sent: its memory may be reused."""
        with self._changed:
            self._unsent -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all messages are sent or the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or self._closed)

    def clear(self) -> None:
        """Drops all waiting messages except one of priority LAST (LEAVE, FAIL or BYE), which the peer waits for."""
        with self._changed:
            kept = [entry for entry in self._heap if entry[0] == LAST]
            self._unsent -= len(self._heap) - len(kept)
            self._heap = kept
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
