"""Tests of failures of torch_tutti.ps: workers and servers that are killed, programs that fail, and mistakes of one
rank or of all."""
import os
import signal
import threading
from functools import partial

import pytest
import torch
import torch.distributed as dist
from test_failures import failures
from test_ps import SMALL, by_one, sgd, train
from torch import nn
from torch.utils.checkpoint import checkpoint
from training import batch, flat, loss_of, network
from zero_training import refused

from torch_tutti import PeerError, ps

LOST = "is lost, and its part of the parameters with it"


# ---- deaths ----
def killed(world, victim, mode, staleness, servers, steps, asleep=False):
    """Trains and kills the victim: a worker when it has had parameters twice, a server when a worker has had them
    twice. Returns the parameters, or the server's report."""
    model = network()
    node = ps.join(model, sgd, servers=servers, mode=mode, staleness=staleness, slice_bytes=SMALL)
    if isinstance(node, ps.Server):
        if world.rank == victim:
            threading.Thread(target=lambda: (world.store.wait(["now"]), os.kill(os.getpid(), signal.SIGKILL))).start()
        return node.serve()
    with node as worker:
        for step in range(steps):
            model.zero_grad()
            worker.backward(loss_of(model(batch(step, world.rank))))
            worker.pull()
            worker.wait()
            if step == 1 and world.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            if step == 1 and victim < servers:
                world.store.set("now", "")
    return flat(model.parameters())


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("mode, staleness", [("sync", None), ("async", None), ("bounded", 1)])
def test_a_killed_worker_is_survived(fresh, servers, mode, staleness):
    """The victim is the last rank; the other worker has 12 steps, of which the last ones are its own."""
    victim = servers + 1
    outcomes = fresh(victim + 1).outcomes(killed, victim, mode, staleness, servers, 12)
    assert outcomes[victim].died == -signal.SIGKILL
    for outcome in outcomes[:victim]:
        assert not outcome.failed, outcome.trace
    for report in (outcome.value for outcome in outcomes[:servers]):
        assert report.pushes == {servers: 12, victim: 2} and report.lag <= (staleness or 0 if mode != "async" else 12)
        assert list(report.lost) == [victim] and "rank 1 of group" in report.lost[victim]
        assert "died" in report.lost[victim] and report.updates == (12 if mode == "sync" else 14)
    if mode == "sync":
        both, one = [(servers, victim)] * 2, [(servers,)] * 10
        assert torch.equal(outcomes[servers].value, by_one(both + one))


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("victim, servers", [(0, 1), (1, 2)])
def test_killed_server_is_an_error_on_all_workers(fresh, victim, servers, mode):
    outcomes = fresh(servers + 2).outcomes(killed, victim, mode, None, servers, 1_000_000)
    assert outcomes[victim].died == -signal.SIGKILL
    failures(outcomes[servers:], "PeerError", f"ps: rank {victim}, a server, {LOST}", "died",
             "start all ranks again from a checkpoint")
    # The other server also ends.
    for outcome in outcomes[:victim]:
        assert outcome.value.lost == dict.fromkeys(range(servers, servers + 2), "it failed, and reported so")


def killed_before_the_end(world):
    """The server dies before the worker's last gradients have certainly arrived."""
    model = network()
    node = ps.join(model, sgd, slice_bytes=SMALL)
    if world.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with node as worker:
        loss_of(model(batch(0, 1))).backward()
        worker.push()


def test_death_of_a_server_before_the_end_is_an_error(fresh):
    failures(fresh(2).outcomes(killed_before_the_end)[1:], "PeerError", f"ps: rank 0, a server, {LOST}")


def silent(world):
    """Rank 1 waits for a worker that takes no steps; the server goes on without that after the group's timeout."""
    model = network()
    node = ps.join(model, sgd)
    if world.rank == 2:
        world.store.wait(["end"])
        return None
    found = train(node, model, 2)
    if world.rank == 0:
        world.store.set("end", "")
    return found


