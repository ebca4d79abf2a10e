"""Sends gradients in fewer bytes. Each rank keeps what compression leaves out (the residual), and adds it to the
gradients of the next step.

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
_GROUP = 1024                           # elements, of which the core sends a given number
THREAD_TIMEOUT_S = 5                    # how long the end of the process waits for a thread
DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16"}


@dataclass(frozen=True)
class Compression:
    """How gradients are packed; the same on all ranks.

    form: "fp16", "bf16": rounded. "int8", "int4": integers, times a scale for each 128 elements. "topk": the largest
    elements. "randomk": random elements, the same on all ranks. "threshold": elements of at least the magnitude
    `threshold`. share: for the last three forms, the part of the elements that is sent ("threshold": at most), above 0
    and up to 1, rounded to 1/1,024. threshold: above 0; compared with a rank's gradients, on several hosts with the
    sums of a host. feedback: the residual is added to the next gradients; it takes 4 bytes for each element that a rank
    packs. stochastic: integers are rounded up or down at random, so that their mean is right. momentum: for forms that
    leave elements out, with feedback: momentum is applied to the gradients before they are packed, for an optimizer
    without momentum. It takes 4 more bytes; the momentum of an element that is sent starts again from 0. seed: of all
    random choices. Raises ValueError for values that do not fit.
    """
    form: str
    share: float = 0.01
    feedback: bool = True
    stochastic: bool = False
    momentum: float = 0.0
    seed: int = 0
    threshold: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for values that do not fit."""
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
        """Whether the form sends only some elements."""
        return self.form in ("topk", "randomk", "threshold")


class _Compression(ctypes.Structure):
    """tutti_compression of include/tutti_zero.h."""
    _fields_ = [("form", c_int), ("kept", c_int), ("stochastic", c_bool), ("feedback", c_bool), ("momentum", c_double),
                ("seed", c_uint64), ("threshold", c_double)]


def described(how: str | Compression | None) -> _Compression:
    """Returns the structure for the core. how: a form, a Compression, or None: no compression."""
    if how is None:
        return _Compression()
    compression = Compression(how) if isinstance(how, str) else how
    kept = max(1, round(compression.share * _GROUP))
    return _Compression(_FORMS[compression.form], kept, compression.stochastic, compression.feedback,
                        compression.momentum, compression.seed, compression.threshold)


class _Core:
    """A tutti_compressor of include/tutti_zero.h."""

    def __init__(self, communicator: int, how: Compression) -> None:
        self._made = c_void_p()
        self._calls = _library()
        _check(self._calls.tutti_compressor_create(byref(self._made), c_void_p(communicator), byref(described(how))))

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            self._calls.tutti_compressor_destroy(self._made)

    def span(self, count: int) -> tuple[int, int, int]:
        """Returns (offset, elements, ranks) for `count` elements: this rank keeps the residual of that number
        of elements, from the offset on, and that number of ranks keeps the residual of each element."""
        offset, kept_count, keepers = c_size_t(), c_size_t(), c_int()
        _check(self._calls.tutti_compressor_span(self._made, c_size_t(count), byref(offset), byref(kept_count),
                                                 byref(keepers)))
        return offset.value, kept_count.value, keepers.value

    def average(self, data: torch.Tensor, residual_and_momentum: torch.Tensor, call_number: int) -> int:
        """Averages `data` over all ranks, in place. Returns the bytes that this rank has sent. residual_and_momentum:
        of this rank, see _BucketState; empty without feedback. call_number: the same on all ranks; random choices
        follow from it."""
        sent_bytes = c_uint64()
        _check(self._calls.tutti_compressor_average(
            self._made, c_void_p(data.data_ptr()), c_size_t(data.numel()), dtype_numbers()[DTYPES[data.dtype]],
            c_void_p(residual_and_momentum.data_ptr() or None), c_uint64(call_number), byref(sent_bytes)))
        return sent_bytes.value


class _BucketState:
    """The parameters of a bucket with their offsets in it, and the residual of the part that this rank keeps."""

    def __init__(self, bucket: dist.GradBucket, core: _Core, how: Compression) -> None:
        """Starts with a residual and momentum of 0."""
        buffer = bucket.buffer()
        self.parameters = bucket.parameters()
        self.offsets = [gradient.storage_offset() - buffer.storage_offset() for gradient in bucket.gradients()]
        self.offset, kept_count, self.keepers = core.span(buffer.numel())
        halves = 2 if how.momentum else 1
        # The residual, followed by the momentum; empty without feedback.
        self.residual_and_momentum = torch.zeros(kept_count * halves if how.feedback else 0)
        self.residual = self.residual_and_momentum[:kept_count]

    def is_of(self, bucket: dist.GradBucket) -> bool:
        """Whether the bucket has the parameters of this state."""
        parameters = bucket.parameters()
        return len(parameters) == len(self.parameters) and all(
            parameter is own for parameter, own in zip(parameters, self.parameters))

    def parts(self, arrays: torch.Tensor | None = None) -> list[tuple[torch.Tensor, slice, torch.Tensor]]:
        """Returns (parameter, range of its elements, their residual) for each parameter of which this rank keeps a
        residual. arrays: residual_and_momentum, to get also (parameter, range, their momentum); None: residuals
        only."""
        parts = []
        for parameter, offset in zip(self.parameters, self.offsets):
            begin, end = max(offset, self.offset), min(offset + parameter.numel(), self.offset + len(self.residual))
            for array in ([self.residual] if arrays is None else
                          arrays.split(len(self.residual)) if len(self.residual) else []):
                if begin < end:
                    parts.append((parameter, slice(begin - offset, end - offset),
                                  array[begin - self.offset: end - self.offset]))
        return parts


