"""A server: it has an optimizer for each of its slices, and for each worker a thread that receives and a thread that
sends. A receiving thread never waits for another worker, so a worker can always send. A value waits until its worker
may have it (`max_lag`), then the sending thread takes it from an outbox. Locks are taken in the order: shard,
outbox."""
from __future__ import annotations

import copy
import threading
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

from torch_tutti.ps._link import BYE, FAIL, FIRST, LAST, LEAVE, PULL, PUSH, VALUE, Header, Link, Outbox
from torch_tutti.ps._slices import Slice, pack, unpack


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


class Shard:
    """A slice on its server: its values and its optimizer. averages: a step uses the average of all workers' gradients;
    else each gradient is a step. max_lag: how many pushes a worker may be ahead of the slowest one when it gets the
    values; None: any number."""

    def __init__(self, slice_: Slice, parameters: Sequence[tuple[str, Tensor]], optimizer: Any, workers: Iterable[int],
                 averages: bool, max_lag: int | None, whole_parameters: bool) -> None:
        """Copies the parameters' values into the slice, and makes an optimizer for its pieces. workers: the ranks of
        all workers. whole_parameters: a piece is a whole parameter, in its shape."""
        self.slice_, self._averages, self._max_lag = slice_, averages, max_lag
        self.value = torch.empty(slice_.count, dtype=slice_.dtype)
        pack(slice_, lambda number: parameters[number][1].detach().view(-1), self.value)
        self._pieces = [self.value[piece.range] for piece in slice_.pieces]
        if whole_parameters:
            self._pieces = [values.view(parameters[piece.parameter][1].shape)
                            for piece, values in zip(slice_.pieces, self._pieces)]
        # for each piece: the name of its parameter, the elements [begin, end) of it, and the shape of the piece
        self.layout = [(parameters[piece.parameter][0], piece.begin, piece.end, tuple(values.shape))
                       for piece, values in zip(slice_.pieces, self._pieces)]
        named_pieces = [(parameters[piece.parameter][0], values) for piece, values in zip(slice_.pieces, self._pieces)]
        self.optimizer = optimizer(named_pieces)
        if not isinstance(self.optimizer, torch.optim.Optimizer):
            raise ValueError(f"ps: optimizer returned {type(self.optimizer).__name__}; it must return one of "
                             "torch.optim")
        # {identity of a piece: the shape of its parameter}
        self.shapes = {id(values): parameters[piece.parameter][1].shape
                       for piece, values in zip(slice_.pieces, self._pieces)}
        self.pushes = dict.fromkeys(workers, 0)
        self._present = set(self.pushes)                # workers that have not left
        # {worker: (its gradient for the next step, mask)}
        self._gradients: dict[int, tuple[Tensor, int]] = {}
        # pulls that wait: {worker: (its pushes, its outbox)}
        self._pulls: dict[int, tuple[int, Outbox]] = {}
        self._lock = threading.Lock()
        self.updates = self.lag = 0

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the optimizer's state."""
        with self._lock:
            return copy.deepcopy(self.optimizer.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state of state_dict()."""
        with self._lock:
            self.optimizer.load_state_dict(state)

    def push(self, worker: int, gradient: Tensor, mask: int) -> None:
        """Adds a worker's gradient, a tensor that the shard may now overwrite. mask: bit i is set if piece i has a
        gradient."""
        with self._lock:
            self.pushes[worker] += 1
            self._gradients[worker] = gradient, mask
            self._advance()

    def pull(self, worker: int, clock: int, outbox: Outbox) -> None:
        """Puts the shard into the outbox as soon as the worker, which has made `clock` pushes, may have the values."""
        with self._lock:
            self._pulls[worker] = clock, outbox
            self._advance()

    def remove_worker(self, worker: int, keep_gradient: bool) -> None:
        """Stops waiting for a worker. keep_gradient: its last gradient still counts in the next step."""
        with self._lock:
            self._present.discard(worker)
            self._pulls.pop(worker, None)
            if not keep_gradient:
                self._gradients.pop(worker, None)
            self._advance()

    def copy(self, worker: int) -> tuple[Header, Tensor]:
        """Returns the VALUE message for a worker: the header and a copy of the values."""
        with self._lock:
            seen, clock = self._slowest(worker), self.pushes[worker]
            self.lag = max(self.lag, clock - seen)
            return Header(VALUE, self.slice_.number, clock, seen), self.value.clone()

    def _slowest(self, worker: int) -> int:
        """Returns the fewest pushes of `worker` and of all workers that have not left."""
        return min(self.pushes[other] for other in self._present | {worker})

    def _advance(self) -> None:
        """Makes a step if its gradients are complete, then answers the pulls that may have the values. The caller has
        the lock."""
        if self._gradients and (not self._averages or self._present <= self._gradients.keys()):
            self._step()
        for worker, (clock, outbox) in list(self._pulls.items()):
            is_applied = self.pushes[worker] >= clock and worker not in self._gradients
            if is_applied and (self._max_lag is None or self._slowest(worker) >= clock - self._max_lag):
                del self._pulls[worker]
                outbox.put(self.slice_.number, self)

    def _step(self) -> None:
        """Steps the optimizer with the average gradient, summed in the order of ranks. A piece that has no gradient of
        any worker is not stepped."""
        (total, mask), *others = [self._gradients[worker] for worker in sorted(self._gradients)]
        for gradient, other_mask in others:
            total += gradient
            mask |= other_mask
        if others:
            total /= len(self._gradients)
        self._gradients.clear()
        for bit, (piece, values) in enumerate(zip(self.slice_.pieces, self._pieces)):
            values.grad = total[piece.range].view_as(values) if mask >> bit & 1 else None
        self.optimizer.step()
        self.updates += 1


@dataclass
class _Client:
    """A worker on its server. order: slices of its push number `clock`, in the order of arrival. has_left: it has sent
    LEAVE or FAIL, or is lost."""
    link: Link
    outbox: Outbox = field(default_factory=Outbox)
    order: list[int] = field(default_factory=list)
    clock: int = 0
    has_left: bool = False

    @property
    def rank(self) -> int:
        return self.link.peer


class Server:
    """This rank's part of a parameter server. Made by join()."""

    def __init__(self, model: nn.Module, shards: list[Shard], links: list[Link]) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._shards = {shard.slice_.number: shard for shard in shards}
        self._clients = [_Client(link) for link in links]
        self._lost: dict[int, str] = {}
        self._changed = threading.Condition()
        self._running_threads = 0
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

    def serve(self) -> Report:
        """Serves until each worker has left or is lost. Then copies this server's slices into this rank's model; with
        one server these are all parameters. Raises an error of the optimizer after all workers have been told."""
        if self._has_served:
            raise RuntimeError("ps: this server has finished; join again on all ranks")
        self._has_served = True
        targets = [(target, client) for client in self._clients for target in (self._receive_all, self._send_all)]
        threads = [threading.Thread(target=self._run, args=arguments, name="tutti ps", daemon=True)
                   for arguments in targets]
        self._running_threads = len(threads)
        try:
            for thread in threads:
                thread.start()
            with self._changed:
                self._changed.wait_for(lambda: not self._running_threads)
        finally:
            for client in self._clients:                # ends the threads if serve() was interrupted
                client.outbox.close()
                client.link.destroy()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        for shard in self._shards.values():
            unpack(shard.slice_, shard.value, self._parameters)
        return self._report()

    def _report(self) -> Report:
        """Returns the Report of this server."""
        shards, links = self._shards.values(), [client.link for client in self._clients]
        return Report({client.rank: min(shard.pushes[client.rank] for shard in shards) for client in self._clients},
                      dict(self._lost), min(shard.updates for shard in shards), max(shard.lag for shard in shards),
                      {client.rank: client.order for client in self._clients},
                      sum(link.bytes_received for link in links), sum(link.bytes_sent for link in links))

    def _run(self, target: Callable[[_Client], None], client: _Client) -> None:
        """Runs target(client) in a thread, and counts the thread as ended."""
        try:
            target(client)
        finally:
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
                for client in self._clients:
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
