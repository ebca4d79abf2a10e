"""Calls the functions of include/tutti_zero.h by ctypes, and returns tensors in the library's memory. The header
documents each call."""
from __future__ import annotations

import ctypes
import os
import re
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple, Sequence

import torch

from torch_tutti._library import _check, _library, dtype_numbers
from torch_tutti.compression import Compression, _Compression, described
from torch_tutti.zero._square_roots import FUNCTION, SquareRoots

PLACEMENTS = {"shared": 0, "replicated": 1, "sharded": 2, "whole": 3}
# The types that parameters may have.
DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16", torch.float16: b"float16", torch.float64: b"float64"}
RULES = {"none": 0, "sgd": 1, "momentum": 2, "adam": 3, "adamw": 4}
# the calls of an optimizer by which a program makes those that error texts name
_CALLS = {"tutti_zero_drop": "zero_grad()", "tutti_zero_settle": "optimizer.gradient_norms()"}


# The structures of include/tutti_zero.h, with the same fields in the same order.
class _Parameter(ctypes.Structure):
    _fields_ = [("count", c_size_t), ("unit", c_int), ("group", c_int)]


class _Config(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("comm", c_void_p), ("parameters", c_int), ("units", c_int),
                ("groups", c_int), ("parameter", POINTER(_Parameter)), ("dtype", POINTER(c_int)), ("placement", c_int),
                ("rule", c_int), ("buffers", c_int), ("timeout_ms", c_int64), ("prefetch", c_int),
                ("ahead", c_bool), ("compression", _Compression), ("square_roots", FUNCTION),
                ("square_roots_mode", c_int64), ("name", c_char_p),
                ("state_directory", c_char_p), ("sums_in_float32", c_bool)]


class Rates(ctypes.Structure):
    _fields_ = [(name, c_double) for name in ("rate", "decay", "momentum", "beta1", "beta2", "epsilon")]


class _Piece(ctypes.Structure):
    _fields_ = [("at", c_size_t), ("count", c_size_t), ("value", c_void_p), ("first", c_void_p), ("second", c_void_p),
                ("gradient", c_void_p), ("steps", c_uint64), ("used", c_bool)]


class _Report(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), *((name, c_uint64) for name in (
        "steps", "waited_use_ns", "waited_sums_ns", "late_units", "sum_bytes", "moved_bytes", "parameter_bytes",
        "gradient_bytes", "state_bytes", "unforeseen", "packed_bytes", "gradient_peak_bytes",
        "state_file_bytes"))]


class _Event(ctypes.Structure):
    _fields_ = [("kind", c_int), ("unit", c_int), ("began_ns", c_int64), ("ended_ns", c_int64), ("bytes", c_uint64)]


class ParameterInfo(NamedTuple):
    """A parameter as the core needs to know it: its number of elements, its unit, and its parameter group."""
    count: int
    unit: int
    group: int


class Names(NamedTuple):
    """The names in error texts: of the whole, which becomes the name of its communicators ("zero stage 3 of GPT"), and
    of each unit and each parameter."""
    whole: str
    units: list[str]
    parameters: list[str]


class Piece(NamedTuple):
    """This rank's piece of a parameter: its elements from number `at` on, as flat tensors. value: float64 for a float64
    parameter, else float32. moments: None where the rule has none. gradient: None before it is averaged. steps: updates
    so far. used: some rank has a gradient in this step."""
    at: int
    value: torch.Tensor
    moments: tuple[torch.Tensor | None, torch.Tensor | None]
    gradient: torch.Tensor | None
    steps: int
    used: bool


