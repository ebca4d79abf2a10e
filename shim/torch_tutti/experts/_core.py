"""Calls the functions of tutti_groups.h for experts by ctypes, with tensors as arguments. Nothing here communicates."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any

import torch

from torch_tutti._library import _check, _library, dtype_numbers

DTYPES = {torch.float32: b"float32", torch.bfloat16: b"bfloat16", torch.float16: b"float16"}
NO_CAPACITY = (1 << 64) - 1


# The structure tutti_experts_rows of include/tutti_groups.h, with the same fields in the same order.
class _Rows(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("tokens", c_size_t), ("columns", c_size_t), ("choices", c_int),
                ("dtype", c_int), ("expert", c_void_p), ("place", c_void_p), ("first", c_void_p)]


def _address(tensor: torch.Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())


def place(chosen: torch.Tensor, experts: int, capacity: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers this rank's rows for each expert. chosen: int64 [tokens, choices] on the CPU, expert numbers or -1.
    capacity: the most rows for one expert; None: no limit. Returns the position of each choice among the rows for its
    expert, int64 [tokens, choices], -1 for a choice without expert or beyond the capacity; and the number of rows for
    each expert, int64 [experts]."""
    placed, counts = torch.empty_like(chosen), torch.empty(experts, dtype=torch.int64)
    limit = c_uint64(NO_CAPACITY if capacity is None else capacity)
    _check(_library().tutti_experts_place(_address(chosen), c_size_t(len(chosen)), chosen.shape[1], experts, limit,
                                          _address(placed), _address(counts)))
    return placed, counts


def offsets(counts: torch.Tensor, padded: int) -> tuple[torch.Tensor, list[int]]:
    """Lays out the arrays of all owners; the owner of an expert is the rank that has it. counts: int64 [ranks,
    experts], rows of each rank for each expert. padded: rows reserved for each rank and expert, or 0 to reserve exactly
    `counts`. Returns the row of the owner's array at which each rank's rows for an expert begin, int64 [ranks,
    experts], and the number of rows of each owner's array."""
    ranks, experts = counts.shape
    first, lengths = torch.empty_like(counts), (c_int64 * ranks)()
    _check(_library().tutti_experts_offsets(_address(counts), ranks, experts, c_uint64(padded), _address(first),
                                            lengths))
    return first, list(lengths)


class Rows:
    """The rows that this rank sends to experts, in memory of all ranks. chosen, placed: as in place(). first: int64
    [experts], the address at which this rank's rows for each expert begin. columns: elements of a row."""

    def __init__(self, chosen: torch.Tensor, placed: torch.Tensor, first: torch.Tensor, columns: int,
                 dtype: torch.dtype) -> None:
        self._keep_alive: Any = chosen, placed, first
        self._rows = _Rows(ctypes.sizeof(_Rows), len(chosen), columns, chosen.shape[1], dtype_numbers()[DTYPES[dtype]],
                           chosen.data_ptr(), placed.data_ptr(), first.data_ptr())

    def scatter(self, tokens: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Copies each token, [tokens, columns], into its rows, times weights, [tokens, choices]; None: without
        weights."""
        _check(_library().tutti_experts_scatter(byref(self._rows), _address(tokens),
                                                None if weights is None else _address(weights)))

    def gather(self, out: torch.Tensor, weights: torch.Tensor | None) -> None:
        """Sets each token of `out`, [tokens, columns], to the sum of its rows, times weights, [tokens, choices], if
        given."""
        _check(_library().tutti_experts_gather(byref(self._rows), _address(out),
                                               None if weights is None else _address(weights)))

    def dot(self, tokens: torch.Tensor, out: torch.Tensor) -> None:
        """Sets out, [tokens, choices], to the dot product of each token and each of its rows: the gradient of the
        weights."""
        _check(_library().tutti_experts_dot(byref(self._rows), _address(tokens), _address(out)))
