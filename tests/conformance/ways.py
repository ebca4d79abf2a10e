"""The ways in which torch's tests are run. Decorators reserve many tests to a backend by its name. Most of them read
the name while the module is imported, a few while the test runs. A way has the names that they read, and the backend
that runs.

Nothing here imports torch.
"""
from __future__ import annotations

import os
from dataclasses import dataclass

WORLD_SIZE = 4
WAY_VARIABLE, MODE_VARIABLE = "CONFORMANCE_WAY", "CONFORMANCE_MODE"


@dataclass(frozen=True)
class Way:
    name: str
    title: str
    declared: str
    """The backend that decorators read when torch's module is imported."""
    runs: str
    """The backend that groups are made of."""
    asked: str
    """The backend that skip_if_small_worldsize reads while a test runs: it lets "mpi" pass with any number of ranks."""
    pattern: str = "*"
    """The cases that run in this way."""


WAYS = {way.name: way for way in [
    Way("gloo", "gloo", declared="gloo", runs="gloo", asked="gloo"),
    Way("as-gloo", "tutti as gloo", declared="gloo", runs="tutti", asked="mpi"),
    Way("as-mpi", "tutti as MPI", declared="mpi", runs="tutti", asked="mpi", pattern="*all_to_all*"),
    Way("tutti", "tutti by name", declared="tutti", runs="tutti", asked="tutti"),
]}


def environment(way: Way, spawn: bool, hosts: str) -> dict[str, str]:
    """Returns the variables with which a process must import `suite` for this way; hosts as in TUTTI_HOSTS. INIT_METHOD
    is only a placeholder, which keeps test_barrier_timeout_global from being skipped: torch's harness makes a file of
    its own for each case."""
    return {
        WAY_VARIABLE: way.name, MODE_VARIABLE: "spawn" if spawn else "fork", "TUTTI_HOSTS": hosts,
        "BACKEND": way.declared, "WORLD_SIZE": str(WORLD_SIZE), "INIT_METHOD": "file:///set-for-each-case",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "300" if spawn else "120", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }


def current() -> Way:
    return WAYS[os.environ[WAY_VARIABLE]]


def spawns() -> bool:
    return os.environ[MODE_VARIABLE] == "spawn"
