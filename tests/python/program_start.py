"""Runs programs as `python` and `torchrun` do, in processes that are forked where torch is loaded already (ranks.py). A
new interpreter would spend seconds of a processor on `import torch` alone.

Such a process differs from a new interpreter in two ways. Torch has read its variables before those of the program are
set, and the process ends without finalizing Python. Tests that depend on either difference use new
interpreters.
"""
import itertools
import os
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ranks import context

LIMIT_S = 150
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Ended:
    """The output of the processes of one program, one after the other, and their exit codes."""
    exitcodes: list
    stdout: str
    stderr: str


def run_as_main(words, folder, environment, outputs, prepare):
    """Does in this process what `python WORDS…` does. Calls `prepare` first, if it is given."""
    import torch
    os.chdir(folder)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(environment)
    # Torch was loaded before this variable was set.
    if "OMP_NUM_THREADS" in environment:
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if prepare:
        prepare()
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def run_together(jobs, folder, prepare=None):
    """Runs all jobs, each (words, environment), at the same time. Ends those that still run after LIMIT_S."""
    with tempfile.TemporaryDirectory() as kept:
        paths = [[os.path.join(kept, f"{name}{number}") for name in ("out", "error")] for number in range(len(jobs))]
        processes = [context.Process(target=run_as_main, args=([*map(str, words)], str(folder), environment, outputs,
                                                               prepare))
                     for (words, environment), outputs in zip(jobs, paths)]
        for path in itertools.chain(*paths):
            Path(path).touch()
        for process in processes:
            process.start()
        until = time.monotonic() + LIMIT_S
        try:
            for process in processes:
                process.join(max(0, until - time.monotonic()))
        finally:
            end_processes(processes)
        texts = ["".join(Path(path).read_text() for path in of_kind) for of_kind in zip(*paths)]
    return Ended([process.exitcode for process in processes], *texts)


def end_processes(processes):
    """Ends the processes by SIGTERM, on which torchrun also ends its ranks, and after ten more seconds by SIGKILL."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(10)
        process.kill()
        process.join()


def environment_of(variables):
    """Returns the environment of this process without variables of a rank, changed by `variables`; the value None
    removes a variable."""
    found = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    found = {**found, "CUDA_VISIBLE_DEVICES": "", **variables}
    return {name: value for name, value in found.items() if value is not None}


def run_python(*words, folder=".", **variables):
    """Runs `python WORDS…` to its end, in this environment changed by `variables`."""
    return run_together([(words, environment_of(variables))], folder)


def run_interpreter(*words, folder=".", **variables):
    """Runs `python WORDS…` to its end as a new interpreter."""
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S,
                          cwd=folder, env=environment_of(variables))
    return Ended([done.returncode], done.stdout, done.stderr)


def run_ranks(count, *words, folder=".", prepare=None, **variables):
    """Runs `python WORDS…` to its end as `count` ranks. This process has their store, as torchrun would."""
    import torch.distributed as dist
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    environment = environment_of({
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1", **variables})
    return run_together([(words, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                         for rank in range(count)], folder, prepare)


def run_torchrun(count, *words, folder=".", **variables):
    """Runs torchrun to its end. It starts `count` ranks as new interpreters; only torchrun itself is forked."""
    return run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count, *words, folder=folder,
                 **{"OMP_NUM_THREADS": "1", **variables})


def succeeded(ended):
    """Returns the output of a program that must succeed."""
    assert not any(ended.exitcodes), f"exit codes {ended.exitcodes}: {ended.stdout}\n{ended.stderr[-6000:]}"
    return ended.stdout
