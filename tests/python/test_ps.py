"""Tests of torch_tutti.ps: a parameter server trains as one process does and keeps its bounds; how slices are cut, and
in which order they travel. Failures are in test_ps_failures.py."""
import copy
import os
import queue
import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from training import batch, flat, loss_of, network
from zero_training import refused

from torch_tutti import ps
from torch_tutti.ps._link import BYE, FAIL, LEAVE, PULL, PUSH, VALUE, Header, Outbox
from torch_tutti.ps._slices import MOST_PIECES, cut, pack, spread, unpack

STEPS = 20
# Bytes of a slice. network() then has 15 slices.
SMALL = 1000
sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01)
adamw = partial(torch.optim.AdamW, lr=0.01)


def train(node, model, steps, backward=True, loss_on=loss_of):
    """Serves and returns the report, or trains on this rank's batches and returns the parameters."""
    if isinstance(node, ps.Server):
        return node.serve()
    with node as worker:
        for step in range(steps):
            model.zero_grad()
            loss = loss_on(model(batch(step, dist.get_rank())))
            if backward:
                worker.backward(loss)
            else:
                loss.backward()
                worker.push()
            worker.pull()
    return flat(model.parameters())


def by_one(workers_of_step, optimizer=sgd, model=None):
    """Returns the parameters of one process that trains on the average of the gradients of these workers, summed in
    their order."""
    model = model or network()
    taken = optimizer(model.parameters())
    for step, workers in enumerate(workers_of_step):
        sums = None
        for rank in workers:
            model.zero_grad()
            loss_of(model(batch(step, rank))).backward()
            mine = [p.grad for p in model.parameters()]
            sums = mine if sums is None else [a if b is None else b if a is None else a + b for a, b in zip(sums, mine)]
        for p, total in zip(model.parameters(), sums):
            p.grad = None if total is None else total / len(workers)
        taken.step()
    return flat(model.parameters())


def run_resume(world, servers):
    """A run that ended continues from the workers' parameters and the states of the servers."""
    saved, model = world.kept, network()
    for name in ("first", "second"):
        node = ps.join(model, adamw, servers=servers, slice_bytes=SMALL)
        if isinstance(node, ps.Server) and name == "second":
            node.load_state_dict(saved["state"])
        train(node, model, 4)
        if isinstance(node, ps.Server):
            saved["state"] = node.state_dict()
        values = [flat(model.parameters()).float()]
        dist.broadcast(values[0], servers)
        model = network()
        torch.nn.utils.vector_to_parameters(values[0], model.parameters())
    if isinstance(node, ps.Server):
        refused(RuntimeError, "before serve", lambda: node.load_state_dict(saved["state"]))
    other = ps.join(model, adamw, servers=servers, slice_bytes=2 * SMALL)
    if isinstance(other, ps.Server):
        refused(ValueError, "a server with other slices", lambda: other.load_state_dict(saved["state"]))
    train(other, model, 0)
    return values[0]


@pytest.mark.parametrize("servers", [1, 2])
def test_run_resumes_from_the_states_of_servers(shared, servers):
    by_runs = shared(3).run(run_resume, servers)[-1]
    model = network()
    taken, workers = adamw(model.parameters()), range(servers, 3)
    for step in [0, 1, 2, 3] * 2:
        model.zero_grad()
        for rank in workers:
            loss_of(model(batch(step, rank))).backward()
        for p in model.parameters():
            p.grad /= len(workers)
        taken.step()
    torch.testing.assert_close(by_runs, flat(model.parameters()).float(), rtol=1e-6, atol=1e-7)


# ---- slices ----
def test_slices_have_each_element_once():
    shapes = [(3, 5), (), (0, 4), (1000,), (7,), *[(1,)] * 150]
    parameters = [torch.randn(shape) for shape in shapes] + [torch.randn(9, dtype=torch.float64)]
    slices = cut(parameters, 400)
    assert [one.number for one in slices] == list(range(len(slices)))
    assert all(one.nbytes <= 400 and len(one.pieces) <= MOST_PIECES for one in slices)
    assert [one.count for one in slices[:10]] == [100] * 10 and slices[-1].dtype == torch.float64
    taken = [torch.zeros_like(p) for p in parameters]
    for one in slices:
        data = torch.empty(one.count, dtype=one.dtype)
        assert pack(one, lambda number: parameters[number].view(-1), data) == (1 << len(one.pieces)) - 1
        unpack(one, data, taken)
    assert all(map(torch.equal, taken, parameters))
    assert pack(slices[0], lambda number: None if number else parameters[0].view(-1), torch.empty(100)) == 1
    # A slice has at least one element.
    assert len(cut(parameters[:1], 1)) == 15


