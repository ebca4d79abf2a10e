"""Memory that the ranks of a host share. Each rank has a part of it, takes extents (ranges of bytes) from its part
without asking other ranks, and sends them the offsets. An extent is free again when the last tensor in it is gone."""
from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from contextlib import suppress
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import torch
from torch.distributed import ProcessGroup

from torch_tutti._library import _check, _library
from torch_tutti.experts._hosts import Hosts

UNIT = 4096                                 # bytes; sizes of extents are multiples of it
SMALLEST = 16 << 20                         # least bytes of a rank's part; pages that are never written use no memory


def round_up(size: int) -> int:
    """Returns a number of bytes rounded up to whole UNITs."""
    return -(-size // UNIT) * UNIT


class Pool:
    """Shared memory of each host, with a part of `room` bytes for each rank there. Creating a pool is collective over
    the ranks of the communicator, whose address is given; `room` is equal on all."""

    def __init__(self, communicator: int, hosts: Hosts, room: int) -> None:
        self._address, self.room, self._hosts, self.own_rank = c_void_p(), room, hosts, hosts.rank
        self._free, self._lock = [(0, room)], threading.Lock()
        # (offset, bytes) of ranges that give() has freed and take() has not yet merged into _free
        self._given_back: deque[tuple[int, int]] = deque()
        _check(_library().tutti_mem_alloc_common(byref(self._address), c_size_t(hosts.most * room),
                                                 c_void_p(communicator)))

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
        """Returns the address in this process of byte `at` of the part of a rank on this host."""
        return self._address.value + self._hosts.index[rank] * self.room + at


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
        """Returns a tensor at a byte offset of this extent; with `rank`, which is on this host, at the same offset of
        that rank's part."""
        count = torch.Size(shape).numel()
        if not count:
            return torch.empty(shape, dtype=dtype)
        address = self.pool.address(self.pool.own_rank if rank is None else rank, self.at + offset)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        memory.owner = self
        return torch.frombuffer(memory, dtype=dtype).view(shape)


class HostGroup:
    """The ranks of this rank's host, as a communicator of their own. Creating it is collective over the ranks of the
    communicator, whose address is given."""

    def __init__(self, communicator: int, hosts: Hosts) -> None:
        self._communicator = c_void_p()
        _check(_library().tutti_comm_split(c_void_p(communicator), hosts.own, hosts.rank, byref(self._communicator)))
        _check(_library().tutti_comm_set_name(self._communicator, f"experts on host {hosts.own}".encode()))

    def barrier(self) -> None:
        """Waits for all ranks of the host. Writes to shared memory before it are visible to them after it."""
        _check(_library().tutti_barrier(self._communicator, None))

    def abort(self) -> None:
        """Fails the communicator on all ranks of the host."""
        _library().tutti_comm_abort(self._communicator)

    def __del__(self) -> None:
        if getattr(self, "_communicator", None):
            _library().tutti_comm_destroy(self._communicator)


class Shared:
    """The shared memory of a group's members. pool: the current pool, or None before the first grow(), which replaces
    it by a larger one; extents of the old one stay valid. hosts: where the group's ranks are. host_group: the ranks of
    this rank's host, after the first grow() if there are several hosts. communicator: its address in C, which the group
    gives to no later members."""

    def __init__(self, communicator: int, hosts: Hosts) -> None:
        self.hosts, self.communicator = hosts, communicator
        self.pool: Pool | None = None
        self.host_group: HostGroup | None = None

    def make_pool(self, room: int) -> Pool:
        """Returns a new pool of `room` bytes for each rank, and keeps the current one. Collective."""
        return Pool(self.communicator, self.hosts, room)

    def take(self) -> Extent | None:
        """Takes the largest free range of the pool. Returns None if there is no pool yet."""
        return self.pool.take() if self.pool else None

    def grow(self, needed: int) -> Extent:
        """Makes a pool of at least twice `needed` bytes for each rank, and takes all of this rank's part.
        Collective."""
        old_room = self.pool.room if self.pool else 0
        self.pool = self.make_pool(max(SMALLEST, round_up(2 * needed), 2 * old_room))
        if self.hosts.count > 1 and self.host_group is None:
            self.host_group = HostGroup(self.communicator, self.hosts)
        return self.pool.take()


_shared: weakref.WeakKeyDictionary[ProcessGroup, Shared] = weakref.WeakKeyDictionary()


def shared_of(group: ProcessGroup) -> Shared | None:
    """Returns the shared memory of a group, which is another one after its members have changed. None, on all ranks, if
    tutti is not the backend."""
    from torch_tutti._extension import backend_of, hosts_of
    backend = backend_of(group)
    if backend is None:
        return None
    communicator, shared = backend._communicator, _shared.get(group)
    if shared is None or shared.communicator != communicator:
        shared = _shared[group] = Shared(communicator, Hosts(hosts_of(backend, group.size()), group.rank()))
    return shared


def abort_host(group: ProcessGroup) -> None:
    """Aborts the communicator of this rank's host, if there is one: its ranks may wait there for this one."""
    shared = _shared.get(group)
    if shared and shared.host_group:
        shared.host_group.abort()


def abort_group(group: ProcessGroup) -> None:
    """Aborts the group, if its backend can, so that no other rank waits for this one: they raise AbortedError."""
    with suppress(Exception):
        group.abort()
    abort_host(group)
