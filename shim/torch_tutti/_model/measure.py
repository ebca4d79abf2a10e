"""The measuring of `tutti model` on one rank: each algorithm in turn with the others, by the clock of `tutti bench`,
beside what the core predicts. All ranks run the same lines in the same order; tensors are ordinary ones, as the
predictions are for.
"""
from __future__ import annotations

import argparse
import gc
import statistics
from functools import partial
from typing import Any

import torch.distributed as dist

from torch_tutti import _library, _options
from torch_tutti._bench.collectives import TABLE, Shape, buffers
from torch_tutti._bench.measure import Ranks, _of_all_ranks, total_bytes, turn, turns
from torch_tutti._bench.options import sizes
from torch_tutti._extension import backend_of
from torch_tutti._model import _core
from torch_tutti._model.options import ALL, CANDIDATES, FAMILIES

GREATEST = 3                    # of all ranks' times, as `tutti bench -a` has it
Row = dict[str, Any]


class Model:
    """Of one collective on one group. names: the algorithms that are measured, in the order of the core's table."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        self.ranks, self.iterations = ranks, options.iters
        self.group = ranks.backends["tutti"]
        self.core = backend_of(self.group)
        self.collective = TABLE[options.what]
        self.family = FAMILIES[options.what]
        self.names = self._chosen(options.algorithms)

    def figures(self) -> dict[str, Any]:
        """What the group goes by, of this rank."""
        return _core.machine_parameters(self.core)

    def predict(self, algorithm: str, size: int) -> dict[str, Any]:
        """algorithm: of the family, or empty: what the core chooses. size: bytes of a rank's larger buffer."""
        return _core.predict(self.core, self.family, algorithm, size)

    def _chosen(self, asked: list[str]) -> list[str]:
        """Raises ValueError for what does not exist, or not on this group's hosts."""
        if asked not in ([ALL], [CANDIDATES]):
            for name in asked:
                self.predict(name, 1)
            return asked
        allowed = []
        for name in _library.algorithms()[self.family]:
            try:
                found = self.predict(name, 1)
            except ValueError:                          # it needs all ranks on one host
                continue
            if asked == [ALL] or found["candidate"]:
                allowed.append(name)
        return allowed

    def shapes(self, options: argparse.Namespace) -> list[Shape]:
        """Of every size; those that come to the same number of elements once."""
        blocks = self.ranks.size if self.collective.split else 1
        counts = {max(1, size // 4 // blocks): None
                  for size in sizes(options.minbytes, options.maxbytes, 1, options.stepfactor)}
        operation, root = "sum" if self.collective.reduces else "none", 0 if self.collective.rooted else -1
        return [Shape(self.ranks.rank, self.ranks.size, count, "float", operation, root, "cpu") for count in counts]

    def at(self, shape: Shape) -> Row:
        """Every algorithm at this size; microseconds. The same on every rank."""
        size = total_bytes(self.collective, shape)
        send, receive = buffers(self.collective, shape, self.collective.placements[0] == "in_place")
        call = self.collective.bind(shape, send, receive, self.group)
        dirty = partial((send if self.collective.sends(shape) else receive).fill_, 1)
        times: dict[str, list[float]] = {name: [] for name in self.names}
        gc.disable()
        try:
            for index, iterations in enumerate([0, *turns(self.iterations)]):      # the first makes the plans
                first = index % len(self.names)
                for name in self.names[first:] + self.names[:first]:
                    with _options.options(algorithm=f"{self.family}={name}"):
                        times[name] += turn(call, dirty, partial(dist.barrier, group=self.group), iterations, 1, None)
        finally:
            gc.enable()
        cells = {}
        for name in self.names:
            found, taken = self.predict(name, size), _of_all_ranks(self.ranks, times[name], GREATEST)
            cells[name] = {"predicted": found["ns"] / 1e3 or None, "measured": statistics.median(taken),
                           "best": min(taken), "tile_bytes": min(found["tile_bytes"], size), "slots": found["slots"],
                           "candidate": found["candidate"]}
        return {"size": size, "count": shape.count, "chosen": self.predict("", size)["algorithm"],
                "fastest": min(cells, key=lambda name: cells[name]["measured"]), "algorithms": cells}

    def choices(self, first: int, last: int) -> list[tuple[int, str]]:
        """What the core chooses for the first size, and for each of 1, 1.5, 2, 3, 4, 6, … up to the last: all that it
        tells apart."""
        steps = [base << power for power in range(last.bit_length()) for base in (2, 3)]
        all_sizes = [first, *(step // 2 for step in steps if first < step // 2 <= last)]
        return [(size, self.predict("", size)["algorithm"]) for size in all_sizes]
