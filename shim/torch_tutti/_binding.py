"""Binds the ranks of a host to cores (`TUTTI_BIND=cores`, `tutti run --bind`), before torch starts threads.

A rank gets whole cores with all their hardware threads, and neighbouring ranks get neighbouring cores, so ranks of one
NUMA node have their memory there. The progress thread of a rank runs on the rank's cores. Only cores that the process
may use are divided, so taskset, numactl and the limits of a container hold.
"""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Mapping, MutableMapping

from torch_tutti import _log

VARIABLE = "TUTTI_BIND"
# The process that has been warned, if there was a reason.
_checked_process = 0


def cores(allowed: set[int], devices: Path = Path("/sys/devices/system")) -> list[list[int]]:
    """Returns the cores, each as its allowed hardware threads (numbers of Linux), in the order of NUMA nodes, sockets
    and numbers. devices: the folder that describes the machine."""
    nodes = {cpu: number for number, folder in _numbered(devices / "node", "node")
             for cpu in _numbers((folder / "cpulist").read_text())}
    found: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = devices / f"cpu/cpu{cpu}/topology"
        try:
            socket, core = (int((topology / name).read_text()) for name in ("physical_package_id", "core_id"))
        except OSError:                                 # some virtual machines and containers hide it
            socket, core = 0, cpu
        found.setdefault((nodes.get(cpu, 0), socket, core), []).append(cpu)
    return [found[key] for key in sorted(found)]


def plan(every_core: list[list[int]], ranks: int) -> list[list[int]]:
    """Returns the hardware threads of each of `ranks` ranks. With fewer cores than ranks, several ranks share a
    core."""
    count = len(every_core)
    shares = []
    for rank in range(ranks):
        first = rank * count // ranks
        share = every_core[first:max(first + 1, (rank + 1) * count // ranks)]
        shares.append([cpu for core in share for cpu in core])
    return shares


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Raises ValueError for a value of TUTTI_BIND other than "cores". For the first group of a process, warns if this
    has bound nothing, and if torch has more threads than this process has cores."""
    global _checked_process
    wanted = environment.get(VARIABLE, "")
    if wanted not in ("", "cores"):
        raise ValueError(f"{VARIABLE}={wanted} is unknown; the only value is cores")
    if _checked_process == os.getpid():
        return
    _checked_process = os.getpid()
    if wanted and not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= set(environment):
        _log.write("warn", f"{VARIABLE} binds only ranks that torchrun or another launcher starts with LOCAL_RANK and "
                           "LOCAL_WORLD_SIZE set; this process is not bound")
    threads, allowed = sys.modules["torch"].get_num_threads(), len(os.sched_getaffinity(0))
    if threads > allowed:
        _log.write("warn", f"torch computes with {threads} threads, but this process may run on {allowed} cores only, "
                           f"so the threads wait for one another: set OMP_NUM_THREADS={allowed}")


def bind(environment: MutableMapping[str, str] = os.environ) -> None:
    """Binds this process if TUTTI_BIND and the variables of a launcher ask for it, and clears the variable, because the
    children of a rank share its cores. torch gets a thread for each core. A failure is a warning."""
    if environment.get(VARIABLE) != "cores" or not {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} <= set(environment):
        return
    try:
        _bind_rank(environment, int(environment["LOCAL_RANK"]), int(environment["LOCAL_WORLD_SIZE"]))
    except (ValueError, OSError) as error:
        _log.write("warn", f"{VARIABLE} has bound nothing, because of LOCAL_RANK={environment['LOCAL_RANK']} and "
                           f"LOCAL_WORLD_SIZE={environment['LOCAL_WORLD_SIZE']}, or the machine: {error}")


def _bind_rank(environment: MutableMapping[str, str], rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError("the local ranks are numbered from 0")
    every_core = cores(os.sched_getaffinity(0))
    shares = plan(every_core, ranks)
    if rank == 0:
        _show(every_core, shares)
    os.sched_setaffinity(0, shares[rank])
    environment[VARIABLE] = ""
    sys.modules["torch"].set_num_threads(sum(bool(set(core) & set(shares[rank])) for core in every_core))


def _show(every_core: list[list[int]], shares: list[list[int]]) -> None:
    """Logs the cores of all ranks of this host, with a warning if ranks share them."""
    text = "; ".join(f"{rank}: {' '.join(map(str, share))}" for rank, share in enumerate(shares))
    _log.write("info", f"{VARIABLE} binds the local ranks to cores, {text}")
    if len(every_core) < len(shares):
        _log.write("warn", f"{len(shares)} ranks share {len(every_core)} cores: they will wait for one another")


# ---- files of Linux ----
def _numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """Returns the folders in a folder whose names are a prefix and a number."""
    found = [(path.name.removeprefix(prefix), path) for path in folder.glob(f"{prefix}*")]
    return [(int(number), path) for number, path in found if number.isdecimal()]


def _numbers(text: str) -> list[int]:
    """Returns the numbers of a list of Linux, such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers

