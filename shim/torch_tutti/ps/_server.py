"""A server: its slices with an optimizer each, and for each worker a thread that listens and one that answers. Who
listens never waits for another worker, so what one sends is always taken; answers wait until a slice is as the worker
may have it, and leave by an outbox. Locks: a slice's, then an outbox's.
"""
from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from torch_tutti.ps._link import BYE, FAIL, FIRST, LAST, LEAVE, PULL, PUSH, VALUE, Header, Link, Outbox
from torch_tutti.ps._slices import Slice, pack, unpack


@dataclass
class Report:
    """What a server has seen, until its last worker left.

    pushes: of each worker, that came whole. lost: workers that died or failed, and what was seen of it. updates: steps
    of the optimizer that all slices of this server have had. lag: the most pushes by which a worker was ahead of the
    slowest one when it got parameters. order: of each worker, the slices of its last push as they came. bytes_received,
    bytes_sent: of gradients and parameters.
    """
    pushes: dict[int, int]
    lost: dict[int, str]
    updates: int
    lag: int
    order: dict[int, list[int]]
    bytes_received: int
    bytes_sent: int


class Shard:
    """A slice on its server. value: its elements, of which pieces are what the optimizer steps. together: a step takes
    the gradients of all workers; else each is a step. bound: pushes that a worker may be ahead of the slowest when it
    gets the value; None: any number."""

    def __init__(self, one: Slice, parameters: Sequence[tuple[str, Tensor]], optimizer: Any, workers: Iterable[int],
                 together: bool, bound: int | None) -> None:
        self.one, self._together, self._bound = one, together, bound
        self.value = torch.empty(one.count, dtype=one.dtype)
        pack(one, lambda number: parameters[number][1].detach().view(-1), self.value)
        self._pieces = [self.value[piece.where] for piece in one.pieces]
        named = [(parameters[piece.parameter][0], mine) for piece, mine in zip(one.pieces, self._pieces)]
        self._optimizer = optimizer(named)
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            raise ValueError(f"ps: optimizer returned {type(self._optimizer).__name__}; it must return one of "
                             "torch.optim")
        self.pushes = dict.fromkeys(workers, 0)
        self._present = set(self.pushes)                # who is waited for
        self._gradients: dict[int, tuple[Tensor, int]] = {}            # of a step that is not whole yet, with masks
        self._wanted: dict[int, tuple[int, Outbox]] = {}
        self._lock = threading.Lock()
        self.updates = self.lag = 0

    def push(self, worker: int, gradient: Tensor, mask: int) -> None:
        """The gradient is the shard's from now on."""
        with self._lock:
            self.pushes[worker] += 1
            self._gradients[worker] = gradient, mask
            self._settle()

    def want(self, worker: int, clock: int, outbox: Outbox) -> None:
        """Puts the shard into the outbox as soon as the worker, with so many pushes, may have it."""
        with self._lock:
            self._wanted[worker] = clock, outbox
            self._settle()

    def part(self, worker: int, counts: bool) -> None:
        """The worker is waited for no more. counts: what it has pushed joins the step under way."""
        with self._lock:
            self._present.discard(worker)
            self._wanted.pop(worker, None)
            if not counts:
                self._gradients.pop(worker, None)
            self._settle()

    def copy(self, worker: int) -> tuple[Header, Tensor]:
        with self._lock:
            seen, clock = self._slowest(worker), self.pushes[worker]
            self.lag = max(self.lag, clock - seen)
            return Header(VALUE, self.one.number, clock, seen), self.value.clone()

    def _slowest(self, worker: int) -> int:
        return min(self.pushes[other] for other in self._present | {worker})

    def _settle(self) -> None:
        """Steps if it can, then gives to those who may have."""
        if self._gradients and (not self._together or self._present <= self._gradients.keys()):
            self._step()
        for worker, (clock, outbox) in list(self._wanted.items()):
            there = self.pushes[worker] >= clock and worker not in self._gradients
            if there and (self._bound is None or self._slowest(worker) >= clock - self._bound):
                del self._wanted[worker]
                outbox.put(self.one.number, self)

    def _step(self) -> None:
        """With the average, summed in the order of ranks. A piece for which nobody has a gradient is let alone."""
        (total, mask), *others = [self._gradients[worker] for worker in sorted(self._gradients)]
        for gradient, its in others:
            total += gradient
            mask |= its
        if others:
            total /= len(self._gradients)
        self._gradients.clear()
        for bit, (piece, mine) in enumerate(zip(self.one.pieces, self._pieces)):
            mine.grad = total[piece.where] if mask >> bit & 1 else None
        self._optimizer.step()
        self.updates += 1


