"""The collectives of `tutti bench`: a row of a table for each, the buffers it works on, and the expected results.

A row tells which ranks send and receive, and whether their buffers have one block or a block for each rank. In place,
the smaller buffer is this rank's block of the larger one. Contents are small integers, chosen so that each result is
exact in each type and in any order of computation. So a result is either right or wrong, except for averages over a
number of ranks that is not a power of two.
"""
from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from torch_tutti._bench.options import TYPES
from torch_tutti._memory import shared_tensors

# The period of the contents, in elements: prime, so that blocks of different positions and ranks differ.
PERIOD = 8191
# Fills receiving buffers before the call; never a right result.
POISON = 127
# The most ranks that add a number other than 0 to an element, or multiply it by a number other than 1.
SUMMANDS, FACTORS = 32, 6
# The largest content for operations without sums and products: exact in each type, and less than POISON.
REFERENCE_LIMIT = 120


@dataclass(frozen=True)
class Shape:
    """One operation on one rank. count: elements of a block (a buffer has one block, or one for each rank). type: a key
    of TYPES. operation: the reduction, "none" for collectives that do not reduce. root: -1 for collectives without a
    root. shared: the tensors are in tutti's shared memory."""
    rank: int
    ranks: int
    count: int
    type: str
    operation: str
    root: int
    device: str
    shared: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The type of the tensors."""
        return getattr(torch, TYPES[self.type])


@dataclass(frozen=True)
class Collective:
    """A row of the table. placements: "out_of_place", "in_place" (both buffers share memory) or both. bind(shape, send,
    receive, group) returns the call as a function without arguments. expected(shape, source_of) returns the right
    result of the rank in `shape`, where source_of(rank) is a rank's sending buffer. bus_factor(ranks): the bus
    bandwidth divided by the algorithm bandwidth, as nccl-tests define it. send_blocks, receive_blocks: the buffer has a
    block for each rank. rooted: has a root."""
    name: str
    placements: tuple[str, ...]
    bind: Callable[[Shape, Tensor, Tensor, dist.ProcessGroup], Callable[[], object]]
    expected: Callable[[Shape, Callable[[int], Tensor]], Tensor]
    bus_factor: Callable[[int], float] = lambda ranks: 1.0
    send_blocks: bool = False
    receive_blocks: bool = False
    reduces: bool = False
    rooted: bool = False
    only_root_sends: bool = False
    only_root_receives: bool = False

    @property
    def split(self) -> bool:
        """Whether the reported size is the size of all blocks together."""
        return self.send_blocks or self.receive_blocks

    def sends(self, shape: Shape) -> bool:
        """Returns whether the rank of `shape` sends."""
        return not self.only_root_sends or shape.rank == shape.root

    def receives(self, shape: Shape) -> bool:
        """Returns whether the rank of `shape` gets a result."""
        return not self.only_root_receives or shape.rank == shape.root

    def touched(self, shape: Shape, in_place: bool) -> float:
        """Returns the elements that a rank must read or write in any algorithm, as the mean over all ranks: each sent
        element is read once and each received one written once, except elements that are in place already."""
        send = shape.count * (shape.ranks if self.send_blocks else 1)
        receive = shape.count * (shape.ranks if self.receive_blocks else 1)
        elements = (send / (shape.ranks if self.only_root_sends else 1)
                    + receive / (shape.ranks if self.only_root_receives else 1))
        if not in_place or self.reduces:
            return elements
        if not self.rooted:
            return elements - shape.count               # all_gather: every rank has its own block
        return elements - shape.count / shape.ranks * (2 if self.split else 1)


# ---- contents ----
def source(shape: Shape, rank: int, length: int, repetition: int) -> Tensor:
    """Returns the sending buffer of `rank` in a repetition, int16 [length]. Every rank can compute the buffers of all
    others."""
    generator = torch.Generator().manual_seed(1000 * repetition + 7)
    value_limit = {"sum": 4, "avg": 4, "prod": 2}.get(shape.operation, REFERENCE_LIMIT + 1)
    period = torch.randint(0, value_limit, (PERIOD,), dtype=torch.int16, generator=generator)
    offset = 131 * rank % PERIOD
    values = period.repeat((length + offset) // PERIOD + 1)[offset:offset + length]
    most_ranks = {"sum": SUMMANDS, "avg": SUMMANDS, "prod": FACTORS}.get(shape.operation, shape.ranks)
    stride = -(-shape.ranks // most_ranks)
    if stride > 1:                                      # different ranks contribute to different elements
        values *= (torch.arange(length) + rank) % stride == 0
    return values + 1 if shape.operation == "prod" else values


def _reduced(shape: Shape, source_of: Callable[[int], Tensor]) -> Tensor:
    """Returns the expected result of a reduction of all ranks' buffers. source_of: returns the sending buffer of a
    rank."""
    total = source_of(0)
    for rank in range(1, shape.ranks):
        other = source_of(rank)
        if shape.operation in ("sum", "avg"):
            total = total + other
        elif shape.operation == "prod":
            total = total * other
        else:
            total = (torch.maximum if shape.operation == "max" else torch.minimum)(total, other)
    if shape.operation != "avg":
        return total
    return total.double() / shape.ranks if shape.dtype.is_floating_point else total // shape.ranks


def _gathered(shape: Shape, source_of: Callable[[int], Tensor]) -> Tensor:
    """Returns the buffers of all ranks, one after the other. source_of: returns the sending buffer of a rank."""
    return torch.cat([source_of(rank) for rank in range(shape.ranks)])


def _own(shape: Shape, blocks: Tensor) -> Tensor:
    """Returns this rank's block of a buffer with a block for each rank."""
    return blocks.narrow(0, shape.rank * shape.count, shape.count)


