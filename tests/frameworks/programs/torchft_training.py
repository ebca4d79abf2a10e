"""Trains as a replica of torchft's data parallelism. torchft_kills.py starts several replicas and kills them.

It trains as a program of torchft does: a Manager finds the other replicas by the Lighthouse, and a step in which a
replica dies is not committed. It reports every committed step.
"""
import time
import zlib
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torchft
from torchft_on_tutti import DistributedDataParallel, ProcessGroupTutti

# A step computes so long that at most deaths the other replicas are in an all-reduce.
WIDTH, ROWS = 512, 256
# The timeout of each operation. A death ends an operation at once.
LIMIT = timedelta(seconds=120)


@dataclass
class Committed:
    """A committed step. The times are those of time.monotonic(), which all processes of a host share. called, failed:
    the call and the error of the last all-reduce that failed. joining, joined: the begin and the end of joining the
    present group. at: the commit of the step. members: the numbers at the end of the replica_id of each, which torchft
    uses as ranks."""
    step: int
    members: list
    parameters: int
    called: float
    failed: float
    joining: float
    joined: float
    at: float


class Timed:
    called = joining = joined = 0.0

    def _create_pg(self, *arguments):
        self.joining = time.monotonic()
        group = super()._create_pg(*arguments)
        self.joined = time.monotonic()
        return group

    def allreduce(self, *arguments):
        self.called = time.monotonic()
        return super().allreduce(*arguments)


class TimedTutti(Timed, ProcessGroupTutti):
    pass


class TimedGloo(Timed, torchft.ProcessGroupGloo):
    pass


class TimedManager(torchft.Manager):
    called = failed = 0.0

    def report_error(self, error):
        if not self.errored():
            self.called, self.failed = self._pg.called, time.monotonic()
        super().report_error(error)


def network():
    torch.manual_seed(7)
    return torch.nn.Sequential(*(layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())))


def loss_of(model, step, replica):
    generator = torch.Generator().manual_seed(1000 * step + replica + 1)
    rows = torch.randn(ROWS, WIDTH, generator=generator)
    return (model(rows) - rows).square().mean()


def checksum(model):
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return zlib.crc32(parameters.numpy())


def train(backend, replica, lighthouse, heartbeat, last, reports):
    """Trains until the step `last.value` is committed."""
    torch.set_num_threads(1)
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    group, model = {"tutti": TimedTutti, "gloo": TimedGloo}[backend](LIMIT), network()
    descent = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def state():
        return {"model": model.state_dict(), "optimizer": descent.state_dict()}

    def load(state):
        model.load_state_dict(state["model"])
        descent.load_state_dict(state["optimizer"])

    manager = TimedManager(
        pg=group, load_state_dict=load, state_dict=state, min_replica_size=1, replica_id=f"replica{replica}",
        rank=0, world_size=1, store_addr="localhost", store_port=store.port, lighthouse_addr=lighthouse,
        hostname="localhost", heartbeat_interval=heartbeat, timeout=LIMIT, quorum_timeout=LIMIT)
    parallel, optimizer = DistributedDataParallel(manager, model), torchft.Optimizer(manager, descent)
    while manager.current_step() < last.value:
        # zero_grad() finds the members of this step.
        optimizer.zero_grad()
        loss_of(parallel, manager.current_step(), replica).backward()
        # A replica that joins gets the number of the step in the meantime.
        step = manager.current_step()
        optimizer.step()
        if manager.current_step() > step:
            reports.send(Committed(step, group._global_ranks, checksum(model), manager.called, manager.failed,
                                   group.joining, group.joined, time.monotonic()))
    manager.shutdown()