def test_servers_have_even_loads_and_early_slices():
    slices = cut([torch.empty(1000), torch.empty(500, dtype=torch.float64), torch.empty(333)], 400)
    spread(slices, 3)
    loads = [sum(one.nbytes for one in slices if one.server == server) for server in range(3)]
    assert max(loads) - min(loads) <= 400 and sum(loads) == 4000 + 4000 + 1332
    assert [one.server for one in slices[:6]] == [0, 1, 2, 0, 1, 2]


def test_urgent_messages_are_sent_first():
    outbox = Outbox()
    for priority in (5, 3, 9, 3, -1):
        outbox.put(priority, f"{priority}")
    outbox.put(3, "last of three")
    assert [outbox.get() for _ in range(6)] == ["-1", "3", "3", "last of three", "5", "9"]
    for _ in range(6):
        outbox.mark_sent()
    outbox.drain()
    outbox.close()
    assert outbox.get() is None


class SlowLink:
    """A link to a server that does not exist. It sends no message until `go` is set, and then all messages in the order
    in which it gets them. It receives what a test puts into `given`."""
    peer, bytes_sent, bytes_received = 0, 0, 0

    def __init__(self):
        self.sent, self.go, self.begun, self.given = [], threading.Event(), threading.Event(), queue.Queue()

    def send(self, header, data=None):
        self.begun.set()
        assert self.go.wait(30)
        self.sent.append(header.number if header.kind == PUSH else {PULL: "pull", FAIL: "fail", LEAVE: "leave"}[
            header.kind])
        if header.kind in (LEAVE, FAIL):
            self.given.put(Header(BYE))

    def wait_for_the_first(self, _):
        assert self.begun.wait(30)

    def receive(self):
        return self.given.get(timeout=30)

    def receive_into(self, data):
        data.fill_(1.0)

    def destroy(self):
        self.sent.append("destroyed")


def test_slices_of_the_first_layers_are_sent_next():
    """Gradients of all layers are ready while one of the last two slices is being sent. Those of the first layers are
    sent next."""
    model, link = network(), SlowLink()
    model[2].weight.register_post_accumulate_grad_hook(link.wait_for_the_first)
    slices = cut(list(model.parameters()), SMALL)
    worker, last = ps.Worker(model, slices, [link], None), len(slices) - 1
    worker.backward(loss_of(model(batch(0, 1))))
    worker.pull()
    link.go.set()
    with pytest.raises(KeyError), worker:
        worker._connections[0].outbox.drain()
        raise KeyError
    first, *others = link.sent
    assert first in (last - 1, last)
    assert others == ["pull", *(number for number in range(last + 1) if number != first), "fail", "leave", "destroyed"]
    assert not model._forward_pre_hooks and not model[0]._forward_pre_hooks
    assert not any(thread.is_alive() for thread in worker._connections[0].threads)


def test_layer_waits_for_its_own_parameters_only():
    """The first layer computes before the parameters of the others have arrived. They arrive when the second one
    begins."""
    model, link, asked = network(), SlowLink(), []
    slices = cut(list(model.parameters()), SMALL)
    first = {number for number, one in enumerate(slices) if any(piece.parameter < 2 for piece in one.pieces)}

    def give(numbers):
        for number in numbers:
            link.given.put(Header(VALUE, number, 1, 1))

    def second(module, _):
        if worker._pulled:
            asked.append(set(worker._pulled))
            give(asked[0])
    model[2].register_forward_pre_hook(second)
    link.go.set()
    with ps.Worker(model, slices, [link], None) as worker:
        # The first forward shows the worker which modules run.
        model(batch(0, 1))
        worker.pull()
        give(first)
        model(batch(0, 1))
        assert asked == [set(range(len(slices))) - first]
    assert flat(model.parameters()).eq(1).all()


# ---- synchronous ----
def run_sync(world, servers, optimizer, slice_bytes, backward):
    # join() gives all ranks the values of rank 0.
    model = network(seed=world.rank)
    node = ps.join(model, optimizer, servers=servers, slice_bytes=slice_bytes)
    found = train(node, model, STEPS, backward)
    judge = by_one([range(servers, world.size)] * STEPS, optimizer, network(0))
    # One of several servers updates only its own slices.
    if world.rank >= servers or servers == 1:
        torch.testing.assert_close(flat(model.parameters()), judge, rtol=0, atol=1e-5)
        assert torch.equal(flat(model.parameters()), judge) or optimizer.func is not torch.optim.SGD
    if world.rank >= servers:
        return None
    assert found.pushes == dict.fromkeys(range(servers, world.size), STEPS) and not found.lost
    assert found.updates == STEPS and found.lag == 0
    return found.bytes_received, found.bytes_sent, found.order


@pytest.mark.parametrize("size, servers", [(2, 1), (3, 1), (4, 1), (3, 2), (4, 2)])
@pytest.mark.parametrize("optimizer, slice_bytes, backward", [(sgd, SMALL, True), (sgd, 1 << 20, False),
                                                              (adamw, SMALL, False)])
