"""Divides the parameters into slices: all parameters in the order of the model are concatenated, and cut every
slice_bytes. A slice is the unit that travels and that an optimizer steps. Its number is its priority, the lowest first.
Invariant: all ranks have the same slices, because names, shapes and sizes are equal on all.

Large tensors are cut and the slices of the first layers go first, as in P3 (Jayarajan et al. 2019). Small tensors share
a slice, so that a bias is not a message of its own."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

import torch
from torch import Tensor

MOST_PIECES = 62                        # in a slice: a piece is a bit of the mask in a header


@dataclass(frozen=True)
class Piece:
    """Elements [begin, end) of a flat parameter, which begin at element `at` of the slice. parameter: its number."""
    parameter: int
    begin: int
    end: int
    at: int

    @property
    def range(self) -> slice:
        """The elements of the slice that the piece has."""
        return slice(self.at, self.at + self.end - self.begin)


@dataclass
class Slice:
    """A slice. number: its position among all slices, and its priority. server: the rank that has it. count: its
    elements."""
    number: int
    dtype: torch.dtype
    server: int = 0
    count: int = 0
    pieces: list[Piece] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def cut(parameters: Sequence[Tensor], slice_bytes: int, whole_parameters: bool = False) -> list[Slice]:
    """Returns the slices of all parameters, in order. Each has slice_bytes, rounded down to whole elements. A slice is
    shorter where the dtype changes, at the end, and if it has MOST_PIECES pieces. whole_parameters: cuts no parameter,
    so slices have fewer bytes, or one parameter of more bytes."""
    slices: list[Slice] = []
    for number, parameter in enumerate(parameters):
        begin, limit = 0, max(1, slice_bytes // parameter.dtype.itemsize)
        while begin < parameter.numel():
            current = slices[-1] if slices else None
            is_full = current is not None and current.count + (parameter.numel() if whole_parameters else 1) > limit
            if current is None or current.dtype != parameter.dtype or is_full or len(current.pieces) == MOST_PIECES:
                current = Slice(len(slices), parameter.dtype)
                slices.append(current)
            end = parameter.numel() if whole_parameters else min(parameter.numel(), begin + limit - current.count)
            current.pieces.append(Piece(number, begin, end, current.count))
            current.count += end - begin
            begin = end
    return slices


def spread(slices: Sequence[Slice], servers: int) -> None:
    """Assigns each slice, in order, to the server with the fewest bytes so far. So the first slices are spread over the
    servers, and the bytes of two servers differ by at most one slice."""
    bytes_of_server = [0] * servers
    for slice_ in slices:
        slice_.server = bytes_of_server.index(min(bytes_of_server))
        bytes_of_server[slice_.server] += slice_.nbytes


def pack(slice_: Slice, flat_of: Callable[[int], Tensor | None], data: Tensor) -> int:
    """Copies parameters' values into `data`, the flat data of a slice. flat_of(number): a parameter's flat values, or
    None for zeros. Returns a mask: bit i is set if piece i had values."""
    mask = 0
    for bit, piece in enumerate(slice_.pieces):
        flat = flat_of(piece.parameter)
        if flat is None:
            data[piece.range] = 0
        else:
            data[piece.range] = flat[piece.begin: piece.end]
            mask |= 1 << bit
    return mask


@torch.no_grad()
def unpack(slice_: Slice, data: Tensor, parameters: Sequence[Tensor]) -> None:
    """Copies the data of a slice into the parameters, which must be contiguous."""
    for piece in slice_.pieces:
        parameters[piece.parameter].view(-1)[piece.begin: piece.end] = data[piece.range]