def test_a_silent_worker_is_lost_after_the_timeout(fresh):
    """The server gives up the silent worker after the timeout. The other worker waits for parameters with the same
    timeout, so it may fail first; in either case no rank hangs."""
    outcomes = fresh(3, timeout_s=2).outcomes(silent)
    assert not outcomes[0].failed and "reached the timeout of 2000 ms" in outcomes[0].value.lost[2]
    if outcomes[1].failed:
        failures(outcomes[1:2], "TimeoutError", f"ps: rank 0, a server, {LOST}")


# ---- programs that fail ----
def fails(world):
    model = network()
    node = ps.join(model, sgd, slice_bytes=SMALL)
    if world.rank == 0:
        return node.serve()
    with node as worker:
        for step in range(5):
            model.zero_grad()
            worker.backward(loss_of(model(batch(step, world.rank))))
            worker.pull()
            if world.rank == 2 and step == 1:
                worker.wait()
                raise KeyError("a mistake of the program")
    return flat(model.parameters())


def test_failing_worker_reports_to_the_server(fresh):
    outcomes = fresh(3).outcomes(fails)
    failures(outcomes[2:], "KeyError", "a mistake of the program")
    assert outcomes[0].value.lost == {2: "it failed, and reported so"} and outcomes[0].value.pushes == {1: 5, 2: 2}
    assert torch.equal(outcomes[1].value, by_one([(1, 2)] * 2 + [(1,)] * 3))


class Failing(torch.optim.SGD):
    """Fails on a server's threads, so not in the trial of join()."""

    def step(self, closure=None):
        if threading.current_thread() is not threading.main_thread():
            raise ArithmeticError("this optimizer cannot")
        super().step(closure)


def optimizer_fails(world, backend):
    if backend == "gloo":
        dist.init_process_group("gloo", store=world.store, rank=world.rank, world_size=world.size)
    model = network()
    return train(ps.join(model, partial(Failing, lr=0.1)), model, 3)


@pytest.mark.parametrize("backend", ["tutti", "gloo"])
def test_an_optimizer_that_fails_ends_the_server(fresh, backend):
    outcomes = fresh(3, join=backend == "tutti").outcomes(optimizer_fails, backend)
    failures(outcomes[:1], "ArithmeticError", "this optimizer cannot")
    failures(outcomes[1:], "PeerError", f"ps: rank 0, a server, {LOST} (it has failed: see its own error)")


def optimizer_fails_at_the_end(world):
    """The optimizer of the server fails at its only step. A worker that leaves without waiting for parameters gets the
    error when it leaves."""
    model = network()
    node = ps.join(model, partial(Failing, lr=0.1), slice_bytes=SMALL)
    if world.rank == 0:
        return node.serve()
    with node as worker:
        loss_of(model(batch(0, world.rank))).backward()
        worker.push()
        # Rank 1 waits for parameters and gets the error. Rank 2 leaves after that without waiting for parameters.
        if world.rank == 1:
            worker.pull()
            with pytest.raises(PeerError, match=LOST):
                worker.wait()
            world.store.set("failed", "")
        else:
            world.store.wait(["failed"])


def test_worker_that_leaves_a_failed_server_gets_the_error(fresh):
    outcomes = fresh(3).outcomes(optimizer_fails_at_the_end)
    failures(outcomes[:1], "ArithmeticError", "this optimizer cannot")
    failures(outcomes[1:], "PeerError", f"ps: rank 0, a server, {LOST} (it has failed: see its own error)")


