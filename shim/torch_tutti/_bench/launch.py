"""How `tutti bench` starts its ranks when torchrun has not: each runs the same command again, with the variables that
torchrun would set. The parent serves the store that they meet in, waits, and ends all of them when one fails.

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
PATIENCE_S = 120                # how long ranks may take to leave once one has; the first rank may have much to draw


def ranks_are_started() -> bool:
    """Whether this process is a rank already, of torchrun's or of ours."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def die_with_parent() -> None:
    """Lets the kernel end this rank when who has started it is gone; does nothing under torchrun."""
    parent = os.environ.get(PARENT)
    if parent is None:
        return
    set_death_signal = 1
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)
    if os.getppid() != int(parent):
        raise OSError("the process that started this rank has ended")


def launch(words: list[str], ranks: int) -> int:
    """Runs `tutti` with these words on so many ranks; the exit code of all. Raises ChildProcessError when one fails."""
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), PARENT: str(os.getpid()),
              "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared.setdefault("OMP_NUM_THREADS", "1")
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):                       # a session of their own: who interrupts, interrupts the parent
            processes.append(subprocess.Popen([sys.executable, "-m", "torch_tutti", *words], start_new_session=True,
                                              env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}))
        return _wait(processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    left_at = None
    while None in (codes := [process.poll() for process in processes]):
        if any(code not in (None, 0, WRONG_RESULTS) for code in codes):
            break
        if codes.count(None) < len(codes):
            left_at = left_at or time.monotonic()
            if time.monotonic() - left_at > PATIENCE_S:
                break
        time.sleep(INTERVAL_S)
    text = describe(codes)
    if text:
        raise ChildProcessError(text)
    return 1 if WRONG_RESULTS in codes else 0


def describe(codes: list[int | None]) -> str:
    """What went wrong, by the ranks' exit codes (None: runs still); nothing when nothing did."""
    killed = [f"rank {rank} was killed by {signal.Signals(-code).name}" for rank, code in enumerate(codes)
              if code is not None and code < 0]
    ended = [f"rank {rank} ended with exit code {code}" for rank, code in enumerate(codes)
             if code is not None and code > 0 and code != WRONG_RESULTS]
    running = [str(rank) for rank, code in enumerate(codes) if code is None]
    if not killed and not ended:
        hanging = f"rank {', '.join(running)} did not end when the others had; it was stopped"
        return hanging if running else ""
    return "; ".join(killed + ended) + ("; the other ranks were stopped" if running else "")
