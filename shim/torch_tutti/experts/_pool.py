"""Memory that the ranks of a group share. Each rank has a part of it, takes extents (ranges of bytes) from its part
without asking other ranks, and sends them the offsets. An extent is free again when the last tensor in it is gone."""
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

UNIT = 4096                                 # bytes; sizes of extents are multiples of it
SMALLEST = 16 << 20                         # least bytes of a rank's part; pages that are never written use no memory


def round_up(size: int) -> int:
    """Returns a number of bytes rounded up to whole UNITs."""
    return -(-size // UNIT) * UNIT


class Pool:
    """Shared memory with `room` bytes for each rank, its part. Creating a pool is collective over the ranks of the
    communicator, whose address is given; `room` is equal on all."""

    def __init__(self, communicator: int, ranks: int, rank: int, room: int) -> None:
        self._address, self.room, self.rank = c_void_p(), room, rank
        self._free, self._lock = [(0, room)], threading.Lock()
        # (offset, bytes) of ranges that give() has freed and take() has not yet merged into _free
        self._given_back: deque[tuple[int, int]] = deque()
        _check(_library().tutti_mem_alloc_common(byref(self._address), c_size_t(ranks * room), c_void_p(communicator)))

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            _library().tutti_mem_free(self._address)

    def take(self) -> Extent:
        """Takes the largest free range. The caller cuts it to its need. The extent has 0 bytes if no memory is free."""
        with self._lock:
            while self._given_back:
                self._merge(*self._given_back.popleft())
            at, size = max(self._free, key=lambda free: free[1], default=(0, 0))
            if size:
                self._free.remove((at, size))
        return Extent(self, at, size)

    def give(self, at: int, size: int) -> None:
        """Frees `size` bytes from byte `at`. Takes no lock, because the garbage collector may call it in the middle of
        take()."""
        if size:
            self._given_back.append((at, size))

    def _merge(self, at: int, size: int) -> None:
        """Adds a range to the free ones, merged with its neighbours. at, size: its first byte and its bytes."""
        for free in sorted(self._free):
            if free[0] + free[1] == at or at + size == free[0]:
                self._free.remove(free)
                at, size = min(at, free[0]), size + free[1]
        self._free.append((at, size))

    def address(self, rank: int, at: int) -> int:
        """Returns the address in this process of byte `at` of a rank's part."""
        return self._address.value + rank * self.room + at


class Extent:
    """A range of this rank's part of a pool: `size` bytes from byte `at`. Its tensors keep it alive; after the last one
    it is freed."""

    def __init__(self, pool: Pool, at: int, size: int) -> None:
        self.pool, self.at, self.size = pool, at, size

    def __del__(self) -> None:
        self.pool.give(self.at, self.size)

    def cut(self, size: int) -> None:
        """Shrinks the extent to `size` bytes, and frees the rest."""
        self.pool.give(self.at + size, self.size - size)
        self.size = size

    def tensor(self, offset: int, shape: tuple[int, ...], dtype: torch.dtype, rank: int | None = None) -> torch.Tensor:
        """Returns a tensor at a byte offset of this extent; with `rank`, at the same offset of that rank's part."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        address = self.pool.address(self.pool.rank if rank is None else rank, self.at + offset)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype).view(shape)


class Shared:
    """The current pool of a group, or None before the first grow(). grow() replaces it by a larger one; extents of the
    old one stay valid."""

    def __init__(self, communicator: int, ranks: int, rank: int) -> None:
        self.arguments = communicator, ranks, rank              # the first arguments of Pool
        self.pool: Pool | None = None

    def take(self) -> Extent | None:
        """Takes the largest free range of the pool. Returns None if there is no pool yet."""
        return self.pool.take() if self.pool else None

    def grow(self, needed: int) -> Extent:
        """Makes a pool of at least twice `needed` bytes for each rank, and takes all of this rank's part.
        Collective."""
        old_room = self.pool.room if self.pool else 0
        self.pool = Pool(*self.arguments, max(SMALLEST, round_up(2 * needed), 2 * old_room))
        return self.pool.take()


_shared: Any = weakref.WeakKeyDictionary()  # {group: its Shared, or None}


def shared_of(group: ProcessGroup) -> Shared | None:
    """Returns the shared memory of a group. None, on all ranks, if they are on several hosts or tutti is not the
    backend."""
    if group in _shared:
        return _shared[group]
    from torch_tutti._extension import backend_of, hosts_of
    found, backend = None, backend_of(group)
    if backend is not None and len(set(hosts_of(backend, group.size()))) == 1:
        found = Shared(backend._communicator, group.size(), group.rank())
    _shared[group] = found
    return found
