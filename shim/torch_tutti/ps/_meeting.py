"""How servers and a late worker meet in the store, before they have groups: a late worker is in no group of the run.

Keys: `run` describes the newest run, which rank 0 has published. The keys of a run begin with its name. `N` (0, 1, …)
is the request of a late worker, which takes the lowest number that is free. `N/SERVER` is a server's answer: empty, or
why it takes no worker. `N/go` is the late worker's conclusion: `yes` if all servers take it, else `no`. `ended/SERVER`
exists when a server has ended. After `yes`, the late worker and each server make their group."""
from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, Iterator, Sequence

import torch.distributed as dist

from torch_tutti._extension import load
from torch_tutti.exceptions import TimeoutError
from torch_tutti.ps._link import Link

PREFIX = "torch_tutti.ps"
POLL_S = 0.05                           # seconds between two looks into the store


@dataclass
class Run:
    """A run, as a late worker must know it. size: its ranks at the beginning. settings: the arguments of join() that
    decide on slices and steps. descriptions: of all parameters and buffers. timeout_s: of a group of two ranks."""
    size: int
    settings: dict[str, Any]
    descriptions: Sequence[str]
    timeout_s: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


def base_store(store: dist.Store) -> dist.Store:
    """Returns the store itself, without prefixes. torch and torchrun add prefixes, which a late worker cannot know."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def publish(store: dist.Store, run: Run) -> None:
    """Publishes a run as the newest one of its store."""
    base_store(store).set(f"{PREFIX}/run", json.dumps(asdict(run)))


def find_run(store: dist.Store) -> Run | None:
    """Returns the newest run of a store, or None if it has none."""
    store = base_store(store)
    return Run(**json.loads(store.get(f"{PREFIX}/run"))) if store.check([f"{PREFIX}/run"]) else None


@contextmanager
def explained() -> Iterator[None]:
    """A context for a late worker's calls of the store. Errors of the store become a RuntimeError that says what to
    do."""
    try:
        yield
    except (dist.DistError, ConnectionError) as error:
        raise RuntimeError(f"ps: the store of the servers cannot be reached ({error}); the servers have ended, or it "
                           "has another address: give join_late() the store, or set MASTER_ADDR and MASTER_PORT, as "
                           "for the servers") from None


class Meeting:
    """The keys of one run, for a server or a late worker. Has its own connection to the store where the store is a
    TCPStore, because a waiting call of another thread would block it."""

    def __init__(self, store: dist.Store, run: Run) -> None:
        self.run = run
        self._store = dist.PrefixStore(f"{PREFIX}/{run.name}", base_store(store).clone())

    # ---- a late worker ----
    def claim(self) -> int:
        """Requests to be taken, and returns the number of the request, which no other late worker has."""
        own, ticket = uuid.uuid4().hex, 0
        while self._store.compare_set(str(ticket), "", own).decode() != own:
            ticket += 1
        return ticket

    def collect_answers(self, ticket: int, timeout_s: float) -> None:
        """Waits for the answers of all servers, and tells them the conclusion. Raises RuntimeError that names a server
        that takes no worker, and TimeoutError that names one that does not answer."""
        conclusion, deadline = "no", time.monotonic() + timeout_s
        try:
            for server in range(self.run.settings["servers"]):
                answer, ended = f"{ticket}/{server}", f"ended/{server}"
                found = self._wait_for_any([answer, ended], deadline)
                if found is None:
                    raise TimeoutError(
                        f"ps: rank {server}, a server, has not answered within {timeout_s:g} s: it does not serve() "
                        "yet, or has died; then start all ranks again from a checkpoint")
                problem = self._store.get(found).decode()
                if problem:
                    raise RuntimeError(f"ps: rank {server}, a server, {problem}; start all ranks again from a "
                                       "checkpoint")
            conclusion = "yes"
        finally:
            self._store.set(f"{ticket}/go", conclusion)

    # ---- a server ----
    def is_claimed(self, ticket: int) -> bool:
        """Returns whether a late worker has claimed the number."""
        return bool(self._store.check([str(ticket)]))

    def answer(self, ticket: int, server: int, problem: str) -> bool:
        """Answers a request. problem: why this server takes no worker, or "". Returns True if the late worker reports
        within a minute that all servers take it."""
        self._store.set(f"{ticket}/{server}", problem)
        if problem:
            return False
        go = self._wait_for_any([f"{ticket}/go"], time.monotonic() + 60)
        return go is not None and self._store.get(go) == b"yes"

    def end(self, server: int, reason: str) -> None:
        """Tells late workers that this server has ended."""
        self._store.set(f"ended/{server}", reason)

    # ---- both ----
    def connect(self, ticket: int, server: int, is_server: bool, timeout_s: float) -> Link:
        """Makes the group of a server and a late worker, and returns this rank's end. Both call it. timeout_s: how long
        one waits for the other."""
        number = self.number_of(ticket)
        options = load().Options(timeout=timedelta(seconds=timeout_s))
        # The members show that this is not the group of all ranks, whose size later groups of this process would use.
        options.global_ranks_in_group = [server, number]
        pair = load().ProcessGroupTutti(
            store=dist.PrefixStore(f"{ticket}/{server}", self._store.clone()), rank=0 if is_server else 1, size=2,
            group=f"ps {server}-{number}", options=options)
        pair._set_default_timeout(timedelta(seconds=self.run.timeout_s))
        return Link(pair, *((number, 1) if is_server else (server, 0)), pair.shutdown)

    def number_of(self, ticket: int) -> int:
        """Returns the number of a late worker in reports and errors: the first has the size of the run."""
        return self.run.size + ticket

    def _wait_for_any(self, keys: Sequence[str], deadline: float) -> str | None:
        """Waits until one of the keys exists, and returns it; None after the deadline, a time of time.monotonic()."""
        while True:
            for key in keys:
                if self._store.check([key]):
                    return key
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)
