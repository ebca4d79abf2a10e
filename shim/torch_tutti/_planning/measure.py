"""Measures α and β of the links between ranks, for `tutti plan --measure`: times all-reduces as `tutti model` does, and
fits a line through the times. All ranks run the same code in the same order. Needs torch."""
from __future__ import annotations

import argparse
from datetime import timedelta

import torch
import torch.distributed as dist

from torch_tutti._bench.measure import Ranks
from torch_tutti._grid import grid
from torch_tutti._model.measure import Model
from torch_tutti._model.options import CANDIDATES
from torch_tutti._model.report import fit
from torch_tutti._planning.communication import rounds
from torch_tutti._planning.units import Link

SIZES = {"minbytes": 1 << 12, "maxbytes": 4 << 20, "stepfactor": 4}


def link_through(times: list[tuple[int, float]], ranks: int) -> Link:
    """Returns the link on which all-reduces of `ranks` (2 or more) ranks p would take the given times: an all-reduce
    has 2 ⌈log₂ p⌉ messages, with 2 (p - 1) / p of its bytes. times: (bytes, microseconds), smallest size first. If no
    line fits them, as on a busy machine, the first gives the latency and the last the speed."""
    line = fit(times) or {"alpha_us": times[0][1], "beta_ns": 1e3 * times[-1][1] / times[-1][0]}
    return Link(2 * (ranks - 1) / ranks / (line["beta_ns"] * 1e-9), line["alpha_us"] * 1e-6 / (2 * rounds(ranks)))


def _measure_group(ranks: Ranks, iterations: int) -> Link:
    """Returns the link between the ranks of one group, from the times of the algorithms that tutti chooses for
    all-reduces."""
    options = argparse.Namespace(what="all_reduce", algorithms=[CANDIDATES], iters=iterations, **SIZES)
    model = Model(options, ranks)
    rows = [model.measure(shape) for shape in model.shapes(options)]
    return link_through([(row["size"], row["algorithms"][row["chosen"]]["measured"]) for row in rows], ranks.size)


def links(iterations: int = 10) -> tuple[Link | None, Link | None]:
    """Measures the links between the ranks of the default group, which must be tutti's. Returns (the slowest link
    inside a host, the link between the first ranks of hosts), the same on every rank; None where there are no two such
    ranks. Collective."""
    hosts, rank = grid(dp=dist.get_world_size()).hosts(), dist.get_rank()
    ranks_of_hosts = [[number for number, host in enumerate(hosts) if host == values] for values in sorted(set(hosts))]
    # (speed, latency) inside the host of this rank, then between hosts; 0: not measured on this rank
    measured = torch.zeros(4, dtype=torch.float64)
    for offset, groups in ((0, ranks_of_hosts), (2, [[ranks[0] for ranks in ranks_of_hosts]])):
        for ranks in groups:
            backends = ({name: dist.new_group(ranks, backend=name) for name in ("gloo", "tutti")}
                        if len(ranks) > 1 else {})
            if backends and rank in ranks:
                members = Ranks(ranks.index(rank), len(ranks), backends["gloo"], {"tutti": backends["tutti"]})
                measured[offset: offset + 2] = torch.tensor(_measure_group(members, iterations))
            dist.barrier()                              # one set of ranks at a time
    of_all_ranks = [torch.empty_like(measured) for _ in hosts]
    dist.all_gather(of_all_ranks, measured)
    slowest = [min((values[offset: offset + 2].tolist() for values in of_all_ranks if values[offset] > 0), default=None)
               for offset in (0, 2)]
    local, across = (Link(*values) if values else None for values in slowest)
    return local, across


def measure_links(seconds: int) -> tuple[Link | None, Link | None, int]:
    """Joins the ranks that torchrun has started, measures the links, and leaves again. Returns (local link, link
    between hosts, this rank). seconds: the timeout of an operation."""
    torch.set_num_threads(1)
    dist.init_process_group("tutti", timeout=timedelta(seconds=seconds))
    try:
        return *links(), dist.get_rank()
    finally:
        dist.destroy_process_group()
