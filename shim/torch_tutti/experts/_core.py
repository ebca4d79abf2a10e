"""The experts' part of tutti.h through ctypes: tensors in, tensors out. Nothing here communicates."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import torch

from torch_tutti._library import _check, _library, dtype_numbers

DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16", torch.float16: b"float16"}
NO_CAPACITY = (1 << 64) - 1


class _Rows(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("tokens", c_size_t), ("columns", c_size_t), ("choices", c_int),
                ("dtype", c_int), ("expert", c_void_p), ("place", c_void_p), ("first", c_void_p)]


def _at(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def place(chosen: torch.Tensor, experts: int, capacity: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """chosen: int64 [tokens, choices] on the CPU. Where each is among this rank's rows for its expert, or -1; and how
    many rows each expert gets, [experts]."""
    found, counts = torch.empty_like(chosen), torch.empty(experts, dtype=torch.int64)
    room = c_uint64(NO_CAPACITY if capacity is None else capacity)
    _check(_library().tutti_experts_place(_at(chosen), c_size_t(len(chosen)), chosen.shape[1], experts, room,
                                          _at(found), _at(counts)))
    return found, counts


def offsets(counts: torch.Tensor, padded: int) -> tuple[torch.Tensor, list[int]]:
    """counts: int64 [ranks, experts]. The row at which each rank's rows for an expert begin in its owner's array, and
    the rows of each owner."""
    ranks, experts = counts.shape
    first, rows = torch.empty_like(counts), (c_int64 * ranks)()
    _check(_library().tutti_experts_offsets(_at(counts), ranks, experts, c_uint64(padded), _at(first), rows))
    return first, list(rows)


class Rows:
    """This rank's rows, by addresses: first, int64 [experts], is where those for each expert begin."""

    def __init__(self, chosen: torch.Tensor, placed: torch.Tensor, first: torch.Tensor, columns: int,
                 dtype: torch.dtype) -> None:
        self._kept: Any = chosen, placed, first
        self._rows = _Rows(ctypes.sizeof(_Rows), len(chosen), columns, chosen.shape[1], dtype_numbers()[DTYPES[dtype]],
                           chosen.data_ptr(), placed.data_ptr(), first.data_ptr())

    def scatter(self, tokens: torch.Tensor, weights: torch.Tensor | None) -> None:
        _check(_library().tutti_experts_scatter(byref(self._rows), _at(tokens), _at(weights) if weights is not None
                                                else None))

    def gather(self, out: torch.Tensor, weights: torch.Tensor | None) -> None:
        _check(_library().tutti_experts_gather(byref(self._rows), _at(out), _at(weights) if weights is not None
                                               else None))

    def dot(self, tokens: torch.Tensor, out: torch.Tensor) -> None:
        _check(_library().tutti_experts_dot(byref(self._rows), _at(tokens), _at(out)))
