"""Gradients in fewer bytes: what is lost on the way is kept, and joins the gradients of the next step.

    model = DistributedDataParallel(module)
    compressor = torch_tutti.compression.compress(model, "int8")

    model, optimizer = torch_tutti.zero.shard(model, optimizer, compression="int8")
"""
import ctypes
import queue
import threading
import time
import weakref
from ctypes import byref, c_bool, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._extension import load
from torch_tutti._library import _check, _library, dtype_numbers

__all__ = ["Compression", "Compressor", "compress", "hook"]
_FORMS = {"fp16": 1, "bf16": 2, "int8": 3, "int4": 4, "topk": 5, "randomk": 6}
_GROUP = 1024                           # numbers that are packed together
_DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16"}


@dataclass(frozen=True)
class Compression:
    """How gradients are packed; the same on all ranks.

    form: "fp16", "bf16": rounded. "int8", "int4": integers, times a scale that 128 numbers share. "topk": the largest
    of each 1,024; "randomk": as many that are drawn, the same on all ranks. share: of these two, what is kept, above 0
    and up to 1 (rounded to a number of 1,024). feedback: what is lost joins the next gradients; it takes 4 bytes for
    each number that a rank packs. stochastic: integers are rounded up or down by chance, so that the mean is right.
    seed: of all chance. Raises ValueError.
    """
    form: str
    share: float = 0.01
    feedback: bool = True
    stochastic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.form not in _FORMS:
            raise ValueError(f"compression {self.form!r}: there are {', '.join(_FORMS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"compression: share={self.share}; it is above 0, and 1 at most")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"compression: seed={self.seed}; it is a number of 64 bits")


class _Compression(ctypes.Structure):
    _fields_ = [("form", c_int), ("kept", c_int), ("stochastic", c_bool), ("feedback", c_bool), ("seed", c_uint64)]


def described(how: str | Compression | None) -> _Compression:
    """As the core takes it; None: gradients travel as they are."""
    if how is None:
        return _Compression()
    given = Compression(how) if isinstance(how, str) else how
    kept = max(1, round(given.share * _GROUP))
    return _Compression(_FORMS[given.form], kept, given.stochastic, given.feedback, given.seed)


class _Core:
    """One tutti_compressor of zero/zero.h."""

    def __init__(self, communicator: int, how: Compression) -> None:
        self._made = c_void_p()
        self._calls = _library()
        _check(self._calls.tutti_compressor_create(byref(self._made), c_void_p(communicator), byref(described(how))))

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            self._calls.tutti_compressor_destroy(self._made)

    def span(self, count: int) -> tuple[int, int]:
        at, kept = c_size_t(), c_size_t()
        _check(self._calls.tutti_compressor_span(self._made, c_size_t(count), byref(at), byref(kept)))
        return at.value, kept.value

    def average(self, data: torch.Tensor, lost: torch.Tensor | None, turn: int) -> int:
        """In place; the bytes that were sent."""
        sent = c_uint64()
        _check(self._calls.tutti_compressor_average(
            self._made, c_void_p(data.data_ptr()), c_size_t(data.numel()), dtype_numbers()[_DTYPES[data.dtype]],
            c_void_p(lost.data_ptr() if lost is not None else None), c_uint64(turn), byref(sent)))
        return sent.value


class _Kept:
    """Of one bucket: its parameters and where they lie in it, and what this rank has lost of a part of it."""

    def __init__(self, bucket: dist.GradBucket, core: _Core, feedback: bool) -> None:
        buffer = bucket.buffer()
        self.parameters = bucket.parameters()
        self.places = [gradient.storage_offset() - buffer.storage_offset() for gradient in bucket.gradients()]
        self.at, kept = core.span(buffer.numel())
        self.lost = torch.zeros(kept) if feedback else None

    def is_of(self, bucket: dist.GradBucket) -> bool:
        theirs = bucket.parameters()
        return len(theirs) == len(self.parameters) and all(a is b for a, b in zip(theirs, self.parameters))

    def parts(self) -> list[tuple[torch.Tensor, slice, torch.Tensor]]:
        """Parameters; which of their elements lie in this rank's part; what of them was lost."""
        found = []
        for p, place in zip(self.parameters, self.places):
            begin, end = max(place, self.at), self.at if self.lost is None else self.at + self.lost.numel()
            end = min(place + p.numel(), end)
            if begin < end and self.lost is not None:
                found.append((p, slice(begin - place, end - place), self.lost[begin - self.at: end - self.at]))
        return found


class Compressor:
    """The state of `hook`. Buckets are averaged one after another on a thread of its own, beside the backward pass."""

    def __init__(self, model: DistributedDataParallel, how: str | Compression) -> None:
        self.how = Compression(how) if isinstance(how, str) else how
        self.group = model.process_group
        backend = self.group._get_backend(torch.device("cpu"))
        if not isinstance(backend, load().ProcessGroupTutti):
            raise ValueError("compression: the group of the model is not of tutti; make it with backend=\"tutti\"")
        self._core = _Core(backend._communicator, self.how)
        self._names = {p: name for name, p in model.module.named_parameters()}
        self._buckets: dict[int, _Kept] = {}
        self._joins: dict[torch.Tensor, torch.Tensor] = {}             # the next gradient
        self._turn = 0
        self._told = {"calls": 0, "array_bytes": 0, "sent_bytes": 0, "seconds": 0.0}
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._pending = 0
        threading.Thread(target=_run, args=(weakref.ref(self), self._work), name="tutti compression",
                         daemon=True).start()

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self._work.put(None)

    # ---- a bucket ----
    def start(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.dtype not in _DTYPES or buffer.device.type != "cpu":
            raise TypeError(f"compression: gradients are {buffer.dtype} on {buffer.device}; they can be float32 or "
                            "bfloat16, on the CPU")
        kept = self._buckets.get(bucket.index())
        if kept is None or not kept.is_of(bucket):
            self._forget(bucket)
            kept = self._buckets[bucket.index()] = _Kept(bucket, self._core, self.how.feedback)
        for p, gradient in zip(kept.parameters, bucket.gradients()):
            if p in self._joins:
                gradient.add_(self._joins.pop(p).view_as(gradient))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        with self._idle:
            self._pending += 1
        self._work.put((future, buffer, kept, self._turn))
        self._turn += 1
        return future

    def _forget(self, new: dist.GradBucket) -> None:
        """Torch has put buckets together anew. What was lost in those that had parameters of the new one joins the
        gradients of this rank."""
        parameters = set(new.parameters())
        for index, kept in list(self._buckets.items()):
            if parameters.isdisjoint(kept.parameters):
                continue
            for p, where, lost in kept.parts():
                self._joins.setdefault(p, torch.zeros(p.numel()))[where] += lost
            del self._buckets[index]

    def _average(self, buffer: torch.Tensor, kept: _Kept, turn: int) -> None:
        began = time.perf_counter()
        sent = self._core.average(buffer, kept.lost, turn)
        self._told["calls"] += 1
        self._told["array_bytes"] += buffer.nbytes
        self._told["sent_bytes"] += sent
        self._told["seconds"] += time.perf_counter() - began

    def _settle(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._pending)

    # ---- what it tells and keeps ----
    def report(self) -> dict[str, float]:
        """Of this rank, since it was made: calls; array_bytes, of gradients; sent_bytes, packed; seconds, in which
        they were packed, sent and put together."""
        self._settle()
        return dict(self._told)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """What gradients have lost and not had back, by parameter, the same on all ranks: to be loaded with any number
        of ranks. Collective, between steps."""
        self._settle()
        lost = {}
        for p, name in self._names.items():
            if p.requires_grad and self.how.feedback:
                lost[name] = self._joins.get(p, torch.zeros(p.numel())).clone()
        for kept in self._buckets.values():
            for p, where, part in kept.parts():
                lost[self._names[p]][where] += part
        for name, value in lost.items():
            dist.all_reduce(value, dist.ReduceOp.AVG, self.group)
        shapes = {name: p.shape for p, name in self._names.items()}
        return {"how": asdict(self.how), "turn": self._turn,
                "lost": {name: value.view(shapes[name]) for name, value in lost.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What `state_dict` has given; the same on all ranks. ValueError where it is of another model."""
        shapes = {name: p.shape for p, name in self._names.items()}
        for name, value in state["lost"].items():
            if shapes.get(name) != value.shape:
                raise ValueError(f"compression: the state has {name} of shape {tuple(value.shape)}, the model "
                                 + (f"of {tuple(shapes[name])}" if name in shapes else "has none of that name"))
        self._settle()
        self._buckets.clear()
        self._turn = state["turn"]
        self._joins = {p: state["lost"][name].detach().float().flatten().clone()
                       for p, name in self._names.items() if name in state["lost"]}


def _run(compressor: weakref.ref[Compressor], work: queue.SimpleQueue[Any]) -> None:
    while (task := work.get()) is not None:
        future, buffer, kept, turn = task
        owner = compressor()
        if owner is None:
            return
        try:
            owner._average(buffer, kept, turn)
        except Exception as error:      # DistributedDataParallel raises it where it waits
            future.set_exception(error)
        else:
            future.set_result(buffer)
        with owner._idle:
            owner._pending -= 1
            owner._idle.notify_all()
        del owner, task, future, buffer, kept


# torch looks at the annotations, and takes no texts for them: so this module does not put them off.
def hook(state: Compressor, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook, with a Compressor."""
    return state.start(bucket)


def compress(model: DistributedDataParallel, how: str | Compression) -> Compressor:
    """Has the model average its gradients packed; returns what tells of it and keeps its state. Collective.

    how: a form, or a Compression. Raises ValueError, and MismatchError where ranks ask for different ones.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"compress takes a DistributedDataParallel, not {type(model).__name__}; zero.shard has "
                        "compression=")
    compressor = Compressor(model, how)
    model.register_comm_hook(compressor, hook)
    return compressor
