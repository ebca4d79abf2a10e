"""Parameters as slices: all of them in the order of the model, one behind the other, cut every so many bytes. A slice
is what travels and what an optimizer steps; its number is its priority, the lowest first. Invariant: all ranks cut
alike, because names, shapes and sizes are the same on all.

Large tensors are cut and the slices of the first layers go first, as in P3 (Jayarajan et al. 2019); small tensors share
a slice, so that a bias is no message of its own.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

import torch
from torch import Tensor

MOST_PIECES = 62                        # of a slice: bits of a mask in a header's word


@dataclass(frozen=True)
class Piece:
    """Elements begin to end of a parameter, counted flat, which lie at `at` in their slice."""
    parameter: int
    begin: int
    end: int
    at: int

    @property
    def where(self) -> slice:
        """Its elements in the slice."""
        return slice(self.at, self.at + self.end - self.begin)


@dataclass
class Slice:
    """number: its place among all, and its priority. server: whose it is. count: its elements."""
    number: int
    dtype: torch.dtype
    server: int = 0
    count: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def cut(parameters: Sequence[Tensor], slice_bytes: int) -> list[Slice]:
    """The slices of all parameters, in their order. Each has slice_bytes, rounded down to an element, but where the
    dtype changes, at the end, and where MOST_PIECES parameters share it."""
    slices: list[Slice] = []
    for number, parameter in enumerate(parameters):
        begin, limit = 0, max(1, slice_bytes // parameter.dtype.itemsize)
        while begin < parameter.numel():
            last = slices[-1] if slices else None
            if last is None or last.dtype != parameter.dtype or last.count == limit or len(last.pieces) == MOST_PIECES:
                last = Slice(len(slices), parameter.dtype)
                slices.append(last)
            end = min(parameter.numel(), begin + limit - last.count)
            last.pieces.append(Piece(number, begin, end, last.count))
            last.count += end - begin
            begin = end
    return slices


def spread(slices: Sequence[Slice], servers: int) -> None:
    """Gives each slice, in order, to the server that has the fewest bytes by then; so each server has early ones, and
    no two differ by more than a slice."""
    load = [0] * servers
    for one in slices:
        one.server = load.index(min(load))
        load[one.server] += one.nbytes


def pack(one: Slice, flat_of: Callable[[int], Tensor | None], into: Tensor) -> int:
    """Copies what flat_of gives for each parameter; zeros for None. Returns a mask of the pieces that were there."""
    mask = 0
    for bit, piece in enumerate(one.pieces):
        flat = flat_of(piece.parameter)
        if flat is None:
            into[piece.where] = 0
        else:
            into[piece.where] = flat[piece.begin: piece.end]
            mask |= 1 << bit
    return mask


@torch.no_grad()
def unpack(one: Slice, data: Tensor, parameters: Sequence[Tensor]) -> None:
    """Copies a slice into the parameters, which are contiguous."""
    for piece in one.pieces:
        parameters[piece.parameter].view(-1)[piece.begin: piece.end] = data[piece.where]
