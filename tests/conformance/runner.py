"""Runs the cases of one way that have no stored result, and shares them with other runners."""
from __future__ import annotations

import fnmatch
import multiprocessing
import select
import sys
import time
import unittest
from pathlib import Path

from conformance import cases, results, ways
from conformance.results import SKIPPED, Result, Results

ANOTHER_LIMIT_S = 900
"""How long a runner without other cases waits for a case that another runner has claimed."""


class Runner:
    """Runs the cases of one way. suite: `conformance.suite`, or a module with such `Cases`. pattern: runs only cases
    whose names match it. again: also runs cases with a stored result."""

    def __init__(self, suite, way: ways.Way, folder: Path, pattern: str = "*", jobs: int = 1, again: bool = False,
                 limit_s: float = cases.LIMIT_S):
        self.suite, self.way, self.jobs, self.again, self.limit_s = suite, way, jobs, again, limit_s
        self.results = Results(folder, way.name)
        self.basis = results.basis(way.runs)
        names = unittest.TestLoader().getTestCaseNames(suite.Cases)
        self.waiting = [name for name in names if fnmatch.fnmatch(name, way.pattern) and fnmatch.fnmatch(name, pattern)]
        self.running: list[cases.Running] = []
        self.begin = time.time()

    def run(self) -> None:
        until = time.monotonic() + ANOTHER_LIMIT_S
        try:
            while self.waiting or self.running:
                if not multiprocessing.parent_process().is_alive():
                    sys.exit("error: the process that started this runner is gone")
                self.start()
                if self.running:
                    self.finish()
                    until = time.monotonic() + ANOTHER_LIMIT_S
                elif time.monotonic() > until:
                    sys.exit(f"error: another runner has held {self.waiting[0]} for {ANOTHER_LIMIT_S} s")
                elif self.waiting:
                    time.sleep(0.5)
        finally:
            # After an exception some cases may still run.
            for running in self.running:
                running.finish()

    def known(self, case: str) -> bool:
        result = self.results.read(case)
        if result is None or result.basis != self.basis:
            return False
        return not self.again or self.results.written(case) >= self.begin

    def start(self) -> None:
        """Starts cases that no other runner has claimed, until `jobs` cases run."""
        for case in list(self.waiting):
            if len(self.running) == self.jobs:
                return
            if not self.results.claim(case):
                continue
            self.waiting.remove(case)
            if self.known(case):
                self.results.release(case)
            else:
                folder = self.results.folder / f"{case}.run"
                self.running.append(cases.Running(self.suite, case, folder, self.limit_s))

    def finish(self) -> None:
        """Waits up to 0.5 s for cases to end or to be late, and stores their results."""
        poll = select.poll()
        for running in self.running:
            poll.register(running.ended, select.POLLIN)
        ended = {file for file, _ in poll.poll(500)}
        for running in [item for item in self.running if item.ended in ended or item.late]:
            self.running.remove(running)
            result = cases.result_of(self.suite, self.way.name, running)
            result.basis, result.mode = self.basis, "spawn" if ways.spawns() else "fork"
            self.results.write(result)
            self.results.release(running.case)
            self.print_result(result)

    def print_result(self, result: Result) -> None:
        if result.outcome != SKIPPED:
            print(f"{self.way.name}: {result.case} {result.outcome} ({result.seconds} s)"
                  f"{': ' + result.reason if result.reason else ''}", flush=True)
