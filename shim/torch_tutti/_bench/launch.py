"""Starts the ranks of `tutti bench` if torchrun has not: each runs the same command again, with the variables that
torchrun would set. The parent serves the store through which they find each other, waits, and kills all of them when
one fails.

No rank outlives the parent: the kernel kills it when the parent is gone.
"""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

PARENT = "BENCH_PARENT"         # the number of the process that has started this rank
WRONG_RESULTS = 3               # the exit code of ranks that have measured everything and found wrong elements
INTERVAL_S = 0.05
EXIT_TIMEOUT_S = 120            # for all ranks to end after the first has; rank 0 may draw for long


def ranks_are_started() -> bool:
    """Returns whether this process is a rank already, started by torchrun or by launch()."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def die_with_parent() -> None:
    """Lets the kernel kill this rank when the process that started it ends. Does nothing under torchrun. Raises OSError
    if the parent has ended already."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != int(parent):
        raise OSError("the process that started this rank has ended")


def launch(words: list[str], ranks: int) -> int:
    """Runs `tutti` with these arguments on `ranks` ranks. Returns the exit code of the command: 1 if results are wrong,
    else 0. Raises ChildProcessError when a rank fails."""
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), PARENT: str(os.getpid()),
                   "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):                       # in own sessions, so that Ctrl-C interrupts only the parent
            processes.append(subprocess.Popen([sys.executable, "-m", "torch_tutti", *words], start_new_session=True,
                                              env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        return _wait(processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Waits until all ranks have ended, one has failed, or EXIT_TIMEOUT_S have passed since the first end. Returns and
    raises as launch()."""
    first_end = None
    while None in (codes := [process.poll() for process in processes]):
        if any(code not in (None, 0, WRONG_RESULTS) for code in codes):
            break
        if codes.count(None) < len(codes):
            first_end = first_end or time.monotonic()
            if time.monotonic() - first_end > EXIT_TIMEOUT_S:
                break
        time.sleep(INTERVAL_S)
    text = describe(codes)
    if text:
        raise ChildProcessError(text)
    return 1 if WRONG_RESULTS in codes else 0


def describe(codes: list[int | None]) -> str:
    """Returns a text about failed ranks, or "". codes: the exit code of each rank; None: it is still running."""
    killed = [f"rank {rank} was killed by {signal.Signals(-code).name}" for rank, code in enumerate(codes)
              if code is not None and code < 0]
    ended = [f"rank {rank} ended with exit code {code}" for rank, code in enumerate(codes)
             if code is not None and code > 0 and code != WRONG_RESULTS]
    running = [str(rank) for rank, code in enumerate(codes) if code is None]
    if not killed and not ended:
        text = f"rank {', '.join(running)} did not end when the others had; it was stopped"
        return text if running else ""
    return "; ".join(killed + ended) + ("; the other ranks were stopped" if running else "")
