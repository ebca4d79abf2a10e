"""A slice on its server, with its own optimizer. A pull waits until its worker may have the values (`max_lag`). Then
the shard enters the worker's outbox, and the thread that sends to the worker copies the values."""
from __future__ import annotations

import copy
import threading
from typing import Any, Iterable, Sequence

import torch
from torch import Tensor

from torch_tutti.ps._link import VALUE, Header, Outbox
from torch_tutti.ps._slices import Slice, pack


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
        # By worker: its pushes, and the pushes with which it began: 0, or for a late worker those of another one.
        self.pushes, self.starts = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
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

    def add_worker(self, worker: int) -> int:
        """Adds a late worker, with the pushes of the slowest worker that is present; if none is present, with the most
        pushes that any worker has made. Returns this number."""
        with self._lock:
            clocks = [self.pushes[other] for other in self._present]
            self.pushes[worker] = self.starts[worker] = min(clocks) if clocks else max(self.pushes.values())
            self._present.add(worker)
            return self.pushes[worker]

    def start_worker(self, worker: int, clock: int) -> None:
        """Sets the pushes with which a late worker begins, which is at least what add_worker() returned."""
        with self._lock:
            self.pushes[worker] = self.starts[worker] = clock
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
        if self._gradients and (not self._averages or self._is_complete()):
            self._step()
        for worker, (clock, outbox) in list(self._pulls.items()):
            is_applied = self.pushes[worker] >= clock and worker not in self._gradients
            if is_applied and (self._max_lag is None or self._slowest(worker) >= clock - self._max_lag):
                del self._pulls[worker]
                outbox.put(self.slice_.number, self)

    def _is_complete(self) -> bool:
        """Returns whether all workers that are present have made the push of the gradients that wait. A late worker
        that begins with a later push counts as having made it."""
        push = max(self.pushes[worker] for worker in self._gradients)
        return all(self.pushes[worker] >= push for worker in self._present)

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
