"""A server: it has shards, and for each worker a thread that receives and a thread that sends. A receiving thread never
waits for another worker, so a worker can always send. Locks are taken in the order: shard, outbox."""
from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable

import torch
from torch import Tensor, nn

from torch_tutti.ps._acceptor import Acceptor
from torch_tutti.ps._link import BYE, FAIL, FIRST, LAST, LEAVE, PULL, PUSH, Header, Link, Outbox
from torch_tutti.ps._shard import Shard
from torch_tutti.ps._slices import unpack

# the reasons that a late worker gets from a server that does not take it
HAS_FAILED, HAS_ENDED = "has failed: see its own error", "has ended, because its workers had left"


@dataclass
class Report:
    """Statistics of a server's whole run, which ends when its last worker leaves.

    pushes: complete pushes of each worker, by rank. lost: the errors of workers that died or failed, by rank. updates:
    steps that the optimizers of all slices have made. lag: the most pushes by which a worker was ahead of the slowest
    one when it got parameters. order: for each worker, the slices of its last push in the order of arrival.
    bytes_received: bytes of gradients. bytes_sent: bytes of parameters."""
    pushes: dict[int, int]
    lost: dict[int, str]
    updates: int
    lag: int
    order: dict[int, list[int]]
    bytes_received: int
    bytes_sent: int


@dataclass
class _Client:
    """A worker on its server. order: slices of its push number `clock`, in the order of arrival. has_left: it has sent
    LEAVE or FAIL, or is lost."""
    link: Link
    outbox: Outbox = field(default_factory=Outbox)
    order: list[int] = field(default_factory=list)
    clock: int = 0
    has_left: bool = False
    threads: list[threading.Thread] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.link.peer