class Compressor:
    """The state of `hook`. Buckets are averaged one after another on a thread of its own, beside the backward pass. In
    the first pass they are averaged without compression."""

    def __init__(self, model: DistributedDataParallel, how: str | Compression) -> None:
        """Starts the thread. Collective. how: a form, or a Compression. Raises ValueError if the group of the model
        does not run on tutti."""
        self.how = Compression(how) if isinstance(how, str) else how
        if not isinstance(self.how, Compression):
            raise TypeError(f"compression: {how!r}; it must be a name or a Compression")
        self.group = model.process_group
        backend = backend_of(self.group)
        if backend is None:
            raise ValueError("compression: the group of the model does not use tutti; make it with backend=\"tutti\"")
        self._core = _Core(backend._communicator, self.how)
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        self._buckets: dict[int, _BucketState] = {}
        self._loaded: dict[torch.Tensor, torch.Tensor] = {}            # of a loaded state, until the bucket is known
        self._passes = self._call_number = 0
        self._totals = {"calls": 0, "array_bytes": 0, "sent_bytes": 0, "seconds": 0.0}
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._pending_tasks = 0
        self._may_be_unused = model.find_unused_parameters
        thread = threading.Thread(target=_run_tasks, args=(weakref.ref(self), self._tasks), name="tutti compression",
                                  daemon=True)
        _threads[thread] = self._tasks
        thread.start()

    def __del__(self) -> None:
        """Ends the thread."""
        if hasattr(self, "_tasks"):
            self._tasks.put(None)

    def __reduce__(self) -> Any:
        """Makes copies and pickles None: torch does not copy a model's hooks, so its copies need no compressor."""
        return type(None), ()

    # ---- a bucket ----
    def start(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Starts to average a bucket over all ranks, in place. Returns the future of its buffer, which raises the error
        of the thread. Raises TypeError for gradients of other types or devices."""
        buffer = bucket.buffer()
        if buffer.dtype not in DTYPES or buffer.device.type != "cpu":
            raise TypeError(f"compression: gradients are {buffer.dtype} on {buffer.device}; they must be float32 or "
                            "bfloat16, on the CPU")
        passes, self._passes = self._passes, self._passes + bucket.is_last()
        if passes == 0:                 # torch rebuilds the buckets after the first pass
            all_reduce = dist.all_reduce(buffer, dist.ReduceOp.AVG, self.group, async_op=True)
            return all_reduce.get_future().then(lambda done: done.value()[0])
        state, future = self._state_of(bucket), torch.futures.Future()
        excluded = self._parts_without_gradient(bucket, state) if self._may_be_unused else []
        with self._idle:
            self._pending_tasks += 1
        self._tasks.put((future, buffer, state, excluded, self._call_number))
        self._call_number += 1
        return future.then(lambda done: done.wait())    # raises the error of the thread

    @staticmethod
    def _parts_without_gradient(bucket: dist.GradBucket, state: _BucketState) -> list[torch.Tensor]:
        """Returns the residuals and momenta of parameters without a gradient on this rank in this pass. They must not
        be sent: if no rank has a gradient of the parameter, no rank would use them."""
        unused = {parameter for parameter, gradient in zip(state.parameters, bucket.gradients()) if not gradient.any()}
        return [part for parameter, _, part in state.parts(state.residual_and_momentum) if parameter in unused]

    def _state_of(self, bucket: dist.GradBucket) -> _BucketState:
        """Returns the state of a bucket. Creates it the first time, with the residuals of a loaded state. Raises
        RuntimeError if torch has rebuilt the buckets."""
        state = self._buckets.get(bucket.index())
        if state is None:
            state = self._buckets[bucket.index()] = _BucketState(bucket, self._core, self.how)
            # A loaded residual is the mean over all ranks. Each rank that keeps it gets an equal part of the sum.
            for parameter, part_range, residual in state.parts():
                if parameter in self._loaded:
                    residual += self._loaded[parameter][part_range] * (self.group.size() / state.keepers)
            for parameter in state.parameters:
                self._loaded.pop(parameter, None)
        if not state.is_of(bucket):
            raise RuntimeError("compression: torch has rebuilt the buckets, and the residual cannot follow")
        return state

    def _average(self, buffer: torch.Tensor, state: _BucketState, excluded: list[torch.Tensor],
                 call_number: int) -> None:
        """Averages a buffer over all ranks, in place, and adds to the totals of report(). excluded: parts of the
        residual and momentum that are not sent in this call, and added again after it."""
        begin = time.perf_counter()
        copies = [part.clone() for part in excluded]
        for part in excluded:
            part.zero_()
        sent_bytes = self._core.average(buffer, state.residual_and_momentum, call_number)
        for part, copy in zip(excluded, copies):
            part.add_(copy)
        self._totals["calls"] += 1
        self._totals["array_bytes"] += buffer.nbytes
        self._totals["sent_bytes"] += sent_bytes
        self._totals["seconds"] += time.perf_counter() - begin

    def _wait_until_idle(self) -> None:
        """Waits until all buckets that start() has begun are averaged."""
        with self._idle:
            self._idle.wait_for(lambda: not self._pending_tasks)

    # ---- for users ----
    def report(self) -> dict[str, float]:
        """Returns totals of this rank since the compressor was made: calls; array_bytes, of gradients; sent_bytes,
        packed; seconds, in which gradients were packed, sent and unpacked."""
        self._wait_until_idle()
        return dict(self._totals)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Returns the residuals by the name of the parameter, the same on all ranks, to be loaded with any number of
        ranks. Momentum is not saved. Collective, between steps."""
        self._wait_until_idle()
        names = self._names.items() if self.how.feedback else ()
        residuals = {name: self._loaded.get(parameter, torch.zeros(parameter.numel())).clone()
                     for parameter, name in names}
        for state in self._buckets.values():
            for parameter, part_range, part in state.parts():
                residuals[self._names[parameter]][part_range] += part
        for name, value in residuals.items():
            dist.all_reduce(value, dist.ReduceOp.AVG, self.group)
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        return {"how": asdict(self.how), "turn": self._call_number,
                "lost": {name: value.view(shapes[name]) for name, value in residuals.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Loads a state of `state_dict`, the same on all ranks. Raises ValueError if it is of another model."""
        shapes = {name: parameter.shape for parameter, name in self._names.items()}
        for name, value in state["lost"].items():
            if shapes.get(name) != value.shape:
                raise ValueError(f"compression: the state has {name} of shape {tuple(value.shape)}, the model "
                                 + (f"of {tuple(shapes[name])}" if name in shapes else "has none of that name"))
        self._wait_until_idle()
        self._buckets.clear()
        self._call_number = state["turn"]
        self._loaded = {parameter: state["lost"][name].detach().float().flatten().clone()
                        for parameter, name in self._names.items() if name in state["lost"]}


# The queue of each thread; None in a queue ends its thread.
_threads: weakref.WeakKeyDictionary[threading.Thread, queue.SimpleQueue[Any]] = weakref.WeakKeyDictionary()


@atexit.register
def _stop_threads() -> None:
    """Ends all threads when the process ends. Python would otherwise end them in the middle of a call into torch, which
    would abort the process."""
    threads = list(_threads.items())
    for _, tasks in threads:
        tasks.put(None)
    for thread, _ in threads:
        thread.join(THREAD_TIMEOUT_S)


def _run_tasks(compressor: weakref.ref[Compressor], tasks: queue.SimpleQueue[Any]) -> None:
    """The thread of a compressor: averages the buckets of its queue, and completes their futures. Ends at None in the
    queue, or when the compressor is gone."""
    while (task := tasks.get()) is not None:
        future, buffer, *arguments = task
        owner = compressor()
        if owner is None:
            return
        try:
            owner._average(buffer, *arguments)
        except Exception as error:      # DistributedDataParallel raises it when it waits
            future.set_exception(error)
        else:
            future.set_result(buffer)
        with owner._idle:
            owner._pending_tasks -= 1
            owner._idle.notify_all()
        del owner, task, future, buffer, arguments


# torch reads the annotations, and does not accept texts, so this module does not import annotations from __future__.
def hook(state: Compressor, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket; for DistributedDataParallel.register_comm_hook, with a Compressor as state."""
    return state.start(bucket)


def compress(model: DistributedDataParallel, how: str | Compression) -> Compressor:
    """Makes the model average its gradients compressed. Returns the compressor, which reports about them and keeps the
    residuals. Collective.

    how: a form, or a Compression. Raises ValueError, and MismatchError if ranks ask for different ones.
    """
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"compress takes a DistributedDataParallel, not {type(model).__name__}; zero.shard has "
                        "compression=")
    compressor = Compressor(model, how)
    model.register_comm_hook(compressor, hook)
    return compressor
