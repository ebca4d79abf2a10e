"""The command `tutti bench`: checks options against torch and the number of ranks. It starts the ranks, or measures as
one of them.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from datetime import timedelta
from functools import partial
from typing import Any, Callable

from torch_tutti._bench import compare, launch, picture, report
from torch_tutti._bench.options import sizes

DESCRIPTION_BYTES = 1024                                # of each rank in _devices()


def main(options: argparse.Namespace, words: list[str]) -> int:
    """Runs the command, and returns the exit code. words: the arguments of `tutti`, for the ranks that it starts.
    Raises ValueError, ImportError or OSError with a text for users."""
    if options.what == "compare":
        return compare.compare(options.first, options.second, options.plot)
    if options.plot:
        picture.require()
        report.check_writable(options.plot, "--plot")
    if options.output_file:
        report.check_writable(options.output_file, "-J")
    is_rank = launch.ranks_are_started()
    ranks = int(os.environ["WORLD_SIZE"]) if is_rank else options.nproc or default_ranks()
    resolve(options, ranks, int(os.environ.get("LOCAL_WORLD_SIZE", ranks)))
    return as_rank(partial(_measure, options, words)) if is_rank else launch.launch(words, ranks)


def default_ranks() -> int:
    """Returns the number of ranks to start: one for each core, 2 to 4."""
    return max(2, min(4, len(os.sched_getaffinity(0))))


# ---- what was asked for ----
def resolve(options: argparse.Namespace, ranks: int, local_ranks: int) -> None:
    """Sets the options that depend on other options: minbytes, maxbytes and device. ranks: of the job; local_ranks: of
    this host. Raises ValueError if the run is impossible."""
    all_sizes = sizes(options.minbytes, options.maxbytes, options.stepbytes, options.stepfactor)
    options.minbytes, options.maxbytes = all_sizes[0], max(all_sizes[-1], options.maxbytes or 0)
    if options.root is not None and options.root >= ranks:
        raise ValueError(f"-r {options.root} is not a rank: there are {ranks}, from 0 to {ranks - 1}")
    if options.nproc not in (None, ranks):
        raise ValueError(f"--nproc {options.nproc} contradicts torchrun, which has started {ranks} ranks: leave it out")
    options.device = options.device or ("cuda" if "nccl" in options.backend else "cpu")
    for name in options.backend:
        _check_backend(name, options.device)
    if options.device == "cuda":
        _check_devices(options.backend, local_ranks)
        if options.shared:
            raise ValueError("--shared works only with CPU tensors: shared memory of the host holds no others")


def _check_backend(name: str, device: str) -> None:
    """Raises ValueError if this torch cannot run the backend on tensors of the device, or if a take-over would replace
    it."""
    import torch
    import torch.distributed as dist

    from torch_tutti import _takeover
    if name == "nccl" and not torch.cuda.is_available():
        raise ValueError("nccl needs a CUDA device, and torch finds none here; gloo and tutti work on CPU tensors")
    if name == "nccl" and device == "cpu":
        raise ValueError("nccl does not take CPU tensors: leave out --device cpu, or choose tutti or gloo")
    known = [known for known in dist.Backend.backend_list if known not in ("undefined", "fake")]
    if name not in known or not dist.is_backend_available(name):
        built = ", ".join(known for known in known if dist.is_backend_available(known))
        raise ValueError(f"this torch has no backend {name!r}; it has {built}")
    if {name, "gloo"} & _takeover._taken_over_names():
        raise ValueError(f"{_takeover.VARIABLE} makes groups of gloo or {name} tutti's, so it would be measured under "
                         "their name: unset it")


def _check_devices(backends: list[str], local_ranks: int) -> None:
    """Raises ValueError without a CUDA device, or with fewer devices than local ranks for nccl."""
    import torch
    device_count = torch.cuda.device_count()
    if not device_count:
        raise ValueError("--device cuda needs a CUDA device, and torch finds none here")
    if "nccl" in backends and device_count < local_ranks:
        raise ValueError(f"nccl needs a device for every rank: there are {local_ranks} ranks here and {device_count} "
                         f"devices; use --nproc {device_count}")


# ---- a rank ----
def as_rank(measure: Callable[[], int]) -> int:
    """Runs `measure` on this rank, for `tutti bench` and other commands, and returns its exit code. An error is printed
    with the rank and ends the process with code 1."""
    rank = int(os.environ["RANK"])
    launch.die_with_parent()
    try:
        return measure()
    except Exception as error:
        if os.environ.get("TUTTI_LOG") == "debug":
            traceback.print_exc()
        report.warn(f"rank {rank}: {type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)                                     # destroying the groups would wait for ranks that are gone


def bind(options: argparse.Namespace) -> int | None:
    """Binds this process to a core of its own and returns the core. Returns None, and binds nothing, with --no-bind and
    on hosts with fewer cores than ranks."""
    cores = sorted(os.sched_getaffinity(0))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    if options.no_bind or int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > len(cores):
        return None
    os.sched_setaffinity(0, {cores[local_rank]})
    return cores[local_rank]


def _measure(options: argparse.Namespace, words: list[str]) -> int:
    """Measures on this rank; rank 0 also saves the document and the plot. Returns the exit code: 0, or
    WRONG_RESULTS."""
    core = bind(options)
    import torch
    import torch.distributed as dist

    from torch_tutti._bench.measure import Ranks
    torch.set_num_threads(1)
    timeout = timedelta(seconds=options.timeout)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    dist.init_process_group("gloo", timeout=timeout)
    try:
        groups = {name: dist.new_group(backend=name, timeout=timeout) for name in options.backend}
        ranks = Ranks(dist.get_rank(), dist.get_world_size(), dist.group.WORLD, groups, options.device)
        document = run(options, words, ranks, core)
    finally:
        if not sys.exc_info()[0]:
            dist.destroy_process_group()
    if ranks.rank == 0:
        if options.output_file:
            report.save(document, options.output_file)
        if options.plot:
            picture.draw([("", document)], options.plot)
    return 0 if document["out_of_bounds"]["okay"] else launch.WRONG_RESULTS


def run(options: argparse.Namespace, words: list[str], ranks: Any, core: int | None) -> report.Document:
    """Measures all operations that the options ask for. Returns the document, with the same results on every rank; rank
    0 also prints them. words: the arguments of `tutti`. ranks: a Ranks of measure.py. core: the core that this rank is
    bound to, or None."""
    from torch_tutti._bench.measure import measure, plan
    document = report.begin(options, words, _devices(ranks, core))
    printer = report.Report(options, document) if ranks.rank == 0 else None
    current_name = ""
    for collective, shape in plan(options, ranks.size):
        if printer and collective.name != current_name:
            if current_name:
                printer.closing(current_name)
            printer.opening(collective.name)
        current_name = collective.name
        for row in measure(options, ranks, collective, shape):
            if printer:
                printer.row(row)
            else:
                document["results"].append(row)
    if printer:
        printer.closing(current_name)
    report.finish(document)
    return document


def _devices(ranks: Any, core: int | None) -> list[dict[str, Any]]:
    """Returns a description of every rank on all ranks. Collective. Exchanges JSON, because torch's own exchange of
    objects needs numpy."""
    import torch
    import torch.distributed as dist
    device = torch.cuda.get_device_name() if ranks.device == "cuda" else "cpu"
    text = json.dumps({"rank": ranks.rank, "pid": os.getpid(), "hostname": os.uname().nodename, "device": device,
                       "core": core}).ljust(DESCRIPTION_BYTES).encode()
    descriptions = [torch.zeros(DESCRIPTION_BYTES, dtype=torch.uint8) for _ in range(ranks.size)]
    dist.all_gather(descriptions, torch.tensor(list(text), dtype=torch.uint8), group=ranks.control)
    return [json.loads(bytes(description.tolist())) for description in descriptions]
