"""Divides the parameters into slices: all of them in the order of the model, concatenated, cut every slice_bytes. A
slice is the unit that travels and that an optimizer steps; its number is its priority, the lowest first. Invariant: all
ranks have the same slices, because names, shapes and sizes are the same on all.

Large tensors are cut and the slices of the first layers go first, as in P3 (Jayarajan et al. 2019); small tensors share
a slice, so that a bias is no message of its own."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

import torch
from torch import Tensor

MOST_PIECES = 62                        # in a slice: a piece is a bit of the mask in a header


@dataclass(frozen=True)
class Piece:
    """Elements [begin, end) of the flat parameter, which are at element `at` of the slice. parameter: its number."""
    parameter: int
    begin: int
    end: int
    at: int

    @property
    def where(self) -> slice:
        """The range of its elements in the slice."""
        return slice(self.at, self.at + self.end - self.begin)


@dataclass
class Slice:
    """number: its position among all slices, and its priority. server: the rank that has it. count: its elements."""
    number: int
    dtype: torch.dtype
    server: int = 0
    count: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def cut(parameters: Sequence[Tensor], slice_bytes: int) -> list[Slice]:
    """Returns the slices of all parameters, in order. Each has slice_bytes, rounded down to whole elements. A slice is
    shorter where the dtype changes, at the end, and where it has MOST_PIECES pieces."""
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
    """Assigns each slice, in order, to the server with the fewest bytes so far. So each server has early slices, and
    their bytes differ by at most one slice."""
    load = [0] * servers
    for one in slices:
        one.server = load.index(min(load))
        load[one.server] += one.nbytes


def pack(one: Slice, flat_of: Callable[[int], Tensor | None], into: Tensor) -> int:
    """Copies the pieces of a slice into a flat tensor of its length. flat_of(number) is a parameter's flat values, or
    None for zeros. Returns a mask: bit i is set if piece i had values."""
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
    """Copies the elements of a slice into the parameters, which must be contiguous."""
    for piece in one.pieces:
        parameters[piece.parameter].view(-1)[piece.begin: piece.end] = data[piece.where]