def count_wrong(shape: Shape, receive: Tensor, expected: Tensor) -> int:
    """Returns the number of elements of `receive` that differ from the expected ones. Floating-point averages over a
    number of ranks that is not a power of two have a tolerance of 2 eps."""
    result = receive.cpu()
    if shape.operation == "avg" and shape.dtype.is_floating_point and shape.ranks & (shape.ranks - 1):
        tolerance = 2 * torch.finfo(shape.dtype).eps * expected.abs()
        return int(((result.double() - expected).abs() <= tolerance).logical_not().sum())
    return int((result != expected.to(shape.dtype)).sum())


# ---- the calls: each function returns a call that is ready to be made, see Collective.bind ----
def _operation(shape: Shape) -> dist.ReduceOp.RedOpType:
    """Returns torch's name of the reduction."""
    other_names = {"prod": "PRODUCT"}
    return getattr(dist.ReduceOp, other_names.get(shape.operation, shape.operation.upper()))


def _blocks(shape: Shape, buffer: Tensor) -> list[Tensor] | None:
    """Returns the blocks of a root's buffer as a list, or None on other ranks."""
    return list(buffer.split(shape.count)) if shape.rank == shape.root else None


def _all_reduce(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of an all-reduce, in place in `receive`."""
    return partial(dist.all_reduce, receive, op=_operation(shape), group=group)


def _all_gather(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of an all-gather."""
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor      # the first since torch 2.13
    return partial(call, receive, send, group=group)


def _reduce_scatter(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of a reduce-scatter."""
    call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return partial(call, receive, send, op=_operation(shape), group=group)


def _broadcast(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of a broadcast, in place in `receive`."""
    return partial(dist.broadcast, receive, group_src=shape.root, group=group)


def _reduce(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of a reduce, in place in `receive`."""
    return partial(dist.reduce, receive, group_dst=shape.root, op=_operation(shape), group=group)


def _alltoall(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of an all-to-all."""
    return partial(dist.all_to_all_single, receive, send, group=group)


def _gather(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of a gather."""
    return partial(dist.gather, send, _blocks(shape, receive), group_dst=shape.root, group=group)


def _scatter(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the call of a scatter."""
    return partial(dist.scatter, receive, _blocks(shape, send), group_src=shape.root, group=group)


def _sendrecv(shape: Shape, send: Tensor, receive: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Returns the exchange in a ring: each rank sends to the next rank and receives from the previous one."""
    target_rank, source_rank = (shape.rank + 1) % shape.ranks, (shape.rank - 1) % shape.ranks

    def exchange() -> None:
        """Sends to the next rank and receives from the previous one, and waits for both."""
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, send, group=group, group_peer=target_rank),
                                        dist.P2POp(dist.irecv, receive, group=group, group_peer=source_rank)])
        for work in works:
            work.wait()
    return exchange


# ---- the table ----
BOTH, OUT, IN = ("out_of_place", "in_place"), ("out_of_place",), ("in_place",)


def _part(ranks: int) -> float:
    """Returns the fraction of `ranks` blocks that are not the rank's own."""
    return (ranks - 1) / ranks


TABLE = {row.name: row for row in (
    Collective("all_reduce", IN, _all_reduce, _reduced, lambda ranks: 2 * _part(ranks), reduces=True),
    Collective("all_gather", BOTH, _all_gather, _gathered, _part, receive_blocks=True),
    Collective("reduce_scatter", BOTH, _reduce_scatter,
               lambda shape, source_of: _own(shape, _reduced(shape, source_of)), _part, send_blocks=True, reduces=True),
    Collective("broadcast", IN, _broadcast, lambda shape, source_of: source_of(shape.root), rooted=True,
               only_root_sends=True),
    Collective("reduce", IN, _reduce, _reduced, rooted=True, reduces=True, only_root_receives=True),
    Collective("alltoall", OUT, _alltoall,
               lambda shape, source_of: torch.cat([_own(shape, source_of(rank)) for rank in range(shape.ranks)]), _part,
               send_blocks=True, receive_blocks=True),
    Collective("gather", BOTH, _gather, _gathered, _part, receive_blocks=True, rooted=True, only_root_receives=True),
    Collective("scatter", BOTH, _scatter, lambda shape, source_of: _own(shape, source_of(shape.root)), _part,
               send_blocks=True, rooted=True, only_root_sends=True),
    Collective("sendrecv", OUT, _sendrecv, lambda shape, source_of: source_of((shape.rank - 1) % shape.ranks)),
)}


def buffers(collective: Collective, shape: Shape, in_place: bool) -> tuple[Tensor, Tensor]:
    """Returns (send, receive), newly allocated on each rank, even if it only sends or only receives. in_place: they
    share memory; the smaller buffer is this rank's block of the larger one."""
    def allocate(has_blocks: bool) -> Tensor:
        """Returns a buffer of one block, or of a block for each rank."""
        with shared_tensors() if shape.shared else nullcontext():
            return torch.full((shape.count * (shape.ranks if has_blocks else 1),), 1, dtype=shape.dtype,
                              device=shape.device)

    if not in_place:
        return allocate(collective.send_blocks), allocate(collective.receive_blocks)
    larger = allocate(collective.split)
    if collective.send_blocks == collective.receive_blocks:
        return larger, larger
    return (larger, _own(shape, larger)) if collective.send_blocks else (_own(shape, larger), larger)


def check(collective: Collective, shape: Shape, send: Tensor, receive: Tensor, call: Callable[[], object],
          repetition: int) -> int:
    """Makes the call on the contents of this repetition. Returns how many elements of this rank's result are wrong."""
    length = send.numel()
    receive.fill_(POISON)
    if collective.sends(shape):
        send.copy_(source(shape, shape.rank, length, repetition))
    call()
    if not collective.receives(shape):
        return 0
    return count_wrong(shape, receive, collective.expected(shape, lambda rank: source(shape, rank, length, repetition)))
