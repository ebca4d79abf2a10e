"""Gradients in fewer bytes: what is lost on the way is kept, and joins the gradients of the next step.

    model = DistributedDataParallel(module)
    compressor = torch_tutti.compression.compress(model, "int8")

    model, optimizer = torch_tutti.zero.shard(model, optimizer, compression="int8")
"""
import atexit
import ctypes
import queue
import threading
import time
import weakref
from ctypes import byref, c_bool, c_double, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_tutti._extension import backend_of
from torch_tutti._library import _check, _library, dtype_numbers

__all__ = ["Compression", "Compressor", "compress", "hook"]
_FORMS = {"fp16": 1, "bf16": 2, "int8": 3, "int4": 4, "topk": 5, "randomk": 6, "threshold": 7}
_GROUP = 1024                           # numbers, of which the core keeps so many
PATIENCE_S = 5                          # with a thread that waits for other ranks while this one ends
DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16"}


@dataclass(frozen=True)
class Compression:
    """How gradients are packed; the same on all ranks.

    form: "fp16", "bf16": rounded. "int8", "int4": integers, times a scale that 128 numbers share. "topk": the largest;
    "randomk": as many that are drawn, the same on all ranks; "threshold": those of at least that magnitude. share: of
    these, what is kept, of the last at most, above 0 and up to 1 (rounded to a number of 1,024). threshold: above 0, of
    a rank's gradients, on several hosts of the sum of a host's. feedback: what is lost joins the next gradients; it
    takes 4 bytes for each number that a rank packs. stochastic: integers are rounded up or down by chance, so that the
    mean is right. momentum: of what leaves numbers out, with feedback: gradients gather it before they are packed, for
    an optimizer that has none of its own (4 bytes more; where a number is sent, its momentum begins anew). seed: of all
    chance. Raises ValueError.
    """
    form: str
    share: float = 0.01
    feedback: bool = True
    stochastic: bool = False
    momentum: float = 0.0
    seed: int = 0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in _FORMS:
            raise ValueError(f"compression {self.form!r}: the forms are {', '.join(_FORMS)}")
        if not 0 < self.share <= 1:
            raise ValueError(f"compression: share={self.share}; it must be in (0, 1]")
        if self.momentum and not (0 < self.momentum < 1 and self.leaves_out and self.feedback):
            raise ValueError(f"compression: momentum={self.momentum} with {self.form}; it must be in (0, 1), and "
                             "needs feedback and one of topk, randomk and threshold")
        if (self.form == "threshold") != (0 < self.threshold < float("inf")):
            raise ValueError(f"compression: threshold={self.threshold} with {self.form}; it must be above 0, and needs "
                             "form=\"threshold\"")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"compression: seed={self.seed}; it must be a 64-bit integer")

    @property
    def leaves_out(self) -> bool:
        return self.form in ("topk", "randomk", "threshold")


class _Compression(ctypes.Structure):
    _fields_ = [("form", c_int), ("kept", c_int), ("stochastic", c_bool), ("feedback", c_bool), ("momentum", c_double),
                ("seed", c_uint64), ("threshold", c_double)]


def described(how: str | Compression | None) -> _Compression:
    """As the core takes it; None: gradients travel as they are."""
    if how is None:
        return _Compression()
    given = Compression(how) if isinstance(how, str) else how
    kept = max(1, round(given.share * _GROUP))
    return _Compression(_FORMS[given.form], kept, given.stochastic, given.feedback, given.momentum, given.seed,
                        given.threshold)


class _Core:
    """One tutti_compressor of include/tutti_zero.h."""

    def __init__(self, communicator: int, how: Compression) -> None:
        self._made = c_void_p()
        self._calls = _library()
        _check(self._calls.tutti_compressor_create(byref(self._made), c_void_p(communicator), byref(described(how))))

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            self._calls.tutti_compressor_destroy(self._made)

    def span(self, count: int) -> tuple[int, int, int]:
        at, kept, keepers = c_size_t(), c_size_t(), c_int()
        _check(self._calls.tutti_compressor_span(self._made, c_size_t(count), byref(at), byref(kept), byref(keepers)))
        return at.value, kept.value, keepers.value

    def average(self, data: torch.Tensor, kept: torch.Tensor, turn: int) -> int:
        """In place; the bytes that were sent."""
        sent = c_uint64()
        _check(self._calls.tutti_compressor_average(
            self._made, c_void_p(data.data_ptr()), c_size_t(data.numel()), dtype_numbers()[DTYPES[data.dtype]],
            c_void_p(kept.data_ptr() or None), c_uint64(turn), byref(sent)))
        return sent.value


class _Kept:
    """Of one bucket: its parameters and where they lie in it, and what this rank has lost of a part of it."""

    def __init__(self, bucket: dist.GradBucket, core: _Core, how: Compression) -> None:
        buffer = bucket.buffer()
        self.parameters = bucket.parameters()
        self.places = [gradient.storage_offset() - buffer.storage_offset() for gradient in bucket.gradients()]
        self.at, kept, self.keepers = core.span(buffer.numel())
        halves = 2 if how.momentum else 1
        self.kept = torch.zeros(kept * halves if how.feedback else 0)          # losses, then momentum
        self.lost = self.kept[:kept]

    def is_of(self, bucket: dist.GradBucket) -> bool:
        theirs = bucket.parameters()
        return len(theirs) == len(self.parameters) and all(a is b for a, b in zip(theirs, self.parameters))

    def parts(self, kept: torch.Tensor | None = None) -> list[tuple[torch.Tensor, slice, torch.Tensor]]:
        """Parameters; which of their elements lie in this rank's part; what of them was lost. kept: with momentum."""
        found = []
        for p, place in zip(self.parameters, self.places):
            begin, end = max(place, self.at), min(place + p.numel(), self.at + len(self.lost))
            for half in [self.lost] if kept is None else kept.split(len(self.lost)) if len(self.lost) else []:
                if begin < end:
                    found.append((p, slice(begin - place, end - place), half[begin - self.at: end - self.at]))
        return found


