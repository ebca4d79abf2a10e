"""The tensors that an optimizer without an update rule in the core steps: flat pieces of parameters, or whole
parameters, of which each has one rank as its owner."""
from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch_tutti.zero._core import Piece
    from torch_tutti.zero._model import Manager


class Pieces:
    """This rank's pieces in the core's memory. In stage 0 they are whole parameters, in their shapes; otherwise they
    are flat. parameters: {number: piece}, without empty ones. is_whole: states have the shapes that the optimizer gives
    them, and are whole on each rank that has them."""

    def __init__(self, manager: Manager) -> None:
        self.core, self.managed = manager.core, manager.managed
        self.is_whole = self.core.placement == "whole"
        self.parameters: dict[int, torch.nn.Parameter] = {}
        for number, entry in enumerate(self.managed):
            value = self.core.piece(number).value
            if value.numel():
                self.parameters[number] = torch.nn.Parameter(entry.shaped(value) if self.is_whole else value)

    def begin_step(self, scale: float, piece_of: Callable[[int], Piece]) -> None:
        """Sets the gradients of the pieces to the averages times `scale`; None without a gradient on any rank.
        piece_of: returns the piece of a number, with its averaged gradient."""
        for number, parameter in self.parameters.items():
            piece = piece_of(number)
            gradient = piece.gradient if piece.used else None
            parameter.grad = None
            if gradient is not None:
                parameter.grad = gradient.to(parameter.dtype).mul(scale).as_strided(parameter.shape, parameter.stride())

    def end_step(self) -> None:
        """Writes what the optimizer has computed into the core's pieces. Frees the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None


class WholeParameters(Pieces):
    """Whole parameters in float32 or float64, each on its owner, for an optimizer that looks at whole tensors. In a
    step the ranks send their pieces of gradients to the owners, and get new values. They send their pieces of values,
    too, if parameters are sharded or have 16 bits; otherwise an owner reads its parameters in the core's memory.
    Between steps the parameters have no memory. owner: for each number, the rank in the group that owns the
    parameter."""

    def __init__(self, manager: Manager) -> None:
        self.core, self.managed, self.group = manager.core, manager.managed, manager.group
        self.is_whole = True
        self.rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.owner = balance([parameter.numel() for _, parameter, _ in self.managed], [0] * self.ranks)
        # for each number, how many elements each rank has in its piece
        self.counts = [self.core.counts(number, self.ranks) for number in range(len(self.managed))]
        # the numbers of each unit, in the order of owners
        self.units = [sorted((number for number, entry in enumerate(self.managed) if entry.unit == unit),
                             key=lambda number: self.owner[number]) for unit in range(len(manager.modules))]
        self.parameters = {number: torch.nn.Parameter(torch.empty(parameter.shape, dtype=self._dtype(number),
                                                                  device="cpu"))
                           for number, (_, parameter, _) in enumerate(self.managed) if self.owner[number] == self.rank}
        self._free()

    def _dtype(self, number: int) -> torch.dtype:
        """Returns the type in which a parameter is updated, which is that of the core's pieces."""
        return self.core.piece(number).value.dtype

    def _free(self) -> None:
        """Frees the memory of the parameters, which keep their shapes, and of their gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None
            parameter.untyped_storage().resize_(0)

    def begin_step(self, scale: float, piece_of: Callable[[int], Piece]) -> None:
        """Collects values and gradients on their owners. Collective."""
        for parameter in self.parameters.values():
            parameter.untyped_storage().resize_(parameter.numel() * parameter.itemsize)
        for numbers in self.units:
            pieces = {number: piece_of(number) for number in numbers}
            for number, value in self._values(numbers, [pieces[number].value for number in numbers]).items():
                self.parameters[number].copy_(self.managed[number].shaped(value))
            # `used` is equal on all ranks; an empty piece has no gradient
            used = [number for number in numbers if pieces[number].used]
            gradients = [torch.empty(0, dtype=dtype) if gradient is None else gradient.to(dtype) for number in used
                         for dtype, gradient in [(self.core.sum_dtypes[number], pieces[number].gradient)]]
            for number, value in self._collect(used, gradients).items() if used else ():
                self.parameters[number].grad = self.managed[number].shaped(
                    value.to(self._dtype(number)).mul_(scale))

    def end_step(self) -> None:
        """Returns the new values to the ranks that have the pieces. Collective."""
        for numbers in self.units:
            for number, values in zip(numbers, self._distribute(numbers)):
                self.core.piece(number).value.copy_(values)
        self._free()

    def _values(self, numbers: list[int], pieces: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Returns what _collect() does, for values. Collective."""
        entry = self.managed[numbers[0]]
        if self.core.placement == "sharded" or entry.parameter.dtype.itemsize == 2:
            return self._collect(numbers, pieces)
        self.core.use(entry.unit)
        return {number: self.core.parameter(number) for number in numbers if number in self.parameters}

    def _collect(self, numbers: list[int], pieces: list[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Returns the whole flat tensors of those parameters that this rank owns. numbers: in the order of owners.
        pieces: this rank's, of one dtype. Collective."""
        own = [number for number in numbers if number in self.parameters]
        counts_in = [sum(self.counts[number][rank] for number in own) for rank in range(self.ranks)]
        counts_out = [sum(piece.numel() for number, piece in zip(numbers, pieces) if self.owner[number] == rank)
                      for rank in range(self.ranks)]
        received = torch.empty(sum(counts_in), dtype=pieces[0].dtype)
        dist.all_to_all_single(received, torch.cat(pieces), counts_in, counts_out, self.group)
        # slices lie in the order of ranks, so the pieces of a parameter do
        parts = received.split([self.counts[number][rank] for rank in range(self.ranks) for number in own])
        return {number: torch.cat(parts[index::len(own)]) for index, number in enumerate(own)}

    def _distribute(self, numbers: list[int]) -> list[torch.Tensor]:
        """Returns this rank's flat pieces of the owners' values. numbers: in the order of owners. Collective."""
        own = [number for number in numbers if number in self.parameters]
        parts = [self.managed[number].flatten(self.parameters[number].detach()).split(self.counts[number])
                 for number in own]
        counts_in = [sum(self.counts[number][self.rank] for number in numbers if self.owner[number] == rank)
                     for rank in range(self.ranks)]
        counts_out = [sum(self.counts[number][rank] for number in own) for rank in range(self.ranks)]
        dtype = self._dtype(numbers[0])
        received = torch.empty(sum(counts_in), dtype=dtype)
        sent = torch.cat([torch.empty(0, dtype=dtype), *(part[rank] for rank in range(self.ranks) for part in parts)])
        dist.all_to_all_single(received, sent, counts_in, counts_out, self.group)
        return list(received.split([self.counts[number][self.rank] for number in numbers]))


def balance(sizes: list[int], totals: list[int]) -> list[int]:
    """Returns a rank for each of the sizes, so that the sums of all ranks are about equal: the largest first, each to
    the rank with the least. totals: the sum of each rank so far, to which this adds."""
    found = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        found[index] = totals.index(min(totals))
        totals[found[index]] += sizes[index]
    return found
