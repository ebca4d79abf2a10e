"""A worker: threads send its gradients and receive parameters, the most urgent slice first, while the model computes.
Received slices wait in a buffer until a module's forward needs them. So parameters change only at the beginning of a
module's forward or in a call of the program, and never while a backward pass uses them.
"""
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


class _Lane:
    """The connection to one server. slices: how many slices the server has."""

    def __init__(self, link: Link, slices: int) -> None:
        self.link, self.slices, self.outbox = link, slices, Outbox()
        self.awaited = threading.Semaphore(0)           # messages to receive; a further receive would time out
        self.leaving = threading.Event()                # LEAVE or FAIL is in the outbox; the server answers BYE
        self.threads: list[threading.Thread] = []


class Worker:
    """A worker of a parameter server, as a context manager. join() makes it; one thread may use it. bound: how many
    pushes of another worker its parameters may lack; None: any number."""

    def __init__(self, model: nn.Module, slices: list[Slice], links: list[Link], bound: int | None) -> None:
        self._model, self._slices, self._bound = model, slices, bound
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._number_of = {p: number for number, p in enumerate(self._parameters)}
        self._of_parameter: list[list[int]] = [[] for _ in self._parameters]
        for one in slices:
            for piece in one.pieces:
                self._of_parameter[piece.parameter].append(one.number)
        self._gradients, self._values = ([torch.empty(one.count, dtype=one.dtype) for one in slices] for _ in range(2))
        self._seen = [0] * len(slices)                  # for each slice, the fewest pushes of any worker in its values
        self._coming: set[int] = set()                  # slices that were pulled and are not in the model yet
        self._here: set[int] = set()                    # slices that have arrived in _values
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._left: dict[int, int] | None = None        # in backward(): slice: its pieces without a gradient yet
        self.clock = 0                                  # pushes of this worker
        self._called: set[nn.Module] = set()
        self._hooks = self._install_hooks()
        self._lanes = [_Lane(link, sum(one.server == link.peer for one in slices)) for link in links]
        self._lane_of = {lane.link.peer: lane for lane in self._lanes}
        self._closed = False
        for lane in self._lanes:
            lane.threads = [threading.Thread(target=run, args=(lane,), name="tutti ps", daemon=True)
                            for run in (self._send, self._receive)]
            for thread in lane.threads:
                thread.start()

    # ---- what a program calls ----
    def backward(self, loss: Tensor) -> None:
        """Does loss.backward() and push(), but sends each slice as soon as its gradients are complete. If a step has
        several backward passes, only the last one may be this."""
        self._begin_push()
        self._left = {one.number: len(one.pieces) for one in self._slices}
        try:
            loss.backward()
        except BaseException as error:
            self._fail(RuntimeError(f"ps: a backward pass failed when gradients may have left ({error}); leave the "
                                    "with block, and join again on all ranks"))
            raise
        finally:
            left, self._left = self._left, None
        self._end_push(number for number, rest in left.items() if rest)

    def push(self) -> None:
        """Sends p.grad of all trained parameters, and returns when they are copied. A missing gradient counts as zeros
        if another worker has one; if none has, the step leaves the parameter unchanged. Raises RuntimeError if this
        worker's parameters lack more pushes of others than the mode allows, because pull() was left out."""
        self._begin_push()
        self._end_push(range(len(self._slices)))

    def pull(self) -> None:
        """Asks for parameters with all pushes of this worker, and those of others that the mode requires. Returns at
        once. Each module's forward waits for its own parameters; wait() waits for all."""
        self.wait()
        for lane in self._lanes:
            lane.outbox.put(FIRST, (Header(PULL, clock=self.clock), None))
            lane.awaited.release(lane.slices)
        self._coming.update(range(len(self._slices)))

    def wait(self) -> None:
        """Waits until all parameters that were pulled are in the model."""
        self._check()
        self._await_slices(self._coming)

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
        return {"pushes": self.clock, "bytes_sent": sum(lane.link.bytes_sent for lane in self._lanes),
                "bytes_received": sum(lane.link.bytes_received for lane in self._lanes)}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self.close()
        elif not self._closed:
            self._end(FAIL)

    # ---- gradients ----
    def _begin_push(self) -> None:
        """Waits for pulled parameters and for the last push to be sent. Raises if parameters are too old."""
        self.wait()
        missing = self.clock - min(self._seen)
        if self._bound is not None and missing > self._bound:
            raise RuntimeError(f"ps: the parameters of this worker may lack {missing} pushes of another, and its mode "
                               f"allows {self._bound}: call pull() after each push")
        for lane in self._lanes:
            lane.outbox.drain()                         # the next gradients overwrite the buffers of the last push
        self._check()

    def _end_push(self, numbers: Iterable[int]) -> None:
        """Sends the given slices, and counts the push."""
        flats: dict[int, Tensor | None] = {}
        for number in numbers:
            self._push_slice(number, flats)
        self.clock += 1

    def _push_slice(self, number: int, flats: dict[int, Tensor | None]) -> None:
        """Sends the gradient of a slice. flats: flat gradients by parameter, a cache for several slices."""
        def flat_of(parameter: int) -> Tensor | None:
            if parameter not in flats:
                gradient = self._parameters[parameter].grad
                if gradient is not None and gradient.is_sparse:
                    gradient = gradient.to_dense()
                flats[parameter] = None if gradient is None else gradient.detach().reshape(-1)
            return flats[parameter]
        one, data = self._slices[number], self._gradients[number]
        mask = pack(one, flat_of, data)
        header = Header(PUSH, number, self.clock + 1, mask=mask)
        self._lane_of[one.server].outbox.put(number, (header, data))

    def _on_gradient(self, parameter: Tensor) -> None:
        """A hook: the gradient of a parameter is complete. Inside backward(), sends slices that are now complete."""
        if self._left is None:
            return
        flats: dict[int, Tensor | None] = {}
        for number in self._of_parameter[self._number_of[parameter]]:
            self._left[number] -= 1
            if self._left[number] < 0:
                raise RuntimeError("ps: a parameter got its gradient in two parts in one backward pass, as with "
                                   "reentrant checkpoints; call loss.backward() and push() instead of backward()")
            if not self._left[number]:
                self._push_slice(number, flats)

    # ---- parameters ----
    def _install_hooks(self) -> list[Any]:
        """Hooks on gradients, on the forward of modules with parameters, and on state_dict()."""
        hooks = [p.register_post_accumulate_grad_hook(self._on_gradient) for p in self._parameters]
        for module in self._model.modules():
            mine = {number for p in module.parameters(recurse=False) if p in self._number_of
                    for number in self._of_parameter[self._number_of[p]]}
            if mine and module is not self._model:
                hooks.append(module.register_forward_pre_hook(Hook(partial(self._before_forward, mine))))
        hooks.append(self._model.register_forward_pre_hook(Hook(self._before_model)))
        hooks.append(self._model.register_state_dict_pre_hook(Hook(lambda *_: self.wait())))
        return hooks

    def _before_model(self, *_: Any) -> None:
        """Waits for the parameters of the model itself and of modules whose forward has never been called: other
        modules may read those."""
        if self._coming:
            self._await_slices(number for module in self._model.modules() if module not in self._called
                       for p in module.parameters(recurse=False) if p in self._number_of
                       for number in self._of_parameter[self._number_of[p]])

    def _before_forward(self, numbers: set[int], module: nn.Module, _: Any) -> None:
        self._called.add(module)
        self._await_slices(numbers)

    def _await_slices(self, numbers: Iterable[int]) -> None:
        """Waits for those of the slices that were pulled, and copies them into the model."""
        for number in sorted(self._coming.intersection(numbers)):
            with self._changed:
                self._changed.wait_for(lambda: number in self._here or self._error)
                self._check()
                self._here.discard(number)
            unpack(self._slices[number], self._values[number], self._parameters)
            self._coming.discard(number)

    # ---- threads ----
    def _send(self, lane: _Lane) -> None:
        """The sending thread of a connection."""
        while (given := lane.outbox.get()) is not None:
            header, data = given
            try:
                lane.link.send(header, data)
            except Exception as error:
                self._lose(lane, error)
                lane.outbox.close()
                return
            lane.outbox.sent()

    def _receive(self, lane: _Lane) -> None:
        """The receiving thread of a connection, until BYE or an error."""
        while lane.awaited.acquire():
            try:
                header = lane.link.receive()
                if header.kind == VALUE:
                    lane.link.receive_into(self._values[header.number])
            except Exception as error:
                self._lose(lane, error)
                lane.outbox.close()
                return
            if header.kind == BYE:
                return
            if header.kind == FAIL:                     # not an answer to a pull; the server still answers LEAVE
                self._lose(lane, "it has failed: see its own error")
                lane.leaving.wait()
                lane.awaited.release()
                continue
            with self._changed:
                self._seen[header.number] = header.seen
                self._here.add(header.number)
                self._changed.notify_all()

    def _lose(self, lane: _Lane, error: Exception | str) -> None:
        """Fails this worker, because a server is lost."""
        kind = TimeoutError if isinstance(error, TimeoutError) else PeerError
        self._fail(kind(f"ps: rank {lane.link.peer}, a server, is lost, and its part of the parameters with it "
                        f"({error}); start all ranks again from a checkpoint"))

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise RuntimeError("ps: this worker has left; join again on all ranks")

    def _end(self, kind: int) -> None:
        """Sends LEAVE or FAIL to all servers, and ends the threads."""
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        for lane in self._lanes:
            if kind == FAIL:
                lane.outbox.clear()
            lane.outbox.put(LAST, (Header(kind), None))
            lane.leaving.set()
            lane.awaited.release()
        for lane in self._lanes:
            lane.threads[1].join()                      # ends at BYE, or if the server is lost
            lane.outbox.close()
            lane.threads[0].join()
            with suppress(Exception):                   # confirms BYE to the server
                lane.link.send(Header(LEAVE))
            lane.link.destroy()
