"""torch's DistributedTest made ready for one way: `Cases`, an unedited subclass of it.

A way is set up while this module is imported, so spawned ranks, which import it again, have the same setup as forked
ones. torch's module reads variables of the environment when it is imported, so they must be set before: see
`ways.environment`.
"""
from __future__ import annotations

import functools
import inspect
import os
import signal

from conformance import ways

way = ways.current()
os.environ["BACKEND"] = way.declared

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.testing._internal.common_distributed import DistTestCases

# These are the tables of torch in which other backends declare what they support.
if way.runs not in ("gloo", "mpi"):
    for feature in ("cuda", "ddp", "gpu", "plugin", "subgroup"):
        DistTestCases.backend_feature[feature].add(way.runs)

from torch.testing._internal.distributed import distributed_test as torch_tests

from conformance.cases import LIMIT_S
from conformance.skips import skip_lines

torch.set_num_threads(1)


def in_the_name_of(declared: str, runs: str) -> None:
    """Makes groups of `runs` where tests ask for `declared`. It replaces functions that the tests call, and no test."""
    for name in ("init_process_group", "new_group"):
        function = renaming(getattr(c10d, name), declared, runs)
        setattr(c10d, name, function)
        setattr(dist, name, function)


def renaming(function, declared, runs):
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("backend") == declared:
            bound.arguments["backend"] = runs
        return function(*bound.args, **bound.kwargs)

    return call


class Cases(torch_tests.TestDistBackend, torch_tests.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        if ways.spawns():
            self._spawn_processes()
        else:
            # A spawned rank reads this from the environment when it imports the tests.
            torch_tests.INIT_METHOD = os.environ["INIT_METHOD"]
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *args, **kwargs):
        signal.alarm(LIMIT_S)
        super()._run(*args, **kwargs)

    def _check_return_codes(self, function, elapsed):
        """Also requires that every rank ends well. If no rank fails in its test, torch checks only the first rank."""
        super()._check_return_codes(function, elapsed)
        codes = [process.exitcode for process in self.processes]
        if function not in self.skip_return_code_checks and any(codes):
            raise AssertionError(f"the test passed on rank 0, but the exit codes of the ranks are {codes}")


SKIP_LINES = skip_lines(torch_tests, Cases)
"""{case: [(line of torch's module, reason)]} of the decorators that skip it in this way."""

if way.runs != way.declared:
    if way.declared == "gloo":
        in_the_name_of("gloo", way.runs)
    else:
        torch_tests.BACKEND = way.runs
if way.runs == "tutti":
    for supported in (torch_tests.PROFILING_SUPPORTED_BACKENDS, torch_tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        supported.append(way.runs)
os.environ["BACKEND"] = way.asked