def test_sync_trains_as_one_process(shared, size, servers, optimizer, slice_bytes, backward):
    if servers == 2 and slice_bytes > SMALL:
        slice_bytes = 4 * SMALL
    found = shared(size).run(run_sync, servers, optimizer, slice_bytes, backward)[:servers]
    whole = sum(p.numel() * 4 for p in network().parameters()) * STEPS * (size - servers)
    assert sum(received for received, _, _ in found) == sum(sent for _, sent, _ in found) == whole
    for orders in (orders for _, _, orders in found):
        for order in orders.values():
            assert len(order) == len(set(order)) and (backward or order == sorted(order)), order


def run_unequal(world):
    """Worker 2 makes three steps, worker 1 five. The last two average over one worker."""
    model = network()
    node = ps.join(model, sgd, slice_bytes=SMALL)
    found = train(node, model, 5 if world.rank == 1 else 3)
    if world.rank == 0:
        assert found.pushes == {1: 5, 2: 3} and found.updates == 5 and not found.lost
    if world.rank == 1:
        assert torch.equal(found, by_one([(1, 2)] * 3 + [(1,)] * 2))


def test_a_worker_may_have_fewer_steps(shared):
    shared(3).run(run_unequal)


class Odd(nn.Module):
    """A model with weights that are read outside of their module's forward, used twice, used by one worker only, or
    never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.scale = nn.Parameter(torch.ones(20))
        self.first, self.second = nn.Linear(20, 20), nn.Linear(20, 20)
        self.table, self.own, self.unused = nn.Embedding(4, 20), nn.Linear(20, 20), nn.Linear(20, 20)
        self.second.weight = self.first.weight
        self.frozen = nn.Parameter(torch.ones(20), requires_grad=False)
        self.norm = nn.BatchNorm1d(20)

    def forward(self, x, own):
        x = self.second(self.first(x * self.scale).relu()) + self.table.weight[0] + self.frozen
        return self.own(x) + self.norm(x) if own else x


def run_odd(world, slice_bytes):
    model, reference = Odd(), Odd()
    taken = torch.optim.AdamW(reference.parameters(), lr=0.01, weight_decay=0.1)
    node = ps.join(model, partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1), slice_bytes=slice_bytes)
    if world.rank == 0:
        node.serve()
        return
    with node as worker:
        for step in range(STEPS):
            model.zero_grad()
            worker.backward(model(batch(step, world.rank), world.rank == 2).square().mean())
            worker.pull()
            if step == STEPS // 2:
                # state_dict() first waits for the parameters that were pulled.
                model.state_dict()
                assert not worker._pulled and copy.deepcopy(model)(batch(0, 0), False).shape == (8, 20)
    for step in range(STEPS):
        taken.zero_grad()
        (sum(reference(batch(step, rank), rank == 2).square().mean() for rank in (1, 2)) / 2).backward()
        taken.step()
    torch.testing.assert_close(flat(model.parameters()), flat(reference.parameters()), rtol=1e-4, atol=1e-5)
    # Not even weight decay changes it.
    assert torch.equal(model.unused.weight, Odd().unused.weight)


@pytest.mark.parametrize("slice_bytes", [100, 1000, 1 << 20])
def test_weights_outside_of_forward_train_as_one_process(shared, slice_bytes):
    shared(3).run(run_odd, slice_bytes)


def run_sparse(world):
    torch.manual_seed(1)
    model = nn.Embedding(10, 4, sparse=True)
    before = model.weight.detach().clone()
    node = ps.join(model, partial(torch.optim.SGD, lr=1.0))
    if world.rank == 0:
        return node.serve().updates
    with node as worker:
        # Gradients of two passes add up.
        for turn in (1, 2):
            model(torch.tensor([3])).sum().backward()
        worker.push()
        worker.pull()
    before[3] -= 2
    assert torch.equal(model.weight.detach(), before)


def test_sparse_gradients_of_several_passes_add_up(shared):
    assert shared(2).run(run_sparse)[0] == 1


def run_groups_of_parameters(world):
    """The optimizer may group parameters by their names, and a scheduler may follow its steps."""
    model = network()

    def groups(named):
        assert all(name in dict(model.named_parameters()) and piece.dim() == 1 for name, piece in named)
        of = {kind: [piece for name, piece in named if name.endswith(kind)] for kind in ("weight", "bias")}
        made = torch.optim.SGD([{"params": of["weight"]}, {"params": of["bias"], "lr": 0.0}], lr=1.0)
        # The learning rate is 0 after the first step.
        schedule = torch.optim.lr_scheduler.StepLR(made, 1, 0.0)
        made.register_step_post_hook(lambda *_: schedule.step())
        return made
    node = ps.join(model, groups, slice_bytes=SMALL)
    found = train(node, model, 3)
    if world.rank:
        once = by_one([(1,)], partial(torch.optim.SGD, lr=1.0))
        for mine, its, start in zip(*(torch.split(of, [p.numel() for p in model.parameters()]) for of in (
                found, once, flat(network().parameters())))):
            assert torch.equal(mine, its if mine.numel() > 50 else start)


def test_optimizer_may_use_names_and_schedules(shared):
    shared(2).run(run_groups_of_parameters)


# ---- asynchronous ----
def run_async(world, mode, staleness):
    model = network()
    node = ps.join(model, partial(torch.optim.SGD, lr=0.05), servers=2, mode=mode, staleness=staleness,
                   slice_bytes=SMALL)
    first = float(loss_of(model(batch(0, 9))))
    found = train(node, model, 40 + world.rank)
    if world.rank < 2:
        assert found.pushes == {2: 42, 3: 43} and found.updates == 85 and not found.lost
        return found.lag
    last = float(loss_of(model(batch(0, 9))))
    assert last < first / 2, (first, last)
    return node.report()


@pytest.mark.parametrize("mode, staleness", [("async", None), ("bounded", 0), ("bounded", 3)])
def test_async_training_converges_and_counts_pushes(shared, mode, staleness):
    found = shared(4).run(run_async, mode, staleness)
    assert max(found[:2]) <= (100 if staleness is None else staleness)
    assert [each["pushes"] for each in found[2:]] == [42, 43]


def run_far_ahead(world, mode, staleness, ahead, name):
    """Worker 2 pushes nothing until worker 1 has had parameters `ahead` times; then worker 1 takes one step more."""
    model = network()
    node = ps.join(model, sgd, mode=mode, staleness=staleness, slice_bytes=SMALL)
    if world.rank == 0:
        report = node.serve()
        return report.lag, report.pushes
    with node as worker:
        if world.rank == 2:
            world.store.wait([name])
        for step in range(ahead + 1):
            model.zero_grad()
            worker.backward(loss_of(model(batch(step, world.rank))))
            worker.pull()
            if world.rank == 1 and step < ahead:
                worker.wait()
                if step + 1 == ahead:
                    world.store.set(name, "there")


@pytest.mark.parametrize("mode, staleness, ahead", [("bounded", 1, 1), ("bounded", 3, 3), ("async", None, 7)])
def test_bound_limits_how_far_a_worker_is_ahead(shared, mode, staleness, ahead):
    """A worker gets parameters while it is at most `ahead` pushes ahead of the other. In bounded mode the step after
    that waits, so the lag does not grow."""
    lag, pushes = shared(3).run(run_far_ahead, mode, staleness, ahead, f"{mode}{ahead}{os.urandom(4).hex()}")[0]
    assert pushes == {1: ahead + 1, 2: ahead + 1}
    assert lag == ahead if mode == "bounded" else ahead <= lag <= ahead + 1


def run_without_pulls(world, mode, staleness, allowed):
    model = network()
    node = ps.join(model, sgd, mode=mode, staleness=staleness)
    if world.rank == 0:
        return node.serve()
    with node as worker:
        loss_of(model(batch(0, 1))).backward()
        for _ in range(allowed):
            worker.push()
        refused(RuntimeError, f"may lack {allowed} pushes of another, and its mode allows {allowed - 1}: call pull()",
                worker.push)
        worker.pull()
        # The worker may push again after a pull.
        worker.push()
    refused(RuntimeError, "this worker has left; join again", worker.push)
    worker.close()
    return worker.report()["pushes"]


@pytest.mark.parametrize("mode, staleness, allowed", [("sync", None, 1), ("bounded", 0, 1), ("bounded", 2, 3)])
def test_too_many_pushes_without_a_pull_are_refused(shared, mode, staleness, allowed):
    report, pushes = shared(2).run(run_without_pulls, mode, staleness, allowed)
    assert report.pushes == {1: allowed + 1} and pushes == allowed + 1


def run_twice(world):
    model = network()
    node = ps.join(model, sgd)
    train(node, model, 1)
    if world.rank == 0:
        refused(RuntimeError, "this server has finished; join again", node.serve)
    total = torch.ones(1)
    # The default group still works.
    dist.all_reduce(total)
    assert total == world.size


def test_serves_once_and_leaves_the_group(shared):
    for _ in range(2):
        shared(3).run(run_twice)


def run_on_gloo(world):
    dist.init_process_group("gloo", store=world.store, rank=world.rank, world_size=world.size)
    model = network()
    found = train(ps.join(model, sgd, slice_bytes=SMALL), model, 5)
    assert world.rank == 0 or torch.equal(found, by_one([(1, 2)] * 5))


def test_default_group_may_use_another_backend(fresh):
    fresh(3, join=False).run(run_on_gloo)