@dataclass
class _Client:
    """A worker, as its server sees it."""
    link: Link
    outbox: Outbox = field(default_factory=Outbox)
    order: list[int] = field(default_factory=list)
    clock: int = 0
    left: bool = False

    @property
    def rank(self) -> int:
        return self.link.peer


class Server:
    """This rank's part of a parameter server. Made by join()."""

    def __init__(self, model: nn.Module, shards: list[Shard], links: list[Link]) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._shards = {shard.one.number: shard for shard in shards}
        self._clients = [_Client(link) for link in links]
        self._lost: dict[int, str] = {}
        self._changed = threading.Condition()
        self._running = 0
        self._error: Exception | None = None
        self._served = False

    def serve(self) -> Report:
        """Serves until each worker has left or is lost. Its slices are then in this rank's model, which with one server
        is the whole. What the optimizer raises is raised when all workers have been told."""
        if self._served:
            raise RuntimeError("ps: this server has finished; join again on all ranks")
        self._served = True
        work = [(target, client) for client in self._clients for target in (self._listen, self._answer)]
        threads = [threading.Thread(target=self._run, args=one, name="tutti ps", daemon=True) for one in work]
        self._running = len(threads)
        try:
            for thread in threads:
                thread.start()
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
        finally:
            for client in self._clients:                # ends threads that still run, where this was interrupted
                client.outbox.close()
                client.link.destroy()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        for shard in self._shards.values():
            unpack(shard.one, shard.value, self._parameters)
        return self._report()

    def _report(self) -> Report:
        shards, links = self._shards.values(), [client.link for client in self._clients]
        return Report({client.rank: min(shard.pushes[client.rank] for shard in shards) for client in self._clients},
                      dict(self._lost), min(shard.updates for shard in shards), max(shard.lag for shard in shards),
                      {client.rank: client.order for client in self._clients},
                      sum(link.bytes_received for link in links), sum(link.bytes_sent for link in links))

    def _run(self, target: Callable[[_Client], None], client: _Client) -> None:
        try:
            target(client)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What the call gives. None where it fails, or something has before: then workers are told at their next
        pull, and their messages are taken and dropped until they leave."""
        if self._error is None:
            try:
                return call(*arguments)
            except Exception as error:
                self._error = error
                for client in self._clients:
                    client.outbox.clear()
                    client.outbox.put(FIRST, Header(FAIL))
        return None

    # ---- a worker ----
    def _listen(self, client: _Client) -> None:
        while (given := self._receive(client))[0].kind not in (LEAVE, FAIL):
            self._guarded(self._take, client, *given)
        client.left = True
        for shard in self._shards.values():
            self._guarded(shard.part, client.rank, given[0].kind == LEAVE)
        if given[0].kind == FAIL:
            self._lost.setdefault(client.rank, "it failed, and reported so")
            client.outbox.clear()
        client.outbox.put(LAST, Header(BYE))
        self._receive(client)                           # until it has read that, so that it need not ask who left first

    def _take(self, client: _Client, header: Header, gradient: Tensor | None) -> None:
        if header.kind == PULL:
            for shard in self._shards.values():
                shard.want(client.rank, header.clock, client.outbox)
            return
        if header.clock != client.clock:
            client.clock, client.order = header.clock, []
        client.order.append(header.number)
        self._shards[header.number].push(client.rank, gradient, header.mask)

    def _receive(self, client: _Client) -> tuple[Header, Tensor | None]:
        """A worker that is lost is one that fails."""
        try:
            header, gradient = client.link.receive(), None
            if header.kind == PUSH:
                one = self._shards[header.number].one
                gradient = torch.empty(one.count, dtype=one.dtype)
                client.link.receive_into(gradient)
            return header, gradient
        except Exception as error:
            if not client.left:
                self._lost[client.rank] = str(error)
            return Header(FAIL), None

    def _answer(self, client: _Client) -> None:
        while (given := client.outbox.get()) is not None:
            message = self._guarded(given.copy, client.rank) if isinstance(given, Shard) else (given, None)
            if message is not None:
                try:
                    client.link.send(*message)
                except Exception:                       # who listens is told, too
                    return
                if message[0].kind == BYE:
                    return
            client.outbox.sent()
