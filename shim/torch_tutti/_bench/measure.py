"""Measures for `tutti bench` on one rank: backends take turns, and the times of all ranks are combined.

All ranks run the same lines in the same order. A turn is a few iterations of one backend. Backends take turns, and
another one begins each round of turns, so that a disturbance of the machine affects all of them. Before each iteration
a rank writes its buffer, so that no peer's data is in a cache where a program would not have it, and the ranks meet in
a barrier of the measured backend. Messages about the measurement go through a group of their own.
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

TURNS = 5                       # the most turns of each backend for one size
AHEAD_NS = 1_000_000            # from rank 0's message to the common begin that it sets; the message takes less
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
        """Waits until a moment that is the same on all ranks of a host, without sleeping, for any backend. Collective.
        On hosts with other clocks it waits for AHEAD_NS at most."""
        begin = torch.tensor([time.monotonic_ns() + AHEAD_NS])
        dist.broadcast(begin, group_src=0, group=self.control)
        begin_ns = min(int(begin), time.monotonic_ns() + AHEAD_NS)
        while time.monotonic_ns() < begin_ns:
            pass

    def synchronizer(self) -> Callable[[], None] | None:
        """Returns the function that waits for the device; None for the CPU."""
        return torch.cuda.synchronize if self.device.startswith("cuda") else None


@dataclass
class Contender:
    """A backend at one size and placement. times: microseconds of each iteration. wrong: the number of wrong elements,
    None before or without a check. refused: the error of a backend that does not support the operation, else ""."""
    name: str
    group: dist.ProcessGroup
    call: Callable[[], object]
    times: list[float]
    wrong: int | None = None
    refused: str = ""


# ---- what is measured ----
def plan(options: argparse.Namespace, ranks: int) -> Iterator[tuple[Collective, Shape]]:
    """Yields each collective and shape that the options ask for. measure() sets rank and device of the shapes."""
    for name in COLLECTIVES if options.what == "all" else [options.what]:
        collective = TABLE[name]
        roots = list(range(ranks)) if options.root is None else [options.root]
        for type_name in options.datatype:
            for operation in options.op if collective.reduces else ["none"]:
                for root in roots if collective.rooted else [-1]:
                    yield from _shapes(options, collective, Shape(0, ranks, 0, type_name, operation, root, "cpu"))


def _shapes(options: argparse.Namespace, collective: Collective, template: Shape) -> Iterator[tuple[Collective, Shape]]:
    """Yields the collective and a shape for each size. Sizes with the same number of elements (at least one) are
    measured once. template: the shape without its count."""
    blocks = template.ranks if collective.split else 1
    last_count = None
    for size in sizes(options.minbytes, options.maxbytes, options.stepbytes, options.stepfactor):
        count = max(1, size // template.dtype.itemsize // blocks)
        if count != last_count:
            yield collective, Shape(template.rank, template.ranks, count, template.type, template.operation,
                                    template.root, template.device)
        last_count = count


def total_bytes(collective: Collective, shape: Shape) -> int:
    """Returns the size of an operation as the table reports it: the bytes of all blocks."""
    return shape.count * (shape.ranks if collective.split else 1) * shape.dtype.itemsize


# ---- the clock ----
def turn(call: Callable[[], object], dirty: Callable[[], object], barrier: Callable[[], object], iterations: int,
         aggregate: int, synchronize: Callable[[], None] | None) -> list[float]:
    """Runs one turn on this rank. Returns the microseconds of one call in each iteration. One more iteration runs first
    and is dropped, because caches are as the backend before has left them. call: the operation. dirty: writes the
    buffer. barrier: of all ranks. aggregate: calls in one iteration. synchronize: waits for the device, or None."""
    times = []
    for _ in range(iterations + 1):
        dirty()
        if synchronize:
            synchronize()
        barrier()
        begin_ns = time.perf_counter_ns()
        for _ in range(aggregate):
            call()
        if synchronize:
            synchronize()
        times.append((time.perf_counter_ns() - begin_ns) / aggregate / 1e3)
    return times[1:]


def turns(iterations: int) -> list[int]:
    """Divides `iterations` among at most TURNS turns. Returns the number of iterations of each turn, above 0."""
    return [share for index in range(TURNS) if (share := iterations // TURNS + (index < iterations % TURNS))]


# (timed call, call that touches its buffers before)
Reference = tuple[Callable[[], object], Callable[[], object]]


def memcpy(size: int, device: str) -> Reference:
    """Returns (a function that copies `size` bytes, a function that writes both buffers before it, the source last, so
    that caches hold them)."""
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    if device == "cpu":
        copy = partial(ctypes.memmove, target.data_ptr(), source.data_ptr())
    else:
        copy = lambda length: target[:length].copy_(source[:length])

    def touch() -> None:
        """Writes both buffers, the source last."""
        target.fill_(1)
        source.fill_(1)
        # a backend was measured before: a short copy brings the code of the timed copy back into the caches
        copy(1)
    return partial(copy, size), touch


def update(size: int, device: str) -> Reference:
    """Returns (a function that reads and writes `size` bytes in place by add_, a function that writes them before it).
    An operation that reads and writes each byte once cannot take less time than this add_."""
    values = torch.zeros(size // 4, dtype=torch.float32, device=device)
    first_number = values[:1]

    def touch() -> None:
        """Writes the buffer."""
        values.fill_(1)
        # a backend was measured before: a short add_ brings the code of the timed add_ back into the caches
        first_number.add_(1)
    return partial(values.add_, 1), touch


# ---- the results of all ranks ----
def _of_all_ranks(ranks: Ranks, times: list[float], average: int) -> list[float]:
    """Returns the times of all ranks, combined by iteration. Collective. average: the option --average: 0: rank 0's
    times; 1: the mean; 2: the least; 3: the greatest."""
    combined = torch.tensor(times, dtype=torch.float64)
    if average == 0:
        dist.broadcast(combined, group_src=0, group=ranks.control)
    else:
        operation = {1: dist.ReduceOp.SUM, 2: dist.ReduceOp.MIN, 3: dist.ReduceOp.MAX}[average]
        dist.all_reduce(combined, op=operation, group=ranks.control)
    return (combined / ranks.size if average == 1 else combined).tolist()


def percentile(times: list[float], percent: float) -> float:
    """Returns the least of the times that at least `percent` per cent of the times do not exceed."""
    return sorted(times)[max(0, math.ceil(len(times) * percent / 100) - 1)]


def _cell(collective: Collective, shape: Shape, contender: Contender) -> Row:
    """Returns a cell of the table: times in microseconds, bandwidths in GB/s; or the error if the backend refused."""
    if contender.refused:
        return {"refused": contender.refused}
    mean = statistics.fmean(contender.times)
    bandwidth = total_bytes(collective, shape) / mean / 1e3 if mean else 0.0
    return {"time": mean, "alg_bw": bandwidth, "bus_bw": bandwidth * collective.bus_factor(shape.ranks),
            "nwrong": contender.wrong, "median": statistics.median(contender.times),
            "p99": percentile(contender.times, 99), "best": min(contender.times), "iterations": len(contender.times)}


def _first_call(ranks: Ranks, contender: Contender, attempt: Callable[[], int]) -> None:
    """Makes the first call of a backend, and sets `wrong` or `refused`. Collective. An error on all ranks means that
    the backend does not support the operation. An error on some ranks only, or an error of communication, is raised and
    ends the run. attempt: makes the call and returns the number of wrong elements."""
    try:
        contender.wrong = attempt()
    except dist.DistBackendError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        contender.refused = " ".join(str(error).split())[:300] or type(error).__name__
    flags = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks.size)]
    dist.all_gather(flags, torch.tensor([int(bool(contender.refused))]), group=ranks.control)
    failed_ranks = [rank for rank, flag in enumerate(flags) if flag]
    if failed_ranks and len(failed_ranks) < ranks.size:
        raise RuntimeError(f"{contender.name} failed on rank {', '.join(map(str, failed_ranks))} but not on the others"
                           + (f": {contender.refused}" if contender.refused else ""))


def _check_results(ranks: Ranks, contender: Contender, checks: int, attempt: Callable[[int], int]) -> None:
    """Sets `wrong` to the number of wrong elements of all ranks in `checks` checked iterations. Collective. The first
    one is also the first call; with 0 checks it is made, too, and `wrong` becomes None. attempt: makes the call of a
    repetition and returns the number of wrong elements."""
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
    contenders, and the medians of "memcpy" and "limit" in microseconds, which are missing for small sizes."""
    send, receive = buffers(collective, shape, in_place)
    written = send if collective.sends(shape) else receive
    dirty = partial(written.fill_, 1)
    size = total_bytes(collective, shape)
    contenders = [Contender(name, group, collective.bind(shape, send, receive, group), [])
                  for name, group in ranks.backends.items()]
    for contender in contenders:
        _check_results(ranks, contender, options.check, partial(check, collective, shape, send, receive,
                                                                contender.call))
    supporting = [contender for contender in contenders if not contender.refused]
    synchronize = ranks.synchronizer()
    for contender in supporting:
        if options.warmup_iters:
            turn(contender.call, dirty, partial(dist.barrier, group=contender.group), options.warmup_iters - 1,
                 options.agg_iters, synchronize)
    references: dict[str, Reference] = {}
    if supporting and size >= REFERENCES_FROM:
        references = {"memcpy": memcpy(size, ranks.device), "update": update(size, ranks.device)}
    times_of: dict[str, list[float]] = {name: [] for name in references}
    for index, iterations in enumerate(turns(options.iters)):
        first = index % len(supporting) if supporting else 0
        for contender in supporting[first:] + supporting[:first]:
            contender.times += turn(contender.call, dirty, partial(dist.barrier, group=contender.group), iterations,
                                    options.agg_iters, synchronize)
        # A reference needs no barrier of a backend: ranks begin together, then each touches its buffers.
        for name, (reference, touch) in references.items():
            times_of[name] += turn(reference, ranks.begin_together, touch, iterations, 1, synchronize)
    for contender in supporting:
        contender.times = _of_all_ranks(ranks, contender.times, options.average)
    medians = {name: statistics.median(_of_all_ranks(ranks, times, options.average))
               for name, times in times_of.items()}
    if "update" in medians:
        blocks = shape.count * (shape.ranks if collective.split else 1)
        medians["limit"] = medians.pop("update") * collective.touched(shape, in_place) / (2 * blocks)
    return contenders, medians


def measure(options: argparse.Namespace, ranks: Ranks, collective: Collective, template: Shape) -> list[Row]:
    """Measures one operation and size on all backends. Collective. Returns a row of the table for each backend, with
    further values; the same on all ranks. template: the shape without rank, device and `shared`."""
    shape = Shape(ranks.rank, template.ranks, template.count, template.type, template.operation, template.root,
                  ranks.device, options.shared)
    rows: list[Row] = [{"collective": collective.name, "size": total_bytes(collective, shape), "count": shape.count,
                        "type": shape.type, "redop": shape.operation, "root": shape.root, "backend": name,
                        "out_of_place": None, "in_place": None, "memcpy": None} for name in ranks.backends]
    gc.disable()
    try:
        for placement in collective.placements:
            contenders, medians = _placement(options, ranks, collective, shape, placement == "in_place")
            cells = [_cell(collective, shape, contender) for contender in contenders]
            for row, cell in zip(rows, cells):
                first_median = cells[0].get("median")
                cell["ratio"] = cell["median"] / first_median if first_median and "median" in cell else None
                cell["limit"] = medians.get("limit")
                row[placement], row["memcpy"] = cell, row["memcpy"] or medians.get("memcpy")
    finally:
        gc.enable()
    return rows