class Core:
    """One tutti_zero. It is destroyed when neither this object nor a tensor of parameter() or piece() exists any
    more; a tensor of gradient() does not keep it. advice_on_late_gradients: what error texts add for a gradient that
    comes after the averages of its step."""
    advice_on_late_gradients = ""

    def __init__(self, communicator: int, parameters: Sequence[ParameterInfo], dtypes: Sequence[torch.dtype],
                 groups: int, placement: str, rule: str, buffers: int, timeout_ms: int, prefetch: int, ahead: bool,
                 compression: str | Compression | None, square_roots: SquareRoots, names: Names,
                 state_directory: str | os.PathLike[str] | None, sums_in_float32: bool) -> None:
        """Creates a tutti_zero. parameters: in the order of units. dtypes: one for each unit. groups: how many
        parameter groups there are. The other arguments are fields of tutti_zero_config. Collective."""
        self._names = names
        dtype_number = dtype_numbers()
        parameter_array = (_Parameter * len(parameters))(*(_Parameter(*parameter) for parameter in parameters))
        dtype_array = (c_int * len(dtypes))(*(dtype_number[DTYPES[dtype]] for dtype in dtypes))
        config = _Config(ctypes.sizeof(_Config), communicator, len(parameters), len(dtypes), groups, parameter_array,
                         dtype_array, PLACEMENTS[placement], RULES[rule], buffers, timeout_ms, prefetch, ahead,
                         described(compression), square_roots.function or FUNCTION(), square_roots.mode,
                         names.whole.encode(), os.fsencode(state_directory) if state_directory else None,
                         sums_in_float32)
        self._zero = c_void_p()
        self.placement, self.has_feedback = placement, bool(config.compression.form and config.compression.feedback)
        self._counts = [parameter.count for parameter in parameters]
        self._dtypes = [dtypes[parameter.unit] for parameter in parameters]
        # the type of each averaged gradient
        self.sum_dtypes = [torch.float32 if sums_in_float32 and dtype.itemsize == 2 else dtype
                           for dtype in self._dtypes]
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}
        # where tutti_zero_gradient() writes its results
        self._at, self._adds = c_void_p(), c_bool()
        self._calls = _library()
        self._calls.tutti_zero_parameter_at.restype = c_void_p
        self._check(self._calls.tutti_zero_create(byref(self._zero), byref(config)))

    def __del__(self) -> None:
        if getattr(self, "_zero", None):
            self._calls.tutti_zero_destroy(self._zero)

    def _check(self, status: int) -> None:
        """Raises the exception of a failed call, with the names of units and parameters in place of their numbers."""
        if status:
            try:
                _check(status)
            except Exception as error:
                raise type(error)(self._named(str(error))) from None

    def _named(self, text: str) -> str:
        """Returns the library's text with the names of units and parameters in place of their numbers, with calls of
        the optimizer in place of C functions, and with a likely reason why a rank has not come."""
        for function, call in _CALLS.items():
            text = text.replace(function, call)
        for kind, names in (("unit", self._names.units), ("parameter", self._names.parameters)):
            numbered = {str(number): name for number, name in enumerate(names)}
            text = re.sub(rf"\b{kind} (\d+)\b",
                          lambda found: f"{kind} {numbered.get(found[1], found[1])}", text)
        if absent := re.search(r"this call has not been made by (rank [\d, ]*\d)", text):
            text += f". If {absent[1]} had fewer batches, " + (
                "give it batches whose loss counts 0" if self.placement == "sharded" else
                "put the loop into `with optimizer.join():` on all ranks")
        return text + self.advice_on_late_gradients * text.endswith("have been averaged: take the step first")

    def _tensor(self, address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Returns a flat tensor of `count` elements at an address in the core's memory."""
        if not count:
            return torch.empty(0, dtype=dtype)
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        memory.owner = self             # the tensor keeps this object alive
        return torch.frombuffer(memory, dtype=dtype)

    def parameter(self, number: int) -> torch.Tensor:
        """Returns the flat values of a parameter, in the core's memory."""
        address = self._calls.tutti_zero_parameter_at(self._zero, number)
        return self._tensor(address, self._counts[number], self._dtypes[number])

    def begin(self) -> None:
        """Gives all ranks the values that rank 0 has written to its parameters. Collective."""
        self._check(self._calls.tutti_zero_begin(self._zero))

    def use(self, unit: int) -> None:
        """Waits until a unit has the values of the last step. A sharded unit is gathered, and stays whole until
        release()."""
        self._check(self._calls.tutti_zero_use(self._zero, unit))

    def use_backward(self, unit: int) -> None:
        """Does what use() does, but the use ends when all gradients of the unit are ready, or with the step."""
        self._check(self._calls.tutti_zero_use_backward(self._zero, unit))

    def release(self, unit: int) -> None:
        """Ends the use of a unit. The core may then free it, if it is sharded."""
        self._check(self._calls.tutti_zero_release(self._zero, unit))

    def keep(self, kept: bool) -> None:
        """With kept, gathers all units, which stay whole until the next step or begin(). Without, sharded units are
        whole only while they are used. Collective."""
        self._check(self._calls.tutti_zero_keep(self._zero, kept))

    def gradient(self, number: int) -> tuple[torch.Tensor, bool]:
        """Returns the flat buffer for a parameter's gradient. Returns with it True if the buffer has the gradient of an
        earlier backward pass, to which the caller must add the new one. May wait for a free buffer."""
        self._check(self._calls.tutti_zero_gradient(self._zero, number, byref(self._at), byref(self._adds)))
        address = self._at.value or 0
        found = self._gradients.get((number, address))
        # the core has few buffers and reuses them, so their tensors are kept
        if found is None:
            memory = (ctypes.c_char * (self._counts[number] * self._dtypes[number].itemsize)).from_address(address)
            found = self._gradients[number, address] = torch.frombuffer(memory, dtype=self._dtypes[number])
        return found, self._adds.value

    def ready(self, number: int) -> None:
        """Reports that a parameter's gradient is in its buffer. With the last one of a unit, the unit's
        gradients can be summed. The core starts the units in an order that all ranks agree on."""
        self._check(self._calls.tutti_zero_ready(self._zero, number))

    def hold(self, held: bool) -> None:
        """While held, ready gradients stay on this rank, and gradients of the next pass are added to them."""
        self._check(self._calls.tutti_zero_hold(self._zero, held))

    def settle(self) -> None:
        """Waits until all gradients are averaged over the ranks. Collective."""
        self._check(self._calls.tutti_zero_settle(self._zero))

    def norm(self) -> float:
        """Returns the 2-norm of all averaged gradients together, equal on all ranks. Collective."""
        result = c_double()
        self._check(self._calls.tutti_zero_norm(self._zero, byref(result)))
        return result.value

    def step(self, rates: Sequence[Rates], scale: float) -> None:
        """Updates this rank's slices by the rule, with the rates of each group, from the gradients times `scale`.
        Collective."""
        self._check(self._calls.tutti_zero_step(self._zero, (Rates * len(rates))(*rates), c_double(scale)))

    def claim(self) -> None:
        """Waits until no rank reads parameters. Then rank 0 may write parameters before begin(), or, after settle(),
        each rank its pieces before publish(). Collective."""
        self._check(self._calls.tutti_zero_claim(self._zero))

    def publish(self) -> None:
        """Takes the step after the caller has updated its pieces (rule "none")."""
        self._check(self._calls.tutti_zero_publish(self._zero))

    def drop(self) -> None:
        """Discards the gradients of this step. Collective if all ranks have gradients or have settled them; a rank
        without either does nothing."""
        self._check(self._calls.tutti_zero_drop(self._zero))

    def piece(self, number: int) -> Piece:
        """Returns this rank's piece of a parameter, in the core's memory."""
        found = _Piece()
        self._check(self._calls.tutti_zero_get_piece(self._zero, number, byref(found)))
        first, second = (self._tensor(address, found.count, torch.float32) if address else None
                         for address in (found.first, found.second))
        gradient = self._tensor(found.gradient, found.count, self.sum_dtypes[number]) if found.gradient else None
        value_dtype = torch.float64 if self._dtypes[number] == torch.float64 else torch.float32
        value = self._tensor(found.value or 0, found.count, value_dtype)
        return Piece(found.at, value, (first, second), gradient, found.steps, found.used)

    def claim_pieces(self) -> None:
        """Waits until no rank reads the pieces of another. Then each rank may read its own, and may write them if it
        calls begin_pieces() next. Collective."""
        self._check(self._calls.tutti_zero_claim_pieces(self._zero))

    def begin_pieces(self) -> None:
        """Lets all ranks continue with the values that each has written to its pieces. Collective."""
        self._check(self._calls.tutti_zero_begin_pieces(self._zero))

    def counts(self, number: int, ranks: int) -> list[int]:
        """Returns how many elements of a parameter each rank has, in the order of ranks."""
        at, count, found = c_size_t(), c_size_t(), []
        for rank in range(ranks):
            self._check(self._calls.tutti_zero_span(self._zero, number, rank, byref(at), byref(count)))
            found.append(count.value)
        return found

    def set_steps(self, number: int, steps: int) -> None:
        """Sets how many steps have updated a parameter."""
        self._check(self._calls.tutti_zero_set_steps(self._zero, number, c_uint64(steps)))

    def residual(self, number: int) -> torch.Tensor:
        """Returns the residual of compression of a parameter, float32 and flat, the same on all ranks. Collective."""
        found = torch.empty(self._counts[number])
        self._check(self._calls.tutti_zero_get_lost(self._zero, number, c_void_p(found.data_ptr())))
        return found

    def set_residual(self, number: int, residual: torch.Tensor) -> None:
        """Divides the residual of a parameter, which must be the same on all ranks, among the ranks. Collective."""
        flat = residual.detach().float().contiguous()
        assert flat.numel() == self._counts[number]
        self._check(self._calls.tutti_zero_set_lost(self._zero, number, c_void_p(flat.data_ptr())))

    def watch(self, events: int) -> None:
        """Records up to `events` events from now on. 0 stops recording."""
        self._check(self._calls.tutti_zero_watch(self._zero, c_size_t(events)))

    def events(self) -> tuple[list[tuple[int, ...]], int]:
        """Returns the recorded events, with the fields of tutti_zero_event, and how many events exceeded the room."""
        count, missed = c_size_t(), c_size_t()
        self._check(self._calls.tutti_zero_get_events(self._zero, None, c_size_t(0), byref(count), byref(missed)))
        kept = (_Event * count.value)()
        self._check(self._calls.tutti_zero_get_events(self._zero, kept, count, byref(count), byref(missed)))
        return [(event.kind, event.unit, event.began_ns, event.ended_ns, event.bytes) for event in kept], missed.value

    def report(self) -> dict[str, Any]:
        """Returns the fields of tutti_zero_report by name."""
        report = _Report(ctypes.sizeof(_Report))
        self._check(self._calls.tutti_zero_get_report(self._zero, byref(report)))
        return {name: getattr(report, name) for name, _ in _Report._fields_[1:]}
