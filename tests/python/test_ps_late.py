"""Tests of torch_tutti.ps.join_late: a process outside the group becomes a worker of running servers, also in the place
of one that was killed, with the current parameters; its errors if it cannot."""
import os
import signal
import socket
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from test_failures import failures
from test_ps import SMALL, by_one, sgd
from test_ps_failures import Failing
from torch import nn
from training import batch, flat, loss_of, network
from zero_training import refused

from torch_tutti import ps
from torch_tutti.ps._link import START, Link

pytestmark = pytest.mark.one_host("TUTTI_HOSTS has no host for a late worker")
# Steps of each worker after a late worker has begun.
MORE = 8
# An address of this host that is not its usual one.
ADDRESS = "127.0.0.2"
MODES = {"sync": {}, "async": {"mode": "async"}, "bounded": {"mode": "bounded", "staleness": 2}}
soon = partial(ps.join_late, timeout=timedelta(seconds=1))


def begin(world, size, model, optimizer=sgd, **options):
    """Makes the node of a run of this many ranks."""
    dist.init_process_group("tutti", store=world.store, rank=world.rank, world_size=size, timeout=timedelta(seconds=30))
    return ps.join(model, optimizer, slice_bytes=SMALL, late_workers=True, **options)


def step(worker, model, rank):
    model.zero_grad()
    worker.backward(loss_of(model(batch(worker.clock, rank))))
    worker.pull()
    worker.wait()


def train_to(world, worker, model, peers, end):
    """Trains until end(clock) is true. Waits until all peers have ended, and gets the last parameters."""
    while not end(worker.clock):
        step(worker, model, world.rank)
    world.store.set(f"done{world.rank}", "")
    world.store.wait([f"done{peer}" for peer in peers], timedelta(seconds=30))
    worker.pull()
    worker.close()
    return flat(model.parameters())


def train_late(world, model, peers):
    """Joins, publishes the clock at which it begins, and trains."""
    worker = ps.join_late(model, world.store)
    begins = worker.clock
    world.store.set("begins", str(begins))
    return begins, worker.rank, train_to(world, worker, model, peers, lambda clock: clock >= begins + MORE)


def train_until_late(world, worker, model, peers):
    """Trains until MORE steps after the late worker has begun."""
    def end(clock):
        return world.store.check(["begins"]) and clock >= int(world.store.get("begins")) + MORE
    return train_to(world, worker, model, peers, end)


# ---- joining ----
def replaced(world, mode):
    """Rank 2 is killed after two steps, and rank 3 joins in its place, while rank 1 trains."""
    model = network(seed=world.rank)
    if world.rank == 3:
        world.store.wait(["killed"])
        return train_late(world, model, [1])
    node = begin(world, 3, model, **MODES[mode])
    if world.rank == 0:
        return node.serve(), flat(model.parameters())
    if world.rank == 1:
        return train_until_late(world, node, model, [3])
    for _ in range(2):
        step(node, model, 2)
    world.store.set("killed", "")
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_worker_is_replaced(fresh, mode):
    server, first, killed, late = fresh(4, join=False).outcomes(replaced, mode)
    assert killed.died == -signal.SIGKILL
    for outcome in (server, first, late):
        assert not outcome.failed, outcome.trace
    (report, value), (begins, rank, _) = server.value, late.value
    assert torch.equal(first.value, value) and torch.equal(late.value[2], value) and rank == 3
    assert list(report.lost) == [2] and "died" in report.lost[2]
    assert report.pushes[2] == 2 and report.pushes[3] == MORE and report.pushes[1] >= begins + MORE - 2
    if mode == "sync":
        assert report.updates == report.pushes[1] == begins + MORE
        assert torch.equal(value, by_one([(1, 2)] * 2 + [(1,)] * (begins - 2) + [(1, 3)] * MORE, model=network(0)))
    else:
        assert report.updates == sum(report.pushes.values())


