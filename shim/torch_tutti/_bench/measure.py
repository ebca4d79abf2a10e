"""Measures for `tutti bench` on one rank: backends take turns, and the times of all ranks are combined.

All ranks run the same lines in the same order. A turn is a few iterations of one backend; then the next backend has
its turn, and the first one changes, so that a disturbance of the machine affects all of them. Before each iteration a
rank writes its buffer, so that no peer's data is in a cache where a program would not have it, and the ranks meet in a
barrier of the measured backend. Messages about the measurement go through a group of their own.
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import math
import statistics
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist

from torch_tutti._bench.collectives import TABLE, Collective, Shape, buffers, check
from torch_tutti._bench.options import COLLECTIVES, sizes

TURNS = 5                       # of each backend for one size
AHEAD_NS = 1_000_000            # ranks agree to begin so far ahead; a message to all ranks takes less
REFERENCES_FROM = 64 << 10      # bytes; below, a memcpy from Python is mostly Python
Row = dict[str, Any]


@dataclass(frozen=True)
class Ranks:
    """The ranks that measure. control: a gloo group of all ranks. backends: the groups to measure, by name."""
    rank: int
    size: int
    control: dist.ProcessGroup
    backends: dict[str, dist.ProcessGroup]
    device: str = "cpu"

    def begin_together(self) -> None:
        """Returns on all ranks of a host at the same time, without sleeping, for any backend. Hosts with other clocks
        return after AHEAD_NS at the latest."""
        moment = torch.tensor([time.monotonic_ns() + AHEAD_NS])
        dist.broadcast(moment, group_src=0, group=self.control)
        moment_ns = min(int(moment), time.monotonic_ns() + AHEAD_NS)
        while time.monotonic_ns() < moment_ns:
            pass

    def settle(self) -> Callable[[], None] | None:
        """Returns the function that waits for the device; None for the CPU."""
        return torch.cuda.synchronize if self.device.startswith("cuda") else None


@dataclass
class Contender:
    """One backend at one size and placement. times: microseconds of each iteration. wrong: elements with wrong results.
    refused: the error of a backend that does not support the operation."""
    name: str
    group: dist.ProcessGroup
    call: Callable[[], object]
    times: list[float]
    wrong: int | None = None
    refused: str = ""


# ---- what is measured ----
def plan(options: argparse.Namespace, ranks: int) -> Iterator[tuple[Collective, Shape]]:
    """Yields each operation and shape that the options ask for. measure() sets rank and device of the shapes."""
    for name in COLLECTIVES if options.what == "all" else [options.what]:
        row = TABLE[name]
        roots = list(range(ranks)) if options.root is None else [options.root]
        for kind in options.datatype:
            for operation in options.op if row.reduces else ["none"]:
                for root in roots if row.rooted else [-1]:
                    yield from _shapes(options, row, Shape(0, ranks, 0, kind, operation, root, "cpu"))


def _shapes(options: argparse.Namespace, row: Collective, like: Shape) -> Iterator[tuple[Collective, Shape]]:
    """Yields a shape for each size. Sizes with the same number of elements (at least one) are measured once."""
    blocks = like.ranks if row.split else 1
    before = None
    for size in sizes(options.minbytes, options.maxbytes, options.stepbytes, options.stepfactor):
        count = max(1, size // like.dtype.itemsize // blocks)
        if count != before:
            yield row, Shape(like.rank, like.ranks, count, like.type, like.operation, like.root, like.device)
        before = count


def total_bytes(collective: Collective, shape: Shape) -> int:
    """The size of an operation as the table reports it: bytes of all blocks."""
    return shape.count * (shape.ranks if collective.split else 1) * shape.dtype.itemsize


# ---- the clock ----
def turn(call: Callable[[], object], dirty: Callable[[], object], meet: Callable[[], object], iterations: int,
         aggregate: int, settle: Callable[[], None] | None) -> list[float]:
    """One turn: returns the microseconds of one operation in each iteration on this rank. One more iteration runs first
    and is dropped, because caches are as the backend before has left them. call: the operation. dirty: writes the
    buffer. meet: a barrier. aggregate: calls in one iteration. settle: waits for the device."""
    times = []
    for _ in range(iterations + 1):
        dirty()
        if settle:
            settle()
        meet()
        begin = time.perf_counter_ns()
        for _ in range(aggregate):
            call()
        if settle:
            settle()
        times.append((time.perf_counter_ns() - begin) / aggregate / 1e3)
    return times[1:]


def turns(iterations: int) -> list[int]:
    """Divides `iterations` among at most TURNS turns: the iterations of each turn."""
    return [part for index in range(TURNS) if (part := iterations // TURNS + (index < iterations % TURNS))]


Reference = tuple[Callable[[], object], Callable[[], object]]      # (timed call, call that touches its buffers before)


def memcpy(size: int, device: str) -> Reference:
    """Returns (a copy of `size` bytes, a function that writes both buffers, the source last, so that caches hold
    them)."""
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    if device == "cpu":
        copy = partial(ctypes.memmove, target.data_ptr(), source.data_ptr())
    else:
        copy = lambda length: target[:length].copy_(source[:length])

    def touch() -> None:
        target.fill_(1)
        source.fill_(1)
        copy(1)                                         # wakes the copy path, which has been idle as well
    return partial(copy, size), touch


def update(size: int, device: str) -> Reference:
    """Returns (a pass that reads and writes `size` bytes in place, a function that writes them): the least time of an
    operation that moves each byte once."""
    values = torch.zeros(size // 4, dtype=torch.float32, device=device)
    first = values[:1]

    def touch() -> None:
        values.fill_(1)
        first.add_(1)
    return partial(values.add_, 1), touch


# ---- the results of all ranks ----
def _of_all_ranks(ranks: Ranks, times: list[float], average: int) -> list[float]:
    """Combines the times of all ranks, by iteration. average is the option --average: 0 rank 0's times, 1 the mean, 2
    the least, 3 the most."""
    together = torch.tensor(times, dtype=torch.float64)
    if average == 0:
        dist.broadcast(together, group_src=0, group=ranks.control)
    else:
        operation = {1: dist.ReduceOp.SUM, 2: dist.ReduceOp.MIN, 3: dist.ReduceOp.MAX}[average]
        dist.all_reduce(together, op=operation, group=ranks.control)
    return (together / ranks.size if average == 1 else together).tolist()


def percentile(times: list[float], percent: float) -> float:
    """The percentile of times: the least time that `percent` per cent of the times do not exceed."""
    return sorted(times)[max(0, math.ceil(len(times) * percent / 100) - 1)]


def _cell(collective: Collective, shape: Shape, contender: Contender) -> Row:
    """A cell of the table: times in microseconds, bandwidths in GB/s."""
    if contender.refused:
        return {"refused": contender.refused}
    mean = statistics.fmean(contender.times)
    bandwidth = total_bytes(collective, shape) / mean / 1e3 if mean else 0.0
    return {"time": mean, "alg_bw": bandwidth, "bus_bw": bandwidth * collective.bus_factor(shape.ranks),
            "nwrong": contender.wrong, "median": statistics.median(contender.times),
            "p99": percentile(contender.times, 99), "best": min(contender.times), "iterations": len(contender.times)}


def _first_call(ranks: Ranks, contender: Contender, attempt: Callable[[], int]) -> None:
    """Makes the first call. An error on all ranks means that the backend does not support the operation. An error on
    some ranks only, or an error of communication, is raised and ends the run."""
    try:
        contender.wrong = attempt()
    except dist.DistBackendError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        contender.refused = " ".join(str(error).split())[:300] or type(error).__name__
    flags = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks.size)]
    dist.all_gather(flags, torch.tensor([int(bool(contender.refused))]), group=ranks.control)
    refusing = [rank for rank, flag in enumerate(flags) if flag]
    if refusing and len(refusing) < ranks.size:
        raise RuntimeError(f"{contender.name} failed on rank {', '.join(map(str, refusing))} but not on the others"
                           + (f": {contender.refused}" if contender.refused else ""))


def _check_results(ranks: Ranks, contender: Contender, checks: int, attempt: Callable[[int], int]) -> None:
    """Sets `wrong`: the wrong elements of all ranks in `checks` checked iterations. The first one is also the first
    call."""
    _first_call(ranks, contender, partial(attempt, 0))
    if contender.refused:
        return
    wrong = contender.wrong + sum(attempt(repetition) for repetition in range(1, checks))
    total = torch.tensor([wrong])
    dist.all_reduce(total, group=ranks.control)
    contender.wrong = int(total) if checks else None


# ---- one size ----
def _placement(options: argparse.Namespace, ranks: Ranks, collective: Collective, shape: Shape,
               in_place: bool) -> tuple[list[Contender], dict[str, float]]:
    """Measures all backends in turns, and among them a memcpy of the same bytes and the limit of memory. Returns the
    contenders, and the medians of "memcpy" and "limit" in microseconds."""
    send, receive = buffers(collective, shape, in_place)
    owned = send if collective.sends(shape) else receive
    dirty = partial(owned.fill_, 1)
    size = total_bytes(collective, shape)
    contenders = [Contender(name, group, collective.bind(shape, send, receive, group), [])
                  for name, group in ranks.backends.items()]
    for contender in contenders:
        _check_results(ranks, contender, options.check, partial(check, collective, shape, send, receive,
                                                                contender.call))
    able = [contender for contender in contenders if not contender.refused]
    settle = ranks.settle()
    for contender in able:
        if options.warmup_iters:
            turn(contender.call, dirty, partial(dist.barrier, group=contender.group), options.warmup_iters - 1,
                 options.agg_iters, settle)
    references: dict[str, Reference] = {}
    if able and size >= REFERENCES_FROM:
        references = {"memcpy": memcpy(size, ranks.device), "update": update(size, ranks.device)}
    taken: dict[str, list[float]] = {name: [] for name in references}
    for index, iterations in enumerate(turns(options.iters)):
        first = index % len(able) if able else 0
        for contender in able[first:] + able[:first]:
            contender.times += turn(contender.call, dirty, partial(dist.barrier, group=contender.group), iterations,
                                    options.agg_iters, settle)
        for name, (reference, touch) in references.items():
            taken[name] += turn(reference, ranks.begin_together, touch, iterations, 1, settle)
    for contender in able:
        contender.times = _of_all_ranks(ranks, contender.times, options.average)
    medians = {name: statistics.median(_of_all_ranks(ranks, times, options.average)) for name, times in taken.items()}
    if "update" in medians:
        blocks = shape.count * (shape.ranks if collective.split else 1)
        medians["limit"] = medians.pop("update") * collective.touched(shape, in_place) / (2 * blocks)
    return contenders, medians


def measure(options: argparse.Namespace, ranks: Ranks, collective: Collective, like: Shape) -> list[Row]:
    """Measures one operation and size. Returns a row for each backend: the columns of the table and more. All ranks
    return the same."""
    shape = Shape(ranks.rank, like.ranks, like.count, like.type, like.operation, like.root, ranks.device,
                  options.shared)
    rows: list[Row] = [{"collective": collective.name, "size": total_bytes(collective, shape), "count": shape.count,
                        "type": shape.type, "redop": shape.operation, "root": shape.root, "backend": name,
                        "out_of_place": None, "in_place": None, "memcpy": None} for name in ranks.backends]
    gc.disable()
    try:
        for placement in collective.placements:
            contenders, medians = _placement(options, ranks, collective, shape, placement == "in_place")
            cells = [_cell(collective, shape, contender) for contender in contenders]
            for row, cell in zip(rows, cells):
                base = cells[0].get("median")
                cell["ratio"] = cell["median"] / base if base and "median" in cell else None
                cell["limit"] = medians.get("limit")
                row[placement], row["memcpy"] = cell, row["memcpy"] or medians.get("memcpy")
    finally:
        gc.enable()
    return rows
