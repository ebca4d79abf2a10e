"""A worker that joins a run of servers late, or in the place of one that has died."""
from __future__ import annotations

import os
import time
from datetime import timedelta
from itertools import zip_longest

import torch.distributed as dist
from torch import nn

from torch_tutti._compatibility import checked_timeout
from torch_tutti.exceptions import TimeoutError
from torch_tutti.ps._link import JOIN, START, Header, Link
from torch_tutti.ps._meeting import POLL_S, Meeting, Run, explained, find_run
from torch_tutti.ps._model import describe_tensors, divide_model, largest_lag, untrained
from torch_tutti.ps._slices import Slice
from torch_tutti.ps._worker import Worker


def join_late(model: nn.Module, store: dist.Store | None = None, *,
              timeout: timedelta = timedelta(seconds=60)) -> Worker:
    """Makes this process a Worker of servers that others have started by join(…, late_workers=True). The model gets the
    present parameters of the servers, and the buffers and untrained parameters with which rank 0 began. Needs no
    init_process_group.

    store: that of the servers' init_process_group; default: the TCPStore of MASTER_ADDR and MASTER_PORT. timeout: how
    long to wait for the servers.

    Raises ValueError for another model than the servers', RuntimeError if the servers have ended or have failed,
    TimeoutError for a server that does not answer, and PeerError for one that dies meanwhile."""
    timeout_s = checked_timeout(timeout, "ps: join_late").total_seconds()
    with explained():
        store = store if store is not None else _store_of_environment(timeout)
        run = _await_run(store, timeout_s)
        slices = _checked_slices(model, run)
        meeting = Meeting(store, run)
        ticket = meeting.claim()
        meeting.collect_answers(ticket, timeout_s)
    links: list[Link] = []
    try:
        for server in range(run.settings["servers"]):
            links.append(meeting.connect(ticket, server, False, timeout_s))
        clock = _agree(model, links)
    except BaseException:
        for link in links:
            link.destroy()
        raise
    max_lag = largest_lag(run.settings["mode"], run.settings["staleness"])
    worker = Worker(model, slices, links, max_lag, meeting.number_of(ticket), clock)
    try:
        worker.pull()
        worker.wait()
    except BaseException as error:
        worker.__exit__(type(error), error, error.__traceback__)
        raise
    return worker


def _store_of_environment(timeout: timedelta) -> dist.Store:
    """Returns a connection to the store of MASTER_ADDR and MASTER_PORT."""
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"ps: join_late() needs the store of the servers, or MASTER_ADDR and MASTER_PORT ({error})"
                         ) from None
    return dist.TCPStore(host, port, is_master=False, timeout=timeout)


def _await_run(store: dist.Store, timeout_s: float) -> Run:
    """Returns the newest run of the store, which servers may not have published yet."""
    deadline = time.monotonic() + timeout_s
    while (run := find_run(store)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"ps: no servers have published a run in this store within {timeout_s:g} s; they "
                                      "must call join(…, late_workers=True), with the same store")
        time.sleep(POLL_S)
    return run


def _checked_slices(model: nn.Module, run: Run) -> list[Slice]:
    """Returns the slices of a model. Raises ValueError if it differs from the servers'."""
    for expected, actual in zip_longest(run.descriptions, describe_tensors(model), fillvalue="nothing more"):
        if expected != actual:
            raise ValueError(f"ps: this late worker has {actual}, the servers have {expected}; it must pass the same "
                             "model")
    return divide_model(model, run.size, **run.settings)


def _agree(model: nn.Module, links: list[Link]) -> int:
    """Receives the tensors that are not trained from the first server. Returns the pushes with which this worker
    begins: the most that any server has named."""
    for tensor in untrained(model):
        links[0].receive_untrained(tensor)
    for link in links:
        link.send(Header(JOIN))
    clock = max(link.receive().clock for link in links)
    for link in links:
        link.send(Header(START, clock=clock))
    return clock
