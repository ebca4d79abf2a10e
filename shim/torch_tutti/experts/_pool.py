"""Memory that the ranks of a group have in common: each has a part of its own, from which it takes extents by itself,
and tells the others where. An extent goes back when the last tensor in it is gone."""
from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import torch
from torch.distributed import ProcessGroup

from torch_tutti._library import _check, _library

UNIT = 4096
SMALLEST = 16 << 20                         # of a rank's part; only what is written to is memory


def up(count: int) -> int:
    return -(-count // UNIT) * UNIT


class Pool:
    """Collective over the ranks of the communicator, with as much room on all."""

    def __init__(self, communicator: int, ranks: int, rank: int, room: int) -> None:
        self._at, self.room, self.rank = c_void_p(), room, rank
        self._free, self._lock = [(0, room)], threading.Lock()
        self._given: deque[tuple[int, int]] = deque()           # back, but not yet in the list of what is free
        _check(_library().tutti_mem_alloc_common(byref(self._at), c_size_t(ranks * room), c_void_p(communicator)))

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            _library().tutti_mem_free(self._at)

    def take(self) -> Extent:
        """The largest piece that is free, to be cut to what is needed; of no bytes if there is none."""
        with self._lock:
            while self._given:
                self._join(*self._given.popleft())
            at, size = max(self._free, key=lambda free: free[1], default=(0, 0))
            if size:
                self._free.remove((at, size))
        return Extent(self, at, size)

    def give(self, at: int, size: int) -> None:
        """Any thread may call it, at any time: Python's collector does in the middle of take()."""
        if size:
            self._given.append((at, size))

    def _join(self, at: int, size: int) -> None:
        for free in sorted(self._free):
            if free[0] + free[1] == at or at + size == free[0]:
                self._free.remove(free)
                at, size = min(at, free[0]), size + free[1]
        self._free.append((at, size))

    def address(self, rank: int, at: int) -> int:
        return self._at.value + rank * self.room + at


class Extent:
    """What tensors in it keep alive."""

    def __init__(self, pool: Pool, at: int, size: int) -> None:
        self.pool, self.at, self.size = pool, at, size

    def __del__(self) -> None:
        self.pool.give(self.at, self.size)

    def cut(self, size: int) -> None:
        """What is behind goes back."""
        self.pool.give(self.at + size, self.size - size)
        self.size = size

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype, rank: int | None = None) -> torch.Tensor:
        """A tensor in it, or in the same place of another rank's part."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        start = self.pool.address(self.pool.rank if rank is None else rank, self.at + offset)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(start)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype).view(shape)


class Shared:
    """The pool of a group: a larger one when it is too small, from which new extents come."""

    def __init__(self, communicator: int, ranks: int, rank: int) -> None:
        self.of = communicator, ranks, rank
        self.pool: Pool | None = None

    def take(self) -> Extent | None:
        return self.pool.take() if self.pool else None

    def grow(self, bytes_: int) -> Extent:
        """Collective: to twice of what is needed, so that there is room for several. All of it."""
        before = self.pool.room if self.pool else 0
        self.pool = Pool(*self.of, max(SMALLEST, up(2 * bytes_), 2 * before))
        return self.pool.take()


_shared: Any = weakref.WeakKeyDictionary()


def shared_of(group: ProcessGroup) -> Shared | None:
    """None, on all ranks: they are not all on one host, or the group is not tutti's."""
    if group in _shared:
        return _shared[group]
    from torch_tutti._extension import backend_of, hosts_of
    found, backend = None, backend_of(group)
    if backend is not None and len(set(hosts_of(backend, group.size()))) == 1:
        found = Shared(backend._communicator, group.size(), group.rank())
    _shared[group] = found
    return found