class Compressor:
    """The state of `hook`. Buckets are averaged one after another on a thread of its own, beside the backward pass; in
    the first pass as they are."""

    def __init__(self, model: DistributedDataParallel, how: str | Compression) -> None:
        self.how = Compression(how) if isinstance(how, str) else how
        if not isinstance(self.how, Compression):
            raise TypeError(f"compression: {how!r}; it must be a name or a Compression")
        self.group = model.process_group
        backend = backend_of(self.group)
        if backend is None:
            raise ValueError("compression: the group of the model does not use tutti; make it with backend=\"tutti\"")
        self._core = _Core(backend._communicator, self.how)
        self._names = {p: name for name, p in model.module.named_parameters()}
        self._buckets: dict[int, _Kept] = {}
        self._loaded: dict[torch.Tensor, torch.Tensor] = {}            # lost, and in no bucket yet
        self._passes = self._turn = 0
        self._told = {"calls": 0, "array_bytes": 0, "sent_bytes": 0, "seconds": 0.0}
        self._work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._pending = 0
        self._may_be_unused = model.find_unused_parameters
        thread = threading.Thread(target=_run, args=(weakref.ref(self), self._work), name="tutti compression",
                                  daemon=True)
        _threads[thread] = self._work
        thread.start()

    def __del__(self) -> None:
        if hasattr(self, "_work"):
            self._work.put(None)

    def __reduce__(self) -> Any:
        """A copy of the model averages its gradients in its own way: torch does not copy hooks."""
        return type(None), ()

    # ---- a bucket ----
    def start(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.dtype not in DTYPES or buffer.device.type != "cpu":
            raise TypeError(f"compression: gradients are {buffer.dtype} on {buffer.device}; they must be float32 or "
                            "bfloat16, on the CPU")
        passes, self._passes = self._passes, self._passes + bucket.is_last()
        if passes == 0:                 # torch puts buckets together anew after the first
            work = dist.all_reduce(buffer, dist.ReduceOp.AVG, self.group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        kept, future = self._kept_of(bucket), torch.futures.Future()
        absent = self._absent(bucket, kept) if self._may_be_unused else []
        with self._idle:
            self._pending += 1
        self._work.put((future, buffer, kept, absent, self._turn))
        self._turn += 1
        return future.then(lambda done: done.wait())    # raises what the thread has met

    @staticmethod
    def _absent(bucket: dist.GradBucket, kept: _Kept) -> list[torch.Tensor]:
        """What is kept of parameters without a gradient here. If no rank has one, nobody would take what was sent."""
        zeros = {p for p, gradient in zip(kept.parameters, bucket.gradients()) if not gradient.any()}
        return [part for p, _, part in kept.parts(kept.kept) if p in zeros]

    def _kept_of(self, bucket: dist.GradBucket) -> _Kept:
        kept = self._buckets.get(bucket.index())
        if kept is None:
            kept = self._buckets[bucket.index()] = _Kept(bucket, self._core, self.how)
            for p, where, lost in kept.parts():         # of a state that was loaded
                if p in self._loaded:
                    lost += self._loaded[p][where] * (self.group.size() / kept.keepers)
            for p in kept.parameters:
                self._loaded.pop(p, None)
        if not kept.is_of(bucket):
            raise RuntimeError("compression: torch has rebuilt the buckets, and the residual cannot follow")
        return kept

    def _average(self, buffer: torch.Tensor, kept: _Kept, absent: list[torch.Tensor], turn: int) -> None:
        began = time.perf_counter()
        aside = [part.clone() for part in absent]
        for part in absent:
            part.zero_()
        sent = self._core.average(buffer, kept.kept, turn)
        for part, was in zip(absent, aside):
            part.add_(was)
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
        of ranks. Momentum is not kept. Collective, between steps."""
        self._settle()
        names = self._names.items() if self.how.feedback else ()
        lost = {name: self._loaded.get(p, torch.zeros(p.numel())).clone() for p, name in names}
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
        self._loaded = {p: state["lost"][name].detach().float().flatten().clone()
                        for p, name in self._names.items() if name in state["lost"]}


_threads: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[Any]] = weakref.WeakKeyDictionary()


@atexit.register
def _stop() -> None:
    """A thread that Python takes down in the middle of a call into torch ends the process."""
    running = list(_threads.items())
    for _, work in running:
        work.put(None)
    for thread, _ in running:
        thread.join(PATIENCE_S)


def _run(compressor: weakref.ref[Compressor], work: queue.SimpleQueue[Any]) -> None:
    while (task := work.get()) is not None:
        future, buffer, *rest = task
        owner = compressor()
        if owner is None:
            return
        try:
            owner._average(buffer, *rest)
        except Exception as error:      # DistributedDataParallel raises it where it waits
            future.set_exception(error)
        else:
            future.set_result(buffer)
        with owner._idle:
            owner._pending -= 1
            owner._idle.notify_all()
        del owner, task, future, buffer, rest


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
