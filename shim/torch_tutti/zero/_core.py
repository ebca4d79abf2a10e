"""Calls include/tutti_zero.h by ctypes, and returns tensors of its memory. The header documents the calls."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_bool, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple, Sequence

import torch

from torch_tutti._library import _check, _library, dtype_numbers
from torch_tutti.compression import DTYPES, Compression, _Compression, described

PLACEMENTS = {"shared": 0, "replicated": 1, "sharded": 2, "whole": 3}
RULES = {"none": 0, "sgd": 1, "momentum": 2, "adam": 3, "adamw": 4}


class _Parameter(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("unit", c_int), ("group", c_int)]


class _Config(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("comm", c_void_p), ("parameters", c_int), ("units", c_int),
                ("groups", c_int), ("parameter", POINTER(_Parameter)), ("dtype", POINTER(c_int)), ("placement", c_int),
                ("rule", c_int), ("buffers", c_int), ("timeout_ms", c_int64), ("prefetch", c_int),
                ("ahead", c_bool), ("compression", _Compression)]


class Rates(ctypes.Structure):
    _fields_ = [(name, c_double) for name in ("rate", "decay", "momentum", "beta1", "beta2", "epsilon")]


class _Piece(ctypes.Structure):
    _fields_ = [("at", c_size_t), ("count", c_size_t), ("value", c_void_p), ("first", c_void_p), ("second", c_void_p),
                ("gradient", c_void_p), ("steps", c_uint64), ("used", c_bool)]


class _Report(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), *((name, c_uint64) for name in (
        "steps", "waited_use_ns", "waited_sums_ns", "late_units", "sum_bytes", "moved_bytes", "parameter_bytes",
        "gradient_bytes", "state_bytes", "unforeseen", "packed_bytes"))]


class _Event(ctypes.Structure):
    _fields_ = [("kind", c_int), ("unit", c_int), ("began_ns", c_int64), ("ended_ns", c_int64), ("bytes", c_uint64)]


class Described(NamedTuple):
    """A parameter for the core: its elements, its unit, and its parameter group."""
    count: int
    unit: int
    group: int


class Piece(NamedTuple):
    """This rank's piece of a parameter: its elements from `at` on, as flat tensors. moments: None where the rule has
    none. steps: updates so far. used: it has a gradient in this step."""
    at: int
    value: torch.Tensor
    moments: tuple[torch.Tensor | None, torch.Tensor | None]
    gradient: torch.Tensor | None
    steps: int
    used: bool


class Core:
    """One tutti_zero. It is destroyed when neither this object nor a tensor of its memory exists any more."""

    def __init__(self, communicator: int, parameters: Sequence[Described], dtypes: Sequence[torch.dtype], groups: int,
                 placement: str, rule: str, buffers: int, timeout_ms: int, prefetch: int, ahead: bool,
                 compression: str | Compression | None) -> None:
        numbers = dtype_numbers()
        model = (_Parameter * len(parameters))(*(_Parameter(*p) for p in parameters))
        types = (c_int * len(dtypes))(*(numbers[DTYPES[d]] for d in dtypes))
        config = _Config(ctypes.sizeof(_Config), communicator, len(parameters), len(dtypes), groups, model, types,
                         PLACEMENTS[placement], RULES[rule], buffers, timeout_ms, prefetch, ahead,
                         described(compression))
        self._zero = c_void_p()
        self.placement, self.feeds_back = placement, bool(config.compression.form and config.compression.feedback)
        self._counts = [p.count for p in parameters]
        self._dtypes = [dtypes[p.unit] for p in parameters]
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        self._at, self._adds = c_void_p(), c_bool()
        self._calls = _library()
        self._calls.tutti_zero_parameter_at.restype = c_void_p
        _check(self._calls.tutti_zero_create(byref(self._zero), byref(config)))

    def __del__(self) -> None:
        if getattr(self, "_zero", None):
            self._calls.tutti_zero_destroy(self._zero)

    def _tensor(self, address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor of `count` elements at an address in the core's memory."""
        if not count:
            return torch.empty(0, dtype=dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        memory.owner = self             # the tensor keeps this object alive
        return torch.frombuffer(memory, dtype=dtype)

    def parameter(self, number: int) -> torch.Tensor:
        """The flat values of a parameter, in the core's memory."""
        address = self._calls.tutti_zero_parameter_at(self._zero, number)
        return self._tensor(address, self._counts[number], self._dtypes[number])

    def begin(self) -> None:
        _check(self._calls.tutti_zero_begin(self._zero))

    def use(self, unit: int) -> None:
        _check(self._calls.tutti_zero_use(self._zero, unit))

    def use_backward(self, unit: int) -> None:
        _check(self._calls.tutti_zero_use_backward(self._zero, unit))

    def release(self, unit: int) -> None:
        _check(self._calls.tutti_zero_release(self._zero, unit))

    def keep(self, kept: bool) -> None:
        _check(self._calls.tutti_zero_keep(self._zero, kept))

    def gradient(self, number: int) -> tuple[torch.Tensor, bool]:
        """The flat buffer for a parameter's gradient, and whether it has one to which the new one must be added."""
        _check(self._calls.tutti_zero_gradient(self._zero, number, byref(self._at), byref(self._adds)))
        address = self._at.value or 0
        found = self._gradients.get((number, address))
        if found is None:               # the core has few buffers and reuses them
            memory = (ctypes.c_char * (self._counts[number] * self._dtypes[number].itemsize)).from_address(address)
            found = self._gradients[number, address] = torch.frombuffer(memory, dtype=self._dtypes[number])
        return found, self._adds.value

    def ready(self, number: int) -> None:
        _check(self._calls.tutti_zero_ready(self._zero, number))

    def hold(self, held: bool) -> None:
        _check(self._calls.tutti_zero_hold(self._zero, held))

    def settle(self) -> None:
        _check(self._calls.tutti_zero_settle(self._zero))

    def norm(self) -> float:
        result = c_double()
        _check(self._calls.tutti_zero_norm(self._zero, byref(result)))
        return result.value

    def step(self, rates: Sequence[Rates], scale: float) -> None:
        _check(self._calls.tutti_zero_step(self._zero, (Rates * len(rates))(*rates), c_double(scale)))

    def claim(self) -> None:
        _check(self._calls.tutti_zero_claim(self._zero))

    def publish(self) -> None:
        _check(self._calls.tutti_zero_publish(self._zero))

    def drop(self) -> None:
        _check(self._calls.tutti_zero_drop(self._zero))

    def piece(self, number: int) -> Piece:
        """This rank's piece of a parameter, in the core's memory."""
        p = _Piece()
        _check(self._calls.tutti_zero_get_piece(self._zero, number, byref(p)))
        first, second = (self._tensor(a, p.count, torch.float32) if a else None for a in (p.first, p.second))
        gradient = self._tensor(p.gradient, p.count, self._dtypes[number]) if p.gradient else None
        value = self._tensor(p.value or 0, p.count, torch.float32)
        return Piece(p.at, value, (first, second), gradient, p.steps, p.used)

    def claim_pieces(self) -> None:
        _check(self._calls.tutti_zero_claim_pieces(self._zero))

    def begin_pieces(self) -> None:
        _check(self._calls.tutti_zero_begin_pieces(self._zero))

    def counts(self, number: int, ranks: int) -> list[int]:
        """The elements of the parameter that each rank has, in the order of ranks."""
        at, count, found = c_size_t(), c_size_t(), []
        for rank in range(ranks):
            _check(self._calls.tutti_zero_span(self._zero, number, rank, byref(at), byref(count)))
            found.append(count.value)
        return found

    def set_steps(self, number: int, steps: int) -> None:
        _check(self._calls.tutti_zero_set_steps(self._zero, number, c_uint64(steps)))

    def lost(self, number: int) -> torch.Tensor:
        """The residual of compression of a parameter, summed over ranks: float32, flat. Collective."""
        found = torch.empty(self._counts[number])
        _check(self._calls.tutti_zero_get_lost(self._zero, number, c_void_p(found.data_ptr())))
        return found

    def set_lost(self, number: int, lost: torch.Tensor) -> None:
        flat = lost.detach().float().contiguous()
        assert flat.numel() == self._counts[number]
        _check(self._calls.tutti_zero_set_lost(self._zero, number, c_void_p(flat.data_ptr())))

    def watch(self, events: int) -> None:
        _check(self._calls.tutti_zero_watch(self._zero, c_size_t(events)))

    def events(self) -> tuple[list[tuple[int, ...]], int]:
        """The recorded events, with the fields of tutti_zero_event, and the number of events that did not fit."""
        count, missed = c_size_t(), c_size_t()
        _check(self._calls.tutti_zero_get_events(self._zero, None, c_size_t(0), byref(count), byref(missed)))
        kept = (_Event * count.value)()
        _check(self._calls.tutti_zero_get_events(self._zero, kept, count, byref(count), byref(missed)))
        return [(e.kind, e.unit, e.began_ns, e.ended_ns, e.bytes) for e in kept], missed.value

    def report(self) -> dict[str, Any]:
        report = _Report(ctypes.sizeof(_Report))
        _check(self._calls.tutti_zero_get_report(self._zero, byref(report)))
        return {name: getattr(report, name) for name, _ in _Report._fields_[1:]}
