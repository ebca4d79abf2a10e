"""Messages between a worker and a server, over a group of just these two, which a death elsewhere leaves whole: a
header of five numbers, then the slice, if there is one. One thread sends, in the order of an outbox; another receives.
"""
from __future__ import annotations

import heapq
import threading
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

FIRST, LAST = -1, 1 << 62               # priorities before and after those of all slices


class Header(NamedTuple):
    """kind: below. number: of a slice. clock: pushes of the worker that is spoken of. seen: of a value, the fewest
    pushes of any worker that are in it. mask: of a gradient, its pieces that there are."""
    kind: int
    number: int = 0
    clock: int = 0
    seen: int = 0
    mask: int = 0


PUSH, PULL, LEAVE, FAIL, VALUE, BYE = range(6)         # a worker says the first four, a server the last three


class Link:
    """This rank's end of a pair. peer: the other's global rank."""

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
        """Ends what the other thread may be waiting for, too."""
        dist.destroy_process_group(self._pair)


class Outbox:
    """What waits to be sent: the most urgent first, and of equals the first that came."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Any]] = []
        self._changed = threading.Condition()
        self._count = self._unsent = 0
        self._closed = False

    def put(self, priority: int, *items: Any) -> None:
        with self._changed:
            for item in items:
                heapq.heappush(self._heap, (priority, self._count, item))
                self._count += 1
                self._unsent += 1
            self._changed.notify_all()

    def get(self) -> Any:
        """Waits; None once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._heap or self._closed)
            return None if self._closed else heapq.heappop(self._heap)[2]

    def sent(self) -> None:
        """Of what get() gave last: its memory is free again."""
        with self._changed:
            self._unsent -= 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits until all is sent, or closed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unsent or self._closed)

    def clear(self) -> None:
        """Forgets what waits, but for a last word: the other side waits for that."""
        with self._changed:
            kept = [entry for entry in self._heap if entry[0] == LAST]
            self._unsent -= len(self._heap) - len(kept)
            self._heap = kept
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
