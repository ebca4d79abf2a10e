"""Measures for `tutti model` on one rank: times each algorithm in turn with the others, as `tutti bench` does, and adds
the core's predictions. All ranks run the same code in the same order. Tensors are ordinary ones, for which the
predictions are made."""
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
from torch_tutti._model.options import ALL, CANDIDATES, CORE_NAMES

GREATEST = 3                    # selects the largest time of all ranks, as in `tutti bench -a`
Row = dict[str, Any]


class Model:
    """Measures and predicts one collective on one group. names: the measured algorithms, in the order of the core's
    table."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks) -> None:
        """Reads from the options what to measure."""
        self.ranks, self.iterations = ranks, options.iters
        self.group = ranks.backends["tutti"]
        self.core = backend_of(self.group)
        self.collective = TABLE[options.what]
        self.core_name = CORE_NAMES[options.what]
        self.names = self._select_algorithms(options.algorithms)

    def machine_parameters(self) -> dict[str, Any]:
        """Returns the machine parameters of the group, as this rank has them."""
        return _core.machine_parameters(self.core)

    def predict(self, algorithm: str, size: int) -> dict[str, Any]:
        """Returns the core's prediction. algorithm: a name, or empty for the core's choice. size: bytes of a rank's
        larger buffer."""
        return _core.predict(self.core, self.core_name, algorithm, size)

    def _select_algorithms(self, requested: list[str]) -> list[str]:
        """Returns the names of the algorithms to measure. Raises ValueError for a name that does not exist, or not on
        this group's hosts."""
        if requested not in ([ALL], [CANDIDATES]):
            for name in requested:
                self.predict(name, 1)
            return requested
        allowed = []
        for name in _library.algorithms()[self.core_name]:
            try:
                prediction = self.predict(name, 1)
            except ValueError:                          # it needs all ranks on one host
                continue
            if requested == [ALL] or prediction["candidate"]:
                allowed.append(name)
        return allowed

    def shapes(self, options: argparse.Namespace) -> list[Shape]:
        """Returns a Shape for each size of the options. Sizes that round to the same number of elements give one
        Shape."""
        blocks = self.ranks.size if self.collective.split else 1
        counts = {max(1, size // 4 // blocks): None
                  for size in sizes(options.minbytes, options.maxbytes, 1, options.stepfactor)}
        operation, root = "sum" if self.collective.reduces else "none", 0 if self.collective.rooted else -1
        return [Shape(self.ranks.rank, self.ranks.size, count, "float", operation, root, "cpu") for count in counts]

    def measure(self, shape: Shape) -> Row:
        """Measures and predicts every algorithm for a shape. Returns a row of the document, in microseconds, the same
        on every rank."""
        size = total_bytes(self.collective, shape)
        send, receive = buffers(self.collective, shape, self.collective.placements[0] == "in_place")
        call = self.collective.bind(shape, send, receive, self.group)
        overwrite_buffer = partial((send if self.collective.sends(shape) else receive).fill_, 1)
        times: dict[str, list[float]] = {name: [] for name in self.names}
        gc.disable()
        try:
            for index, iterations in enumerate([0, *turns(self.iterations)]):      # the first call makes the plans
                first = index % len(self.names)
                for name in self.names[first:] + self.names[:first]:
                    with _options.options(algorithm=f"{self.core_name}={name}"):
                        times[name] += turn(call, overwrite_buffer, partial(dist.barrier, group=self.group), iterations,
                                            1, None)
        finally:
            gc.enable()
        cells = {}
        for name in self.names:
            prediction, all_times = self.predict(name, size), _of_all_ranks(self.ranks, times[name], GREATEST)
            cells[name] = {"predicted": prediction["ns"] / 1e3 or None, "measured": statistics.median(all_times),
                           "best": min(all_times), "tile_bytes": min(prediction["tile_bytes"], size),
                           "slots": prediction["slots"], "candidate": prediction["candidate"]}
        return {"size": size, "count": shape.count, "chosen": self.predict("", size)["algorithm"],
                "fastest": min(cells, key=lambda name: cells[name]["measured"]), "algorithms": cells}

    def choices(self, first: int, last: int) -> list[tuple[int, str]]:
        """Returns (size, algorithm that the core chooses) for the first size, and for 1, 1.5, 2, 3, 4, 6, … up to the
        last."""
        steps = [base << power for power in range(last.bit_length()) for base in (2, 3)]
        all_sizes = [first, *(step // 2 for step in steps if first < step // 2 <= last)]
        return [(size, self.predict("", size)["algorithm"]) for size in all_sizes]