class Reentrant(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(20, 20)

    def forward(self, x):
        return checkpoint(self.inner, checkpoint(self.inner, x, use_reentrant=True), use_reentrant=True)


class Backwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no way back")


def backward_fails(world, kind):
    model = Reentrant() if kind == "reentrant" else network()
    node = ps.join(model, sgd, slice_bytes=SMALL)
    if world.rank == 0:
        return node.serve().lost
    with node as worker:
        if kind == "reentrant":
            refused(RuntimeError, "its gradient in two parts in one backward pass.*call loss.backward",
                    lambda: worker.backward(loss_of(model(batch(0, 1).requires_grad_()))))
        else:
            first, *rest = model
            refused(ArithmeticError, "no way back",
                    lambda: worker.backward(loss_of(nn.Sequential(*rest)(Backwards.apply(first(batch(0, 1)))))))
        worker.push()


@pytest.mark.parametrize("kind", ["reentrant", "other"])
def test_failed_backward_pass_ends_the_worker(shared, kind):
    server, worker = shared(2).outcomes(backward_fails, kind)
    failures([worker], "RuntimeError", "ps: a backward pass failed when gradients may have left", "leave the with")
    assert server.value == {1: "it failed, and reported so"}


# ---- mistakes ----
def transposed():
    model = network()
    model[0].weight = nn.Parameter(model[0].weight.detach().t().contiguous().t())
    return model


def whole_numbers():
    model = network()
    model[0].weight = nn.Parameter(torch.ones(50, 20, dtype=torch.complex64))
    return model


# {text of the error: arguments of join}. All ranks pass the same arguments and get the same error.
MISTAKES = {
    "servers=0 of 3 ranks; one or more must be servers, and one or more workers": {"servers": 0},
    "servers=3 of 3 ranks": {"servers": 3},
    "servers=-1 of 3 ranks": {"servers": -1},
    "servers='two' of 3 ranks": {"servers": "two"},
    "mode='fast'; the modes are sync, async, bounded": {"mode": "fast"},
    "staleness=None with mode='bounded'; only mode=\"bounded\" takes it": {"mode": "bounded"},
    "staleness=2 with mode='sync'": {"staleness": 2},
    "staleness=-1; it must be a number of pushes, 0 or more": {"mode": "bounded", "staleness": -1},
    "staleness=0.5; it must be a number of pushes": {"mode": "bounded", "staleness": 0.5},
    "slice_bytes=0; it must be a number of bytes, 1 or more": {"slice_bytes": 0},
    "servers=2, and the model is 1 slices of slice_bytes=1048576: take fewer servers, or smaller": {"servers": 2},
    "the model has no parameters to train": {"model": nn.ReLU},
    "0.weight is torch.float32 on cpu, not contiguous": {"model": transposed},
    "0.weight is torch.complex64 on cpu, contiguous; trained parameters must be contiguous floating": {
        "model": whole_numbers},
    "ZeroDivisionError: float division by zero (rank 0)": {"optimizer": lambda named: 1.0 / 0},
    "optimizer returned int; it must return one of torch.optim (rank 0)": {"optimizer": lambda named: 1},
}


def mistaken(world, text):
    given = {"model": network, "optimizer": sgd, **MISTAKES[text]}
    ps.join(given.pop("model")(), given.pop("optimizer"), **given)


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_in_arguments_are_refused(shared, text):
    failures(shared(3).outcomes(mistaken, text), "ValueError", f"ps: {text}")


def differ(world, what):
    mine = world.rank == 1
    model = network()
    arguments = {"slice_bytes": SMALL}
    if mine and what == "shape":
        model[2] = nn.Linear(50, 51)
    if mine and what == "name":
        model.add_module("head", nn.Linear(3, 3))
    if mine and what == "frozen":
        model[0].bias.requires_grad_(False)
    if mine and what == "mode":
        arguments["mode"] = "async"
    if mine and what == "mistake":
        arguments["mode"] = []
    ps.join(model, sgd, **arguments)


DIFFERENCES = {
    "shape": "rank 1 has 2.weight of shape (51, 50), torch.float32, rank 0 has 2.weight of shape (50, 50), torch.float",
    "name": "rank 1 has head.weight of shape (3, 3), torch.float32, rank 0 has nothing more",
    "frozen": "rank 1 has 0.bias of shape (50,), torch.float32, not trained, rank 0 has 0.bias of shape (50,)",
    "mode": "rank 1 has mode='async', rank 0 has mode='sync'; all ranks must pass the same "
            "arguments and the same model",
    "mistake": "mode=[]; the modes are sync, async, bounded (rank 1)",
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_that_differ_get_an_error(shared, what):
    failures(shared(3).outcomes(differ, what), "ValueError", f"ps: {DIFFERENCES[what]}")


def test_join_without_a_group_is_refused():
    assert not dist.is_initialized()
    refused(ValueError, "ps: call init_process_group first", lambda: ps.join(network(), sgd))


def test_errors_are_of_the_package():
    assert issubclass(PeerError, dist.DistBackendError)
