"""An abort by another thread ends a change of members in each phase, on this rank and on the others, long before the
timeout. A store that holds one rank at a key stops the change in the phase."""
import threading

import pytest
import torch.distributed as dist

import torch_tutti
from members import NEWER, Member, backend_of, ways
from torch_tutti import _reconfigure

UUID, AGAIN = 1, 2


class HoldingStore(dist.Store):
    """Passes each call to another store. `reached` is set when a call uses a key that ends with `key`. A held rank then
    waits for `free`: before the call, or after it if `after` is true."""

    def __init__(self, inner, key, held, after):
        super().__init__()
        self.inner, self.key, self.held, self.after = inner, key, held, after
        self.reached, self.free = threading.Event(), threading.Event()

    def hold(self, key, after):
        if after == self.after and key.endswith(self.key):
            self.reached.set()
            if self.held:
                self.free.wait()

    def run(self, call, key, *rest):
        self.hold(key, False)
        result = getattr(self.inner, call)(key, *rest)
        self.hold(key, True)
        return result

    def set(self, key, value):
        self.run("set", key, value)

    def get(self, key):
        return self.run("get", key)

    def compare_set(self, key, expected, desired):
        return self.inner.compare_set(key, expected, desired)

    def check(self, keys):
        return self.inner.check(keys)

    def wait(self, *rest):
        self.inner.wait(*rest)

    def delete_key(self, key):
        return self.inner.delete_key(key)


class World:
    """The world of a rank with another store."""

    def __init__(self, world, store):
        self.rank, self.size, self.hosts, self.store = world.rank, world.size, world.hosts, store


def change(member, handles, found):
    try:
        member.change(UUID, handles, timeout_s=3600)
    except torch_tutti.Error as error:
        found.append(error)


def abort_in_phase(world, way, held, key, after):
    """Rank `held` stops at the key, and rank 1 aborts. All ranks fail, and then the members change as usual."""
    plain = world.store
    store = HoldingStore(plain, key.format(rank=world.rank), world.rank == held, after)
    member = Member(World(world, store), way)
    handles, found = member.collect("handles"), []
    thread = threading.Thread(target=change, args=(member, handles, found))
    thread.start()
    store.reached.wait()
    member.meet("reached")
    if world.rank == 1:
        backend_of().abort()
    if world.rank == held:
        plain.wait([f"failed/{rank}" for rank in range(world.size) if rank != held])
        store.free.set()
    thread.join()
    plain.set(f"failed/{world.rank}", "")
    assert len(found) == 1 and "this group was aborted meanwhile" in str(found[0]), found
    if world.rank == 1:
        assert isinstance(found[0], torch_tutti.AbortedError)
    else:
        assert "formerly rank 1" in str(found[0]), found
    member.all(AGAIN)
    return str(found[0])


# In these phases rank 1 waits for the record of rank 2, for rank 2 to connect, and for the memory of rank 0.
PHASES = {"records": (2, "r{rank}", False), "ranks": (2, "/table", True), "memory": (0, "/table", True)}


@ways
@pytest.mark.parametrize("phase", PHASES)
def test_abort_ends_the_join(fresh, way, phase):
    fresh(3, join=False).run(abort_in_phase, way, *PHASES[phase])


@ways
@pytest.mark.parametrize("phase", ["records", "ranks"])
def test_abort_ends_the_join_of_hosts(fresh, way, phase):
    """The ranks are on two hosts, which exchange messages by tcp."""
    environment = {"TUTTI_HOSTS": "0,0,1", "TUTTI_TRANSPORT": "tcp"}
    fresh(3, join=False, environment=environment).run(abort_in_phase, way, *PHASES[phase])


def abort_before_all_come(world, way):
    """Rank 2 does not come, so the others wait for it until rank 1 aborts."""
    member = Member(world, way)
    handles, found = member.collect("handles"), []
    if world.rank < 2:
        thread = threading.Thread(target=change, args=(member, handles, found))
        thread.start()
    if world.rank == 1:
        backend = backend_of()
        while thread.is_alive():
            backend.abort()
    if world.rank < 2:
        thread.join()
        assert "this group was aborted meanwhile" in str(found[0]), found
        assert world.rank == 1 or "formerly rank 1" in str(found[0]), found
    member.meet("failed")
    member.all(AGAIN)


@ways
def test_abort_ends_the_wait_of_the_others(fresh, way):
    fresh(3, join=False).run(abort_before_all_come, way)


def abort_in_agreement(world, way):
    """Rank 2 stops when it has joined. The others wait for it until rank 1 aborts: all members agree on the count of
    groups that torch has made. Returns the error of this rank."""
    member = Member(world, way)
    reached, free, update_torch_tables = threading.Event(), threading.Event(), _reconfigure.update_torch_tables

    def hold(*arguments):
        reached.set()
        if world.rank == 2:
            free.wait()
        update_torch_tables(*arguments)
    _reconfigure.update_torch_tables = hold
    handles, found = member.collect("handles"), []
    thread = threading.Thread(target=change, args=(member, handles, found))
    thread.start()
    reached.wait()
    member.meet("reached")
    if world.rank == 1:
        before = torch_tutti.waiting()["sleeps"]
        while torch_tutti.waiting()["sleeps"] == before:
            pass
        backend_of().abort()
    if world.rank == 2:
        world.store.wait(["failed/0", "failed/1"])
        free.set()
    thread.join()
    world.store.set(f"failed/{world.rank}", "")
    _reconfigure.update_torch_tables = update_torch_tables
    member.all(AGAIN)
    part = dist.new_group([0, 2])
    if world.rank != 1:
        dist.barrier(group=part)
    return [f"{type(error).__name__}: {error}" for error in found]


@ways
@pytest.mark.skipif(not NEWER, reason="torch before 2.14 makes another default group, without an agreement")
def test_abort_ends_the_agreement_of_the_members(fresh, way):
    """The change fails on all ranks, and the next one succeeds."""
    for rank, errors in enumerate(fresh(3, join=False).run(abort_in_agreement, way)):
        assert len(errors) == 1, errors
        assert errors[0].startswith("AbortedError: ") and "rank 1" in errors[0], (rank, errors)
