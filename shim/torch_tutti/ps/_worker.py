"""A worker: threads send its gradients and receive parameters, the most urgent slice first, while the model computes.
Received slices wait in buffers until a module's forward needs them. So parameters change only at the beginning of a
module's forward or in a call of the program, and never while a backward pass uses them."""
from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Iterable

import torch
from torch import Tensor, nn

from torch_tutti.exceptions import PeerError, TimeoutError
from torch_tutti.ps._link import BYE, FAIL, FIRST, LAST, LEAVE, PULL, PUSH, VALUE, Header, Link, Outbox
from torch_tutti.ps._slices import Slice, pack, unpack
from torch_tutti.zero._hooks import Hook


class _Connection:
    """The connection to one server. slices: how many slices the server has."""

    def __init__(self, link: Link, slices: int) -> None:
        self.link, self.slices, self.outbox = link, slices, Outbox()
        self.awaited = threading.Semaphore(0)           # messages to receive; one more receive would time out
        self.leaving = threading.Event()                # set: LEAVE or FAIL is in the outbox; the server answers BYE
        self.threads: list[threading.Thread] = []


class Worker:
    """A worker of a parameter server, as a context manager. join() makes it; one thread may use it. max_lag: how many
    pushes of another worker its parameters may lack; None: any number."""

    def __init__(self, model: nn.Module, slices: list[Slice], links: list[Link], max_lag: int | None, rank: int = 0,
                 clock: int = 0) -> None:
        """Installs the hooks, and starts two threads for each server. rank: this worker's in the servers' reports.
        clock: the pushes with which it begins, above 0 for a late worker."""
        self.rank, self._start = rank, clock
        self._model, self._slices, self._max_lag = model, slices, max_lag
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._number_of = {parameter: number for number, parameter in enumerate(self._parameters)}
        # for each parameter, the numbers of its slices, one entry for each piece
        self._slices_of: list[list[int]] = [[] for _ in self._parameters]
        for slice_ in slices:
            for piece in slice_.pieces:
                self._slices_of[piece.parameter].append(slice_.number)
        # buffers of each slice
        self._gradients, self._values = (
            [torch.empty(slice_.count, dtype=slice_.dtype) for slice_ in slices] for _ in range(2))
        self._seen = [0] * len(slices)                  # for each slice, the fewest pushes of any worker in its values
        self._pulled: set[int] = set()                  # slices that were pulled and are not in the model yet
        self._arrived: set[int] = set()                 # slices that have arrived in _values
        self._changed = threading.Condition()
        self._error: Exception | None = None
        # in backward(): {slice: its pieces without a gradient yet}; else None
        self._missing: dict[int, int] | None = None
        self.clock = clock                              # pushes of this worker, and those with which it began
        self._called: set[nn.Module] = set()            # modules whose forward was called
        self._hooks = self._install_hooks()
        self._connections = [_Connection(link, sum(slice_.server == link.peer for slice_ in slices)) for link in links]
        self._connection_of = {connection.link.peer: connection for connection in self._connections}
        self._closed = False
        for connection in self._connections:
            connection.threads = [threading.Thread(target=run, args=(connection,), name="tutti ps", daemon=True)
                                  for run in (self._send, self._receive)]
            for thread in connection.threads:
                thread.start()

    # ---- what a program calls ----
    def backward(self, loss: Tensor) -> None:
        """Does loss.backward() and push(), but sends each slice as soon as its gradients are complete. If a step has
        several backward passes, use this only for the last one."""
        self._begin_push()
        self._missing = {one.number: len(one.pieces) for one in self._slices}
        try:
            loss.backward()
        except BaseException as error:
            self._fail(RuntimeError(f"ps: a backward pass failed when gradients may have left ({error}); leave the "
                                    "with block, and join again on all ranks"))
            raise
        finally:
            missing, self._missing = self._missing, None
        self._end_push(number for number, count in missing.items() if count)

    def push(self) -> None:
        """Sends p.grad of all trained parameters, and returns when they are copied. A missing gradient counts as zeros
        if, in mode "sync", another worker has one; otherwise the step leaves the parameter unchanged. Raises
        RuntimeError if this worker's parameters lack more pushes of others than the mode allows, because pull() was
        left out."""
        self._begin_push()
        self._end_push(range(len(self._slices)))

    def pull(self) -> None:
        """Waits for the parameters of the last pull. Then asks for parameters with all pushes of this worker, and those
        of others that the mode requires, and returns without them: each module's forward waits for its own parameters,
        and wait() waits for all."""
        self.wait()
        for connection in self._connections:
            connection.outbox.put(FIRST, (Header(PULL, clock=self.clock), None))
            connection.awaited.release(connection.slices)
        self._pulled.update(range(len(self._slices)))

    def wait(self) -> None:
        """Waits until all parameters that were pulled are in the model."""
        self._check()
        self._await_slices(self._pulled)

    def close(self) -> None:
        """Waits for all pulled parameters, then leaves all servers. The end of the with block calls it. Raises the
        errors of wait()."""
        if not self._closed:
            try:
                self.wait()
            except BaseException:
                self._end(FAIL)
                raise
            self._end(LEAVE)
            if self._error is not None:
                raise self._error

    def report(self) -> dict[str, int]:
        """Statistics: pushes, bytes_sent (gradients) and bytes_received (parameters)."""
        return {"pushes": self.clock - self._start,
                "bytes_sent": sum(connection.link.bytes_sent for connection in self._connections),
                "bytes_received": sum(connection.link.bytes_received for connection in self._connections)}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Leaves the servers as close() does; after an error, reports a failure to them."""
        if kind is None:
            self.close()
        elif not self._closed:
            self._end(FAIL)

    # ---- gradients ----
    def _begin_push(self) -> None:
        """Waits for pulled parameters and until the last push is sent. Raises RuntimeError if the parameters are too
        old."""
        self.wait()
        missing = self.clock - min(self._seen)
        if self._max_lag is not None and missing > self._max_lag:
            raise RuntimeError(f"ps: the parameters of this worker may lack {missing} pushes of another, and its mode "
                               f"allows {self._max_lag}: call pull() after each push")
        for connection in self._connections:
            # the next gradients overwrite the buffers of the last push
            connection.outbox.drain()
        self._check()

    def _end_push(self, numbers: Iterable[int]) -> None:
        """Sends the given slices, and counts the push."""
        flats: dict[int, Tensor | None] = {}
        for number in numbers:
            self._push_slice(number, flats)
        self.clock += 1

    def _push_slice(self, number: int, flats: dict[int, Tensor | None]) -> None:
        """Puts the gradient of a slice into the outbox of its server. flats: {parameter: its flat gradient or None}, a
        cache for several slices."""
        def flat_of(parameter: int) -> Tensor | None:
            """Returns the flat gradient of a parameter, or None if it has no gradient."""
            if parameter not in flats:
                gradient = self._parameters[parameter].grad
                if gradient is not None and gradient.is_sparse:
                    gradient = gradient.to_dense()
                flats[parameter] = None if gradient is None else gradient.detach().reshape(-1)
            return flats[parameter]
        slice_, data = self._slices[number], self._gradients[number]
        mask = pack(slice_, flat_of, data)
        header = Header(PUSH, number, self.clock + 1, mask=mask)
        self._connection_of[slice_.server].outbox.put(number, (header, data))

    def _on_gradient(self, parameter: Tensor) -> None:
        """A hook that autograd calls when a parameter's gradient is complete. Inside backward(), sends the slices that
        are complete now."""
        if self._missing is None:
            return
        flats: dict[int, Tensor | None] = {}
        for number in self._slices_of[self._number_of[parameter]]:
            self._missing[number] -= 1
            if self._missing[number] < 0:
                raise RuntimeError("ps: a parameter got its gradient in two parts in one backward pass, as with "
                                   "reentrant checkpoints; call loss.backward() and push() instead of backward()")
            if not self._missing[number]:
                self._push_slice(number, flats)

    # ---- parameters ----
    def _install_hooks(self) -> list[Any]:
        """Installs hooks on gradients, on the forward of modules with parameters, and on state_dict(). Returns their
        handles."""
        hooks = [parameter.register_post_accumulate_grad_hook(self._on_gradient) for parameter in self._parameters]
        for module in self._model.modules():
            numbers = {number for parameter in module.parameters(recurse=False) if parameter in self._number_of
                       for number in self._slices_of[self._number_of[parameter]]}
            if numbers and module is not self._model:
                hooks.append(module.register_forward_pre_hook(Hook(partial(self._before_forward, numbers))))
        hooks.append(self._model.register_forward_pre_hook(Hook(self._before_model)))
        hooks.append(self._model.register_state_dict_pre_hook(Hook(lambda *_: self.wait())))
        return hooks

    def _before_model(self, *_: Any) -> None:
        """A hook before the model's forward. Waits for the parameters of the model itself and of modules whose forward
        has never been called: other modules may read them."""
        if self._pulled:
            self._await_slices(number for module in self._model.modules() if module not in self._called
                               for parameter in module.parameters(recurse=False) if parameter in self._number_of
                               for number in self._slices_of[self._number_of[parameter]])

    def _before_forward(self, numbers: set[int], module: nn.Module, _: Any) -> None:
        """A hook before a module's forward. Waits for the slices of its parameters."""
        self._called.add(module)
        self._await_slices(numbers)

    def _await_slices(self, numbers: Iterable[int]) -> None:
        """Waits for the given slices, as far as they were pulled, and copies them into the model."""
        for number in sorted(self._pulled.intersection(numbers)):
            with self._changed:
                self._changed.wait_for(lambda: number in self._arrived or self._error)
                self._check()
                self._arrived.discard(number)
            unpack(self._slices[number], self._values[number], self._parameters)
            self._pulled.discard(number)

    # ---- threads ----
    def _send(self, connection: _Connection) -> None:
        """The sending thread of a connection: sends messages until the outbox is closed or the server is lost."""
        while (message := connection.outbox.get()) is not None:
            header, data = message
            try:
                connection.link.send(header, data)
            except Exception as error:
                self._fail_for_server(connection, error)
                connection.outbox.close()
                return
            connection.outbox.mark_sent()

    def _receive(self, connection: _Connection) -> None:
        """The receiving thread of a connection: receives values until BYE or an error."""
        while connection.awaited.acquire():
            try:
                header = connection.link.receive()
                if header.kind == VALUE:
                    connection.link.receive_into(self._values[header.number])
            except Exception as error:
                self._fail_for_server(connection, error)
                connection.outbox.close()
                return
            if header.kind == BYE:
                return
            if header.kind == FAIL:                     # not an answer to a pull; the server still answers LEAVE
                self._fail_for_server(connection, "it has failed: see its own error")
                connection.leaving.wait()
                connection.awaited.release()
                continue
            with self._changed:
                self._seen[header.number] = header.seen
                self._arrived.add(header.number)
                self._changed.notify_all()

    def _fail_for_server(self, connection: _Connection, error: Exception | str) -> None:
        """Fails this worker, because a server is lost. error: the reason."""
        error_class = TimeoutError if isinstance(error, TimeoutError) else PeerError
        self._fail(error_class(f"ps: rank {connection.link.peer}, a server, is lost, and its part of the parameters "
                               f"with it ({error}); start all ranks again from a checkpoint"))

    def _fail(self, error: Exception) -> None:
        """Records the first error, which the next call of the program raises, and wakes its waits."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _check(self) -> None:
        """Raises the recorded error, or RuntimeError if this worker has left."""
        if self._error is not None:
            raise self._error
        if self._closed:
            raise RuntimeError("ps: this worker has left; join again on all ranks")

    def _end(self, kind: int) -> None:
        """Sends LEAVE or FAIL to all servers, waits for their BYE, and ends the threads. kind: LEAVE or FAIL."""
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        for connection in self._connections:
            if kind == FAIL:
                connection.outbox.clear()
            connection.outbox.put(LAST, (Header(kind), None))
            connection.leaving.set()
            connection.awaited.release()
        for connection in self._connections:
            connection.threads[1].join()                # ends at BYE, or if the server is lost
            connection.outbox.close()
            connection.threads[0].join()
            with suppress(Exception):                   # confirms BYE to the server
                connection.link.send(Header(LEAVE))
            connection.link.destroy()