class Server:
    """This rank's part of a parameter server. Made by join()."""

    def __init__(self, model: nn.Module, shards: list[Shard], links: list[Link],
                 acceptor: Acceptor | None = None) -> None:
        """acceptor: takes late workers; None: there are none."""
        self._acceptor = acceptor
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._shards = {shard.slice_.number: shard for shard in shards}
        self._clients = [_Client(link) for link in links]
        self._lost: dict[int, str] = {}
        self._changed = threading.Condition()
        # two threads for each worker, and one for each late worker until it is a worker
        self._running_threads = 0
        self._late = 0                                  # late workers that have come
        self._has_ended = False
        self._error: Exception | None = None
        self._has_served = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of the optimizers of this server's slices, {number of the slice: {"layout", "state"}}.
        While workers push, slices may be of different steps. The values are those of a worker's model.state_dict()."""
        return {number: {"layout": shard.layout, "state": shard.state_dict()} for number, shard in self._shards.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads what state_dict() of the server of the same rank returned; before serve(). Raises ValueError if that
        had other slices, and RuntimeError after serve()."""
        if self._has_served:
            raise RuntimeError("ps: load the state of a server before serve()")
        theirs = {number: [tuple(piece) for piece in entry["layout"]] for number, entry in state.items()}
        if theirs != {number: shard.layout for number, shard in self._shards.items()}:
            raise ValueError("ps: this state is of a server with other slices; use the model, servers, slice_bytes and "
                             "whole_parameters with which it was saved")
        for number, shard in self._shards.items():
            shard.load_state_dict(state[number]["state"])

    def serve(self, *, grace: timedelta = timedelta(0)) -> Report:
        """Serves until each worker has left or is lost. Then copies this server's slices into this rank's model; with
        one server these are all parameters. After an error of the optimizer, reports a failure to all workers, and
        raises the error when they have left.

        grace: how long a server without workers waits for late ones, if fewer have come than workers were lost. Needs
        join(…, late_workers=True)."""
        if self._has_served:
            raise RuntimeError("ps: this server has finished; join again on all ranks")
        if grace and self._acceptor is None:
            raise ValueError("ps: serve(grace=…) waits for late workers; call join(…, late_workers=True) on all ranks")
        self._has_served = True
        clients, self._clients = self._clients, []
        if self._acceptor is not None:
            self._acceptor.start(self)
        try:
            for client in clients:
                self._start(client)
            self._await_end(grace.total_seconds())
        finally:
            self._close()
        if self._error is not None:
            raise self._error
        for shard in self._shards.values():
            unpack(shard.slice_, shard.value, self._parameters)
        return self._report()

    def _await_end(self, grace_s: float) -> None:
        """Waits until no worker is left, and no late one comes."""
        with self._changed:
            while not self._has_ended:
                self._changed.wait_for(lambda: not self._running_threads)
                is_awaited = self._error is None and self._late < len(self._lost)
                self._has_ended = not (is_awaited and self._changed.wait_for(lambda: self._running_threads, grace_s))

    def _close(self) -> None:
        """Ends all threads, also if serve() was interrupted, and refuses late workers."""
        with self._changed:
            self._has_ended = True
        if self._acceptor is not None:
            self._acceptor.end(HAS_FAILED if self._error is not None else HAS_ENDED)
        for client in self._clients:
            client.outbox.close()
            client.link.destroy()
        for client in self._clients:
            for thread in client.threads:
                thread.join()

    def _start(self, client: _Client) -> None:
        """Starts the threads of a worker."""
        client.threads = [threading.Thread(target=self._run, args=(target, client), name="tutti ps", daemon=True)
                          for target in (self._receive_all, self._send_all)]
        with self._changed:
            self._clients.append(client)
            self._running_threads += len(client.threads)
        if self._error is not None:                     # the other workers have been told
            client.outbox.put(FIRST, Header(FAIL))
        for thread in client.threads:
            thread.start()

    # ---- late workers: what the acceptor calls ----
    def begin_admission(self) -> str:
        """Counts a late worker, so that the server does not end before end_admission(). Returns "", or why this server
        takes no worker."""
        with self._changed:
            if self._error is not None:
                return HAS_FAILED
            if self._has_ended:
                return HAS_ENDED
            self._running_threads += 1
            self._changed.notify_all()
            return ""

    def add_worker(self, worker: int) -> int:
        """Adds a late worker to all shards. Returns the most pushes that the slowest worker of a shard has made."""
        return max(shard.add_worker(worker) for shard in self._shards.values())

    def start_worker(self, link: Link, clock: int) -> None:
        """Begins to serve a late worker, which begins with `clock` pushes."""
        for shard in self._shards.values():
            self._call_unless_failed(shard.start_worker, link.peer, clock)
        self._start(_Client(link))

    def drop_worker(self, worker: int, error: str) -> None:
        """Stops waiting for a late worker that was lost before start_worker()."""
        self._lost[worker] = error
        for shard in self._shards.values():
            self._call_unless_failed(shard.remove_worker, worker, False)

    def end_admission(self, has_come: bool) -> None:
        """Ends what begin_admission() began. has_come: the late worker was not refused by another server."""
        with self._changed:
            self._late += has_come
        self._count_ended_thread()

    def _report(self) -> Report:
        """Returns the Report of this server."""
        shards, links = self._shards.values(), [client.link for client in self._clients]
        return Report({client.rank: min(shard.pushes[client.rank] - shard.starts[client.rank] for shard in shards)
                       for client in self._clients},
                      dict(self._lost), min(shard.updates for shard in shards), max(shard.lag for shard in shards),
                      {client.rank: client.order for client in self._clients},
                      sum(link.bytes_received for link in links), sum(link.bytes_sent for link in links))

    def _run(self, target: Callable[[_Client], None], client: _Client) -> None:
        """Runs target(client) in a thread, and counts the thread as ended."""
        try:
            target(client)
        finally:
            self._count_ended_thread()

    def _count_ended_thread(self) -> None:
        """Counts a thread as ended, and wakes serve()."""
        with self._changed:
            self._running_threads -= 1
            self._changed.notify_all()

    def _call_unless_failed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Returns call(*arguments). Returns None if the call or an earlier one has failed. After a failure the workers
        get FAIL at their next pull, and their messages are received and dropped until they leave."""
        if self._error is None:
            try:
                return call(*arguments)
            except Exception as error:
                self._error = error
                for client in list(self._clients):
                    client.outbox.clear()
                    client.outbox.put(FIRST, Header(FAIL))
        return None

    # ---- a worker ----
    def _receive_all(self, client: _Client) -> None:
        """The receiving thread of a worker: handles messages until the worker leaves, fails or is lost, then answers
        BYE."""
        while (message := self._receive(client))[0].kind not in (LEAVE, FAIL):
            self._call_unless_failed(self._handle, client, *message)
        client.has_left = True
        for shard in self._shards.values():
            self._call_unless_failed(shard.remove_worker, client.rank, message[0].kind == LEAVE)
        if message[0].kind == FAIL:
            self._lost.setdefault(client.rank, "it failed, and reported so")
            client.outbox.clear()
        client.outbox.put(LAST, Header(BYE))
        self._receive(client)                           # the second LEAVE: BYE was read, so this end may close first

    def _handle(self, client: _Client, header: Header, gradient: Tensor | None) -> None:
        """Handles a PUSH or PULL of a worker. gradient: that of a PUSH."""
        if header.kind == PULL:
            for shard in self._shards.values():
                shard.pull(client.rank, header.clock, client.outbox)
            return
        if header.clock != client.clock:
            client.clock, client.order = header.clock, []
        client.order.append(header.number)
        self._shards[header.number].push(client.rank, gradient, header.mask)

    def _receive(self, client: _Client) -> tuple[Header, Tensor | None]:
        """Returns the next message of a worker: its header, and the gradient of a PUSH. Returns FAIL if the worker is
        lost."""
        try:
            header, gradient = client.link.receive(), None
            if header.kind == PUSH:
                slice_ = self._shards[header.number].slice_
                gradient = torch.empty(slice_.count, dtype=slice_.dtype)
                client.link.receive_into(gradient)
            return header, gradient
        except Exception as error:
            if not client.has_left:
                self._lost[client.rank] = str(error)
            return Header(FAIL), None

    def _send_all(self, client: _Client) -> None:
        """The sending thread of a worker: sends messages and values of shards until BYE is sent or the connection is
        lost."""
        while (entry := client.outbox.get()) is not None:
            message = self._call_unless_failed(entry.copy, client.rank) if isinstance(entry, Shard) else (entry, None)
            if message is not None:
                try:
                    client.link.send(*message)
                except Exception:                       # the receiving thread gets the error, too
                    return
                if message[0].kind == BYE:
                    return
            client.outbox.mark_sent()
