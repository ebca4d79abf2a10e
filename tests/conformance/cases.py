"""Runs cases, each in a process of its own with a folder, a log and a session of its own, some at a time.

The process of a case is forked from this one, and its ranks from it. A fork is sound here, and it makes a case take a
second instead of twenty. The parent has only imported torch and its tests: it has one thread (checked before every
fork), no group, and has drawn no random number (torch's harness seeds every rank itself); `suite.Cases.setUp` sets the
variables that a spawned rank would read from the environment while importing. `--spawn` is torch's own way.

Nothing lives longer than its limit: the processes left in a case's session are killed when the case is over or late.
"""
from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unittest
from pathlib import Path

from conformance.results import FAILED, PASSED, SKIPPED, Result

LIMIT_S = 520
"""How long a case and its ranks may live. torch's own limit, which shows where the ranks hang, comes earlier: 500 s for
the longest test."""


class Running:
    """A case that has been started."""

    def __init__(self, suite, case: str, folder: Path, limit_s: float = LIMIT_S):
        threads = os.listdir("/proc/self/task")
        if len(threads) > 1:
            raise RuntimeError(f"{len(threads)} threads are in this process, so no case can be forked from it: "
                               "something has started one while torch's tests were imported. Use --spawn.")
        self.case, self.folder, self.limit_s = case, folder, limit_s
        self.begin = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        sys.stdout.flush()
        self.process = os.fork()
        if self.process == 0:
            live(suite, case, folder, limit_s)
        self.ended = os.pidfd_open(self.process)

    @property
    def late(self) -> bool:
        return time.monotonic() - self.begin > self.limit_s

    def finish(self) -> tuple[str, str]:
        """(outcome, text). Ends whatever is left of it."""
        late = not select.select([self.ended], [], [], 0)[0]
        for victim in (self.process, -self.process) if late else (-self.process,):
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.close(self.ended)
        _, status = os.waitpid(self.process, 0)
        told = self.folder / "outcome"
        if told.exists():
            outcome, _, text = told.read_text().partition("\n")
            return outcome, text
        how = f"it took longer than {self.limit_s} s" if late else f"its process ended with status {status}"
        return FAILED, f"ConformanceError: no outcome: {how}\n{self.log()[-4000:]}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def live(suite, case: str, folder: Path, limit_s: float) -> None:
    """The life of the process of a case; does not return."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)   # torch ends ranks with it
        signal.alarm(int(limit_s) + 30)                 # not even an orphan stays
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        temporary = folder / "temporary"
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        outcome, text = outcome_of(suite.Cases(case))
        new = folder / "outcome.new"
        new.write_text(f"{outcome}\n{text}")
        new.replace(folder / "outcome")
        shutil.rmtree(temporary, ignore_errors=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def outcome_of(test: unittest.TestCase) -> tuple[str, str]:
    told = unittest.TestResult()
    test.run(told)
    failures = told.failures + told.errors + [(success, "it passed, but a failure was expected")
                                              for success in told.unexpectedSuccesses]
    if failures:
        return FAILED, "\n".join(text for _, text in failures)
    if told.skipped:
        return SKIPPED, told.skipped[0][1]
    return PASSED, ""


def result_of(suite, way: str, running: Running) -> Result:
    outcome, text = running.finish()
    result = Result(running.case, way, outcome, seconds=round(time.monotonic() - running.begin, 1))
    if outcome == FAILED:
        result.detail = text
        result.reason, result.lines = what_failed(text)
    elif outcome == SKIPPED:
        told = re.search(r"skipping test \w+ for following reason: (.*)", running.log())
        result.reason = told[1] if "subprocess log" in text and told else text
        result.lines = [line for line, reason in suite.SKIP_LINES.get(running.case, []) if reason == text]
    return result


def what_failed(text: str) -> tuple[str, list[int]]:
    """The exception that ended the test on the first rank that told one, and the lines of torch's module that it came
    through."""
    _, *ranks = re.split(r"Process (\d+) exited with error code \d+ and exception:\n", text)
    told = (ranks[1] if ranks else text).rpartition("Traceback (most recent call last):\n")[2]
    raised = re.search(r"^((?:\w+\.)*[A-Z]\w*)(?:: (.*))?$", told, re.MULTILINE)
    reason = f"{raised[1]}: {raised[2]}" if raised else "nothing was told"
    frames = re.findall(r'File ".*distributed_test\.py", line (\d+)', told)
    return (f"rank {ranks[0]}: " if ranks else "") + reason, [int(line) for line in frames]
