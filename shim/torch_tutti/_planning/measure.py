"""α and β of the links between these ranks, for `tutti plan --measure`: all-reduces by the clock of `tutti model`, and
the line through their times. All ranks run the same lines in the same order. Needs torch."""
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


def through(times: list[tuple[int, float]], ranks: int) -> Link:
    """The link on which an all-reduce of so many ranks would have these times, in microseconds by bytes: of 2 ⌈log₂ p⌉
    messages, with 2 (p - 1) / p of its bytes. Where no line goes through them, as on a busy machine, the least size
    says what a message takes and the largest what a byte does."""
    found = fit(times) or {"alpha_us": times[0][1], "beta_ns": 1e3 * times[-1][1] / times[-1][0]}
    return Link(2 * (ranks - 1) / ranks / (found["beta_ns"] * 1e-9), found["alpha_us"] * 1e-6 / (2 * rounds(ranks)))


def _line(ranks: Ranks, iterations: int) -> Link:
    """Of one group, the chosen algorithm at each size."""
    options = argparse.Namespace(what="all_reduce", algorithms=[CANDIDATES], iters=iterations, **SIZES)
    model = Model(options, ranks)
    rows = [model.at(shape) for shape in model.shapes(options)]
    return through([(row["size"], row["algorithms"][row["chosen"]]["measured"]) for row in rows], ranks.size)


def links(iterations: int = 10) -> tuple[Link | None, Link | None]:
    """In a host, the slowest; and between the first ranks of hosts. None where no two ranks are; the same on every
    rank. The default group is tutti's."""
    hosts, rank = grid(dp=dist.get_world_size()).hosts(), dist.get_rank()
    of_host = [[r for r, host in enumerate(hosts) if host == one] for one in sorted(set(hosts))]
    found = torch.zeros(4, dtype=torch.float64)
    for at, sets in ((0, of_host), (2, [[ranks[0] for ranks in of_host]])):
        for ranks in sets:
            made = {name: dist.new_group(ranks, backend=name) for name in ("gloo", "tutti")} if len(ranks) > 1 else {}
            if made and rank in ranks:
                of = Ranks(ranks.index(rank), len(ranks), made["gloo"], {"tutti": made["tutti"]})
                found[at: at + 2] = torch.tensor(_line(of, iterations))
            dist.barrier()                              # one set of ranks at a time
    everyone = [torch.empty_like(found) for _ in hosts]
    dist.all_gather(everyone, found)
    slowest = [min((one[at: at + 2].tolist() for one in everyone if one[at] > 0), default=None) for at in (0, 2)]
    local, across = (Link(*one) if one else None for one in slowest)
    return local, across


def joined(seconds: int) -> tuple[Link | None, Link | None, int]:
    """Joins the ranks that torchrun has started, and leaves again: the links, and which rank this is. seconds: what one
    operation may take."""
    torch.set_num_threads(1)
    dist.init_process_group("tutti", timeout=timedelta(seconds=seconds))
    try:
        return *links(), dist.get_rank()
    finally:
        dist.destroy_process_group()