def two_servers(world):
    """A late worker joins two servers, whose slices may be of different steps at that time."""
    model = network(seed=world.rank)
    if world.rank == 3:
        world.store.wait(["warm"])
        return train_late(world, model, [2])
    node = begin(world, 3, model, servers=2)
    if world.rank < 2:
        return node.serve()
    for _ in range(3):
        step(node, model, 2)
    world.store.set("warm", "")
    return train_until_late(world, node, model, [3])


def test_all_slices_count_a_late_worker_from_one_step(fresh):
    reports, (value, (begins, _, last)) = (values := fresh(4, join=False).run(two_servers))[:2], values[2:]
    assert all(report.pushes == {2: begins + MORE, 3: MORE} and not report.lost for report in reports)
    expected = by_one([(2,)] * begins + [(2, 3)] * MORE, model=network(0))
    assert torch.equal(value, expected) and torch.equal(last, expected)


class Normed(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.inner, self.norm = network(seed=seed), nn.BatchNorm1d(20)
        self.frozen = nn.Parameter(torch.full((20, 3), float(seed)).t(), requires_grad=False)
        self.norm.running_mean.fill_(seed)
        self.norm.num_batches_tracked.fill_(seed)

    def forward(self, x):
        return self.inner(self.norm(x))


def only_worker(world):
    """The only worker is killed, and the servers wait for another."""
    model = Normed(world.rank + 1)
    if world.rank == 3:
        world.store.wait(["killed"])
        worker = ps.join_late(model, world.store)
        assert model.frozen.eq(1).all() and model.norm.running_mean.eq(1).all() and model.norm.num_batches_tracked == 1
        with worker:
            step(worker, model, 3)
        return worker.report()["pushes"]
    node = begin(world, 3, model, servers=2)
    if world.rank < 2:
        return node.serve(grace=timedelta(seconds=50))
    for _ in range(2):
        step(node, model, 2)
    world.store.set("killed", "")
    os.kill(os.getpid(), signal.SIGKILL)


def test_servers_wait_for_another_worker_after_the_last(fresh):
    *servers, killed, late = fresh(4, join=False).outcomes(only_worker)
    assert killed.died == -signal.SIGKILL and late.value == 1, late.trace
    assert all(one.value.pushes == {2: 2, 3: 1} and list(one.value.lost) == [2] for one in servers)


def killed_while_joining(world):
    """The late worker is killed when slices already wait for its first push."""
    model = network(seed=world.rank)
    if world.rank == 2:
        def send(link, header, data=None):
            if header.kind == START:
                world.store.set("killed", "")
                os.kill(os.getpid(), signal.SIGKILL)
            sent(link, header, data)
        sent, Link.send = Link.send, send
        ps.join_late(model, world.store)
    node = begin(world, 2, model)
    if world.rank == 0:
        return node.serve()
    while not world.store.check(["killed"]):
        step(node, model, 1)
    for _ in range(MORE):
        step(node, model, 1)
    node.close()


def test_a_late_worker_that_dies_while_it_joins_is_survived(fresh):
    server, first, late = fresh(3, join=False).outcomes(killed_while_joining)
    assert late.died == -signal.SIGKILL and not first.failed, first.trace
    assert list(server.value.lost) == [2] and server.value.pushes == {1: server.value.updates}


# ---- late workers that cannot join ----
def wider():
    model = network()
    model[2] = nn.Linear(50, 51)
    return model


def mistaken(world):
    """Late workers are refused without servers, with another model, before the servers serve, and after they have
    ended."""
    if world.rank == 2:
        refused(RuntimeError, "ps: no servers have published a run in this store within 1 s; .*late_workers=True",
                lambda: soon(network(), world.store))
        world.store.set("first", "")
        world.store.wait(["joined"])
        refused(ValueError, r"ps: this late worker has 2.weight of shape \(51, 50\), torch.float32, the servers have "
                r"2.weight of shape \(50, 50\), torch.float32; it must pass the same model",
                lambda: ps.join_late(wider(), world.store))
        refused(RuntimeError, r"ps: rank 0, a server, has not answered within 1 s: it does not serve\(\) yet",
                lambda: soon(network(), world.store))
        world.store.set("serve", "")
        world.store.wait(["ended"])
        refused(RuntimeError, "ps: rank 0, a server, has ended, because its workers had left; start all ranks again",
                lambda: ps.join_late(network(), world.store))
        return None
    world.store.wait(["first"])
    node = begin(world, 2, network())
    world.store.set("joined", "")
    world.store.wait(["serve"])
    if world.rank == 1:
        return node.close()
    report = node.serve()
    world.store.set("ended", "")
    return report


def test_late_worker_that_cannot_join_gets_the_reason(fresh):
    report = fresh(3, join=False).run(mistaken)[0]
    assert not report.lost and report.pushes == {1: 0}


def server_fails(world):
    """A late worker of a server whose optimizer has failed."""
    if world.rank == 2:
        world.store.wait(["failed"])
        try:
            return ps.join_late(network(), world.store)
        finally:
            world.store.set("asked", "")
    node = begin(world, 2, network(), partial(Failing, lr=0.1))
    if world.rank == 0:
        return node.serve()
    with pytest.raises(dist.DistError):
        step(node, network(), 1)
    world.store.set("failed", "")
    world.store.wait(["asked"])
    with pytest.raises(dist.DistError):
        node.close()


def test_a_server_that_has_failed_takes_no_worker(fresh):
    server, first, late = fresh(3, join=False).outcomes(server_fails)
    failures([server], "ArithmeticError", "this optimizer cannot")
    failures([late], "RuntimeError", "ps: rank 0, a server, has failed: see its own error; start all ranks again")
    assert not first.failed, first.trace


def by_environment(world):
    """The late worker finds the store by the environment, at an address that other hosts might have; then it looks
    for a store at an address that has none."""
    if world.rank == 2:
        world.store.wait(["port"])
        os.environ.update(MASTER_ADDR=ADDRESS, MASTER_PORT=world.store.get("port").decode())
        with ps.join_late(model := network()) as worker:
            step(worker, model, 2)
        with socket.socket() as unused:
            unused.bind((ADDRESS, 0))
            os.environ["MASTER_PORT"] = str(unused.getsockname()[1])
        refused(RuntimeError, "ps: the store of the servers cannot be reached .*; the servers have ended, or",
                lambda: soon(network()))
        world.store.set("left", "")
        return None
    # torchrun sets these for the ranks of a run.
    os.environ.update(LOCAL_WORLD_SIZE="2", WORLD_SIZE="2")
    if world.rank == 0:
        world.store.set("port", str((store := dist.TCPStore(ADDRESS, 0, is_master=True)).port))
    else:
        world.store.wait(["port"])
        store = dist.TCPStore(ADDRESS, int(world.store.get("port")), is_master=False)
    dist.init_process_group("tutti", store=store, rank=world.rank, world_size=2)
    node = ps.join(network(), sgd, late_workers=True, mode="async")
    if world.rank == 1:
        world.store.wait(["left"])
        return node.close()
    return node.serve().pushes


def test_late_worker_finds_the_store_by_the_environment(fresh):
    assert fresh(3, join=False).run(by_environment)[0] == {1: 0, 2: 1}


def test_join_late_without_an_address_is_refused(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    refused(ValueError, "ps: join_late.* needs the store of the servers, or MASTER_ADDR and MASTER_PORT",
            lambda: ps.join_late(network()))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "many")
    refused(ValueError, "MASTER_PORT.*many", lambda: ps.join_late(network()))


def grace_without_late_workers(world):
    node = ps.join(network(), sgd)
    if world.rank == 0:
        refused(ValueError, r"ps: serve\(grace=.*call join\(…, late_workers=True\) on all ranks",
                lambda: node.serve(grace=timedelta(seconds=1)))
        return node.serve()
    node.close()


def test_grace_without_late_workers_is_refused(shared):
    shared(2).run(grace_without_late_workers)
