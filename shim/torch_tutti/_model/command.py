"""The command `tutti model`: starts the ranks, or measures as one of them."""
from __future__ import annotations

import argparse
import os
import sys
from datetime import timedelta
from functools import partial
from typing import Any

from torch_tutti import _library
from torch_tutti._bench import command as bench
from torch_tutti._bench import launch
from torch_tutti._bench.options import sizes
from torch_tutti._bench.report import check_writable, save
from torch_tutti._model import picture, report
from torch_tutti._model.options import ALL, CANDIDATES, CORE_NAMES


def main(options: argparse.Namespace, words: list[str]) -> int:
    """Runs the command. Returns the exit code. words: the arguments after `tutti`. Raises ValueError, ImportError or
    OSError with a text for users."""
    if options.plot:
        picture.require()
        check_writable(options.plot, "--plot")
    if options.output_file:
        check_writable(options.output_file, "-J")
    ranks_are_started = launch.ranks_are_started()
    ranks = int(os.environ["WORLD_SIZE"]) if ranks_are_started else options.nproc or bench.default_ranks()
    if options.nproc not in (None, ranks):
        raise ValueError(f"--nproc {options.nproc} contradicts torchrun, which has started {ranks} ranks: leave it out")
    for name in options.algorithms:
        known = _library.algorithms()[CORE_NAMES[options.what]]
        if options.algorithms not in ([ALL], [CANDIDATES]) and name not in known:
            raise ValueError(f"{options.what} has no algorithm {name!r}; it has {', '.join(known)}")
    sizes(options.minbytes, options.maxbytes, 1, options.stepfactor)
    return bench.as_rank(partial(_measure, options, words)) if ranks_are_started else launch.launch(words, ranks)


def _measure(options: argparse.Namespace, words: list[str]) -> int:
    """Runs on each rank: joins a group, measures, and leaves. Rank 0 saves and draws the document. Returns the exit
    code."""
    bench.bind(options)
    import torch
    import torch.distributed as dist

    from torch_tutti._bench.measure import Ranks
    torch.set_num_threads(1)
    timeout = timedelta(seconds=options.timeout)
    dist.init_process_group("gloo", timeout=timeout)
    try:
        group = dist.new_group(backend="tutti", timeout=timeout)
        document = run(options, words, Ranks(dist.get_rank(), dist.get_world_size(), dist.group.WORLD,
                                             {"tutti": group}))
    finally:
        if not sys.exc_info()[0]:
            dist.destroy_process_group()
    if document["group"]["rank"] == 0:
        if options.output_file:
            save(document, options.output_file)
        if options.plot:
            picture.draw(document, options.plot)
    return 0


def run(options: argparse.Namespace, words: list[str], ranks: Any) -> report.Document:
    """Measures, and returns the document, whose results are the same on every rank. Rank 0 also prints it. ranks: a
    Ranks of _bench.measure."""
    from torch_tutti._model.measure import Model
    model = Model(options, ranks)
    document = report.begin(options, words, model.machine_parameters())
    width = max(map(len, (*model.names, "algorithm")))

    def print_on_first(*lines: str) -> None:
        if ranks.rank == 0:
            print(*lines, sep="\n", flush=True)

    print_on_first(*report.opening(document), *report.header(width))
    for shape in model.shapes(options):
        row = model.measure(shape)
        document["results"].append(row)
        print_on_first(*report.lines(row, width))
    rows = document["results"]
    report.finish(document, model.choices(rows[0]["size"], rows[-1]["size"]))
    print_on_first(*report.closing(document))
    return document
